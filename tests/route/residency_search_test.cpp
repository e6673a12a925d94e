// Runs from counts against a plain list of states.
#include <gtest/gtest.h>

#include <random>

#include "route/residency_search.hpp"

namespace gpu4fs::route {
namespace {

PageCounts counts_of(const std::vector<PageState>& states, PageRange range) {
  PageCounts counts;
  for (u64 page = range.first_page; page < range.end_page(); ++page) {
    counts.cached += is_resident(states[page]);
    counts.dirty += states[page] == PageState::dirty;
  }
  return counts;
}

std::vector<PageState> random_states(u64 page_count, std::mt19937_64& random) {
  std::vector<PageState> states;
  const u64 length = 1 + random() % 40;
  while (states.size() < page_count) {
    states.insert(states.end(), 1 + random() % length, static_cast<PageState>(random() % 3));
  }
  states.resize(page_count);
  return states;
}

TEST(ResidencySearch, RunsAreThoseOfThePages) {
  std::mt19937_64 random(1);
  for (u32 round = 0; round < 500; ++round) {
    const u64 page_count = 1 + random() % 300;
    const std::vector<PageState> states = random_states(page_count, random);
    const u64 first = random() % page_count;
    const PageRange range = {first, random() % (page_count - first + 1)};
    std::vector<PageRun> runs, expected;
    for (u64 page = first; page < range.end_page(); ++page) append_run(expected, {page, 1, states[page]});
    u64 count = 0;
    EXPECT_TRUE(append_runs_by_counts(
        range, [&](PageRange part) { return ++count, counts_of(states, part); }, ~u64{0}, runs));
    ASSERT_EQ(runs, expected) << round;
    EXPECT_LE(count, 2 * range.page_count + 1);
  }
}

TEST(ResidencySearch, WhatHasOneStateTakesOneCount) {
  for (const PageState state : {PageState::absent, PageState::clean, PageState::dirty}) {
    const std::vector<PageState> states(1000, state);
    std::vector<PageRun> runs;
    u64 count = 0;
    EXPECT_TRUE(append_runs_by_counts(
        {0, 1000}, [&](PageRange part) { return ++count, counts_of(states, part); }, 1, runs));
    EXPECT_EQ(count, 1u);
    EXPECT_EQ(runs, (std::vector<PageRun>{{0, 1000, state}}));
  }
}

TEST(ResidencySearch, StopsAtTheLimitAndLeavesTheRuns) {
  std::vector<PageState> states(64);
  for (u64 i = 0; i < 64; i += 2) states[i] = PageState::clean;
  const std::vector<PageRun> before = {{1000, 1, PageState::dirty}};
  std::vector<PageRun> runs = before;
  EXPECT_FALSE(append_runs_by_counts(
      {0, 64}, [&](PageRange part) { return counts_of(states, part); }, 126, runs));
  EXPECT_EQ(runs, before);
  EXPECT_TRUE(append_runs_by_counts(
      {0, 64}, [&](PageRange part) { return counts_of(states, part); }, 127, runs));
  EXPECT_EQ(runs.size(), 65u);
}

// Pages come and go between counts, so they can contradict each other. The search ends, and every page has a state.
TEST(ResidencySearch, CountsThatContradictEachOtherEndIt) {
  std::mt19937_64 random(2);
  for (u32 round = 0; round < 200; ++round) {
    std::vector<PageRun> runs;
    const auto any = [&](PageRange part) {
      return PageCounts{random() % (part.page_count + 2), random() % (part.page_count + 2)};
    };
    ASSERT_TRUE(append_runs_by_counts({7, 100}, any, ~u64{0}, runs));
    u64 next = 7;
    for (const PageRun& run : runs) {
      ASSERT_EQ(run.first_page, next);
      next = run.end_page();
    }
    ASSERT_EQ(next, 107u);
  }
}

}  // namespace
}  // namespace gpu4fs::route
