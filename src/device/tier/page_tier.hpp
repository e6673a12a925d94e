// Copies of pages in the memory of the engine's processor: the second tier of the page cache.
//
// The frames of staged devices lie in memory of the host, and so do the pages of devices in memory. A GPU reads both
// over the bus. So pages that are read again get a copy in its own memory. Who announces a write of a page drops its
// copy (device/device_access.hpp), and copies are never written, so losing one loses nothing.
//
// A page gets a copy when it is read while it is remembered as read: by the reference bit of its frame, or, if it has
// none because it is in memory, by a table of the pages that were read last. So a scan drives no copy out.
//
// A copy is believed only if it matches the page's checksum (cache/copies.hpp), so there are only copies of pages that
// have checksums. One table serves all devices of a pool. Plain data in engine memory; zeroed memory behind its
// pointers is the empty state. Nothing is allocated later.
#pragma once

#include <type_traits>

#include "base/atomics.hpp"
#include "base/check.hpp"
#include "base/config.hpp"
#include "base/mutant.hpp"
#include "base/types.hpp"
#include "cache/copies.hpp"
#include "device/device_types.hpp"
#include "device/staged/staged_types.hpp"

namespace gpu4fs::device {

// Hashes of the two pages that were read last of those with this place in the table. The later one is below.
using RecentPages = u64;

struct PageTier {
  cache::Cache cache;
  RecentPages* recent;  // atomic: pages in memory that were read last; one for each frame
  u64 dropped;          // atomic: copies that were dropped because their pages were written
  u64 failed;           // atomic: copies that did not enter, because the page changed or did not match
};

static_assert(std::is_trivially_copyable_v<PageTier>);
static_assert(sizeof(cache::Line) + sizeof(cache::CacheSet) / cache::set_line_max + 1 + sizeof(RecentPages) <= 32,
              "metadata of a frame");

namespace detail {

GPU4FS_FN GPU4FS_NOINLINE inline void drop_copies_of(const Device& device, u64 offset, u64 length) {
  PageTier& tier = *device.tier;
  const u64 end = (offset + length + page_size - 1) / page_size;
  u64 dropped = 0;
  for (u64 page = offset / page_size; page < end; ++page) {
    dropped += cache::drop_copy(tier.cache, {device.index, page}) ? 1 : 0;
  }
  if (dropped != 0) add<Scope::engine>(&tier.dropped, dropped);
}

// Whether this is among the pages that were read last; afterwards it is.
GPU4FS_FN inline bool note_recent(const PageTier& tier, cache::PageKey key) {
  const u64 mixed = cache::tag_of(key) * 0x9e3779b97f4a7c15u;
  const u64 hash = (mixed ^ mixed >> 29) * 0xbf58476d1ce4e5b9u;
  RecentPages* const entry = &tier.recent[(hash >> 32) * tier.cache.line_count >> 32];
  const u32 name = static_cast<u32>(hash) | 1;  // 0 is none
  const RecentPages seen = load<Order::relaxed, Scope::engine>(entry);
  if (static_cast<u32>(seen) == name || static_cast<u32>(seen >> 32) == name) return true;
  // If several do this at once, one page may be forgotten.
  store<Order::relaxed, Scope::engine>(entry, seen << 32 | name);
  return false;
}

// A frame that has the page and was used before. A page that must be written back will probably be written again.
GPU4FS_FN inline bool is_used_frame(const StagedDevices& staged, cache::PageKey key) {
  const cache::FoundLine found = cache::find(Lane{}, staged.cache, key);
  const cache::LineWord word = found.word;
  return found.line != cache::no_line && word.is_usable() && !word.is_dirty() && word.is_referenced() &&
         GPU4FS_MUTANT(ahead_page_counts_as_used, !word.is_ahead(), true);
}

}  // namespace detail

// The pages of the range are about to change, or have changed. One rank.
GPU4FS_FN inline void drop_copies(const Device& device, u64 offset, u64 length) {
  if (device.tier != nullptr && length != 0) detail::drop_copies_of(device, offset, length);
}

// The page is being read, and has no copy: whether it should get one. One rank.
GPU4FS_FN GPU4FS_NOINLINE inline bool deserves_copy(const Device& device, u64 page) {
  const cache::PageKey key{device.index, page};
  const bool is_repeated = device.kind == DeviceKind::staged ? detail::is_used_frame(*device.staged, key)
                                                             : detail::note_recent(*device.tier, key);
  return GPU4FS_MUTANT(page_copied_at_first_read, is_repeated, true);
}

}  // namespace gpu4fs::device
