// Sums of the sets' counts.
#pragma once

#include "cache/cache_types.hpp"

namespace gpu4fs::cache {

GPU4FS_FN constexpr CacheStatistics operator+(const CacheStatistics& a, const CacheStatistics& b) {
  return {a.hits + b.hits,
          a.loading_hits + b.loading_hits,
          a.misses + b.misses,
          a.dirty_misses + b.dirty_misses,
          a.cold_misses + b.cold_misses,
          a.refusals + b.refusals};
}

namespace detail {

GPU4FS_FN inline CacheStatistics load_counts(const CacheStatistics& counts) {
  return {load<Order::relaxed, Scope::engine>(&counts.hits),
          load<Order::relaxed, Scope::engine>(&counts.loading_hits),
          load<Order::relaxed, Scope::engine>(&counts.misses),
          load<Order::relaxed, Scope::engine>(&counts.dirty_misses),
          load<Order::relaxed, Scope::engine>(&counts.cold_misses),
          load<Order::relaxed, Scope::engine>(&counts.refusals)};
}

}  // namespace detail

// Collective. Sets are read while others count, so the numbers are not of one moment.
template <class Group>
GPU4FS_FN CacheStatistics read_statistics(Group g, const Cache& cache) {
  CacheStatistics sum{};
  for (u32 i = g.rank(); i < cache.set_count; i += Group::size()) sum = sum + detail::load_counts(cache.sets[i].counts);
  return g.reduce(sum, [](const CacheStatistics& a, const CacheStatistics& b) { return a + b; });
}

}  // namespace gpu4fs::cache
