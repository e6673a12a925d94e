// The driver on a drive behind VFIO, and what the kernel's driver finds on the same drive. tests/nvme/vfio_test.py runs
// this in a guest, which names the drive in GPU4FS_VFIO_ADDRESS, and the block devices that the kernel makes of its
// namespaces in GPU4FS_KERNEL_DEVICES.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "nvme/block_io.hpp"
#include "nvme/emulated_drive.hpp"
#include "nvme/vfio/vfio_drive.hpp"

namespace gpu4fs::nvme::test {
namespace {

constexpr u64 memory_bytes = 16 << 20;
// The part of each namespace that the kernel and VFIO both write; random operations come behind it.
constexpr u64 pattern_bytes = 4 << 20;
constexpr u64 zeroes_offset = 1 << 20;
constexpr u64 deallocated_offset = 2 << 20;
constexpr u64 hole_bytes = 256 << 10;

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr) throw std::runtime_error(std::string(name) + " is not set: run tests/nvme/vfio_test.py");
  return value;
}

enum class Writer : u32 { kernel = 1, vfio = 2 };

// Each word says who wrote it, in which namespace and where.
std::vector<u8> pattern_of(Writer writer, u32 namespace_index) {
  std::vector<u8> bytes(pattern_bytes);
  for (u64 offset = 0; offset < pattern_bytes; offset += sizeof(u64)) {
    const u64 word = offset | u64{namespace_index + 1} << 40 | u64{static_cast<u32>(writer)} << 56;
    std::memcpy(bytes.data() + offset, &word, sizeof(word));
  }
  return bytes;
}

struct OpenedDrive {
  explicit OpenedDrive(u32 depth = 64)
      : drive(environment("GPU4FS_VFIO_ADDRESS"), memory_bytes),
        controller(drive.registers(), drive.memory(), options(depth)),
        session(controller) {
    for (const NamespaceInfo& info : controller.namespaces()) {
      ios.push_back(std::make_unique<BlockIo>(session, drive.memory(), info.id));
    }
  }

  static ControllerOptions options(u32 depth) {
    ControllerOptions options;
    options.queue_count = 2;
    options.queue_depth = depth;
    options.command_timeout_ns = options.admin_timeout_ns = options.ready_timeout_ns_max = patient_ns;
    return options;
  }

  // In all namespaces at the same time, by two threads in each.
  void walk(u32 operations, u32 seed) {
    constexpr u64 length = 1 << 20;
    std::vector<std::thread> threads;
    for (u32 i = 0; i < 2 * ios.size(); ++i) {
      threads.emplace_back([this, operations, seed, i] {
        RandomOperations walk(*ios[i / 2], pattern_bytes + i % 2 * length, length, seed + i);
        walk.run(operations);
        walk.check_all();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  VfioDrive drive;
  Controller controller;
  ControllerSession session;
  std::vector<std::unique_ptr<BlockIo>> ios;
};

TEST(Vfio, NotTaken) {
  try {
    VfioDrive drive(environment("GPU4FS_VFIO_ADDRESS"), memory_bytes);
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("gpu4fs nvme take"), std::string::npos) << error.what();
  }
}

TEST(Vfio, LockedMemoryIsLimited) {
  const rlimit limit{1 << 20, 1 << 20};
  ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &limit), 0);
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  ASSERT_EQ(::syscall(SYS_capget, &header, data), 0);
  data[CAP_IPC_LOCK / 32].effective &= ~(1u << CAP_IPC_LOCK % 32);
  ASSERT_EQ(::syscall(SYS_capset, &header, data), 0);
  const std::string address = environment("GPU4FS_VFIO_ADDRESS");
  try {
    VfioDrive drive(address, memory_bytes);
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("ulimit -l"), std::string::npos) << error.what();
  }
  // The kernel has the same opinion.
  EXPECT_NO_THROW(VfioDrive(address, 512 << 10));
}

TEST(Vfio, BringUpAndEnd) {
  VfioDrive drive(environment("GPU4FS_VFIO_ADDRESS"), memory_bytes);
  EXPECT_FALSE(drive.registers().is_dma_allowed());
  {
    Controller controller(drive.registers(), drive.memory(), OpenedDrive::options(64));
    EXPECT_TRUE(drive.registers().is_dma_allowed());
    EXPECT_EQ(controller.info().serial, "pair");
    EXPECT_EQ(controller.queue_count(), 2u);
    ASSERT_EQ(controller.namespaces().size(), 2u);
    EXPECT_EQ(controller.namespaces()[0].id, 1u);
    EXPECT_EQ(controller.namespaces()[0].block_bytes, 512u);
    EXPECT_EQ(controller.namespaces()[1].id, 3u);
    EXPECT_EQ(controller.namespaces()[1].block_bytes, 4096u);
  }
  EXPECT_EQ(drive.registers().read_32(static_cast<u32>(Register::cc)) & cc_enable, 0u);
  EXPECT_EQ(drive.registers().read_32(static_cast<u32>(Register::csts)) & csts_ready, 0u);
  EXPECT_FALSE(drive.registers().is_dma_allowed());

  const DmaBlock block = drive.memory().allocate(1);
  EXPECT_EQ(block.bytes, 4096u);
  EXPECT_EQ(block.bus_address % 4096, 0u);
  EXPECT_THROW(drive.memory().allocate(memory_bytes), std::runtime_error);
  EXPECT_THROW(drive.memory().allocate(~u64{0}), std::runtime_error);
  EXPECT_THROW(drive.registers().doorbell(0x10000000), ControllerError);
}

TEST(Vfio, RandomOperations) {
  for (const u32 depth : {2u, 64u}) {
    OpenedDrive opened(depth);
    opened.walk(100, depth);
    EXPECT_EQ(opened.session.reset_count(), 0u);
    EXPECT_EQ(failure_of(opened.controller.state()), Failure::none);
  }
}

TEST(Vfio, DataSurvivesAReset) {
  OpenedDrive opened;
  RandomOperations walk(*opened.ios[1], pattern_bytes, 1 << 20, 9);
  for (u32 round = 0; round < 3; ++round) {
    walk.run(20);
    opened.controller.quiesce();
    EXPECT_FALSE(opened.drive.registers().is_dma_allowed());
    opened.controller.restart();
    walk.check_all();
  }
}

// Pieces of all lengths, so that all queues and all kinds of data pointers are used.
TEST(Vfio, Writes) {
  OpenedDrive opened;
  for (u32 i = 0; i < opened.ios.size(); ++i) {
    const std::vector<u8> pattern = pattern_of(Writer::vfio, i);
    u64 length = 4096;
    for (u64 offset = 0; offset < pattern_bytes; offset += length) {
      length = std::min(offset == 0 ? 4096 : offset % (1 << 20) + 4096, pattern_bytes - offset);
      EXPECT_EQ(opened.ios[i]->write(offset, std::span(pattern).subspan(offset, length)), Status::ok);
    }
    EXPECT_EQ(opened.ios[i]->write_zeroes(zeroes_offset, hole_bytes, false), Status::ok);
    const BlockIo::Range hole[] = {{deallocated_offset, hole_bytes}};
    EXPECT_EQ(opened.ios[i]->deallocate(hole), Status::ok);
    EXPECT_TRUE(opened.ios[i]->info().deallocated_reads_zero);
    EXPECT_EQ(opened.ios[i]->flush(), Status::ok);
  }
}

TEST(Vfio, ReadsWhatTheKernelWrote) {
  OpenedDrive opened;
  for (u32 i = 0; i < opened.ios.size(); ++i) {
    std::vector<u8> found(pattern_bytes);
    EXPECT_EQ(opened.ios[i]->read(0, found), Status::ok);
    EXPECT_TRUE(found == pattern_of(Writer::kernel, i)) << "namespace " << i;
  }
}

// Until there is /tmp/release.
TEST(Vfio, Holds) {
  OpenedDrive opened;
  std::ofstream("/tmp/held") << "held";
  for (u32 i = 0; i < 1000 && !std::filesystem::exists("/tmp/release"); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  opened.walk(10, 1);
}

TEST(Vfio, IsInUse) {
  try {
    VfioDrive drive(environment("GPU4FS_VFIO_ADDRESS"), memory_bytes);
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("is in use: process"), std::string::npos) << error.what();
  }
}

TEST(Vfio, DiesWhileItWrites) {
  OpenedDrive opened;
  std::vector<u8> bytes(1 << 20, 0x5a);
  std::thread([&] {
    for (;;) EXPECT_EQ(opened.ios[0]->write(pattern_bytes, bytes), Status::ok);
  }).detach();
  EXPECT_EQ(opened.ios[1]->write(pattern_bytes, bytes), Status::ok);
  ::kill(::getpid(), SIGKILL);
}

std::vector<std::string> kernel_devices() {
  std::istringstream words(environment("GPU4FS_KERNEL_DEVICES"));
  return {std::istream_iterator<std::string>(words), {}};
}

TEST(Kernel, Writes) {
  const std::vector<std::string> devices = kernel_devices();
  ASSERT_EQ(devices.size(), 2u);
  for (u32 i = 0; i < devices.size(); ++i) {
    const std::vector<u8> pattern = pattern_of(Writer::kernel, i);
    const int file = ::open(devices[i].c_str(), O_WRONLY | O_CLOEXEC);
    ASSERT_GE(file, 0) << devices[i];
    EXPECT_EQ(::pwrite(file, pattern.data(), pattern.size(), 0), static_cast<ssize_t>(pattern.size()));
    EXPECT_EQ(::fsync(file), 0);
    ::close(file);
  }
}

TEST(Kernel, ReadsWhatVfioWrote) {
  const std::vector<std::string> devices = kernel_devices();
  ASSERT_EQ(devices.size(), 2u);
  for (u32 i = 0; i < devices.size(); ++i) {
    std::vector<u8> expected = pattern_of(Writer::vfio, i);
    for (const u64 hole : {zeroes_offset, deallocated_offset}) {
      std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(hole), hole_bytes, u8{0});
    }
    const int file = ::open(devices[i].c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_GE(file, 0) << devices[i];
    std::vector<u8> found(pattern_bytes);
    EXPECT_EQ(::pread(file, found.data(), found.size(), 0), static_cast<ssize_t>(found.size()));
    EXPECT_TRUE(found == expected) << devices[i];
    ::close(file);
  }
}

}  // namespace
}  // namespace gpu4fs::nvme::test
