// After the loss of everything in memory, the pool has a prefix of history that includes every acknowledged fsync,
// however many clients work while checkpoints interrupt their operations.
//
// Each action takes a stamp before it is submitted and one after it completed, from one counter. If an action survived,
// everything that had completed before it was submitted must have survived too.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "support/file_client.hpp"
#include "support/group_runner.hpp"
#include "support/test_pool.hpp"
#include "support/test_scale.hpp"

#include "fmt/format.h"

namespace gpu4fs::test::power_loss_test {
namespace {

constexpr u64 record_bytes = 512;  // so most pages are written several times

struct Action {
  u64 begin = 0;
  u64 end = 0;
  bool is_name = false;  // a name in the shared directory, otherwise a record in the client's file
  u64 index = 0;         // among its kind
};

struct Client {
  u64 file = 0;
  std::vector<Action> actions;
  u64 synced = 0;  // actions completed before the last acknowledged fsync began
  u64 records = 0;
  u64 names = 0;
};

std::string name_of(u32 client, u64 index) {
  return fmt::format("{}_{}", client, index);
}

std::vector<u8> record_of(u32 client, u64 index) {
  std::vector<u8> bytes(record_bytes);
  fill_random(bytes.data(), bytes.size(), (u64{client} << 32) + index + 1);
  return bytes;
}

struct World {
  u64 directory = 0;
  std::atomic<u64> clock{1};
  std::atomic<u64> failures{0};
};

void act(FileClient& client, World& world, Client& state, u32 index, u64 choice) {
  Action action;
  FileOperation op;
  std::vector<u8> bytes;
  action.is_name = choice % 3 == 0;
  if (action.is_name) {
    action.index = state.names++;
    op.opcode = wire::Opcode::create;
    op.inode = world.directory;
    op.name = name_of(index, action.index);
    op.mask = 0200;
  } else {
    action.index = state.records++;
    op.opcode = wire::Opcode::write;
    op.inode = state.file;
    op.append = true;
    op.length = record_bytes;
    bytes = record_of(index, action.index);
  }
  action.begin = world.clock.fetch_add(1);
  if (client.call(op, bytes).status != Status::ok) world.failures.fetch_add(1);
  action.end = world.clock.fetch_add(1);
  state.actions.push_back(action);
}

void work(TestPool& pool, World& world, Client& state, u32 index, u32 steps, u64 seed) {
  const auto session = pool.open_session();
  FileClient client(*session);
  Sequence random(seed * 100 + index);
  for (u32 i = 0; i < steps; ++i) {
    act(client, world, state, index, random.next());
    if (random.next() % 25 != 0) continue;
    const u64 done = state.actions.size();
    if (client.simple(wire::Opcode::fsync, state.file).status != Status::ok) world.failures.fetch_add(1);
    state.synced = done;
  }
}

// Which actions of a client are present after mounting.
std::vector<bool> survivors(FileClient& client, const Client& state, u32 index,
                            const std::map<std::string, ListedName>& names) {
  std::vector<u8> content;
  for (u64 offset = 0;;) {
    const client::Reply reply = client.simple(wire::Opcode::read, state.file, offset, u64{1} << 20);
    EXPECT_EQ(reply.status, Status::ok);
    if (reply.status != Status::ok || reply.result == 0) break;
    content.insert(content.end(), client.data(), client.data() + reply.result);
    offset += reply.result;
  }
  EXPECT_EQ(content.size() % record_bytes, 0u) << "a part of a record";
  const u64 record_count = content.size() / record_bytes;
  std::vector<bool> alive;
  for (const Action& action : state.actions) {
    bool there = false;
    if (action.is_name) {
      there = names.count(name_of(index, action.index)) != 0;
    } else if (action.index < record_count) {
      there = true;
      const std::vector<u8> expected = record_of(index, action.index);
      EXPECT_EQ(std::memcmp(content.data() + action.index * record_bytes, expected.data(), record_bytes), 0)
          << "record " << action.index << " of client " << index;
    }
    alive.push_back(there);
  }
  EXPECT_LE(record_count, state.records);
  return alive;
}

// Returns how many actions were lost.
u64 expect_prefix(const std::vector<Client>& clients, const std::vector<std::vector<bool>>& alive) {
  u64 lost = 0;
  u64 last_begin = 0;
  for (std::size_t c = 0; c < clients.size(); ++c) {
    for (std::size_t i = 0; i < alive[c].size(); ++i) {
      if (alive[c][i]) last_begin = std::max(last_begin, clients[c].actions[i].begin);
    }
  }
  for (std::size_t c = 0; c < clients.size(); ++c) {
    for (std::size_t i = 0; i < alive[c].size(); ++i) {
      if (alive[c][i]) continue;
      ++lost;
      const Action& action = clients[c].actions[i];
      EXPECT_GE(i, clients[c].synced) << "client " << c << ": an action before an acknowledged fsync is lost";
      EXPECT_GT(action.end, last_begin) << "client " << c << ": action " << i << " is lost, a later one is not";
    }
  }
  return lost;
}

class PowerLoss : public ::testing::TestWithParam<u32> {};

TEST_P(PowerLoss, LeavesAPrefix) {
  constexpr u32 client_count = 4;
  TestPoolOptions options;
  options.worker_count = GetParam();
  TestPool pool(options);
  u64 lost = 0;
  for (u64 round = 1; round <= 4; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    World world;
    std::vector<Client> clients(client_count);
    {
      const auto session = pool.open_session();
      FileClient client(*session);
      FileOperation op;
      op.opcode = wire::Opcode::mkdir;
      op.inode = 1;
      op.mode = 0755;
      op.name = fmt::format("round{}", round);
      world.directory = client.call(op).result;
      op.opcode = wire::Opcode::create;
      for (u32 i = 0; i < client_count; ++i) {
        op.name = fmt::format("file{}_{}", round, i);
        clients[i].file = client.call(op).result;
        ASSERT_NE(clients[i].file, 0u);
      }
      ASSERT_EQ(pool.checkpoint(), Status::ok);
    }
    std::vector<std::thread> threads;
    for (u32 i = 0; i < client_count; ++i) {
      threads.emplace_back([&, i] { work(pool, world, clients[i], i, 1000 + scaled(4000), round); });
    }
    for (u32 i = 0; i < 20; ++i) EXPECT_EQ(pool.checkpoint(), Status::ok);
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(world.failures.load(), 0u);
    pool.crash();
    pool.mount();
    const auto session = pool.open_session();
    FileClient client(*session);
    std::string problem;
    const auto names = client.list(world.directory, 4000, false, &problem);
    ASSERT_EQ(problem, "");
    std::vector<std::vector<bool>> alive;
    for (u32 i = 0; i < client_count; ++i) alive.push_back(survivors(client, clients[i], i, names));
    lost += expect_prefix(clients, alive);
    if (HasFailure()) return;
  }
  EXPECT_GT(lost, 0u) << "no round ended with something that was not yet durable";
  pool.unmount();
  EXPECT_EQ(pool.check().findings.error_count(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Workers, PowerLoss, ::testing::Values(1u, 3u));

}  // namespace
}  // namespace gpu4fs::test::power_loss_test
