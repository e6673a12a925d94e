// Random operations against a model of the table: which pages are present, in which state, with which bytes.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "cache/cache_memory.hpp"
#include "cache/cache_statistics.hpp"
#include "cache/pin.hpp"
#include "cache/write_back.hpp"
#include "support/on_all_groups.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test {
namespace {

using cache::PinMode;
using cache::PinOutcome;
using cache::PinResult;

struct PageLess {
  bool operator()(const cache::PageKey& a, const cache::PageKey& b) const {
    return a.device != b.device ? a.device < b.device : a.page < b.page;
  }
};
template <class T>
using PageMap = std::map<cache::PageKey, T, PageLess>;

constexpr u32 device_count = 3;
constexpr u64 no_bytes = ~u64{0};

// What is in a frame, at its beginning and its end.
struct ModelPage {
  u32 line = 0;
  u32 pins = 0;
  bool is_loading = false;
  bool is_dirty = false;
  bool is_writing = false;
  bool is_verified = false;
  u64 dirty_flush = 0;    // flushes that had begun when it became dirty
  u64 written_flush = 0;  // the same of the bytes that are being written
  u64 bytes = 0;
  u64 written_bytes = 0;

  bool is_at_rest() const { return pins == 0 && !is_loading && !is_writing; }
};

// Every rank has its own model, and all of them decide the same. Collective operations are called by all ranks, the
// others by one.
template <class Group>
class ModelWalk {
 public:
  ModelWalk(Group g, CacheMemory& memory, u64 seed) : g_(g), memory_(memory), random_(seed) {}

  void step() {
    g_.sync();
    const u32 choice = random(100);
    if (choice < 40) return pin_some();
    if (choice < 60) return unpin_some();
    if (choice < 75) return store_some();
    if (choice < 85) return write_back_some();
    if (choice < 92) return end_write_back();
    if (choice < 97) return flush_some();
    drop_some();
  }

  void finish() {
    for (const auto& [key, page] : present_) check_frame(key, page);
    EXPECT_GT(counts_[0], 0u) << "hits";
    const cache::CacheStatistics counts = read_statistics(g_, table());
    EXPECT_EQ(counts.hits, counts_[static_cast<u32>(PinOutcome::hit)]);
    EXPECT_EQ(counts.loading_hits, counts_[static_cast<u32>(PinOutcome::loading)]);
    EXPECT_EQ(counts.misses + counts.cold_misses,
              counts_[static_cast<u32>(PinOutcome::must_load)] + counts_[static_cast<u32>(PinOutcome::fills)]);
    EXPECT_EQ(counts.dirty_misses, counts_[static_cast<u32>(PinOutcome::must_write_back)]);
    EXPECT_EQ(counts.refusals, counts_[static_cast<u32>(PinOutcome::no_room)]);
  }

 private:
  template <class Body>
  auto once(Body&& body) {
    return on_leader(g_, body);
  }
  const cache::Cache& table() const { return memory_.cache(); }
  u32 random(u32 below) { return static_cast<u32>(random_() % below); }
  cache::PageKey random_key() { return {random(device_count), random(40)}; }
  u64 medium(cache::PageKey key) const {
    const auto found = medium_.find(key);
    return found == medium_.end() ? 0 : found->second;
  }

  void set_frame(u32 line, u64 bytes) {
    once([&] {
      auto* const words = reinterpret_cast<u64*>(frame_of(table(), line));
      words[0] = words[page_size / 8 - 1] = bytes;
    });
  }
  void check_frame(cache::PageKey key, const ModelPage& page) {
    const auto* const words = reinterpret_cast<const u64*>(frame_of(table(), page.line));
    EXPECT_EQ(words[0], page.bytes) << key.page;
    EXPECT_EQ(words[page_size / 8 - 1], page.bytes) << key.page;
    const cache::LineWord word = memory_.word(page.line);
    EXPECT_EQ(word.key(), key);
    EXPECT_EQ(word.pins(), page.pins);
    EXPECT_EQ(word.is_loading(), page.is_loading);
    EXPECT_EQ(word.is_dirty(), page.is_dirty);
    EXPECT_EQ(word.is_writing(), page.is_writing);
    EXPECT_EQ(word.is_verified(), page.is_verified);
    EXPECT_EQ(find(g_, table(), key).line, page.line);
  }

  template <class Condition>
  auto random_page(Condition&& condition) {
    std::vector<typename PageMap<ModelPage>::iterator> pages;
    for (auto it = present_.begin(); it != present_.end(); ++it) {
      if (condition(it->second)) pages.push_back(it);
    }
    return pages.empty() ? present_.end() : pages[random(static_cast<u32>(pages.size()))];
  }

  void pin_some() {
    const cache::PageKey key = random_key();
    const auto mode = static_cast<PinMode>(random(3));
    const PinResult result = pin(g_, table(), key, mode);
    ++counts_[static_cast<u32>(result.outcome)];
    const auto found = present_.find(key);
    if (found != present_.end()) {
      ModelPage& page = found->second;
      EXPECT_EQ(result.outcome, page.is_loading ? PinOutcome::loading : PinOutcome::hit);
      EXPECT_EQ(result.line, page.line);
      if (!page.is_loading) ++page.pins;
      if (mode == PinMode::overwrite && !page.is_loading) page.is_verified = false;
      return check_frame(key, page);
    }
    expect_miss(key, mode, result);
  }

  void expect_miss(cache::PageKey key, PinMode mode, PinResult result) {
    u32 lines = 0;
    u32 removable = 0;
    u32 dirty = 0;
    for (const auto& [other, page] : present_) {
      if (set_of(table(), other) != set_of(table(), key)) continue;
      ++lines;
      if (page.is_at_rest()) ++(page.is_dirty ? dirty : removable);
    }
    if (lines == table().set_size && removable == 0) {
      EXPECT_EQ(result.outcome, dirty > 0 ? PinOutcome::must_write_back : PinOutcome::no_room);
      if (dirty == 0) return;
      const auto named = random_page([&](const ModelPage& page) { return page.line == result.line; });
      ASSERT_NE(named, present_.end());
      EXPECT_TRUE(named->second.is_dirty && named->second.is_at_rest());
      return;
    }
    ASSERT_EQ(result.outcome, mode == PinMode::overwrite ? PinOutcome::fills : PinOutcome::must_load);
    const auto removed = random_page([&](const ModelPage& page) { return page.line == result.line; });
    if (removed != present_.end()) {
      EXPECT_EQ(lines, table().set_size) << "a free line comes first";
      EXPECT_TRUE(removed->second.is_at_rest() && !removed->second.is_dirty);
      present_.erase(removed);
    }
    ModelPage page{};
    page.line = result.line;
    page.pins = 1;
    page.is_loading = true;
    page.bytes = no_bytes;
    set_frame(page.line, page.bytes);
    present_[key] = page;
  }

  void unpin_some() {
    const auto it = random_page([](const ModelPage& page) { return page.pins > 0; });
    if (it == present_.end()) return;
    ModelPage& page = it->second;
    if (!page.is_loading) {
      once([&] { unpin(table(), page.line); });
      --page.pins;
      return check_frame(it->first, page);
    }
    const bool ok = random(5) != 0;
    page.bytes = medium(it->first);
    set_frame(page.line, page.bytes);
    once([&] { finish_load(table(), page.line, ok); });
    page.is_loading = false;
    if (ok) return check_frame(it->first, page);
    EXPECT_TRUE(memory_.word(page.line).is_free());
    present_.erase(it);
  }

  void store_some() {
    const auto it = random_page([](const ModelPage& page) { return page.pins > 0 && !page.is_loading; });
    if (it == present_.end()) return;
    ModelPage& page = it->second;
    if (random(3) == 0) {
      once([&] { mark_verified(table(), page.line); });
      page.is_verified = true;
      return check_frame(it->first, page);
    }
    page.bytes = ++newest_bytes_;
    set_frame(page.line, page.bytes);
    once([&] { mark_dirty(table(), page.line); });
    page.is_verified = false;
    if (!page.is_dirty) page.dirty_flush = flushes_[it->first.device];
    page.is_dirty = true;
    check_frame(it->first, page);
  }

  void expect_begun(cache::PageKey key, const cache::WriteBack& taken) {
    ModelPage& page = present_[key];
    EXPECT_EQ(taken.line, page.line);
    EXPECT_EQ(taken.key, key);
    EXPECT_TRUE(page.is_dirty && !page.is_writing);
    page.is_dirty = false;
    page.is_writing = true;
    page.written_bytes = page.bytes;
    page.written_flush = page.dirty_flush;
    check_frame(key, page);
  }

  void write_back_some() {
    if (random(2) == 0) {
      const auto it = random_page([](const ModelPage&) { return true; });
      if (it == present_.end()) return;
      const cache::WriteBack taken = once([&] { return begin_write_back(table(), it->second.line); });
      if (it->second.is_dirty && !it->second.is_writing) return expect_begun(it->first, taken);
      EXPECT_EQ(taken.line, cache::no_line);
      return;
    }
    const u32 device = random(device_count);
    const u32 from = random(table().line_count + 1);
    const cache::WriteBack taken = take_dirty(g_, table(), device, from);
    u32 expected = cache::no_line;
    for (const auto& [key, page] : present_) {
      const bool is_meant = key.device == device && page.line >= from && page.is_dirty && !page.is_writing;
      if (is_meant && page.line < expected) expected = page.line;
    }
    EXPECT_EQ(taken.line, expected);
    if (taken.line != cache::no_line) expect_begun(taken.key, taken);
  }

  void end_write_back() {
    const auto it = random_page([](const ModelPage& page) { return page.is_writing; });
    if (it == present_.end()) return;
    ModelPage& page = it->second;
    const bool ok = random(4) != 0;
    if (ok) medium_[it->first] = page.written_bytes;
    once([&] { finish_write_back(table(), page.line, ok); });
    page.is_writing = false;
    if (!ok) {
      page.dirty_flush = page.written_flush;
      page.is_dirty = true;
    }
    check_frame(it->first, page);
  }

  // Whether flush `number` still waits for a page.
  bool is_waited_for(u32 device, u64 number) const {
    for (const auto& [key, page] : present_) {
      if (key.device != device) continue;
      if (page.is_dirty && page.dirty_flush < number) return true;
      if (page.is_writing && page.written_flush < number) return true;
    }
    return false;
  }

  void flush_some() {
    const u32 device = random(device_count);
    u64 counted = 0;
    for (const auto& [key, page] : present_) {
      if (key.device == device) counted += u64{page.is_dirty} + u64{page.is_writing};
    }
    EXPECT_EQ(dirty_line_count(table(), device), counted);
    for (u64 number = 1; number <= flushes_[device]; ++number) {
      EXPECT_EQ(has_flushed(table(), device, number), !is_waited_for(device, number));
    }
    const u64 begun = once([&] { return begin_flush(table(), device); });
    if (flushes_[device] > 0 && is_waited_for(device, flushes_[device])) {
      EXPECT_EQ(begun, 0u);
      return;
    }
    EXPECT_EQ(begun, flushes_[device] + 1);
    flushes_[device] = begun;
  }

  void drop_some() {
    const u32 device = random(device_count);
    const u64 first = random(40);
    const u64 count = random(10);
    const u64 left = drop(g_, table(), device, first, count);
    u64 expected = 0;
    for (auto it = present_.begin(); it != present_.end();) {
      const bool is_meant = it->first.device == device && it->first.page >= first && it->first.page < first + count;
      if (is_meant && it->second.is_at_rest() && !it->second.is_dirty) {
        EXPECT_TRUE(memory_.word(it->second.line).is_free());
        it = present_.erase(it);
        continue;
      }
      expected += is_meant ? 1 : 0;
      ++it;
    }
    EXPECT_EQ(left, expected);
  }

  Group g_;
  CacheMemory& memory_;
  std::mt19937_64 random_;
  PageMap<ModelPage> present_;
  PageMap<u64> medium_;
  u64 flushes_[device_count] = {};
  u64 newest_bytes_ = 0;
  u64 counts_[6] = {};
};

constexpr u32 set_sizes[] = {1, 3, 8, 32};

TEST(CacheModel, RandomOperationsOfALane) {
  for (const u32 set_size : set_sizes) {
    CacheMemory memory(set_size * 3, set_size);
    ModelWalk<Lane> walk(Lane{}, memory, 1000 + set_size);
    for (u32 i = 0; i < scaled(50000) && !testing::Test::HasFailure(); ++i) walk.step();
    walk.finish();
  }
}

TEST(CacheModel, RandomOperationsOfAWarp) {
  for (const u32 set_size : set_sizes) {
    CacheMemory memory(set_size * 3, set_size);
    run_emulated_warp([&](EmulatedWarp g) {
      ModelWalk<EmulatedWarp> walk(g, memory, 2000 + set_size);
      for (u32 i = 0; i < scaled(3000); ++i) walk.step();
      g.sync();
      walk.finish();
    });
  }
}

}  // namespace
}  // namespace gpu4fs::test
