// The answers to requests for a chunk while another one is being created. The grower is on hold, or its engine answers
// with errors, so each attempt fails. After an attempt it tells the engine the room, which the test can see and delay.
// tests/growth tests chunks that are really created.
#include "server/chunk_maker.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/played_pool.hpp"

namespace gpu4fs::server::test::chunk_maker_test {
namespace {

using gpu4fs::test::of;
using gpu4fs::test::PlayedHost;
using gpu4fs::test::PlayedPool;

const auto answers = of(wire::Opcode::upcall_done);
const auto attempts = of(wire::Opcode::grow, wire::grow_room);

class Door {
 public:
  void open() { set(true); }
  void close() { set(false); }
  void pass() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_open_; });
  }

 private:
  void set(bool open) {
    const std::lock_guard guard(mutex_);
    is_open_ = open;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = true;
};

class ChunkMakerTest : public ::testing::Test {
 protected:
  ChunkMakerTest() {
    for (u32 i = 0; i < 2; ++i) pool_.add_device(device::MappedFile::anonymous(PlayedPool::device_bytes));
    pool_.add_chunk();
  }
  ~ChunkMakerTest() override {
    door_.open();
    maker_.stop();
  }

  bool ask(u64 id, u64 page_class) { return maker_.take({ring::UpcallKind::make_chunk, 0, page_class, id}); }
  // Id and answer.
  std::vector<std::pair<u64, Status>> answered() const {
    std::vector<std::pair<u64, Status>> list;
    for (const wire::Command& command : pool_.engine().commands().all()) {
      if (answers(command)) list.emplace_back(command.inode, static_cast<Status>(command.offset));
    }
    return list;
  }
  bool wait_for_answers(u64 count) { return pool_.engine().commands().wait_for(count, answers); }

  mutable PlayedPool pool_;
  Door door_;
  PlayedHost host_{[this](const wire::Command&) {
    door_.pass();
    return ring::Completion{};
  }};
  maintenance::ChunkMapper mapper_{pool_.mounted, session::ServerPurpose::mount};
  maintenance::PoolGrower grower_{pool_.mounted, mapper_, host_};
  ChunkMaker maker_{grower_};
};

TEST_F(ChunkMakerTest, TakesNothingBeforeItsBeginningAndAfterItsEnd) {
  maker_.stop();
  EXPECT_FALSE(ask(1, 0));
  grower_.hold();
  maker_.start(pool_.open_session());
  EXPECT_TRUE(ask(2, 0));
  ASSERT_TRUE(wait_for_answers(1));
  maker_.stop();
  EXPECT_FALSE(ask(3, 0));
  EXPECT_EQ(answered(), (std::vector<std::pair<u64, Status>>{{2, Status::no_space}}));
  EXPECT_EQ(pool_.engine().open_session_count(), 1u);
  maker_.close_session();
  EXPECT_EQ(pool_.engine().open_session_count(), 0u);
}

TEST_F(ChunkMakerTest, MakesOneChunkForAllThatAskForItsClass) {
  grower_.hold();
  door_.close();
  maker_.start(pool_.open_session());
  EXPECT_TRUE(ask(1, 0));
  ASSERT_TRUE(host_.commands().wait_for(1, attempts));
  EXPECT_EQ(answered().size(), 0u) << "the attempt is not over";
  for (const auto& [id, page_class] : {std::pair{2, 0}, {3, 1}, {4, 0}, {5, 1}}) {
    EXPECT_TRUE(ask(static_cast<u64>(id), static_cast<u64>(page_class)));
  }
  door_.open();
  ASSERT_TRUE(wait_for_answers(5));
  maker_.stop();
  std::vector<u64> order;
  for (const auto& [id, status] : answered()) {
    order.push_back(id);
    EXPECT_EQ(status, Status::no_space) << "a pool that is busy has no chunk for whoever asks now";
  }
  EXPECT_EQ(order, (std::vector<u64>{1, 2, 4, 3, 5}));
  EXPECT_EQ(host_.commands().count(attempts), 3u);
}

TEST_F(ChunkMakerTest, AnswersAtItsEndWhatItTook) {
  grower_.hold();
  door_.close();
  maker_.start(pool_.open_session());
  u64 taken = 0;
  EXPECT_TRUE(ask(++taken, 0));
  ASSERT_TRUE(host_.commands().wait_for(1, attempts));
  EXPECT_TRUE(ask(++taken, 1));
  std::thread stopper([this] { maker_.stop(); });
  // Until it ends, or will not.
  const auto end = std::chrono::steady_clock::now() + gpu4fs::test::patience;
  while (ask(taken + 1, 0) && std::chrono::steady_clock::now() < end) ++taken;
  door_.open();
  stopper.join();
  EXPECT_EQ(answered().size(), taken);
  for (const auto& [id, status] : answered()) EXPECT_EQ(status, Status::no_space) << id;
  EXPECT_EQ(host_.commands().count(attempts), 1u) << "nothing is begun at the end";
}

TEST_F(ChunkMakerTest, TellsErrorsFromAWantOfRoom) {
  pool_.engine().answer_with(Status::io_error);
  testing::internal::CaptureStderr();
  maker_.start(pool_.open_session());
  EXPECT_TRUE(ask(7, 0));
  const bool is_answered = wait_for_answers(1);
  maker_.stop();
  const std::string log = testing::internal::GetCapturedStderr();
  ASSERT_TRUE(is_answered);
  EXPECT_EQ(answered(), (std::vector<std::pair<u64, Status>>{{7, Status::io_error}}));
  EXPECT_NE(log.find(status_text(Status::io_error)), std::string::npos) << log;
}

}  // namespace
}  // namespace gpu4fs::server::test::chunk_maker_test
