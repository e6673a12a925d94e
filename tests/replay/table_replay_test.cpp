// Replays against the table of the page cache: ratios that theory knows, dirty pages, flushes, discards, and the pages
// of requests.
#include <gtest/gtest.h>

#include "replay/ideal_caches.hpp"
#include "replay/synthetic_traces.hpp"
#include "replay/table_replay.hpp"

namespace gpu4fs::replay {
namespace {

double ratio(const TableCounts& counts) {
  return static_cast<double>(counts.reads.hits + counts.writes.hits) /
         static_cast<double>(counts.reads.pages() + counts.writes.pages());
}

BlockTrace requests(std::vector<Request> list) {
  BlockTrace trace;
  trace.devices = {"a", "b"};
  trace.requests = std::move(list);
  return trace;
}

TEST(TableReplay, LinesAreWholeSetsOrOneSmallSet) {
  EXPECT_EQ(line_count_of(0), 1u);
  EXPECT_EQ(line_count_of(page_size), 1u);
  EXPECT_EQ(line_count_of(7 * page_size + 1), 7u);
  EXPECT_EQ(line_count_of(32 * page_size), 32u);
  EXPECT_EQ(line_count_of(63 * page_size), 32u);
  EXPECT_EQ(line_count_of(u64{1} << 30), 1u << 18);
  EXPECT_EQ(line_count_of(~u64{0}) % 32, 0u);
}

TEST(TableReplay, SequentialPagesOnlyMiss) {
  const PageTrace trace = pages_of(test::trace_of_pages(test::sequential_pages(1000)));
  const TableCounts counts = replay_on_table(trace, 256);
  EXPECT_EQ(counts.reads.pages(), 1000u);
  EXPECT_EQ(counts.reads.hits, 0u);
  EXPECT_EQ(counts.reads.cold_misses, 256u);
  EXPECT_EQ(counts.reads.clean_misses, 744u);
  EXPECT_EQ(counts.writes.pages(), 0u);
}

// Any replacement that does not know the future has this ratio, as every page is equally likely to come next.
TEST(TableReplay, UniformPagesHitByTheShareOfTheFootprint) {
  const PageTrace trace = pages_of(test::trace_of_pages(test::uniform_pages(8192, 400'000, 3)));
  for (const u32 lines : {256u, 2048u, 4096u}) {
    EXPECT_NEAR(ratio(replay_on_table(trace, lines)), lines / 8192.0, 0.015) << lines;
  }
}

// The clock of a set takes a loop for pages that are used once, as LRU does. 64 pages of the loop belong to each set.
TEST(TableReplay, ALoopOfTwiceTheTableNeverHits) {
  const PageTrace trace = pages_of(test::trace_of_pages(test::loop_pages(4096, 5)));
  EXPECT_EQ(replay_on_table(trace, 2048).reads.hits, 0u);
  EXPECT_EQ(LruHits(trace).with(2048).reads, 0u);
  EXPECT_EQ(replay_on_table(trace, 8192).reads.hits, 4 * 4096u);
}

TEST(TableReplay, ZipfPagesHitMoreThanUniformOnesAndNotMoreThanTheOptimum) {
  const PageTrace trace = pages_of(test::trace_of_pages(test::zipf_pages(8192, 200'000, 4)));
  for (const u32 lines : {128u, 1024u, 4096u}) {
    const TableCounts counts = replay_on_table(trace, lines);
    EXPECT_GT(ratio(counts), lines / 8192.0 + 0.1);
    EXPECT_LT(counts.reads.hits, OptimalHits(trace).with(lines).reads);
  }
}

TEST(TableReplay, OneSetIsNeverBetterThanTheOptimum) {
  for (u64 seed = 1; seed <= 40; ++seed) {
    const PageTrace trace = pages_of(test::random_trace(20, 500, seed));
    const OptimalHits optimal(trace);
    for (const u32 lines : {1u, 2u, 7u, 16u, 32u}) {
      const TableCounts counts = replay_on_table(trace, lines);
      const IdealHits best = optimal.with(lines);
      EXPECT_LE(counts.reads.hits + counts.writes.hits, best.reads + best.writes) << seed << ' ' << lines;
    }
  }
}

// What is counted here agrees with what the table counts itself.
TEST(TableReplay, CountsAgreeWithTheTable) {
  for (u64 seed = 1; seed <= 20; ++seed) {
    const PageTrace trace = pages_of(test::random_trace(100, 2000, seed));
    for (const u32 lines : {3u, 32u, 64u, 256u}) {
      const TableCounts counts = replay_on_table(trace, lines);
      const PageCounts &reads = counts.reads, &writes = counts.writes;
      EXPECT_EQ(reads.pages() + writes.pages(), trace.access_count);
      EXPECT_EQ(reads.hits + writes.hits, counts.statistics.hits);
      EXPECT_EQ(reads.cold_misses + writes.cold_misses, counts.statistics.cold_misses);
      EXPECT_EQ(reads.clean_misses + reads.write_back_misses + writes.clean_misses + writes.write_back_misses,
                counts.statistics.misses);
      EXPECT_EQ(reads.write_back_misses + writes.write_back_misses, counts.statistics.dirty_misses);
      EXPECT_EQ(counts.written_for_misses, counts.statistics.dirty_misses);
      EXPECT_EQ(counts.statistics.loading_hits + counts.statistics.refusals, 0u);
    }
  }
}

TEST(TableReplay, DirtyPagesAreWrittenBackWhenNoCleanOneIsLeft) {
  std::vector<Request> list;
  for (u64 page = 0; page < 4; ++page) list.push_back({page * page_size, page_size, 0, AccessKind::write});
  list.push_back({4 * page_size, page_size, 0, AccessKind::read});   // page 0 is written back
  list.push_back({5 * page_size, page_size, 0, AccessKind::write});  // page 4 is clean and goes
  list.push_back({6 * page_size, page_size, 0, AccessKind::write});
  const TableCounts counts = replay_on_table(pages_of(requests(list)), 4);
  EXPECT_EQ(counts.writes.cold_misses, 4u);
  EXPECT_EQ(counts.reads.write_back_misses, 1u);
  EXPECT_EQ(counts.writes.clean_misses, 1u);
  EXPECT_EQ(counts.writes.write_back_misses, 1u);
  EXPECT_EQ(counts.written_for_misses, 2u);
  EXPECT_EQ(counts.written_for_flushes, 0u);
}

// Also a page that is written in part is dirty afterwards; but it has to be loaded before.
TEST(TableReplay, OnlyWritesOfWholePagesNeedNoLoad) {
  const TableCounts counts = replay_on_table(pages_of(requests({{512, 2 * page_size, 0, AccessKind::write},
                                                                {4 * page_size, page_size, 0, AccessKind::read},
                                                                {0, page_size, 0, AccessKind::write},
                                                                {0, 0, 0, AccessKind::flush}})),
                                             4);
  EXPECT_EQ(counts.writes.cold_misses, 3u);
  EXPECT_EQ(counts.writes.hits, 1u);
  EXPECT_EQ(counts.writes.loads, 2u);
  EXPECT_EQ(counts.reads.loads, 1u);
  EXPECT_EQ(counts.written_for_flushes, 3u);
}

TEST(TableReplay, AFlushWritesTheDirtyPagesOfItsDevice) {
  const TableCounts counts = replay_on_table(pages_of(requests({{0, 2 * page_size, 0, AccessKind::write},
                                                                {0, page_size, 1, AccessKind::write},
                                                                {page_size, page_size, 0, AccessKind::read},
                                                                {0, 0, 0, AccessKind::flush},
                                                                {0, 0, 0, AccessKind::flush},
                                                                {2 * page_size, page_size, 0, AccessKind::read},
                                                                {3 * page_size, page_size, 0, AccessKind::read}})),
                                             4);
  EXPECT_EQ(counts.written_for_flushes, 2u);
  EXPECT_EQ(counts.reads.hits, 1u);
  EXPECT_EQ(counts.reads.clean_misses, 1u);
  EXPECT_EQ(counts.written_for_misses, 0u);
}

TEST(TableReplay, DiscardedPagesAreGoneAndAreNotWritten) {
  const std::vector<Request> list = {{0, 4 * page_size, 0, AccessKind::write},
                                     {page_size / 2, 3 * page_size, 0, AccessKind::discard},  // pages 1 and 2
                                     {0, 4 * page_size, 0, AccessKind::read},
                                     {0, u64{1} << 50, 1, AccessKind::discard},
                                     {0, 0, 0, AccessKind::flush}};
  const TableCounts counts = replay_on_table(pages_of(requests(list)), 4);
  EXPECT_EQ(counts.reads.hits, 2u);
  EXPECT_EQ(counts.reads.cold_misses, 2u);
  EXPECT_EQ(counts.written_for_flushes, 2u);
  EXPECT_EQ(counts.written_for_misses, 0u);
}

TEST(PageTrace, RequestsTouchPagesAndWritePartsOfThem) {
  const PageTrace trace = pages_of(requests({{100, 200, 1, AccessKind::write},
                                             {page_size, 2 * page_size, 0, AccessKind::write},
                                             {page_size - 1, 2, 0, AccessKind::read},
                                             {10 * page_size + 512, 2 * page_size, 0, AccessKind::write},
                                             {0, 11 * page_size, 0, AccessKind::discard}}));
  const std::vector<cache::PageKey> pages = {{0, 0}, {0, 1}, {0, 2}, {0, 10}, {0, 11}, {0, 12}, {1, 0}};
  EXPECT_EQ(trace.pages, pages);
  EXPECT_EQ(trace.access_count, 1u + 2 + 2 + 3);
  const auto expect = [&](u32 i, u32 first, u32 count, bool is_first_partial, bool is_last_partial) {
    EXPECT_EQ(trace.requests[i].first, first) << i;
    EXPECT_EQ(trace.requests[i].count, count) << i;
    EXPECT_EQ(trace.requests[i].is_first_partial, is_first_partial) << i;
    EXPECT_EQ(trace.requests[i].is_last_partial, is_last_partial) << i;
  };
  expect(0, 6, 1, true, true);
  expect(1, 1, 2, false, false);
  expect(2, 0, 2, false, false);
  expect(3, 3, 3, true, true);
  expect(4, 0, 4, false, false);
  EXPECT_FALSE(trace.requests[3].is_partial(1));
  EXPECT_TRUE(trace.requests[3].is_partial(2));
}

TEST(PageTrace, ATraceWithoutPagesIsRefused) {
  EXPECT_THROW(pages_of(requests({{0, 0, 0, AccessKind::flush}, {0, 4096, 0, AccessKind::discard}})), TraceError);
  std::vector<Request> list(1 << 11, {0, request_bytes_max, 0, AccessKind::read});
  list.push_back({0, 1, 0, AccessKind::read});
  EXPECT_THROW(pages_of(requests(list)), TraceError);
}

}  // namespace
}  // namespace gpu4fs::replay
