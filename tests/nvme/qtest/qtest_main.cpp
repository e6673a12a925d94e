// The driver on controllers of QEMU. tests/nvme/qemu_test.py starts a machine for each test and names it in the
// environment: GPU4FS_QTEST_SOCKET, GPU4FS_QTEST_MEMORY, GPU4FS_QTEST_PID.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <thread>

#include "nvme/block_io.hpp"
#include "nvme/emulated_drive.hpp"
#include "nvme/qtest/qtest_machine.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::nvme::test {
namespace {

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr) throw std::runtime_error(std::string(name) + " is not set: run tests/nvme/qemu_test.py");
  return value;
}

ControllerOptions patient_options(u32 queues, u32 depth) {
  ControllerOptions options;
  options.queue_count = queues;
  options.queue_depth = depth;
  options.command_timeout_ns = options.admin_timeout_ns = options.ready_timeout_ns_max = patient_ns;
  return options;
}

class Qemu : public ::testing::Test {
 protected:
  Qemu() : machine_(environment("GPU4FS_QTEST_SOCKET"), environment("GPU4FS_QTEST_MEMORY")) {}

  static void walk(BlockIo& io, u64 length, u32 operations, u32 seed) {
    std::vector<std::thread> threads;
    for (u32 i = 0; i < 2; ++i) {
      threads.emplace_back([&io, length, operations, seed, i] {
        RandomOperations walk(io, i * length, length, seed + i);
        walk.run(operations);
        walk.check_all();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  QtestMachine machine_;
};

TEST_F(Qemu, RandomOperations) {
  QtestRegisters registers(machine_, 4);
  for (const u32 depth : {2u, 8u, 64u}) {
    Controller controller(registers, machine_, patient_options(2, depth));
    EXPECT_EQ(controller.info().model, "QEMU NVMe Ctrl");
    EXPECT_EQ(controller.info().serial, "first");
    EXPECT_EQ(controller.queue_count(), 2u);
    ControllerSession session(controller);
    BlockIo io(session, machine_, 1);
    EXPECT_EQ(io.info().block_bytes, 512u);
    walk(io, 1 << 20, gpu4fs::test::scaled(150), depth);
    EXPECT_EQ(session.reset_count(), 0u);
    EXPECT_EQ(failure_of(controller.state()), Failure::none);
  }
}

TEST_F(Qemu, TwoNamespacesAndTwoControllers) {
  QtestRegisters first_registers(machine_, 4);
  QtestRegisters second_registers(machine_, 5);
  Controller first(first_registers, machine_, patient_options(1, 32));
  Controller second(second_registers, machine_, patient_options(3, 32));
  EXPECT_EQ(second.info().serial, "second");
  ASSERT_EQ(first.namespaces().size(), 2u);
  EXPECT_EQ(first.namespaces()[0].id, 3u);
  EXPECT_EQ(first.namespaces()[1].id, 7u);
  EXPECT_EQ(first.namespaces()[1].block_bytes, 4096u);
  ControllerSession first_session(first);
  ControllerSession second_session(second);
  BlockIo ios[] = {{first_session, machine_, 3}, {first_session, machine_, 7}, {second_session, machine_, 1}};
  std::vector<std::thread> threads;
  for (u32 i = 0; i < 3; ++i) threads.emplace_back([&ios, i] { walk(ios[i], 1 << 20, 80, i); });
  for (std::thread& thread : threads) thread.join();
}

// The driver's limit of a transfer is the controller's: QEMU refuses longer ones.
TEST_F(Qemu, SmallTransfers) {
  QtestRegisters registers(machine_, 4);
  Controller controller(registers, machine_, patient_options(1, 16));
  EXPECT_EQ(controller.info().transfer_bytes_max, 8192u);
  ControllerSession session(controller);
  BlockIo io(session, machine_, 1);
  walk(io, 1 << 20, 60, 1);
}

TEST_F(Qemu, DataSurvivesAReset) {
  QtestRegisters registers(machine_, 4);
  Controller controller(registers, machine_, patient_options(2, 16));
  ControllerSession session(controller);
  BlockIo io(session, machine_, 1);
  RandomOperations walk(io, 0, 1 << 20, 9);
  for (u32 round = 0; round < 3; ++round) {
    walk.run(40);
    controller.quiesce();
    controller.restart();
    walk.check_all();
  }
}

TEST_F(Qemu, AMediumErrorIsAnAnswer) {
  QtestRegisters registers(machine_, 4);
  Controller controller(registers, machine_, patient_options(1, 16));
  ControllerSession session(controller);
  BlockIo io(session, machine_, 1);
  std::vector<u8> bytes(4096);
  EXPECT_EQ(io.read(0, bytes), Status::ok);
  // The block of the injected error (qemu_test.py).
  EXPECT_EQ(io.read(1 << 20, bytes), Status::medium_error);
  EXPECT_EQ(io.read(0, bytes), Status::ok);
}

// QEMU looks at the queue's number, and then says that there is no such command. Another number of a queue would be in
// its trace of errors.
TEST_F(Qemu, AbortsAreAnswered) {
  QtestRegisters registers(machine_, 4);
  Controller controller(registers, machine_, patient_options(1, 16));
  EXPECT_FALSE(controller.abort(1, 0x1234));
  EXPECT_EQ(failure_of(controller.state()), Failure::none);
  ControllerSession session(controller);
  BlockIo io(session, machine_, 1);
  walk(io, 1 << 20, 10, 1);
  EXPECT_EQ(session.abort_count(), 0u);
}

TEST_F(Qemu, WithoutQemuTheDriveIsLost) {
  QtestRegisters registers(machine_, 4);
  ControllerOptions options = patient_options(1, 16);
  options.command_timeout_ns = 1000000000;
  Controller controller(registers, machine_, options);
  ControllerSession session(controller);
  BlockIo io(session, machine_, 1);
  std::vector<u8> bytes(4096);
  EXPECT_EQ(io.write(0, bytes), Status::ok);
  ASSERT_EQ(::kill(static_cast<pid_t>(std::stol(environment("GPU4FS_QTEST_PID"))), SIGKILL), 0);
  EXPECT_EQ(io.write(0, bytes), Status::device_failed);
  EXPECT_NE(session.lost_because(), Failure::none);
}

}  // namespace
}  // namespace gpu4fs::nvme::test
