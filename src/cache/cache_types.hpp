// The table of a page cache for devices that are not mapped.
//
// A frame is a page of engine memory that holds one page of a device. A line describes the frame of the same index. The
// table says which page is in which frame, keeps frames in place while somebody uses them, and chooses frames for other
// pages. It moves no bytes: callers do, when an operation tells them to (cache/pin.hpp, cache/write_back.hpp).
//
// Lines form sets. A page can only be in the lines of its set, so a warp finds it with one look. A hit takes no lock. A
// page enters and leaves a line under the lock of the set; it leaves by a change of the word that succeeds only if
// nobody uses the line. So there is at most one line for a page, and one load for all who miss it.
//
// Memory order. Whatever was done with a frame is released by the change of the word that ends it: finish_load, unpin,
// mark_dirty, finish_write_back. Whoever may use the frame next acquires: pin, begin_write_back, and the removal of the
// page. Words are only changed by read-modify-writes, so a release reaches each later acquire of the word, whatever
// changes lie between. From a removal on, the lock of the set hands this on, so whoever loads a page again sees that
// its last write-back has ended. All of this is in the engine's scope.
//
// Zeroed memory is an empty table. Nothing is allocated later.
#pragma once

#include <type_traits>

#include "base/atomics.hpp"
#include "base/check.hpp"
#include "base/config.hpp"
#include "base/limits.hpp"
#include "base/locks.hpp"
#include "base/phase_users.hpp"
#include "base/types.hpp"
#include "cache/line_word.hpp"

namespace gpu4fs::cache {

inline constexpr u32 set_line_max = 32;
inline constexpr u32 no_line = ~u32{0};

struct alignas(16) Line {
  u64 word;  // atomic, LineWord
  u64 link;  // atomic; of whoever moves the bytes (device/staged/detached_io.hpp); the table does not use it
};

// How pages were found: each call of pin() counts once. Each set counts for itself, so workers that use different pages
// count in different places. Relaxed additions.
struct CacheStatistics {
  u64 hits;
  u64 loading_hits;  // the page was being loaded for somebody else
  u64 misses;        // another page was removed
  u64 dirty_misses;  // a page has to be written back first; the caller comes again
  u64 cold_misses;   // a line was free
  u64 refusals;      // nothing could be removed; the caller comes again
};

struct alignas(64) CacheSet {
  TicketLock lock;  // short: one miss looks again, and takes a line
  u32 hand;         // of the clock: the line that is looked at next; under the lock
  u32 changes;      // atomic; of tables of copies (cache/copies.hpp)
  CacheStatistics counts;
};

// Pages that were loaded before anybody asked for them, since the beginning (cache/ahead.hpp). All members are atomic.
struct alignas(32) AheadCounts {
  u64 begun;    // loads
  u64 used;     // pages that somebody has read then
  u64 dropped;  // pages that nobody has read: removed, replaced by a write, or not loaded
};

// Lines of a device that are dirty or being written, counted by the flush that waits for them.
struct alignas(32) DirtyCount {
  PhaseUsers lines;
};

// All of the table's memory. Plain data: copies show the same table.
struct Cache {
  Line* lines;
  CacheSet* sets;
  u64* dirty_sets;           // atomic, one bit for each set (cache/dirty_sets.hpp)
  DirtyCount* dirty_counts;  // device_count_max
  AheadCounts* ahead;
  u8* frames;
  u32 set_count;
  u32 set_size;  // lines of a set; the line_count is a multiple
  u32 line_count;
  u32 reserved;
};

static_assert(sizeof(Line) == 16 && sizeof(CacheSet) == 64 && sizeof(DirtyCount) == 32 && sizeof(AheadCounts) == 32);
// A bit of dirty_sets is less than a byte of each frame.
static_assert(sizeof(Line) + sizeof(CacheSet) / set_line_max + 1 <= 32, "metadata of a frame");
static_assert(std::is_trivially_copyable_v<Cache>);

GPU4FS_FN inline Line& line_at(const Cache& cache, u32 line) {
  GPU4FS_CHECK_LT(line, cache.line_count);
  return cache.lines[line];
}

GPU4FS_FN inline u8* frame_of(const Cache& cache, u32 line) {
  GPU4FS_CHECK_LT(line, cache.line_count);
  return cache.frames + line * page_size;
}

// Acquires nothing.
GPU4FS_FN inline LineWord peek(const Line& line) {
  return {load<Order::relaxed, Scope::engine>(&line.word)};
}

GPU4FS_FN inline PhaseUsers& dirty_lines(const Cache& cache, u32 device) {
  GPU4FS_CHECK_LT(device, device_count_max);
  return cache.dirty_counts[device].lines;
}

}  // namespace gpu4fs::cache
