// Plans of reads: which of the parts of the layer decides, and the end of the file.
#include <gtest/gtest.h>

#include "route/read_plan.hpp"
#include "route/schedule_oracles.hpp"

namespace gpu4fs::route {
namespace {

class ReadPlanTest : public testing::Test {
 protected:
  ReadPlan plan(ByteRange bytes, const ReadRuns& runs) { return plan_read(ahead_, bytes, file_size_, runs, routes_); }

  ReadRuns pages(u64 first, u64 count, PageState state = PageState::absent) { return {{first, count, state}}; }

  u64 file_size_ = 1000 * page_size + 100;
  FileRoutes routes_ = {oracle::paper_costs(Overlap::routes), true, {}};
  ReadAheadPartition partition_{512};
  ReadAhead ahead_{1, partition_};
};

TEST_F(ReadPlanTest, SequentialReadsComeThroughThePageCacheAndAreReadAhead) {
  const ReadPlan found = plan({0, 100}, pages(0, 1));
  EXPECT_EQ(found.steps, (std::vector<TransferStep>{{StepKind::read, 0, {0, 100}, Route::cached, Reason::read_ahead}}));
  EXPECT_EQ(found.prefetches.size(), 1u);
  EXPECT_GT(found.completion_ns, 0);
}

TEST_F(ReadPlanTest, LongSequentialReadsWriteDirtyPagesBackFirst) {
  const ByteRange bytes = {0, 256 * page_size};
  const ReadRuns runs = {{0, 10, PageState::absent}, {10, 1, PageState::dirty}, {11, 245, PageState::clean}};
  const ReadPlan found = plan(bytes, runs);
  const std::vector<TransferStep> expected = {
      {StepKind::write_back, 0, {10 * page_size, page_size}, Route::direct, Reason::dirty},
      {StepKind::read, 0, bytes, Route::direct, Reason::above_window}};
  EXPECT_EQ(found.steps, expected);
  EXPECT_TRUE(found.prefetches.empty());
}

TEST_F(ReadPlanTest, OtherReadsAreScheduled) {
  const ReadPlan absent = plan({8 * page_size, 4 * page_size}, pages(8, 4));
  EXPECT_EQ(
      absent.steps,
      (std::vector<TransferStep>{{StepKind::read, 0, {8 * page_size, 4 * page_size}, Route::direct, Reason::absent}}));
  const ReadPlan cached = plan({100 * page_size, 2 * page_size}, pages(100, 2, PageState::clean));
  EXPECT_EQ(cached.steps, (std::vector<TransferStep>{
                              {StepKind::read, 0, {100 * page_size, 2 * page_size}, Route::cached, Reason::resident}}));
}

TEST_F(ReadPlanTest, EndsWithTheFile) {
  const ReadPlan last = plan({999 * page_size, 10 * page_size}, pages(999, 2));
  const std::vector<TransferStep> expected = {
      {StepKind::read, 0, {999 * page_size, page_size}, Route::direct, Reason::absent},
      {StepKind::read, 0, {1000 * page_size, 100}, Route::cached, Reason::misaligned}};
  EXPECT_EQ(last.steps, expected);
  EXPECT_TRUE(plan({file_size_, 10}, {}).steps.empty());
  EXPECT_TRUE(plan({file_size_ + 5000, 10}, {}).steps.empty());
  EXPECT_TRUE(plan({0, 0}, {}).steps.empty());
}

TEST_F(ReadPlanTest, WithoutAMediumAllComesThroughThePageCache) {
  routes_.has_medium = false;
  for (const ByteRange bytes : {ByteRange{40'960, 8192}, ByteRange{0, 200 * page_size}}) {
    const PageRange range = pages_of(bytes);
    const ReadPlan found = plan(bytes, pages(range.first_page, range.page_count));
    EXPECT_EQ(found.steps, (std::vector<TransferStep>{{StepKind::read, 0, bytes, Route::cached, Reason::unavailable}}));
  }
}

}  // namespace
}  // namespace gpu4fs::route
