// Syncs of many clients: any number of them shares a flush, and all of them get its error.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "fmt/format.h"
#include "support/file_client.hpp"
#include "support/test_pool.hpp"

namespace gpu4fs::test::group_commit_test {
namespace {

constexpr u64 root = format::inode_number_root;

void create(FileClient& client, const std::string& name) {
  FileOperation op;
  op.opcode = wire::Opcode::create;
  op.inode = root;
  op.name = name;
  op.mode = 0644;
  op.mask = 0200;
  EXPECT_EQ(client.call(op).status, Status::ok) << name;
}

void sync(FileClient& client) {
  ASSERT_EQ(client.simple(wire::Opcode::sync).status, Status::ok);
}

// While one sync's flush is running, any number of others begin; one more flush serves all of them.
TEST(GroupCommit, ManySyncsShareAFlush) {
  TestPoolOptions options;
  options.flush_by_upcall = true;
  options.worker_count = 2;
  TestPool pool(options);
  constexpr u32 client_count = 8;
  std::vector<std::unique_ptr<client::Session>> sessions;
  for (u32 i = 0; i < client_count; ++i) sessions.push_back(pool.open_session());
  std::vector<std::thread> threads;
  std::atomic<u32> begun{0};
  std::atomic<u32> ended{0};
  for (u32 i = 0; i < client_count; ++i) {
    threads.emplace_back([&, i] {
      FileClient client(*sessions[i]);
      create(client, fmt::format("client{}", i));
      begun.fetch_add(1);
      sync(client);
      ended.fetch_add(1);
    });
  }
  std::mutex open_close;
  session::ServerSession answers(pool.host(), open_close, session::ServerSession::Kind::internal, 4, page_size);
  u32 flushes = 0;
  while (ended < client_count) {
    ring::Upcall upcall{};
    if (!pool.host().wait_upcall(&upcall, 1'000'000)) continue;
    ASSERT_EQ(upcall.kind, ring::UpcallKind::flush_device);
    // The first answer waits until all clients have something to sync, so the second flush serves all the others.
    while (begun < client_count) std::this_thread::yield();
    ++flushes;
    (void)answers.call(engine::answer_upcall_command(upcall, Status::ok));
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(flushes, 2u) << "syncs do not share flushes";
  sessions.clear();
}

// A failed flush makes every sync fail that relied on it, and the pool then refuses changes.
TEST(GroupCommit, FailedFlushIsToldToEverybody) {
  TestPoolOptions options;
  options.flush_by_upcall = true;
  TestPool pool(options);
  auto session = pool.open_session();
  Status first = Status::ok;
  Status second = Status::ok;
  Status third = Status::ok;
  std::atomic<bool> done{false};
  std::thread thread([&] {
    FileClient client(*session);
    create(client, "lost");
    first = client.simple(wire::Opcode::sync).status;
    second = client.simple(wire::Opcode::sync).status;
    FileOperation op;
    op.opcode = wire::Opcode::create;
    op.inode = root;
    op.name = "after";
    op.mask = 0200;
    third = client.call(op).status;
    done = true;
  });
  std::mutex open_close;
  session::ServerSession answers(pool.host(), open_close, session::ServerSession::Kind::internal, 4, page_size);
  while (!done) {
    ring::Upcall upcall{};
    if (!pool.host().wait_upcall(&upcall, 1'000'000)) continue;
    (void)answers.call(engine::answer_upcall_command(upcall, Status::device_failed));
  }
  thread.join();
  EXPECT_EQ(to_errno(first), EIO);
  EXPECT_EQ(to_errno(second), EIO);
  EXPECT_EQ(to_errno(third), EROFS);
  session.reset();
}

}  // namespace
}  // namespace gpu4fs::test::group_commit_test
