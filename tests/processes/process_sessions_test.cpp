// Sessions of other processes: what their commands may do, and what the end of either side means for the other.
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "client/session_connection.hpp"
#include "processes/pool_for_processes.hpp"

namespace gpu4fs::test::process_sessions_test {
namespace {

constexpr u64 root = format::inode_number_root;

FileOperation creation(const std::string& name) {
  FileOperation op;
  op.opcode = wire::Opcode::create;
  op.inode = root;
  op.name = name;
  op.mode = 0644;
  return op;
}

FileOperation look_up(const std::string& name) {
  FileOperation op;
  op.opcode = wire::Opcode::lookup;
  op.inode = root;
  op.name = name;
  return op;
}

TEST(ProcessSessions, CommandsOfSeveralProcessesAtATime) {
  PoolForProcesses pool;
  std::vector<std::unique_ptr<ClientProcess>> processes;
  for (u32 i = 0; i < 4; ++i) {
    processes.push_back(std::make_unique<ClientProcess>(
        std::vector<std::string>{pool.socket_path(), "walk", "file" + std::to_string(i)}));
  }
  for (auto& process : processes) EXPECT_EQ(process->exit_code(), 0);
  client::Session session = pool.local_session();
  FileClient client(session);
  std::string problem;
  const auto names = client.list(root, 8192, true, &problem);
  EXPECT_EQ(problem, "");
  for (u32 i = 0; i < 4; ++i) {
    const client::Reply found = client.call(look_up("file" + std::to_string(i)));
    ASSERT_EQ(found.status, Status::ok);
    EXPECT_EQ(client.attributes().size_bytes, 20000u);
    EXPECT_EQ(names.count("file" + std::to_string(i)), 1u);
    EXPECT_EQ(names.count("file" + std::to_string(i) + "-0"), 0u);
  }
}

TEST(ProcessSessions, CommandsHaveTheRightsOfTheProcessAndNoOthers) {
  PoolForProcesses pool;
  client::OpenedSession opened = client::open_process_session(pool.socket_path());
  FileClient client(opened.session);
  FileOperation op = creation("mine");
  op.uid = 1234;
  op.gid = 1234;
  const client::Reply made = client.call(op);
  ASSERT_EQ(made.status, Status::ok);
  EXPECT_EQ(client.attributes().uid, ::geteuid()) << "the command's uid counts only in trusted sessions";
  EXPECT_EQ(client.simple(wire::Opcode::reclaim, made.result).status, Status::permission);
  EXPECT_NE(client.simple(wire::Opcode::checkpoint).status, Status::ok);
  EXPECT_EQ(client.call(look_up("mine")).status, Status::ok);
}

// All workers sleep without limit, and the client does not wait, so only the doorbell wakes one.
TEST(ProcessSessions, ASubmittedCommandWakesASleepingEngine) {
  PoolForProcesses pool;
  client::OpenedSession opened = client::open_process_session(pool.socket_path());
  for (u32 i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(i == 0 ? 200 : 10));
    wire::Command command{};
    command.opcode = wire::Opcode::noop;
    u64 position = 0;
    ASSERT_EQ(opened.session.submit(command, &position), Status::ok);
    opened.session.wake_engine();
    ASSERT_TRUE(comes_true([&] { return opened.session.is_done(position); })) << i;
    EXPECT_EQ(opened.session.finish(position).status, Status::ok);
  }
}

TEST(ProcessSessions, ClosedOnesAreGivenBack) {
  PoolForProcesses pool;
  for (u32 i = 0; i < 150; ++i) {
    client::OpenedSession opened = open_when_possible(pool.socket_path());
    FileClient client(opened.session);
    ASSERT_EQ(client.call(look_up("nothing")).status, Status::not_found) << i;
  }
}

TEST(ProcessSessions, AKilledProcessLeavesNothingBehind) {
  PoolForProcesses pool;
  for (u32 i = 0; i < 40; ++i) {
    ClientProcess process({pool.socket_path(), "hold"});
    ASSERT_TRUE(process.says_something());
    process.send(SIGKILL);
    EXPECT_EQ(process.exit_code(), -1);
  }
  client::Session session = pool.local_session();
  FileClient client(session);
  EXPECT_EQ(client.call(creation("later")).status, Status::ok);
  EXPECT_TRUE(pool.server().stop());
}

TEST(ProcessSessions, AStoppedProcessStopsNobodyElse) {
  PoolForProcesses pool;
  ClientProcess stopped({pool.socket_path(), "hold"});
  ASSERT_TRUE(stopped.says_something());
  stopped.send(SIGSTOP);
  {
    client::OpenedSession opened = client::open_process_session(pool.socket_path());
    FileClient client(opened.session);
    for (u32 i = 0; i < 100; ++i) {
      ASSERT_EQ(client.call(creation("file" + std::to_string(i))).status, Status::ok);
    }
  }
  EXPECT_TRUE(pool.server().stop()) << "the end of the server does not wait for clients";
  stopped.send(SIGCONT);
  EXPECT_EQ(stopped.exit_code(), 3) << "it sees that the engine is gone";
}

// Signals of another thread to the one that made this, without end.
class Signals {
 public:
  Signals() {
    struct sigaction action {};
    action.sa_handler = [](int) {};
    EXPECT_EQ(::sigaction(SIGUSR1, &action, &before_), 0);
    sender_ = std::thread([this, target = ::pthread_self()] {
      while (!is_over_) ::pthread_kill(target, SIGUSR1);
    });
  }
  ~Signals() {
    is_over_ = true;
    sender_.join();
    EXPECT_EQ(::sigaction(SIGUSR1, &before_, nullptr), 0);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

 private:
  struct sigaction before_ {};
  std::atomic<bool> is_over_{false};
  std::thread sender_;
};

TEST(ProcessSessions, SignalsEndNoCommand) {
  constexpr u64 bytes = u64{4} << 20;
  PoolForProcesses pool;
  const Signals signals;
  client::OpenedSession opened = client::open_process_session(pool.socket_path(), {.data_bytes = 2 * bytes});
  client::Session& session = opened.session;
  wire::Command copy{};
  copy.opcode = wire::Opcode::memcopy;
  copy.length = bytes;
  copy.data = session.address_of(session.data());
  copy.output = session.address_of(session.data() + bytes);
  for (u32 i = 1; i <= 20; ++i) {
    std::memset(session.data(), static_cast<int>(i), bytes);
    EXPECT_EQ(session.call(copy).status, Status::ok) << i;
    EXPECT_EQ(std::memcmp(session.data(), session.data() + bytes, bytes), 0) << i;
  }
}

// A client that waits for long looks whether the server is there, and signals interrupt that too.
TEST(ProcessSessions, ASignalIsNoEndOfTheServer) {
  PoolForProcesses pool;
  const client::SessionConnection connection(pool.socket_path(), {});
  {
    const Signals signals;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    while (std::chrono::steady_clock::now() < end) ASSERT_FALSE(connection.has_ended());
  }
  EXPECT_TRUE(pool.server().stop());
  EXPECT_TRUE(connection.has_ended());
}

TEST(ProcessSessions, TheEndOfTheServerIsSeen) {
  PoolForProcesses pool;
  client::OpenedSession opened = client::open_process_session(pool.socket_path());
  FileClient client(opened.session);
  EXPECT_EQ(client.call(creation("before")).status, Status::ok);
  EXPECT_TRUE(pool.server().stop());
  EXPECT_EQ(client.call(creation("after")).status, Status::engine_died);
  EXPECT_EQ(client.call(creation("after")).status, Status::engine_died);
  EXPECT_THROW(client::open_process_session(pool.socket_path()), client::ConnectError);
}

TEST(ProcessSessions, TheDeathOfTheEngineIsSeen) {
  PoolForProcesses pool;
  ClientProcess process({pool.socket_path(), "hold"});
  ASSERT_TRUE(process.says_something());
  client::OpenedSession opened = client::open_process_session(pool.socket_path());
  FileClient client(opened.session);
  EXPECT_EQ(client.call(creation("before")).status, Status::ok);
  pool.server().engine().request_death();
  EXPECT_EQ(process.exit_code(), 3);
  EXPECT_EQ(client.call(creation("after")).status, Status::engine_died);
  EXPECT_FALSE(pool.server().stop());
}

TEST(ProcessSessions, PathsWithoutAServerAreNamed) {
  PoolForProcesses pool;
  for (const std::string& path :
       {pool.folder() + "/none.session", pool.server().control_path(), pool.folder() + "/" + std::string(200, 'x')}) {
    try {
      client::open_process_session(path);
      ADD_FAILURE() << path;
    } catch (const client::ConnectError& error) {
      EXPECT_NE(error.error(), 0);
      EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace gpu4fs::test::process_sessions_test
