// What is read ahead, and which pages leave the page cache for it.
#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "route/read_ahead.hpp"

namespace gpu4fs::route {
namespace {

constexpr u64 kib = 1024;
constexpr u64 mib = 1024 * kib;
constexpr u64 file = 7;

std::vector<PageRun> absent_pages(ByteRange bytes) {
  const PageRange pages = pages_of(bytes);
  return {{pages.first_page, pages.page_count, PageState::absent}};
}

class ReadAheadTest : public testing::Test {
 protected:
  ReadDecision read(u64 offset, u64 length, PageState state = PageState::absent) {
    const PageRange pages = pages_of({offset, length});
    const std::vector<PageRun> runs = {{pages.first_page, pages.page_count, state}};
    return ahead_.decide({offset, length}, runs, file_size_);
  }

  u64 file_size_ = 100 * mib;
  ReadAheadPartition partition_{512};
  ReadAhead ahead_{file, partition_};
};

TEST_F(ReadAheadTest, TheWindowGrowsToItsMaximum) {
  u64 end = 0, ahead = 0;
  std::vector<u64> lengths;
  for (; end < 4 * mib; end += 16 * kib) {
    const ReadDecision decision = read(end, 16 * kib);
    EXPECT_EQ(decision.source, ReadSource::page_cache);
    EXPECT_EQ(decision.reason, Reason::read_ahead);
    for (const ByteRange& bytes : decision.prefetches) {
      EXPECT_EQ(bytes.offset, std::max(ahead, end + 16 * kib));  // nothing twice, and no gap
      ahead = bytes.end();
      lengths.push_back(bytes.length);
    }
    EXPECT_GE(ahead, end + 16 * kib);
    EXPECT_LE(ahead, end + 16 * kib + 512 * kib);
  }
  EXPECT_EQ(lengths.front(), 16 * kib);
  EXPECT_EQ(ahead_.window_bytes(), 512 * kib);
}

TEST_F(ReadAheadTest, RandomReadsAreScheduled) {
  for (const u64 offset : {64 * kib, 8 * kib, 72 * kib}) {
    const ReadDecision decision = read(offset, 4 * kib);
    EXPECT_EQ(decision.source, ReadSource::schedule);
    EXPECT_TRUE(decision.prefetches.empty());
  }
  EXPECT_EQ(read(76 * kib, 4 * kib).source, ReadSource::page_cache);  // behind the one before
  EXPECT_EQ(read(20 * kib, 4 * kib).source, ReadSource::schedule);
  EXPECT_EQ(ahead_.window_bytes(), 0u);
}

TEST_F(ReadAheadTest, AdviceRandomSwitchesItOff) {
  EXPECT_FALSE(read(0, 4 * kib).prefetches.empty());
  ahead_.advise(Advice::random);
  for (u64 i = 1; i < 20; ++i) {
    const ReadDecision decision = read(i * 4 * kib, 4 * kib);
    EXPECT_EQ(decision.source, ReadSource::schedule);
    EXPECT_TRUE(decision.prefetches.empty());
  }
  ahead_.advise(Advice::normal);
  EXPECT_FALSE(read(20 * 4 * kib, 4 * kib).prefetches.empty());
}

TEST_F(ReadAheadTest, LongSequentialReadsComeFromTheMedium) {
  EXPECT_EQ(read(0, 512 * kib).source, ReadSource::page_cache);
  const ReadDecision decision = read(512 * kib, 512 * kib + 1);
  EXPECT_EQ(decision.source, ReadSource::medium);
  EXPECT_EQ(decision.reason, Reason::above_window);
  EXPECT_TRUE(decision.prefetches.empty());
  // What is in the page cache comes from there.
  EXPECT_EQ(read(mib + 1, 2 * mib, PageState::clean).source, ReadSource::page_cache);
}

TEST_F(ReadAheadTest, AdviceSequentialDoublesTheWindow) {
  ahead_.advise(Advice::sequential);
  EXPECT_EQ(read(0, mib).source, ReadSource::page_cache);
  EXPECT_EQ(read(mib, mib + 1).source, ReadSource::medium);
}

TEST_F(ReadAheadTest, EndsWithTheFile) {
  file_size_ = 20 * kib + 100;
  const ReadDecision decision = read(0, 16 * kib);
  ASSERT_EQ(decision.prefetches.size(), 1u);
  EXPECT_EQ(decision.prefetches[0], (ByteRange{16 * kib, 8 * kib}));
  EXPECT_TRUE(read(16 * kib, 4 * kib + 100).prefetches.empty());
}

TEST_F(ReadAheadTest, PrefetchesAreSplit) {
  ReadAheadLimits limits;
  limits.request_bytes_max = 64 * kib;
  ReadAhead ahead(file, partition_, limits);
  for (u64 offset = 0; offset < 4 * mib; offset += 256 * kib) {
    const ByteRange bytes = {offset, 256 * kib};
    for (const ByteRange& prefetch : ahead.decide(bytes, absent_pages(bytes), file_size_).prefetches) {
      EXPECT_LE(prefetch.length, 64 * kib);
      EXPECT_EQ(prefetch.offset % page_size, 0u);
    }
  }
}

TEST(ReadAheadPartitionTest, WithoutPagesNothingIsReadAhead) {
  ReadAheadPartition partition(0);
  ReadAhead ahead(file, partition);
  const ReadDecision decision = ahead.decide({0, 4096}, absent_pages({0, 4096}), mib);
  EXPECT_EQ(decision.source, ReadSource::schedule);
  EXPECT_TRUE(ahead.begin_prefetch(absent_pages({0, mib})).empty());
  EXPECT_EQ(partition.page_count(), 0u);
}

// A reader never loses a page of its window before it has read it, and the partition stays within its bound.
TEST_F(ReadAheadTest, WhatIsAheadStaysInThePartition) {
  for (u64 offset = 0; offset < 16 * mib; offset += 12 * kib) {
    const ReadDecision decision = read(offset, 12 * kib);
    for (const ByteRange& bytes : decision.prefetches) {
      for (const FilePages& leaving : ahead_.begin_prefetch(absent_pages(bytes))) {
        EXPECT_LE(leaving.pages.end_page() * page_size, offset + 12 * kib);
      }
    }
    EXPECT_LE(partition_.page_count(), 512u);
  }
  EXPECT_EQ(partition_.page_count(), 512u);
}

TEST_F(ReadAheadTest, OnlyPagesThatItBringsInAreItsOwn) {
  const std::vector<PageRun> runs = {
      {4, 2, PageState::absent}, {6, 1, PageState::dirty}, {7, 1, PageState::clean}, {8, 1, PageState::absent}};
  EXPECT_TRUE(ahead_.begin_prefetch(runs).empty());
  EXPECT_EQ(partition_.page_count(), 3u);
  for (const u64 page : {4, 5, 8}) EXPECT_TRUE(partition_.has(file, page));
}

TEST(ReadAheadPartitionTest, TheLeastRecentlyUsedLeave) {
  ReadAheadPartition partition(4);
  EXPECT_TRUE(partition.add({1, {0, 4}}).empty());
  partition.use({1, {0, 1}});
  EXPECT_EQ(partition.add({2, {9, 2}}), (std::vector<FilePages>{{1, {1, 2}}}));
  EXPECT_EQ(partition.page_count(), 4u);
  EXPECT_TRUE(partition.has(1, 0));
  partition.release({1, {0, 1}});  // a CPU program reads it: it stays in the page cache
  EXPECT_FALSE(partition.has(1, 0));
  EXPECT_TRUE(partition.add({2, {11, 1}}).empty());
  EXPECT_EQ(partition.remove_file(2), (std::vector<FilePages>{{2, {9, 3}}}));
  EXPECT_EQ(partition.page_count(), 1u);
}

// Against a plain list.
TEST(ReadAheadPartitionTest, IsThePlainList) {
  std::mt19937_64 random(1);
  constexpr u64 size = 20;
  ReadAheadPartition partition(size);
  std::deque<std::pair<u64, u64>> plain;  // most recently used first
  const auto take = [&](std::pair<u64, u64> page) {
    const auto found = std::find(plain.begin(), plain.end(), page);
    if (found == plain.end()) return false;
    plain.erase(found);
    return true;
  };
  for (u32 round = 0; round < 5000; ++round) {
    const FilePages pages = {random() % 3, {random() % 30, 1 + random() % 8}};
    std::vector<std::pair<u64, u64>> expected, found;
    const u64 kind = random() % 4;
    for (u64 page = pages.pages.first_page; page < pages.pages.end_page(); ++page) {
      const std::pair<u64, u64> key = {pages.file, page};
      if (take(key) ? kind != 2 : kind == 0 || kind == 3) plain.push_front(key);
      if (plain.size() > size) {
        expected.push_back(plain.back());
        plain.pop_back();
      }
    }
    std::vector<FilePages> leaving;
    if (kind == 1) partition.use(pages);
    if (kind == 2) partition.release(pages);
    if (kind == 0 || kind == 3) leaving = partition.add(pages);
    for (const FilePages& one : leaving) {
      for (u64 page = one.pages.first_page; page < one.pages.end_page(); ++page) found.push_back({one.file, page});
    }
    ASSERT_EQ(found, expected) << round;
    ASSERT_EQ(partition.page_count(), plain.size());
    for (const auto& [other, page] : plain) ASSERT_TRUE(partition.has(other, page));
  }
}

}  // namespace
}  // namespace gpu4fs::route
