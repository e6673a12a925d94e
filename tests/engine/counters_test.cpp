// Each worker counts events on its own, and readers see the sums.
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "base/emulated_warp.hpp"
#include "base/group.hpp"
#include "engine/engine_fixture.hpp"
#include "engine/worker.hpp"
#include "support/warp_worker.hpp"

namespace gpu4fs::test {
namespace {

using wire::Opcode;

wire::Command set_byte(u64 offset) {
  wire::Command command = make_command(Opcode::memset);
  command.data = wire::ring_address(0, offset);
  command.length = 1;
  return command;
}

constexpr u64 beyond_the_data = u64{1} << 40;

// Waits without working for the engine.
ring::Completion await(Client& client, u64 position) {
  ring::Completion completion{Status::engine_died, 0};
  while (!client.producer().poll(position, &completion)) std::this_thread::yield();
  return completion;
}

ring::Completion work_and_wait(Client& client, u64 position) {
  return client.wait(position);
}

// What the commands of one call of play() count.
constexpr u64 played_completed = 7;
constexpr u64 played_failed = 4;
constexpr u64 played_rejected = 1;

// Commands that are answered at once, that get a slot, that fail, that are cancelled and that are refused.
template <class Wait>
void play(Client& client, Wait wait) {
  const auto call = [&](const wire::Command& command) { return wait(client, client.publish(command)).status; };
  EXPECT_EQ(call(make_command(Opcode::noop)), Status::ok);
  EXPECT_EQ(call(set_byte(0)), Status::ok);
  EXPECT_EQ(call(set_byte(beyond_the_data)), Status::bad_address);
  wire::Command failing = set_byte(beyond_the_data);
  failing.flags = wire::command_flag_link;
  wire::Command linked = set_byte(1);
  linked.flags = wire::command_flag_link;
  client.publish(failing);
  client.publish(linked);
  EXPECT_EQ(call(set_byte(2)), Status::cancelled);
  wire::Command malformed = make_command(Opcode::noop);
  malformed.flags = 0x8000;
  EXPECT_EQ(call(malformed), Status::bad_descriptor);
  EXPECT_EQ(call(make_command(Opcode::noop)), Status::ok);
}

void expect_counts(const engine::WorkerCounters& counted, u64 plays) {
  EXPECT_EQ(counted.commands_completed, plays * played_completed);
  EXPECT_EQ(counted.commands_failed, plays * played_failed);
  EXPECT_EQ(counted.descriptors_rejected, plays * played_rejected);
  EXPECT_EQ(counted.commands_optimistic, 0u);
}

TEST(Counters, AWorkerChangesNoCountOfOthers) {
  constexpr u32 worker_count = 3;
  EngineFixture fixture({.worker_count = worker_count, .command_count = 64, .config = {}, .start = false});
  Client client(fixture.host());
  const engine::WorkerMemory* memory = fixture.engine().worker_memory;
  for (u32 i = 0; i < worker_count; ++i) {
    engine::WorkerState worker = engine::WorkerState::make(i);
    const u64 position = client.publish(set_byte(i));
    ring::Completion completion{};
    while (!client.producer().poll(position, &completion)) engine::worker_step(Lane{}, fixture.engine(), worker);
    for (u32 other = 0; other < engine::worker_memory_count(fixture.engine().config); ++other) {
      EXPECT_EQ(memory[other].counters.commands_started, other <= i ? 1u : 0u) << "worker " << other;
      EXPECT_EQ(memory[other].counters.commands_completed, other <= i ? 1u : 0u) << "worker " << other;
    }
  }
  play(client, work_and_wait);
  expect_counts(memory[worker_count + client.session()].counters, 1);
  const engine::EngineCounters sums = fixture.host().counters();
  EXPECT_EQ(sums.commands_started, worker_count + played_completed);
  EXPECT_EQ(sums.commands_completed, worker_count + played_completed);
}

TEST(Counters, WorkersAndWaitingThreadsAddUp) {
  constexpr u32 client_count = 4;
  constexpr u32 rounds = 500;
  EngineFixture fixture;
  std::vector<std::thread> threads;
  for (u32 t = 0; t < client_count; ++t) {
    threads.emplace_back([&, t] {
      Client client(fixture.host());
      for (u32 round = 0; round < rounds; ++round) {
        if (t % 2 == 0) {
          play(client, work_and_wait);
          continue;
        }
        play(client, [](Client& waiting, u64 position) {
          waiting.doorbell();
          return await(waiting, position);
        });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  fixture.host().stop();
  const engine::EngineCounters sums = fixture.host().counters();
  expect_counts(sums, client_count * rounds);
  EXPECT_EQ(sums.commands_started, sums.commands_completed);
}

// Threads of clients execute everything, and others take over their sessions' entries. If two threads wrote one entry
// at a time, counts would get lost.
TEST(Counters, SessionsOpenedAgainAndAgainLoseNoCount) {
  constexpr u32 client_count = 4;
  constexpr u32 rounds = 500;
  constexpr u32 plays = 5;
  EngineFixture fixture({.worker_count = 1, .command_count = 64, .config = {}, .start = false});
  std::vector<std::thread> threads;
  for (u32 t = 0; t < client_count; ++t) {
    threads.emplace_back([&] {
      for (u32 round = 0; round < rounds; ++round) {
        Client client(fixture.host());
        for (u32 i = 0; i < plays; ++i) play(client, work_and_wait);
      }
    });
  }
  u64 completed_before = 0;
  for (u32 i = 0; i < 1000; ++i) {
    const u64 completed = fixture.host().counters().commands_completed;
    EXPECT_GE(completed, completed_before) << "a sum became smaller";
    completed_before = completed;
  }
  for (std::thread& thread : threads) thread.join();
  const engine::EngineCounters sums = fixture.host().counters();
  expect_counts(sums, u64{client_count} * rounds * plays);
  EXPECT_EQ(sums.commands_started, sums.commands_completed);
  expect_counts(fixture.engine().worker_memory[0].counters, 0);
}

// Warps as they serve in kernels, which keep tokens and slots, and warps that do not.
class WarpCounters : public testing::TestWithParam<bool> {};

TEST_P(WarpCounters, AddUp) {
  constexpr u32 warp_count = 3;
  constexpr u32 client_count = 3;
  constexpr u32 rounds = 10;
  const bool as_in_kernels = GetParam();
  EngineOptions options{.worker_count = warp_count, .command_count = 64, .config = {}, .start = false};
  options.config.caches_slots = as_in_kernels ? 1 : 0;
  EngineFixture fixture(options);
  std::vector<std::unique_ptr<Client>> clients;
  for (u32 t = 0; t < client_count; ++t) clients.push_back(std::make_unique<Client>(fixture.host()));
  u32 stopping = 0;
  std::thread warps([&] {
    run_emulated_warps(warp_count, [&](EmulatedWarp g, u32 warp) {
      engine::WorkerState worker = engine::WorkerState::make(warp);
      worker.keeps_token = as_in_kernels ? 1 : 0;
      while (!on_leader(g, [&] { return load<Order::acquire, Scope::engine>(&stopping) != 0; })) {
        engine::kernel_step(g, fixture.engine(), worker);
      }
      engine::worker_release(g, fixture.engine(), worker);
    });
  });
  std::vector<std::thread> threads;
  for (const std::unique_ptr<Client>& client : clients) {
    threads.emplace_back([&client] {
      for (u32 round = 0; round < rounds; ++round) play(*client, await);
    });
  }
  for (std::thread& thread : threads) thread.join();
  store<Order::release, Scope::engine>(&stopping, 1u);
  warps.join();
  const engine::EngineCounters sums = fixture.host().counters();
  expect_counts(sums, client_count * rounds);
  // A worker that keeps slots gives one to a malformed command as well, which counts as started then.
  EXPECT_GE(sums.commands_started, sums.commands_completed);
  EXPECT_LE(sums.commands_started, sums.commands_completed + (as_in_kernels ? sums.descriptors_rejected : 0));
}

INSTANTIATE_TEST_SUITE_P(Tokens, WarpCounters, testing::Bool());

}  // namespace
}  // namespace gpu4fs::test
