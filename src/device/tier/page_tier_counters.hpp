// What the second tier of the page cache did, for people. Host only.
#pragma once

#include <vector>

#include "base/types.hpp"
#include "cache/cache_statistics.hpp"
#include "device/tier/page_tier.hpp"

namespace gpu4fs::device {

struct PageTierCounters {
  u64 frames;  // 0: there is no such tier
  u64 hits;
  u64 promotions;     // copies that entered
  u64 evictions;      // of copies, for others
  u64 invalidations;  // copies that were dropped because their pages were written
};

// `read`(destination, engine_address, bytes): copies engine memory. The sets may be counting meanwhile.
template <class Read>
PageTierCounters page_tier_counters(const PageTier* address, Read&& read) {
  if (address == nullptr) return {};
  PageTier tier{};
  read(&tier, address, sizeof(tier));
  std::vector<cache::CacheSet> sets(tier.cache.set_count);
  read(sets.data(), tier.cache.sets, sets.size() * sizeof(cache::CacheSet));
  cache::CacheStatistics sum{};
  for (const cache::CacheSet& set : sets) sum = sum + set.counts;
  const u64 begun = sum.misses + sum.cold_misses;
  return {tier.cache.line_count, sum.hits, begun - minimum(begun, tier.failed), sum.misses, tier.dropped};
}

}  // namespace gpu4fs::device
