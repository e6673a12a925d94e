// Hits of caches that no real one can be: fully associative, with exact replacement. Host only.
//
// As for the table, a miss always brings its page in, and a discarded page leaves room.
#pragma once

#include <vector>

#include "base/types.hpp"
#include "replay/page_trace.hpp"

namespace gpu4fs::replay {

struct IdealHits {
  u64 reads = 0;
  u64 writes = 0;
};

// Least recently used, for all sizes at once: an access hits in every cache of at least its stack distance (Mattson,
// Gecsei, Slutz, Traiger: Evaluation techniques for storage hierarchies, IBM Systems Journal 1970). The distances are
// counted with a binary indexed tree over the times of accesses, so it takes n log n steps.
class LruHits {
 public:
  explicit LruHits(const PageTrace& trace);
  IdealHits with(u32 line_count) const;

 private:
  // [d]: accesses with a stack distance of at most d pages.
  std::vector<u64> reads_;
  std::vector<u64> writes_;
};

// The best that any replacement can do: the page whose next use is furthest goes (Belady: A study of replacement
// algorithms for a virtual-storage computer, IBM Systems Journal 1966).
class OptimalHits {
 public:
  explicit OptimalHits(const PageTrace& trace);
  IdealHits with(u32 line_count) const;

 private:
  const PageTrace& trace_;  // outlives this
  // For each access the number of the next access to its page, or `never`. A page that is discarded before is never
  // used again.
  std::vector<u32> next_uses_;
};

}  // namespace gpu4fs::replay
