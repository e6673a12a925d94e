// A crash at any moment, with any part of the unflushed writes on the medium, loses nothing that was promised and
// leaves a pool that works (crash_explorer.hpp has the rules).
//
// Environment:
//   GPU4FS_CRASH_ID        "history/moment/variant": only this state, as printed by a failure; overrides all others
//   GPU4FS_CRASH_RANDOM    number of random histories, default 45
//   GPU4FS_CRASH_SEED      of the first of them, default 1
//   GPU4FS_CRASH_CUT       one of this number of states has its recovery interrupted, default 20
//   GPU4FS_CRASH_SECONDS   no further history begins after this time, default 345
//   GPU4FS_TEST_SCALE      percent of the histories (cmake/tests.cmake)
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "crash/crash_explorer.hpp"
#include "crash/crash_histories.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test::explore_test {
namespace {

std::vector<CrashBase> make_bases() {
  std::vector<CrashBase> bases;
  for (u32 place = 0; place < crash_place_count; ++place) {
    bases.push_back(make_crash_base(static_cast<CrashPlace>(place)));
  }
  return bases;
}

void add_counts(CrashCounts& sum, CrashCounts part) {
  sum.histories += part.histories;
  sum.states += part.states;
  sum.equal += part.equal;
  sum.checked += part.checked;
  sum.cut += part.cut;
  for (std::string& failure : part.failures) sum.failures.push_back(std::move(failure));
}

// Several threads, each with histories of its own.
CrashCounts explore_all(const std::vector<CrashHistory>& histories, const std::vector<CrashBase>& bases,
                        const CrashOptions& options) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(number_from("GPU4FS_CRASH_SECONDS", 345));
  CrashCounts sum;
  std::mutex mutex;
  std::atomic<std::size_t> next{0};
  std::atomic<bool> enough{false};
  const auto work = [&] {
    for (std::size_t i = next++; i < histories.size() && !enough; i = next++) {
      if (std::chrono::steady_clock::now() > end) break;
      CrashCounts counts;
      try {
        counts = CrashExplorer(histories[i], bases[static_cast<u32>(histories[i].place)], options).explore();
      } catch (const std::exception& error) {
        counts.failures.push_back(histories[i].id + ": " + error.what());
      }
      const std::lock_guard guard(mutex);
      add_counts(sum, std::move(counts));
      enough = sum.failures.size() >= options.failure_max;
    }
  };
  const u32 thread_count = std::clamp(std::thread::hardware_concurrency(), 1u, 8u);
  std::vector<std::thread> threads;
  for (u32 i = 0; i < thread_count; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  return sum;
}

class CrashExplorerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // Pools are created and destroyed a hundred times a second. Releasing their memory and allocating it again, page by
    // page and zeroed, was most of the time.
    ::mallopt(M_MMAP_THRESHOLD, 1 << 30);
    ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
    previous_ = set_check_handler([](const CheckFailure& failure) {
      std::fprintf(stderr, "%s%s:%d: check %s fails\n", CrashExplorer::all_ids().c_str(), failure.file,
                   static_cast<int>(failure.line), failure.expression);
      std::abort();
    });
  }
  void TearDown() override { set_check_handler(previous_); }

  CheckHandler previous_ = nullptr;
};

TEST_F(CrashExplorerTest, EveryStateIsAPrefix) {
  CrashOptions options;
  options.cut_every = static_cast<u32>(std::max<u64>(number_from("GPU4FS_CRASH_CUT", options.cut_every), 1));
  const char* only = std::getenv("GPU4FS_CRASH_ID");
  if (only != nullptr) options.only = only;
  const u64 first_seed = number_from("GPU4FS_CRASH_SEED", 1);
  const std::string history = options.only.substr(0, options.only.find('/'));
  std::vector<CrashHistory> histories = only != nullptr
                                            ? crash_histories_of(history)
                                            : crash_histories(first_seed, number_from("GPU4FS_CRASH_RANDOM", 45));
  const bool is_whole_history = only != nullptr && history == options.only;
  if (is_whole_history) options.only.clear();
  if (only == nullptr) {
    std::printf("random histories from seed %llu on\n", static_cast<unsigned long long>(first_seed));
    std::fflush(stdout);
  }
  std::vector<CrashHistory> chosen;
  // With sanitizers half of the histories suffice.
  const std::size_t percent = scaled(100) >= 100 ? 100u : std::max(scaled(100) / 2, 1u);
  for (std::size_t i = 0; i < histories.size(); ++i) {
    const bool in_scale = i * percent / 100 != (i + 1) * percent / 100;
    if (only != nullptr || in_scale) chosen.push_back(std::move(histories[i]));
  }
  // Histories of all kinds come early, in case the time is short.
  Sequence random(1);
  for (std::size_t i = chosen.size(); i > 1; --i) std::swap(chosen[i - 1], chosen[random.next() % i]);
  const auto begin = std::chrono::steady_clock::now();
  const CrashCounts counts = explore_all(chosen, make_bases(), options);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  for (const std::string& failure : counts.failures) ADD_FAILURE() << failure;
  if (is_whole_history) {
    EXPECT_GT(counts.states, 10u) << "no such history: " << only;
  } else if (only != nullptr) {
    EXPECT_EQ(counts.states, 1u) << "no such state: " << only;
  } else if (counts.failures.empty()) {
    EXPECT_GT(counts.states, 10 * counts.histories);
  }
  if (counts.failures.empty() && counts.histories < chosen.size()) {
    std::printf("%zu histories were left out for lack of time\n",
                chosen.size() - static_cast<std::size_t>(counts.histories));
  }
  std::printf(
      "%llu histories, %llu states recovered, %llu equal ones left out, %llu of them checked by fsck and crashed "
      "again, %llu states of cut recoveries, %zu failures, %.1f s\n",
      static_cast<unsigned long long>(counts.histories), static_cast<unsigned long long>(counts.states),
      static_cast<unsigned long long>(counts.equal), static_cast<unsigned long long>(counts.checked),
      static_cast<unsigned long long>(counts.cut), counts.failures.size(), seconds);
}

// The id in a failure identifies its history, whatever seeds were explored.
TEST_F(CrashExplorerTest, AnIdNamesItsHistory) {
  for (const CrashHistory& history : crash_histories(777000, 4)) {
    const std::vector<CrashHistory> found = crash_histories_of(history.id);
    ASSERT_EQ(found.size(), 1u) << history.id;
    EXPECT_EQ(found.front().id, history.id);
    EXPECT_EQ(found.front().place, history.place);
  }
  EXPECT_TRUE(crash_histories_of("random_").empty());
  EXPECT_TRUE(crash_histories_of("random_12x").empty());
  EXPECT_TRUE(crash_histories_of("alone_nothing_0").empty());
  CrashOptions options;
  options.only = "random_778431/5/0";
  const CrashCounts counts = explore_all(crash_histories_of("random_778431"), make_bases(), options);
  EXPECT_EQ(counts.states, 1u);
  EXPECT_TRUE(counts.failures.empty()) << counts.failures.front();
}

// The oracle works: on a device that forgets flushes, some states are wrong.
CrashCounts explore_dropping(DroppedFlush drops) {
  CrashOptions options;
  options.drops = drops;
  options.failure_max = 1;
  options.check_every = options.cut_every = 1u << 30;
  return explore_all({crash_histories(1, 0).front()}, make_bases(), options);
}

TEST_F(CrashExplorerTest, ForgottenFlushInFrontOfASuperblockIsNoticed) {
  const CrashCounts counts = explore_dropping(DroppedFlush::before_superblock);
  EXPECT_GT(counts.states, 0u);
  EXPECT_FALSE(counts.failures.empty());
}

TEST_F(CrashExplorerTest, ForgottenFlushOfWhatWasPromisedIsNoticed) {
  const CrashCounts counts = explore_dropping(DroppedFlush::before_acknowledgement);
  EXPECT_GT(counts.states, 0u);
  EXPECT_FALSE(counts.failures.empty());
}

}  // namespace
}  // namespace gpu4fs::test::explore_test
