// memset, memcopy and noop through rings, workers and tasks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

#include "base/emulated_warp.hpp"
#include "base/group.hpp"
#include "engine/engine_fixture.hpp"
#include "support/warp_worker.hpp"

namespace gpu4fs::test {
namespace {

using wire::Opcode;

wire::Command memset_command(u64 offset, u64 length, u8 value) {
  wire::Command command = make_command(Opcode::memset);
  command.data = wire::ring_address(0, offset);
  command.length = length;
  command.mode = value;
  return command;
}

wire::Command memcopy_command(u64 from, u64 to, u64 length) {
  wire::Command command = make_command(Opcode::memcopy);
  command.data = wire::ring_address(0, from);
  command.output = wire::ring_address(0, to);
  command.length = length;
  return command;
}

TEST(Probe, NoopCompletes) {
  EngineFixture fixture;
  Client client(fixture.host());
  for (u32 i = 0; i < 1000; ++i) {
    const ring::Completion completion = client.call(make_command(Opcode::noop));
    ASSERT_EQ(completion.status, Status::ok);
    ASSERT_EQ(completion.result, 0u);
  }
  EXPECT_EQ(fixture.host().counters().commands_completed, 1000u);
}

TEST(Probe, ManyInFlightFromManySessions) {
  EngineFixture fixture;
  std::vector<std::thread> threads;
  for (u32 t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      Client client(fixture.host());
      for (u32 round = 0; round < 200; ++round) {
        std::vector<u64> positions;
        for (u32 i = 0; i < 20; ++i) positions.push_back(client.publish(make_command(Opcode::noop)));
        client.doorbell();
        for (const u64 position : positions) ASSERT_EQ(client.wait(position).status, Status::ok);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(fixture.host().counters().commands_completed, 4u * 200 * 20);
}

// More clients with more commands in flight than there are command slots: commands without a slot stay in their ring.
TEST(Probe, FewerSlotsThanCommands) {
  EngineFixture fixture({.worker_count = 2, .command_count = 20, .config = {}, .start = true});
  std::vector<std::thread> threads;
  for (u32 t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      Client client(fixture.host());
      for (u32 round = 0; round < 100; ++round) {
        std::vector<u64> positions;
        for (u32 i = 0; i < 32; ++i) positions.push_back(client.publish(make_command(Opcode::noop)));
        client.doorbell();
        for (const u64 position : positions) ASSERT_EQ(client.wait(position).status, Status::ok);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(fixture.engine().free_commands.count, 19u);
}

TEST(Probe, TransfersOfAllSizesTouchExactlyTheirBytes) {
  EngineOptions options{};
  options.config.inline_transfer_pages = 2;
  options.config.task_pages = 1;
  EngineFixture fixture(options);
  constexpr u64 half = 1 << 19;
  Client client(fixture.host());
  std::vector<u8> expected(2 * half, 0x11);
  std::memset(client.data(), 0x11, 2 * half);
  std::mt19937_64 random(7);
  for (u32 round = 0; round < 200; ++round) {
    const u64 length = round % 3 == 0 ? random() % 64 : random() % (half / 2);
    const u64 from = random() % (half - length);
    const u64 to = half + random() % (half - length);
    const u8 value = static_cast<u8>(random());
    ASSERT_EQ(client.call(memset_command(from, length, value)).result, length);
    std::memset(expected.data() + from, value, length);
    const ring::Completion copied = client.call(memcopy_command(from, to, length));
    ASSERT_EQ(copied.status, Status::ok);
    ASSERT_EQ(copied.result, length);
    std::memcpy(expected.data() + to, expected.data() + from, length);
    ASSERT_EQ(std::memcmp(client.data(), expected.data(), expected.size()), 0) << "round " << round;
  }
}

TEST(Probe, LargeTransfersOfSeveralSessionsRunSideBySide) {
  EngineOptions options{};
  options.worker_count = 3;
  options.config.inline_transfer_pages = 1;
  options.config.task_pages = 1;
  EngineFixture fixture(options);
  std::vector<std::thread> threads;
  for (u32 t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      Client client(fixture.host(),
                    ClientOptions{.depth_log2 = 4, .data_length = 4 << 20, .trusted = true, .internal = false});
      for (u32 round = 0; round < 20; ++round) {
        const u8 value = static_cast<u8>(t * 64 + round);
        const u64 set = client.publish(memset_command(0, 2 << 20, value));
        ASSERT_EQ(client.wait(set).status, Status::ok);
        const u64 copy = client.publish(memcopy_command(0, 2 << 20, 2 << 20));
        ASSERT_EQ(client.wait(copy).status, Status::ok);
        for (u64 i = 0; i < (4 << 20); i += 4095) ASSERT_EQ(client.data()[i], value);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(fixture.engine().commands_active, 0u);
}

TEST(Probe, AddressesOutsideTheSessionAreRefused) {
  EngineFixture fixture;
  Client client(fixture.host());
  const u64 size = 1 << 20;
  EXPECT_EQ(client.call(memset_command(size - 10, 11, 0)).status, Status::bad_address);
  EXPECT_EQ(client.call(memset_command(size + 1, 0, 0)).status, Status::bad_address);
  EXPECT_EQ(client.call(memset_command(0, ~u64{0}, 0)).status, Status::bad_address);
  EXPECT_EQ(client.call(memset_command((u64{1} << 56) - 1, 2, 0)).status, Status::bad_address);
  EXPECT_EQ(client.call(memset_command(size - 10, 10, 0)).status, Status::ok);
  EXPECT_EQ(client.call(memcopy_command(0, 100, 101)).status, Status::invalid_argument);
  EXPECT_EQ(client.call(memcopy_command(0, 100, 100)).status, Status::ok);
  wire::Command command = memset_command(0, 1, 0);
  command.data = wire::ring_address(1, 0);
  EXPECT_EQ(client.call(command).status, Status::bad_address) << "a buffer that was not registered";
  command.data = wire::ring_address(255, 0);
  EXPECT_EQ(client.call(command).status, Status::bad_address);
}

TEST(Probe, RegisteredRegionIsReached) {
  EngineFixture fixture;
  Client client(fixture.host());
  std::vector<u8> other(100, 0);
  ASSERT_EQ(fixture.host().add_buffer(client.session(), 3, other.data(), other.size()), Status::ok);
  wire::Command command = memset_command(0, 100, 9);
  command.data = wire::ring_address(3, 0);
  EXPECT_EQ(client.call(command).status, Status::ok);
  EXPECT_EQ(other, std::vector<u8>(100, 9));
  command.length = 101;
  EXPECT_EQ(client.call(command).status, Status::bad_address);
  fixture.host().remove_buffer(client.session(), 3);
  command.length = 1;
  EXPECT_EQ(client.call(command).status, Status::bad_address);
}

// The same worker code on 32 lanes, without any other worker.
TEST(Probe, EmulatedWarpIsAWorker) {
  EngineOptions options{};
  options.start = false;
  options.worker_count = 1;
  options.config.inline_transfer_pages = 1;
  options.config.task_pages = 1;
  EngineFixture fixture(options);
  Client client(fixture.host());
  std::vector<u64> positions;
  positions.push_back(client.publish(make_command(Opcode::noop)));
  positions.push_back(client.publish(memset_command(0, 3 * 4096 + 5, 0x5a)));
  wire::Command linked = memset_command(5 * 4096, 17, 0x77);
  linked.flags = wire::command_flag_link;
  positions.push_back(client.publish(linked));
  positions.push_back(client.publish(make_command(Opcode::noop)));
  wire::Command bad = make_command(Opcode::noop);
  bad.flags = 0x8000;
  positions.push_back(client.publish(bad));
  positions.push_back(client.publish(make_command(Opcode::noop)));
  for (const u32 keeps_token : {0u, 1u}) {
    run_emulated_warp([&](EmulatedWarp g) {
      engine::WorkerState worker = engine::WorkerState::make(0);
      worker.keeps_token = keeps_token;
      for (u32 i = 0; i < 20; ++i) engine::worker_step(g, fixture.engine(), worker);
      engine::worker_release(g, fixture.engine(), worker);
    });
  }
  const Status expected[] = {Status::ok, Status::ok, Status::ok, Status::ok, Status::bad_descriptor, Status::ok};
  for (u32 i = 0; i < 6; ++i) {
    ring::Completion completion{};
    ASSERT_TRUE(client.producer().poll(positions[i], &completion)) << i;
    EXPECT_EQ(completion.status, expected[i]) << i;
  }
  EXPECT_EQ(client.data()[3 * 4096 + 4], 0x5a);
  EXPECT_EQ(client.data()[3 * 4096 + 5], 0);
  EXPECT_EQ(client.data()[5 * 4096 + 16], 0x77);
}

// Waits without working for the engine.
ring::Completion await(Client& client, u64 position) {
  ring::Completion completion{};
  while (!client.producer().poll(position, &completion)) std::this_thread::yield();
  return completion;
}

// For service loops that the test runs itself; a task is a page.
EngineOptions two_workers() {
  EngineOptions options{};
  options.start = false;
  options.worker_count = 2;
  options.config.inline_transfer_pages = 1;
  options.config.task_pages = 1;
  return options;
}

engine::ServiceLimits limits_of_kernel(u64 idle_exit_ns) {
  engine::ServiceLimits limits{};
  limits.idle_exit_ns = idle_exit_ns;
  limits.time_slice_ns = u64{60} * 1000000000;
  limits.poller_count = 1;
  limits.sleep_max_ns = 1000;
  return limits;
}

// Two warps of a service kernel, one of them polling: they work, leave when idle, and continue where they left.
TEST(Probe, ServiceLoopLeavesWhenIdleAndGoesOn) {
  EngineFixture fixture(two_workers());
  Client client(fixture.host());
  const engine::ServiceLimits limits = limits_of_kernel(20000000);
  for (u32 launch = 0; launch < 3; ++launch) {
    store<Order::relaxed, Scope::system>(&fixture.engine().service.exit_requested, 0u);
    std::thread kernel([&] {
      run_emulated_warps(2, [&](EmulatedWarp g, u32 index) {
        engine::service_loop(g, fixture.engine(), index, limits, &fixture.engine().worker_memory[index].views);
      });
    });
    const u64 length = 5 * 4096 + launch;
    const u64 position = client.publish(memset_command(0, length, static_cast<u8>(launch + 1)));
    EXPECT_EQ(await(client, position).result, length);
    EXPECT_EQ(client.data()[length - 1], launch + 1);
    kernel.join();
    EXPECT_EQ(fixture.engine().service.exit_reason, static_cast<u32>(engine::ServiceExit::idle));
    EXPECT_EQ(fixture.engine().sessions[client.session()].poll_word & 1, 0u);
  }
}

// Workers that have to leave do not stay for the tasks of a large command: each kernel does some, the last one the
// rest.
TEST(Probe, ServiceLoopLeavesBetweenTasks) {
  EngineFixture fixture(two_workers());
  Client client(fixture.host());
  const engine::ServiceLimits limits = limits_of_kernel(u64{60} * 1000000000);
  constexpr u64 length = 12 * 4096 + 5;
  const u64 position = client.publish(memset_command(0, length, 0x6b));
  ring::Completion completion{};
  u32 launches = 0;
  for (; launches < 100 && !client.producer().poll(position, &completion); ++launches) {
    store<Order::relaxed, Scope::system>(&fixture.engine().service.exit_requested, 1u);
    run_emulated_warps(2, [&](EmulatedWarp g, u32 index) {
      engine::service_loop(g, fixture.engine(), index, limits, &fixture.engine().worker_memory[index].views);
    });
  }
  // Thirteen tasks, at least one for each kernel, except for kernels whose workers leave before they have seen the
  // ring.
  EXPECT_GE(launches, 2u);
  EXPECT_LE(launches, 26u);
  EXPECT_EQ(completion.status, Status::ok);
  EXPECT_EQ(completion.result, length);
  EXPECT_EQ(std::count(client.data(), client.data() + length, 0x6b), static_cast<std::ptrdiff_t>(length));
  EXPECT_EQ(client.data()[length], 0);
}

}  // namespace
}  // namespace gpu4fs::test
