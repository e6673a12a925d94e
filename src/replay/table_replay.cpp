#include "replay/table_replay.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/limits.hpp"
#include "cache/cache_build.hpp"
#include "cache/cache_statistics.hpp"
#include "cache/pin.hpp"
#include "cache/write_back.hpp"

namespace gpu4fs::replay {

namespace {

using cache::PinMode;
using cache::PinOutcome;

class Table {
 public:
  explicit Table(u32 line_count) {
    const u32 set_size = std::min(line_count, cache::set_line_max);
    const u64 bytes = align_up(cache::table_bytes(line_count, set_size), page_size);
    memory_.reset(std::aligned_alloc(page_size, bytes));
    if (memory_ == nullptr) throw std::bad_alloc();
    std::memset(memory_.get(), 0, bytes);
    cache_ = cache::place_cache(memory_.get(), nullptr, line_count, set_size);
  }

  void access(cache::PageKey key, PinMode mode) {
    PageCounts& counts = mode == PinMode::read ? counts_.reads : counts_.writes;
    bool has_written = false;
    for (;;) {
      const u64 cold_before = set_of(key).counts.cold_misses;
      const cache::PinResult pinned = cache::pin(Lane{}, cache_, key, mode);
      if (pinned.outcome == PinOutcome::must_write_back) {
        write_back(cache::begin_write_back(cache_, pinned.line));
        ++counts_.written_for_misses;
        has_written = true;
        continue;
      }
      const bool is_hit = pinned.outcome == PinOutcome::hit;
      // Nobody else uses the table, so nothing is being loaded and no set is full of pins.
      GPU4FS_CHECK(is_hit || pinned.outcome == PinOutcome::must_load || pinned.outcome == PinOutcome::fills);
      if (pinned.outcome == PinOutcome::must_load) ++counts.loads;
      if (!is_hit) cache::finish_load(cache_, pinned.line, true);
      if (mode != PinMode::read) cache::mark_dirty(cache_, pinned.line);
      cache::unpin(cache_, pinned.line);
      const bool is_cold = set_of(key).counts.cold_misses != cold_before;
      ++(is_hit        ? counts.hits
         : is_cold     ? counts.cold_misses
         : has_written ? counts.write_back_misses
                       : counts.clean_misses);
      return;
    }
  }

  void discard(cache::PageKey key) {
    const cache::FoundLine found = cache::find(Lane{}, cache_, key);
    if (found.line == cache::no_line) return;
    // Nobody needs what was stored.
    if (found.word.is_dirty()) write_back(cache::begin_write_back(cache_, found.line));
    cache::drop_page(cache_, key);
  }

  void flush(u32 device) {
    if (cache::dirty_line_count(cache_, device) == 0) return;
    for (u32 from = 0;;) {
      const cache::WriteBack taken = cache::take_dirty(Lane{}, cache_, device, from);
      if (taken.line == cache::no_line) return;
      write_back(taken);
      ++counts_.written_for_flushes;
      from = taken.line + 1;
    }
  }

  TableCounts counts() const {
    TableCounts result = counts_;
    result.statistics = cache::read_statistics(Lane{}, cache_);
    return result;
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };

  const cache::CacheSet& set_of(cache::PageKey key) const { return cache_.sets[cache::set_of(cache_, key)]; }

  void write_back(cache::WriteBack begun) { cache::finish_write_back(cache_, begun.line, true); }

  std::unique_ptr<void, Free> memory_;
  cache::Cache cache_;
  TableCounts counts_;
};

}  // namespace

u32 line_count_of(u64 cache_bytes) {
  const u64 lines = std::min(cache_bytes / page_size, (u64{1} << 32) - cache::set_line_max);
  if (lines < cache::set_line_max) return std::max(static_cast<u32>(lines), 1u);
  return static_cast<u32>(lines / cache::set_line_max * cache::set_line_max);
}

TableCounts replay_on_table(const PageTrace& trace, u32 line_count) {
  Table table(line_count);
  walk(
      trace,
      [&](const PageRequest& request, u32 page, u32 i) {
        const PinMode mode = request.kind == AccessKind::read ? PinMode::read
                             : request.is_partial(i)          ? PinMode::modify
                                                              : PinMode::overwrite;
        table.access(trace.pages[page], mode);
      },
      [&](u32 page) { table.discard(trace.pages[page]); }, [&](u32 device) { table.flush(device); });
  return table.counts();
}

}  // namespace gpu4fs::replay
