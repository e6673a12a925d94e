// The progress of a scrub as text: a stored text gives the same progress, everything else is refused.
#include "maintenance/scrub_progress.hpp"

#include <gtest/gtest.h>

#include <random>

namespace gpu4fs::maintenance {
namespace {

ScrubReport some_progress() {
  ScrubReport progress;
  progress.state = JobState::paused;
  progress.position = 77 * 4096;
  progress.page_total = 1000;
  progress.page_count = 250;
  progress.damaged_count = 3;
  progress.ownerless_count = 1;
  progress.unreached_count = 64;
  progress.rate_limit = 500'000'000;
  progress.started_s = 1'700'000'000;
  progress.ended_s = 0;
  progress.active_ms = 2000;
  return progress;
}

TEST(ScrubProgress, ComesBackAsItWasKept) {
  const ScrubReport progress = some_progress();
  const auto again = from_attribute(to_attribute(progress));
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->state, progress.state);
  EXPECT_EQ(again->position, progress.position);
  EXPECT_EQ(again->rate_limit, progress.rate_limit);
  EXPECT_EQ(again->started_s, progress.started_s);
  EXPECT_EQ(to_attribute(*again), to_attribute(progress)) << "every field";
  EXPECT_LE(to_attribute(progress).size(), 512u) << "it shares a page with other attributes";
}

TEST(ScrubProgress, KnowsRateAndTimeLeft) {
  ScrubReport progress = some_progress();
  EXPECT_DOUBLE_EQ(progress.rate(), 250 * 4096 / 2.0);
  ASSERT_TRUE(progress.seconds_left().has_value());
  EXPECT_DOUBLE_EQ(*progress.seconds_left(), 6.0);
  progress.page_count = 2000;  // files were written meanwhile
  EXPECT_DOUBLE_EQ(*progress.seconds_left(), 0.0);
  progress.state = JobState::finished;
  EXPECT_FALSE(progress.seconds_left().has_value());
  EXPECT_FALSE(ScrubReport{}.seconds_left().has_value());
}

TEST(ScrubProgress, RefusesWhatIsNotIts) {
  for (const char* text :
       {"", "v2 state=running", "v1 state=asleep", "v1 position=5", "v1 position=-4096", "v1 pages=1e3",
        "v1 pages=99999999999999999999999", "v1 pages", "v1 =", "v1 unknown=1", "v1  state=running", "\n"}) {
    EXPECT_FALSE(from_attribute(text).has_value()) << text;
  }
  const std::string good = to_attribute(some_progress());
  std::mt19937_64 random(3);
  for (u32 round = 0; round < 20000; ++round) {
    std::string text = good;
    for (u32 i = 0; i <= random() % 3; ++i) text[random() % text.size()] = static_cast<char>(random());
    const auto read = from_attribute(text);
    if (!read) continue;
    EXPECT_EQ(read->position % 4096, 0u) << text;
    EXPECT_LT(read->page_total, u64{1} << 62) << text;
  }
}

}  // namespace
}  // namespace gpu4fs::maintenance
