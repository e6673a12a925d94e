// Finding, pinning and removing pages.
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

#include "cache/cache_memory.hpp"
#include "cache/cache_statistics.hpp"
#include "cache/pin.hpp"
#include "cache/write_back.hpp"
#include "support/heap_allocator.hpp"
#include "support/on_all_groups.hpp"

namespace gpu4fs::test {
namespace {

using cache::PageKey;
using cache::PinMode;
using cache::PinOutcome;
using cache::PinResult;

// Brings a page in and leaves it without a pin. Returns its line.
u32 bring_in(const cache::Cache& table, PageKey key) {
  const PinResult result = pin(Lane{}, table, key, PinMode::read);
  EXPECT_EQ(result.outcome, PinOutcome::must_load);
  finish_load(table, result.line, true);
  unpin(table, result.line);
  return result.line;
}

void use_once(const cache::Cache& table, PageKey key) {
  const PinResult result = pin(Lane{}, table, key, PinMode::read);
  EXPECT_EQ(result.outcome, PinOutcome::hit);
  unpin(table, result.line);
}

bool is_present(const cache::Cache& table, PageKey key) {
  return find(Lane{}, table, key).line != cache::no_line;
}

TEST(CachePin, AMissIsLoadedOnceAndThenHit) {
  on_all_groups([](auto g) {
    static CacheMemory memory(64);
    const cache::Cache& table = memory.cache();
    on_leader(g, [] { memory.clear(); });
    const PageKey key{5, 1234567890};
    const PinResult miss = pin(g, table, key, PinMode::read);
    EXPECT_EQ(miss.outcome, PinOutcome::must_load);
    const PinResult second = pin(g, table, key, PinMode::modify);
    EXPECT_EQ(second.outcome, PinOutcome::loading);
    EXPECT_EQ(second.line, miss.line);
    on_leader(g, [&] { finish_load(table, miss.line, true); });
    const PinResult hit = pin(g, table, key, PinMode::read);
    EXPECT_EQ(hit.outcome, PinOutcome::hit);
    EXPECT_EQ(hit.line, miss.line);
    EXPECT_EQ(memory.word(hit.line).pins(), 2u);
    EXPECT_EQ(find(g, table, key).line, hit.line);
    EXPECT_EQ(find(g, table, {4, key.page}).line, cache::no_line);
    EXPECT_EQ(find(g, table, {5, key.page + 1}).line, cache::no_line);
    on_leader(g, [&] {
      unpin(table, hit.line);
      unpin(table, hit.line);
    });
    EXPECT_EQ(memory.word(hit.line).pins(), 0u);
    const cache::CacheStatistics counts = read_statistics(g, table);
    EXPECT_EQ(counts.hits, 1u);
    EXPECT_EQ(counts.loading_hits, 1u);
    EXPECT_EQ(counts.cold_misses, 1u);
    EXPECT_EQ(counts.misses + counts.dirty_misses + counts.refusals, 0u);
    g.sync();
  });
}

TEST(CachePin, AFailedLoadLeavesNothing) {
  CacheMemory memory(32);
  const cache::Cache& table = memory.cache();
  const PinResult first = pin(Lane{}, table, {0, 1}, PinMode::read);
  finish_load(table, first.line, false);
  EXPECT_FALSE(is_present(table, {0, 1}));
  EXPECT_EQ(pin(Lane{}, table, {0, 1}, PinMode::read).outcome, PinOutcome::must_load) << "who waits loads it itself";
}

TEST(CachePin, AnOverwrittenPageIsNotLoaded) {
  CacheMemory memory(32);
  const cache::Cache& table = memory.cache();
  const PinResult fills = pin(Lane{}, table, {1, 9}, PinMode::overwrite);
  EXPECT_EQ(fills.outcome, PinOutcome::fills);
  EXPECT_EQ(pin(Lane{}, table, {1, 9}, PinMode::overwrite).outcome, PinOutcome::loading);
  finish_load(table, fills.line, true);
  mark_verified(table, fills.line);
  EXPECT_EQ(pin(Lane{}, table, {1, 9}, PinMode::read).outcome, PinOutcome::hit);
  EXPECT_EQ(pin(Lane{}, table, {1, 9}, PinMode::modify).outcome, PinOutcome::hit);
  EXPECT_TRUE(is_verified(table, fills.line));
  EXPECT_EQ(pin(Lane{}, table, {1, 9}, PinMode::overwrite).outcome, PinOutcome::hit);
  EXPECT_FALSE(is_verified(table, fills.line)) << "what was verified is replaced";
}

TEST(CachePin, AMarkOfVerificationEndsWithTheBytes) {
  CacheMemory memory(1, 1);
  const cache::Cache& table = memory.cache();
  EXPECT_EQ(pin(Lane{}, table, {1, 9}, PinMode::modify).outcome, PinOutcome::must_load);
  finish_load(table, 0, true);
  EXPECT_FALSE(is_verified(table, 0));
  mark_verified(table, 0);
  EXPECT_TRUE(is_verified(table, 0));
  mark_dirty(table, 0);
  EXPECT_FALSE(is_verified(table, 0));
  mark_verified(table, 0);
  mark_dirty(table, 0);
  EXPECT_FALSE(is_verified(table, 0)) << "of a line that is dirty already";
  mark_verified(table, 0);
  EXPECT_EQ(begin_write_back(table, 0).line, 0u);
  finish_write_back(table, 0, true);
  EXPECT_TRUE(is_verified(table, 0)) << "a write-back changes no bytes";
  unpin(table, 0);
  bring_in(table, {1, 10});
  EXPECT_EQ(pin(Lane{}, table, {1, 10}, PinMode::read).outcome, PinOutcome::hit);
  EXPECT_FALSE(is_verified(table, 0));
}

TEST(CachePin, OnePinTooManyIsRefused) {
  CacheMemory memory(1, 1);
  const cache::Cache& table = memory.cache();
  const PageKey key{63, 7};
  EXPECT_EQ(pin(Lane{}, table, key, PinMode::read).outcome, PinOutcome::must_load);
  finish_load(table, 0, true);
  for (u32 i = 1; i < cache::pin_max; ++i) ASSERT_EQ(pin(Lane{}, table, key, PinMode::read).outcome, PinOutcome::hit);
  EXPECT_EQ(pin(Lane{}, table, key, PinMode::read).outcome, PinOutcome::no_room);
  EXPECT_EQ(memory.word(0).pins(), cache::pin_max);
  EXPECT_EQ(memory.word(0).key(), key);
  unpin(table, 0);
  EXPECT_EQ(pin(Lane{}, table, key, PinMode::read).outcome, PinOutcome::hit);
  EXPECT_EQ(read_statistics(Lane{}, table).refusals, 1u);
}

TEST(CacheClock, PassesOverPagesThatWereUsedSince) {
  CacheMemory memory(4, 4);
  const cache::Cache& table = memory.cache();
  for (u64 page = 0; page < 4; ++page) bring_in(table, {0, page});
  use_once(table, {0, 0});
  use_once(table, {0, 2});
  bring_in(table, {0, 10});
  EXPECT_FALSE(is_present(table, {0, 1})) << "the first that was not used again";
  bring_in(table, {0, 11});
  EXPECT_FALSE(is_present(table, {0, 3}));
  EXPECT_TRUE(is_present(table, {0, 0}));
  EXPECT_TRUE(is_present(table, {0, 2}));
  bring_in(table, {0, 12});
  EXPECT_FALSE(is_present(table, {0, 0})) << "it was not used since the hand has passed it";
  EXPECT_EQ(read_statistics(Lane{}, table).misses, 3u);
}

TEST(CacheClock, TakesAPageThatWasUsedIfAllWere) {
  CacheMemory memory(4, 4);
  const cache::Cache& table = memory.cache();
  for (u64 page = 0; page < 4; ++page) bring_in(table, {0, page});
  for (u64 page = 0; page < 4; ++page) use_once(table, {0, page});
  bring_in(table, {0, 10});
  EXPECT_FALSE(is_present(table, {0, 0}));
}

// The table chooses from a look at all lines. A hand that looks at one line after the other chooses the same.
TEST(CacheClock, GoesAroundTheLines) {
  for (const u32 set_size : {1u, 5u, 32u}) {
    CacheMemory memory(set_size, set_size);
    const cache::Cache& table = memory.cache();
    std::vector<u64> pages;
    std::vector<bool> used(set_size, false);
    for (u64 page = 0; page < set_size; ++page) {
      EXPECT_EQ(bring_in(table, {0, page}), page);
      pages.push_back(page);
    }
    std::mt19937_64 random(set_size);
    u32 hand = 0;
    for (u64 page = set_size; page < 2000; ++page) {
      for (u64 hits = random() % (2 * set_size); hits > 0; --hits) {
        const u64 line = random() % set_size;
        use_once(table, {0, pages[line]});
        used[line] = true;
      }
      while (used[hand]) {
        used[hand] = false;
        hand = (hand + 1) % set_size;
      }
      ASSERT_EQ(bring_in(table, {0, page}), hand);
      pages[hand] = page;
      hand = (hand + 1) % set_size;
    }
  }
}

TEST(CacheClock, TakesNothingThatIsPinnedDirtyOrInFlight) {
  CacheMemory memory(4, 4);
  const cache::Cache& table = memory.cache();
  const auto pinned = pin(Lane{}, table, {0, 0}, PinMode::read);
  finish_load(table, pinned.line, true);
  EXPECT_EQ(pin(Lane{}, table, {0, 1}, PinMode::read).outcome, PinOutcome::must_load);
  const u32 dirty = bring_in(table, {0, 2});
  const u32 clean = bring_in(table, {0, 3});
  use_once(table, {0, 3});
  EXPECT_EQ(pin(Lane{}, table, {0, 2}, PinMode::modify).outcome, PinOutcome::hit);
  mark_dirty(table, dirty);
  unpin(table, dirty);

  EXPECT_EQ(pin(Lane{}, table, {0, 4}, PinMode::read).line, clean) << "a clean one is preferred, used or not";
  finish_load(table, clean, true);
  const PinResult full = pin(Lane{}, table, {0, 5}, PinMode::read);
  EXPECT_EQ(full.outcome, PinOutcome::must_write_back);
  EXPECT_EQ(full.line, dirty);
  EXPECT_EQ(begin_write_back(table, dirty).key, (PageKey{0, 2}));
  EXPECT_EQ(pin(Lane{}, table, {0, 5}, PinMode::read).outcome, PinOutcome::no_room);
  finish_write_back(table, dirty, true);
  EXPECT_EQ(pin(Lane{}, table, {0, 5}, PinMode::read).line, dirty);
  EXPECT_TRUE(is_present(table, {0, 0}));
  EXPECT_TRUE(is_present(table, {0, 1}));
}

TEST(CacheClock, NamesADirtyPageThatWasNotUsedLately) {
  CacheMemory memory(2, 2);
  const cache::Cache& table = memory.cache();
  for (u64 page = 0; page < 2; ++page) {
    const auto result = pin(Lane{}, table, {0, page}, PinMode::overwrite);
    finish_load(table, result.line, true);
    mark_dirty(table, result.line);
    unpin(table, result.line);
  }
  use_once(table, {0, 0});
  const PinResult result = pin(Lane{}, table, {0, 5}, PinMode::read);
  EXPECT_EQ(result.outcome, PinOutcome::must_write_back);
  EXPECT_EQ(memory.word(result.line).key().page, 1u);
}

TEST(CacheSets, NeighboursLieApart) {
  for (const u32 set_count : {3u, 4u, 7u, 32u, 1000u, 8192u, 1u << 20}) {
    cache::Cache table{};
    table.set_count = set_count;
    for (u64 i = 0; i < 20000; ++i) {
      const PageKey key{static_cast<u32>(i % 64), i * i * 7919 % (u64{1} << 37)};
      const u32 set = set_of(table, key);
      ASSERT_LT(set, set_count);
      ASSERT_NE(set, set_of(table, {key.device, key.page + 1})) << key.page << " of " << set_count;
    }
  }
}

TEST(CacheSets, ConsecutivePagesFillSetsEvenly) {
  cache::Cache table{};
  table.set_count = 1000;
  for (const u64 stride : {1, 2, 3, 16, 512, 4096}) {
    std::vector<u32> filled(table.set_count);
    for (u64 i = 0; i < 16 * table.set_count; ++i) ++filled[set_of(table, {2, 77 + i * stride})];
    for (const u32 count : filled) EXPECT_LE(count, cache::set_line_max) << "stride " << stride;
  }
}

TEST(CacheDrop, RemovesWhatNobodyUsesAndCountsTheRest) {
  on_all_groups([](auto g) {
    static CacheMemory memory(128);
    const cache::Cache& table = memory.cache();
    on_leader(g, [&] {
      memory.clear();
      for (u64 page = 0; page < 40; ++page) bring_in(table, {2, page});
      bring_in(table, {3, 5});
      EXPECT_EQ(pin(Lane{}, table, {2, 10}, PinMode::read).outcome, PinOutcome::hit);
      const PinResult changed = pin(Lane{}, table, {2, 11}, PinMode::modify);
      mark_dirty(table, changed.line);
      unpin(table, changed.line);
      EXPECT_EQ(pin(Lane{}, table, {2, 40}, PinMode::read).outcome, PinOutcome::must_load);
    });
    EXPECT_EQ(drop(g, table, 2, 5, 36), 3u) << "pinned, dirty, loading";
    for (u64 page = 0; page < 41; ++page) {
      EXPECT_EQ(is_present(table, {2, page}), page < 5 || page == 10 || page == 11 || page == 40);
    }
    EXPECT_TRUE(is_present(table, {3, 5}));
    g.sync();
    EXPECT_EQ(drop(g, table, 2, 0, u64{1} << cache::page_bits), 3u);
    EXPECT_EQ(drop(g, table, 3, 0, u64{1} << cache::page_bits), 0u);
    EXPECT_FALSE(is_present(table, {3, 5}));
    g.sync();
  });
}

TEST(CacheBuild, TakesALittleMoreThanItsFrames) {
  HeapAllocator allocator;
  const u32 frame_count = 4096;
  const cache::Cache table = cache::build_cache(allocator, frame_count);
  EXPECT_EQ(allocator.bytes(), u64{frame_count} * page_size + cache::table_bytes(frame_count));
  EXPECT_LE(cache::table_bytes(frame_count), u64{frame_count} * 18 + cache::dirty_set_bytes(frame_count / 32) +
                                                 device_count_max * sizeof(cache::DirtyCount) +
                                                 sizeof(cache::AheadCounts));
  EXPECT_EQ(table.set_count, 128u);
  std::set<const u8*> frames;
  for (u64 page = 0; page < frame_count / 2; ++page) {
    const PinResult result = pin(Lane{}, table, {1, page}, PinMode::overwrite);
    ASSERT_EQ(result.outcome, PinOutcome::fills);
    u8* const frame = frame_of(table, result.line);
    EXPECT_TRUE(is_aligned(frame, page_size));
    std::memset(frame, static_cast<int>(page), page_size);
    finish_load(table, result.line, true);
    mark_dirty(table, result.line);
    frames.insert(frame);
  }
  EXPECT_EQ(frames.size(), frame_count / 2);
  EXPECT_EQ(dirty_line_count(table, 1), frame_count / 2);
  for (u64 page = 0; page < frame_count / 2; ++page) {
    const PinResult result = pin(Lane{}, table, {1, page}, PinMode::read);
    ASSERT_EQ(result.outcome, PinOutcome::hit);
    EXPECT_EQ(frame_of(table, result.line)[page % page_size], static_cast<u8>(page));
  }
}

}  // namespace
}  // namespace gpu4fs::test
