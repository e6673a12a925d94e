// How pages of staged devices were found in the page cache, for people. Host only.
#pragma once

#include <vector>

#include "base/types.hpp"
#include "cache/cache_statistics.hpp"
#include "device/staged/staged_types.hpp"

namespace gpu4fs::device {

struct PageCacheCounters {
  u64 frames;  // 0: all devices are mapped
  u64 hits;
  u64 hits_on_the_way;       // the page was being loaded
  u64 misses;                // somebody needed the page: it had to be loaded, or was stored as a whole
  u64 evictions;             // pages that were removed for another one
  u64 waits_for_write_back;  // misses that had to write another page first
  u64 waits_for_room;        // all frames that the page may be in were in use
  u64 ahead;                 // pages that were loaded before anybody asked for them
  u64 ahead_used;            // of them, those that were read then
  u64 ahead_dropped;         // of them, those that nobody has read: removed, replaced by a write, or not loaded
};

// `read`(destination, engine_address, bytes): copies engine memory. The sets may be counting meanwhile.
template <class Read>
PageCacheCounters page_cache_counters(const StagedDevices& staged, Read&& read) {
  // First, because the look-up of a page counts before its load does.
  cache::AheadCounts ahead{};
  read(&ahead, staged.cache.ahead, sizeof(ahead));
  std::vector<cache::CacheSet> sets(staged.cache.set_count);
  read(sets.data(), staged.cache.sets, sets.size() * sizeof(cache::CacheSet));
  cache::CacheStatistics sum{};
  for (const cache::CacheSet& set : sets) sum = sum + set.counts;
  const u64 taken = sum.misses + sum.cold_misses;
  return {staged.cache.line_count,
          sum.hits,
          sum.loading_hits,
          taken - minimum(taken, ahead.begun),
          sum.misses,
          sum.dirty_misses,
          sum.refusals,
          ahead.begun,
          ahead.used,
          ahead.dropped};
}

}  // namespace gpu4fs::device
