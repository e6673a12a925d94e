// Pages that were loaded before anybody asked for them.
//
// The line of such a page is marked from the end of its load until somebody uses the page or it leaves the line. Each
// mark ends once, by whoever changes the word, and is counted then. So it is known how many of these pages wait for
// their first use, and the loads of more can be limited.
#pragma once

#include "base/atomics.hpp"
#include "base/bits.hpp"
#include "base/mutant.hpp"
#include "cache/cache_types.hpp"

namespace gpu4fs::cache {

GPU4FS_FN inline void count_ahead(const Cache& cache, u64 AheadCounts::*kind, u64 count = 1) {
  add<Scope::engine>(&(cache.ahead->*kind), count);
}

// The line's word was `before`, and has no mark any more.
GPU4FS_FN inline void end_ahead(const Cache& cache, LineWord before, bool is_used) {
  if (before.is_ahead()) count_ahead(cache, is_used ? &AheadCounts::used : &AheadCounts::dropped);
}

// Those that are being loaded or wait for their first use. They are counted one after the other, so more may have ended
// than were seen to begin.
GPU4FS_FN inline u64 ahead_waiting(const Cache& cache) {
  const u64 begun = load<Order::relaxed, Scope::engine>(&cache.ahead->begun);
  const u64 ended = load<Order::relaxed, Scope::engine>(&cache.ahead->used) +
                    load<Order::relaxed, Scope::engine>(&cache.ahead->dropped);
  return begun - minimum(begun, ended);
}

}  // namespace gpu4fs::cache
