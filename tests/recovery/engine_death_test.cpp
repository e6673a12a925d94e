// The death of an engine under a PoolServer: running commands end, nothing hangs, and the reopened pool has everything
// that was synced.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "client/session.hpp"
#include "fsck/check/check_pool.hpp"
#include "server/pool_server.hpp"
#include "support/file_client.hpp"
#include "support/test_pool.hpp"

namespace gpu4fs::test::engine_death_test {
namespace {

constexpr u64 root = format::inode_number_root;

session::ServerOptions options_of(const TestPool& pool) {
  session::ServerOptions options;
  options.device_paths = pool.device_paths();
  options.engine = session::EngineChoice::cpu;
  options.worker_count = 2;
  options.commit_interval_s = 0;
  return options;
}

client::Session open_session(server::PoolServer& server) {
  const server::LocalSession local = server.open_session(u64{1} << 20);
  return client::Session({local.producer, local.port, local.owner});
}

client::Reply create(FileClient& client, const std::string& name) {
  FileOperation op;
  op.opcode = wire::Opcode::create;
  op.inode = root;
  op.name = name;
  op.mode = 0644;
  return client.call(op);
}

client::Reply look_up(FileClient& client, const std::string& name) {
  FileOperation op;
  op.opcode = wire::Opcode::lookup;
  op.inode = root;
  op.name = name;
  return client.call(op);
}

// Creates and syncs files until the engine dies. Returns the number of acknowledged ones.
u64 create_until_death(server::PoolServer& server, u32 worker, std::atomic<u32>& begun) {
  client::Session session = open_session(server);
  FileClient client(session);
  for (u64 i = 0;; ++i) {
    const client::Reply made = create(client, "worker" + std::to_string(worker) + "-" + std::to_string(i));
    const Status status =
        made.status == Status::ok ? client.simple(wire::Opcode::fsync, made.result).status : made.status;
    if (status != Status::ok) {
      EXPECT_EQ(status, Status::engine_died);
      return i;
    }
    if (i == 10) ++begun;
  }
}

TEST(EngineDeath, EndsCommandsUnderWayAndLosesNothingThatWasSynced) {
  constexpr u32 worker_count = 3;
  TestPool pool;
  pool.crash();
  std::vector<u64> synced(worker_count);
  {
    server::PoolServer server(options_of(pool));
    std::atomic<bool> was_told{false};
    server.on_death([&] { was_told = true; });
    server.start();
    std::atomic<u32> begun{0};
    std::vector<std::thread> workers;
    for (u32 i = 0; i < worker_count; ++i) {
      workers.emplace_back([&, i] { synced[i] = create_until_death(server, i, begun); });
    }
    while (begun != worker_count) std::this_thread::yield();
    EXPECT_FALSE(server.engine().has_died());
    server.engine().request_death();
    for (std::thread& worker : workers) worker.join();
    EXPECT_TRUE(server.engine().has_died());
    EXPECT_FALSE(server.engine().fault_text().empty());
    while (!was_told) std::this_thread::yield();
    EXPECT_FALSE(server.stop()) << "the last checkpoint cannot be written";
  }
  session::ServerOptions options = options_of(pool);
  options.generation_skip = 100;
  server::PoolServer server(options);
  server.start();
  client::Session session = open_session(server);
  FileClient client(session);
  for (u32 worker = 0; worker < worker_count; ++worker) {
    EXPECT_GT(synced[worker], 10u);
    for (u64 i = 0; i < synced[worker]; ++i) {
      const std::string name = "worker" + std::to_string(worker) + "-" + std::to_string(i);
      EXPECT_EQ(look_up(client, name).status, Status::ok) << name;
    }
  }
  EXPECT_EQ(create(client, "later").status, Status::ok);
  EXPECT_EQ(look_up(client, "later").status, Status::ok);
  EXPECT_GT(client.attributes().generation, 100u) << "the number is told from one that was lost";
}

TEST(EngineDeath, FormerErrorsCountOn) {
  TestPool pool;
  pool.crash();
  session::ServerOptions options = options_of(pool);
  options.write_errors_before = 5;
  server::PoolServer server(options);
  server.start();
  EXPECT_EQ(server.write_errors(), 5u);
}

}  // namespace
}  // namespace gpu4fs::test::engine_death_test
