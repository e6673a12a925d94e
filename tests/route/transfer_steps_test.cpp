// Steps of schedules: everything once, dirty pages first, in pieces that the routes can carry.
#include <gtest/gtest.h>

#include <random>

#include "route/route_error.hpp"
#include "route/schedule_oracles.hpp"
#include "route/transfer_steps.hpp"

namespace gpu4fs::route {
namespace {

std::vector<TransferStep> steps_of(const std::vector<ByteRange>& bytes, const std::vector<ReadRuns>& reads,
                                   const Schedule& schedule, const TransferLimits& limits = {}) {
  return transfer_steps(bytes, reads, schedule, limits);
}

// Every byte of the ranges is read once, and none that may be dirty comes from the medium before it was written back.
void expect_right(const std::vector<ByteRange>& bytes, const std::vector<ReadRuns>& reads,
                  const std::vector<TransferStep>& steps, const TransferLimits& limits) {
  std::vector<u64> next(bytes.size());
  for (std::size_t i = 0; i < bytes.size(); ++i) next[i] = bytes[i].offset;
  std::vector<std::vector<ByteRange>> written(bytes.size());
  for (const TransferStep& step : steps) {
    if (step.kind == StepKind::write_back) {
      written[step.request].push_back(step.bytes);
      continue;
    }
    ASSERT_EQ(step.bytes.offset, next[step.request]);
    ASSERT_GT(step.bytes.length, 0u);
    next[step.request] = step.bytes.end();
    if (step.route == Route::cached) continue;
    ASSERT_LE(step.bytes.length, limits.request_bytes_max);
    if (step.route == Route::direct) {
      ASSERT_EQ(step.bytes.offset % limits.alignment_bytes, 0u);
      ASSERT_EQ(step.bytes.length % limits.alignment_bytes, 0u);
    }
    for (const PageRun& run : reads[step.request]) {
      const u64 begin = std::max(run.first_page * page_size, step.bytes.offset);
      const u64 end = std::min(run.end_page() * page_size, step.bytes.end());
      if (!may_be_dirty(run.state) || begin >= end) continue;
      bool is_written = false;
      for (const ByteRange& range : written[step.request]) {
        is_written = is_written || (range.offset <= begin && end <= range.end());
      }
      ASSERT_TRUE(is_written) << "page " << begin / page_size << " is read before it is written back";
    }
  }
  for (std::size_t i = 0; i < bytes.size(); ++i) EXPECT_EQ(next[i], bytes[i].end());
}

TEST(TransferSteps, DirtyPagesAreWrittenBackBeforeTheMediumIsRead) {
  const std::vector<ReadRuns> reads = {
      {{0, 1, PageState::absent}, {1, 2, PageState::dirty}, {3, 1, PageState::clean}, {4, 1, PageState::absent}}};
  const std::vector<ByteRange> bytes = {{0, 5 * page_size}};
  const Schedule schedule = all_from_medium(reads, oracle::paper_costs(Overlap::none), Reason::above_window);
  const std::vector<TransferStep> expected = {
      {StepKind::write_back, 0, {page_size, 2 * page_size}, Route::direct, Reason::dirty},
      {StepKind::read, 0, {0, 5 * page_size}, Route::direct, Reason::above_window}};
  EXPECT_EQ(steps_of(bytes, reads, schedule), expected);
}

TEST(TransferSteps, DirtyPagesOfThePageCacheNeedNoWriteBack) {
  const std::vector<ReadRuns> reads = {{{0, 2, PageState::dirty}}};
  const std::vector<ByteRange> bytes = {{100, page_size}};
  const Schedule schedule = greedy_schedule(reads, oracle::paper_costs(Overlap::none));
  const std::vector<TransferStep> expected = {{StepKind::read, 0, {100, page_size}, Route::cached, Reason::dirty}};
  EXPECT_EQ(steps_of(bytes, reads, schedule), expected);
}

TEST(TransferSteps, LongReadsOfTheMediumAreSplit) {
  const std::vector<ReadRuns> reads = {{{0, 2560, PageState::absent}}};
  const std::vector<ByteRange> bytes = {{0, 2560 * page_size}};
  const Schedule schedule = greedy_schedule(reads, oracle::paper_costs(Overlap::none));
  const std::vector<TransferStep> steps = steps_of(bytes, reads, schedule);
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[0].bytes, (ByteRange{0, 4096 * 1024}));
  EXPECT_EQ(steps[1].bytes, (ByteRange{4096 * 1024, 4096 * 1024}));
  EXPECT_EQ(steps[2].bytes, (ByteRange{8192 * 1024, 2048 * 1024}));
}

TEST(TransferSteps, EdgesThatAreNotAlignedComeThroughTheCache) {
  const std::vector<ReadRuns> reads = {{{0, 3, PageState::absent}}};
  const std::vector<ByteRange> bytes = {{100, 2 * page_size}};
  ScheduleCosts costs = oracle::paper_costs(Overlap::none);
  const std::vector<TransferStep> expected = {
      {StepKind::read, 0, {100, 412}, Route::cached, Reason::misaligned},
      {StepKind::read, 0, {512, 2 * page_size - 512}, Route::direct, Reason::absent},
      {StepKind::read, 0, {2 * page_size, 100}, Route::cached, Reason::misaligned}};
  EXPECT_EQ(steps_of(bytes, reads, greedy_schedule(reads, costs)), expected);
  // Within one unit there is no direct part.
  const std::vector<TransferStep> small = {{StepKind::read, 0, {100, 50}, Route::cached, Reason::misaligned}};
  EXPECT_EQ(
      steps_of({{100, 50}}, {{{0, 1, PageState::absent}}}, greedy_schedule(std::vector<ReadRuns>{{{0, 1}}}, costs)),
      small);
  // The engine reads any bytes.
  costs.medium_route = Route::engine;
  const std::vector<TransferStep> whole = {{StepKind::read, 0, bytes[0], Route::engine, Reason::absent}};
  EXPECT_EQ(steps_of(bytes, reads, greedy_schedule(reads, costs)), whole);
}

TEST(TransferSteps, RandomSchedulesAreCarriedOutRight) {
  std::mt19937_64 random(1);
  for (u32 round = 0; round < 2000; ++round) {
    std::vector<ReadRuns> reads;
    std::vector<ByteRange> bytes;
    for (u64 count = 1 + random() % 3; count != 0; --count) {
      ReadRuns runs = oracle::random_runs(1 + random() % 300, true, random);
      if (random() % 2 == 0) {
        for (PageRun& run : runs) run.state = run.state == PageState::clean ? PageState::resident : run.state;
      }
      const u64 page_count = runs.back().end_page();
      const u64 cut = random() % page_size;
      const u64 end_cut = page_count == 1 ? 0 : random() % page_size;
      reads.push_back(runs);
      bytes.push_back({cut, page_count * page_size - cut - end_cut});
    }
    ScheduleCosts costs = oracle::recent_costs(round % 2 == 0 ? Overlap::none : Overlap::routes);
    if (round % 3 == 0) costs.medium_route = Route::engine;
    const TransferLimits limits = {u64{512} << round % 4, (1 + random() % 64) * page_size};
    const Schedule schedule =
        round % 5 == 0 ? all_from_medium(reads, costs, Reason::above_window) : greedy_schedule(reads, costs);
    ASSERT_NO_FATAL_FAILURE(expect_right(bytes, reads, steps_of(bytes, reads, schedule, limits), limits)) << round;
  }
}

TEST(TransferSteps, ImpossibleLimitsAreRefused) {
  for (const TransferLimits& limits :
       {TransferLimits{0, page_size}, TransferLimits{768, page_size}, TransferLimits{8192, page_size},
        TransferLimits{512, 0}, TransferLimits{512, 1}}) {
    EXPECT_THROW(steps_of({}, {}, {}, limits), RouteError);
  }
}

}  // namespace
}  // namespace gpu4fs::route
