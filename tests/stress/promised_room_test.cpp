// A full pool, part of whose room is reserved for another running command: a command that needs it waits for one
// checkpoint before it gets an error.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "space/space.hpp"
#include "support/file_client.hpp"
#include "support/test_pool.hpp"

namespace gpu4fs::test::promised_room_test {
namespace {

using wire::Opcode;

// The test plays the other command: it has reserved all existing room.
class PromisedRoom : public ::testing::Test {
 protected:
  PromisedRoom() : pool_(options()) {
    server_ = std::make_unique<session::ServerSession>(pool_.host(), open_close_,
                                                       session::ServerSession::Kind::internal, 4, page_size);
    session_ = pool_.open_session();
    files_ = std::make_unique<FileClient>(*session_);
    file_ = create("file").result;
    const space::SpaceCounters& counters = fs().data_counters();
    other_.wanted_chunk = raid::no_chunk;
    EXPECT_EQ(space::reserve_pages(fs(), other_, counters.available - counters.emergency), Status::ok);
  }
  ~PromisedRoom() override { give_back(); }
  static TestPoolOptions options() {
    TestPoolOptions options;
    options.flush_by_upcall = true;
    return options;
  }

  fs::FileSystem& fs() { return pool_.engine()->fs; }
  void give_back() { space::unreserve_pages(fs(), other_, other_.pages_reserved); }

  client::Reply create(const std::string& name) {
    FileOperation op;
    op.opcode = Opcode::create;
    op.inode = format::inode_number_root;
    op.name = name;
    op.mode = 0644;
    return files_->call(op);
  }
  client::Reply write() {
    FileOperation op;
    op.opcode = Opcode::write;
    op.inode = file_;
    op.length = 4 * page_size;
    return files_->call(op, std::vector<u8>(4 * page_size, 0x5a));
  }

  struct Outcome {
    client::Reply reply;
    u64 epochs;  // those that became durable meanwhile
    u32 flush_count;
  };
  // Executes the command; `at_flush` is called before each flush of a checkpoint is answered.
  template <class Call, class AtFlush>
  Outcome carry_out(Call&& call, AtFlush&& at_flush) {
    const u64 before = pool_.durable_epoch();
    Outcome outcome{};
    std::atomic<bool> done{false};
    std::thread thread([&] {
      outcome.reply = call();
      done = true;
    });
    while (!done) {
      ring::Upcall upcall{};
      if (!pool_.host().wait_upcall(&upcall, 1'000'000) || !ring::wants_answer(upcall.kind)) continue;
      ++outcome.flush_count;
      at_flush();
      (void)server_->call(engine::answer_upcall_command(upcall, Status::ok));
    }
    thread.join();
    outcome.epochs = pool_.durable_epoch() - before;
    return outcome;
  }

  TestPool pool_;
  std::mutex open_close_;
  std::unique_ptr<session::ServerSession> server_;
  std::unique_ptr<client::Session> session_;
  std::unique_ptr<FileClient> files_;
  fs::Operation other_{};
  u64 file_ = 0;
};

TEST_F(PromisedRoom, IsGivenToWhoWaitsWhenItComesBack) {
  const Outcome written = carry_out([&] { return write(); }, [&] { give_back(); });
  EXPECT_EQ(written.reply.status, Status::ok);
  EXPECT_EQ(written.reply.result, 4 * page_size);
  EXPECT_GT(written.flush_count, 0u);
}

TEST_F(PromisedRoom, ANewFileWaitsForItAsWell) {
  const Outcome made = carry_out([&] { return create("other"); }, [&] { give_back(); });
  EXPECT_EQ(made.reply.status, Status::ok);
  EXPECT_GT(made.flush_count, 0u);
}

// Once; then the client gets an error.
TEST_F(PromisedRoom, IsWaitedForOnce) {
  const Outcome written = carry_out([&] { return write(); }, [] {});
  EXPECT_EQ(written.reply.status, Status::no_space);
  EXPECT_EQ(written.epochs, 1u);
}

// There is no wait for room that is reserved for nobody.
TEST_F(PromisedRoom, IsNotWaitedForByWhoNeedsMore) {
  ASSERT_EQ(carry_out([&] { return write(); }, [] {}).reply.status, Status::no_space);
  // As if others had used it.
  space::SpaceCounters& counters = fs().data_counters();
  const u64 held = other_.pages_reserved;
  counters.reserved -= held;
  const Outcome written = carry_out([&] { return write(); }, [] {});
  counters.reserved += held;
  EXPECT_EQ(written.reply.status, Status::no_space);
  EXPECT_EQ(written.flush_count, 0u);
  EXPECT_EQ(written.epochs, 0u);
}

}  // namespace
}  // namespace gpu4fs::test::promised_room_test
