// Write-back and flushes.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "cache/cache_memory.hpp"
#include "cache/pin.hpp"
#include "cache/write_back.hpp"
#include "support/on_all_groups.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test {
namespace {

using cache::PageKey;
using cache::PinMode;

constexpr u32 flushed_device = 7;

// A table of one set, and pages of a device that are changed and written back.
class CacheFlush : public ::testing::Test {
 protected:
  CacheFlush() : memory_(8, 8) {}

  const cache::Cache& table() { return memory_.cache(); }

  u32 change(u64 page) {
    const cache::PinResult result = pin(Lane{}, table(), {flushed_device, page}, PinMode::overwrite);
    if (result.outcome == cache::PinOutcome::fills) finish_load(table(), result.line, true);
    mark_dirty(table(), result.line);
    unpin(table(), result.line);
    return result.line;
  }
  bool begin(u32 line) { return begin_write_back(table(), line).line == line; }
  void end(u32 line, bool ok = true) { finish_write_back(table(), line, ok); }
  bool has_flushed(u64 number) { return cache::has_flushed(table(), flushed_device, number); }
  u64 begin_flush() { return cache::begin_flush(table(), flushed_device); }

  CacheMemory memory_;
};

TEST_F(CacheFlush, WaitsForWhatWasDirtyAndForNothingElse) {
  const u32 first = change(1);
  const u32 second = change(2);
  EXPECT_TRUE(begin(second));
  const u64 flush = begin_flush();
  EXPECT_EQ(flush, 1u);
  EXPECT_FALSE(has_flushed(flush));
  const u32 later = change(3);
  EXPECT_TRUE(begin(first));
  EXPECT_FALSE(has_flushed(flush)) << "being written is not written";
  end(first);
  EXPECT_FALSE(has_flushed(flush)) << "the write-back that ran before it counts too";
  EXPECT_EQ(begin_flush(), 0u) << "one at a time";
  end(second);
  EXPECT_TRUE(has_flushed(flush));
  EXPECT_TRUE(memory_.word(later).is_dirty());
  const u64 next = begin_flush();
  EXPECT_EQ(next, 2u);
  EXPECT_TRUE(has_flushed(flush)) << "it has ended, whatever the next one waits for";
  EXPECT_FALSE(has_flushed(next));
  EXPECT_TRUE(begin(later));
  end(later);
  EXPECT_TRUE(has_flushed(next));
  EXPECT_EQ(dirty_line_count(table(), flushed_device), 0u);
}

TEST_F(CacheFlush, OfADeviceWithNothingDirtyEndsAtOnce) {
  change(1);
  const u64 flush = cache::begin_flush(table(), flushed_device + 1);
  EXPECT_TRUE(cache::has_flushed(table(), flushed_device + 1, flush));
}

TEST_F(CacheFlush, ALineThatIsChangedWhileItIsWrittenBelongsToBoth) {
  const u32 line = change(1);
  EXPECT_TRUE(begin(line));
  const u64 first = begin_flush();
  EXPECT_EQ(change(1), line);
  EXPECT_EQ(dirty_line_count(table(), flushed_device), 2u);
  EXPECT_FALSE(begin(line)) << "one write-back at a time";
  end(line);
  EXPECT_TRUE(has_flushed(first));
  EXPECT_TRUE(memory_.word(line).is_dirty());
  const u64 second = begin_flush();
  EXPECT_FALSE(has_flushed(second));
  EXPECT_TRUE(begin(line));
  end(line);
  EXPECT_TRUE(has_flushed(second));
}

TEST_F(CacheFlush, AChangeOfADirtyLineIsPartOfTheFlushThatWaitsForIt) {
  const u32 line = change(1);
  const u64 flush = begin_flush();
  EXPECT_EQ(change(1), line);
  EXPECT_EQ(dirty_line_count(table(), flushed_device), 1u);
  EXPECT_TRUE(begin(line));
  end(line);
  EXPECT_TRUE(has_flushed(flush));
  EXPECT_FALSE(memory_.word(line).is_dirty());
}

TEST_F(CacheFlush, WaitsForALineThatCouldNotBeWritten) {
  const u32 line = change(1);
  const u64 flush = begin_flush();
  EXPECT_TRUE(begin(line));
  end(line, false);
  EXPECT_TRUE(memory_.word(line).is_dirty());
  EXPECT_FALSE(has_flushed(flush));
  EXPECT_TRUE(begin(line));
  EXPECT_EQ(change(1), line);
  end(line, false);
  EXPECT_EQ(dirty_line_count(table(), flushed_device), 1u) << "one line, one count";
  EXPECT_FALSE(has_flushed(flush)) << "the older bytes are not written";
  EXPECT_TRUE(begin(line));
  end(line);
  EXPECT_TRUE(has_flushed(flush));
  EXPECT_EQ(dirty_line_count(table(), flushed_device), 0u);
}

TEST(CacheWriteBack, TakesTheDirtyLinesOfADeviceInOrder) {
  on_all_groups([](auto g) {
    static CacheMemory memory(128);
    const cache::Cache& table = memory.cache();
    const u32 dirty_count = on_leader(g, [&] {
      memory.clear();
      u32 count = 0;
      for (u64 page = 0; page < 60; ++page) {
        const u32 owner = page % 3 == 0 ? flushed_device + 1 : flushed_device;
        const cache::PinResult result = pin(Lane{}, table, {owner, page}, PinMode::overwrite);
        finish_load(table, result.line, true);
        if (page % 2 == 0) mark_dirty(table, result.line);
        if (page == 4) begin_write_back(table, result.line);
        if (page % 2 == 0 && owner == flushed_device && page != 4) ++count;
        unpin(table, result.line);
      }
      return count;
    });
    u32 found = 0;
    u32 from = 0;
    for (;;) {
      const cache::WriteBack taken = take_dirty(g, table, flushed_device, from);
      if (taken.line == cache::no_line) break;
      EXPECT_GE(taken.line, from);
      EXPECT_EQ(taken.key.device, flushed_device);
      EXPECT_EQ(memory.word(taken.line).key(), taken.key);
      EXPECT_TRUE(memory.word(taken.line).is_writing());
      from = taken.line + 1;
      ++found;
      g.sync();
    }
    EXPECT_EQ(found, dirty_count);
    EXPECT_EQ(take_dirty(g, table, flushed_device, 0).line, cache::no_line) << "all of them are being written";
    EXPECT_NE(take_dirty(g, table, flushed_device + 1, 0).line, cache::no_line);
    g.sync();
  });
}

// Sets of 4 lines: more than 64 sets, so more than one word of bits.
TEST(CacheWriteBack, TakesAllDirtyLinesAndLooksAtTheirSetsOnly) {
  constexpr u32 set_count = 200;
  constexpr u32 set_size = 4;
  on_all_groups([](auto g) {
    static CacheMemory memory(set_count * set_size, set_size);
    static u32 visits[set_count * set_size];
    const cache::Cache& table = memory.cache();
    const u32 dirty_count = on_leader(g, [&] {
      memory.clear();
      std::memset(visits, 0, sizeof(visits));
      u32 count = 0;
      for (u64 page = 0; page < 100; ++page) {
        const u32 owner = page % 3 == 0 ? flushed_device + 1 : flushed_device;
        const cache::PinResult result = pin(Lane{}, table, {owner, page}, PinMode::overwrite);
        if (result.outcome != cache::PinOutcome::fills) continue;
        finish_load(table, result.line, true);
        mark_dirty(table, result.line);
        count += owner == flushed_device ? 1 : 0;
        unpin(table, result.line);
      }
      // A line that is dirty in a set whose bit is clear is in no search: this is a state that cannot occur.
      for (u32 set = 0; set < set_count; ++set) {
        bool has_dirty = false;
        for (u32 i = 0; i < set_size; ++i) has_dirty |= memory.word(set * set_size + i).is_dirty();
        EXPECT_EQ((table.dirty_sets[set / 64] >> set % 64 & 1) != 0, has_dirty) << set;
      }
      return count;
    });
    EXPECT_GT(dirty_count, 40u);
    const auto take_all = [&](u32 owner) {
      take_all_dirty(
          g, table, [owner](cache::LineWord word) { return word.key().device == owner; },
          [&](const cache::WriteBack& taken) {
            if (taken.line == cache::no_line) return;
            EXPECT_EQ(memory.word(taken.line).key(), taken.key);
            EXPECT_TRUE(memory.word(taken.line).is_writing());
            ++visits[taken.line];
          });
      g.sync();
    };
    take_all(flushed_device);
    on_leader(g, [&] {
      u32 visited = 0;
      for (u32 line = 0; line < set_count * set_size; ++line) {
        EXPECT_LE(visits[line], 1u);
        visited += visits[line];
        if (visits[line] != 0) finish_write_back(table, line, line % 2 == 0);
      }
      EXPECT_EQ(visited, dirty_count);
    });
    take_all(flushed_device + 1);
    take_all(flushed_device);
    on_leader(g, [&] {
      for (u32 line = 0; line < set_count * set_size; ++line) {
        if (visits[line] == 0) continue;
        const bool was_tried_twice = memory.word(line).key().device == flushed_device && line % 2 != 0;
        EXPECT_EQ(visits[line], was_tried_twice ? 2u : 1u) << line;
      }
      for (u32 i = 0; i < cache::dirty_word_count(set_count); ++i) EXPECT_EQ(table.dirty_sets[i], 0u);
    });
    EXPECT_EQ(next_dirty_set(g, table, 0), cache::no_set);
    g.sync();
  });
}

// Plain stores, which only the line's word orders before the loads of the write-back: ThreadSanitizer sees whether it
// does. One of the two marks finds the line dirty.
TEST(CacheOrder, AWriteBackSeesWhatWasStoredBeforeTheMarks) {
  CacheMemory memory(1, 1);
  const cache::Cache& table = memory.cache();
  ASSERT_EQ(pin(Lane{}, table, {flushed_device, 1}, PinMode::overwrite).outcome, cache::PinOutcome::fills);
  finish_load(table, 0, true);
  auto* const bytes = reinterpret_cast<u64*>(frame_of(table, 0));
  const u64 round_count = scaled(1000);
  std::atomic<u64> begun{0};
  std::atomic<u64> marked{0};  // relaxed: orders nothing
  std::vector<std::thread> writers;
  for (u32 i = 0; i < 2; ++i) {
    writers.emplace_back([&, i] {
      for (u64 round = 1; round <= round_count; ++round) {
        while (begun.load(std::memory_order_acquire) < round) std::this_thread::yield();
        bytes[i] = round;
        mark_dirty(table, 0);
        marked.fetch_add(1, std::memory_order_relaxed);
      }
    });
  }
  for (u64 round = 1; round <= round_count; ++round) {
    begun.store(round, std::memory_order_release);
    while (marked.load(std::memory_order_relaxed) != 2 * round) std::this_thread::yield();
    while (begin_write_back(table, 0).line == cache::no_line) std::this_thread::yield();
    EXPECT_EQ(bytes[0], round);
    EXPECT_EQ(bytes[1], round);
    finish_write_back(table, 0, true);
  }
  for (std::thread& writer : writers) writer.join();
}

}  // namespace
}  // namespace gpu4fs::test
