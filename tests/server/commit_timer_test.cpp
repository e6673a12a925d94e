// When the timer requests checkpoints and the discarder gives space back, with a simulated engine and server. The timer
// polls without a pause here, and a test waits for a number of polls.
#include "server/commit_timer.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <string>
#include <thread>

#include "support/played_pool.hpp"

namespace gpu4fs::server::test::commit_timer_test {
namespace {

using gpu4fs::test::of;
using gpu4fs::test::PlayedHost;
using gpu4fs::test::PlayedPool;

const auto checkpoints = of(wire::Opcode::checkpoint, 0);
const auto trims = of(wire::Opcode::grow, wire::grow_trim);

class CommitTimerTest : public ::testing::Test {
 protected:
  ~CommitTimerTest() override {
    discarder_.stop();
    timer_.stop();
  }

  void start(bool discards = false) {
    if (discards) discarder_.start(0);
    timer_.start(0);
  }
  // Afterwards everything that one poll causes has happened, and if all is done the next one has found nothing more to
  // do.
  [[nodiscard]] bool wait_for_looks() {
    const u64 enough = pool_.engine().look_count() + 20;
    const auto end = std::chrono::steady_clock::now() + gpu4fs::test::patience;
    while (pool_.engine().look_count() < enough) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::yield();
    }
    return true;
  }

  // State that tests pass to the timer's thread.
  std::promise<void> begun_;
  std::promise<void> may_end_;
  std::promise<void> heard_;
  std::atomic<bool> is_written_{false};
  u32 given_ = 0;
  PlayedPool pool_;
  // Before the command counts as completed. Commands of the server count like all others.
  std::function<ring::Completion(const wire::Command&)> answer_ = [](const wire::Command&) {
    return ring::Completion{};
  };
  PlayedHost host_{[this](const wire::Command& command) {
    const ring::Completion done = answer_(command);
    pool_.engine().complete(1);
    return done;
  }};
  maintenance::ChunkMapper mapper_{pool_.mounted, session::ServerPurpose::mount};
  maintenance::PoolTrimmer trimmer_{pool_.mounted, mapper_, host_};
  EngineDeath death_{pool_.engine()};
  Discarder discarder_{trimmer_};
  CommitTimer timer_{pool_.mounted, host_, trimmer_, discarder_, death_};
};

TEST_F(CommitTimerTest, LeavesAPoolAloneThatGotNoCommand) {
  start();
  ASSERT_TRUE(host_.commands().wait_for(1, checkpoints)) << "the first look knows of nothing";
  ASSERT_TRUE(wait_for_looks());
  EXPECT_EQ(host_.commands().count(checkpoints), 1u);
  pool_.engine().complete(1);
  ASSERT_TRUE(host_.commands().wait_for(2, checkpoints));
  ASSERT_TRUE(wait_for_looks());
  EXPECT_EQ(host_.commands().all().size(), 2u);
}

// A command that ends during a checkpoint may have come too late for it.
TEST_F(CommitTimerTest, WritesAChangeBesideACheckpointWithTheNextOne) {
  std::atomic<bool> is_first{true};
  answer_ = [&](const wire::Command&) {
    if (is_first.exchange(false)) pool_.engine().complete(1);
    return ring::Completion{};
  };
  start();
  EXPECT_TRUE(host_.commands().wait_for(2, checkpoints));
  ASSERT_TRUE(wait_for_looks());
  EXPECT_EQ(host_.commands().count(checkpoints), 2u);
  timer_.stop();
}

TEST_F(CommitTimerTest, TriesACheckpointAgainAfterTheNextCommand) {
  testing::internal::CaptureStderr();
  answer_ = [](const wire::Command&) { return ring::Completion{Status::io_error, 0}; };
  start();
  ASSERT_TRUE(host_.commands().wait_for(1, checkpoints));
  ASSERT_TRUE(wait_for_looks());
  EXPECT_EQ(host_.commands().count(checkpoints), 1u);
  pool_.engine().complete(1);
  EXPECT_TRUE(host_.commands().wait_for(2, checkpoints));
  timer_.stop();
  const std::string log = testing::internal::GetCapturedStderr();
  const std::string line = std::string("a checkpoint was not written: ") + status_text(Status::io_error);
  const std::size_t first = log.find(line);
  ASSERT_NE(first, std::string::npos) << log;
  EXPECT_NE(log.find(line, first + 1), std::string::npos) << log;
}

TEST_F(CommitTimerTest, WaitsAtItsEndForTheCheckpointUnderWay) {
  answer_ = [this](const wire::Command&) {
    begun_.set_value();
    may_end_.get_future().wait();
    is_written_ = true;
    return ring::Completion{};
  };
  start();
  begun_.get_future().wait();
  std::thread stopper([&] {
    timer_.stop();
    EXPECT_TRUE(is_written_);
  });
  may_end_.set_value();
  stopper.join();
  EXPECT_EQ(host_.commands().all().size(), 1u);
}

TEST_F(CommitTimerTest, GivesMemoryBackInThreePassesAfterAChange) {
  pool_.mounted.setup.files.push_back(gpu4fs::test::make_memory_file(1 << 20));
  ASSERT_TRUE(pool_.mounted.setup.files[0].grows_with_use());
  start(true);
  ASSERT_TRUE(host_.commands().wait_for(3, trims));
  ASSERT_TRUE(wait_for_looks());
  EXPECT_EQ(host_.commands().count(trims), 3u);
  EXPECT_EQ(host_.commands().count(checkpoints), 1u) << "commands of the trimmer change nothing";
  pool_.engine().complete(1);
  ASSERT_TRUE(host_.commands().wait_for(6, trims));
  ASSERT_TRUE(wait_for_looks());
  EXPECT_EQ(host_.commands().count(trims), 6u);
  EXPECT_EQ(host_.commands().count(checkpoints), 2u);
}

// So many runs that a pass takes two polls.
TEST_F(CommitTimerTest, CountsAPassWhenItIsComplete) {
  pool_.mounted.setup.files.push_back(gpu4fs::test::make_memory_file(1 << 20));
  ASSERT_TRUE(pool_.mounted.setup.files[0].grows_with_use());
  constexpr u32 run_count = 300;
  answer_ = [this](const wire::Command& command) {
    const bool has_run = command.mask == wire::grow_trim && given_ < run_count;
    return ring::Completion{Status::ok, has_run ? wire::pack_trim({0, ++given_, 0}) : 0};
  };
  start(true);
  ASSERT_TRUE(host_.commands().wait_for(run_count + 3, trims));
  ASSERT_TRUE(wait_for_looks());
  EXPECT_EQ(host_.commands().count(trims), run_count + 3);
}

TEST_F(CommitTimerTest, DoesNotWaitForADiscard) {
  pool_.mounted.setup.files.push_back(gpu4fs::test::make_memory_file(1 << 20));
  answer_ = [this](const wire::Command& command) {
    if (command.mask == wire::grow_trim && given_++ == 0) {
      begun_.set_value();
      may_end_.get_future().wait();
    }
    return ring::Completion{};
  };
  start(true);
  begun_.get_future().wait();
  for (u32 count = 2; count < 5; ++count) {
    // One could be that of the trimmer.
    pool_.engine().complete(2);
    EXPECT_TRUE(host_.commands().wait_for(count, checkpoints));
  }
  EXPECT_EQ(host_.commands().count(trims), 1u);
  may_end_.set_value();
  // The pass that began before the last change is none of the three.
  EXPECT_TRUE(host_.commands().wait_for(4, trims));
}

TEST_F(CommitTimerTest, KeepsMemoryWhereNobodyWantsItBack) {
  pool_.mounted.setup.files.push_back(gpu4fs::test::make_memory_file(1 << 20));
  start();
  ASSERT_TRUE(host_.commands().wait_for(1, checkpoints));
  ASSERT_TRUE(wait_for_looks());
  EXPECT_EQ(host_.commands().count(trims), 0u);
}

TEST_F(CommitTimerTest, ReportsTheDeathOfAnIdleEngine) {
  death_.on_death([this] { heard_.set_value(); });
  start();
  ASSERT_TRUE(wait_for_looks());
  EXPECT_FALSE(death_.is_reported());
  pool_.engine().die("a check failed");
  EXPECT_EQ(heard_.get_future().wait_for(gpu4fs::test::patience), std::future_status::ready);
}

TEST_F(CommitTimerTest, EndsWithoutHavingBegun) {
  timer_.stop();
  EXPECT_EQ(pool_.engine().look_count(), 0u);
}

}  // namespace
}  // namespace gpu4fs::server::test::commit_timer_test
