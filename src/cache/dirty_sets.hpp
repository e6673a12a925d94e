// Which sets have dirty lines: one bit for each set, so that a search for dirty lines looks at no other sets.
//
// Whoever makes a line dirty calls note_dirty_line() afterwards. Whoever looks at the lines of a set clears its bit
// first (begin_set_scan()), looks, and sets the bit again if a dirty line is left (end_set_scan()).
//
// A dirty line is never lost. Let D be the change of its word that made it dirty, and look at the last clearing C of
// the set's bit. The bit has one modification order.
//   - The mark of D is a read-modify-write of the bit. Before C: C reads from it or from a later change, and acquires
//     it. So the scan that follows C sees the line dirty, or a later state of it. It takes the line, or sets the bit.
//     After C: the bit is set.
//   - On a CPU the mark of D only loads a bit that is set. There is a fence between D and this load, and one between C
//     and the scan. If the fence of the mark is the first, the scan sees the line. Otherwise the load sees C or a later
//     value. It is 1, so somebody has set the bit after C.
// So the bit of a set with a dirty line is clear only until the marker of the line or a scan of the set has gone on.
// Whoever waits for such lines counts them (cache/flush_count.hpp) and searches until the count is zero.
//
// A bit may be set although nothing is dirty. One scan then clears it.
#pragma once

#include "base/atomics.hpp"
#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/config.hpp"
#include "base/group.hpp"
#include "base/mutant.hpp"
#include "cache/cache_types.hpp"

namespace gpu4fs::cache {

inline constexpr u32 no_set = ~u32{0};

GPU4FS_FN constexpr u32 dirty_word_count(u32 set_count) {
  return static_cast<u32>(divide_up(set_count, 64));
}

// The line was made dirty by the caller. One rank.
GPU4FS_FN inline void note_dirty_line(const Cache& cache, u32 line) {
  const u32 set = line / cache.set_size;
  u64* const word = &cache.dirty_sets[set / 64];
  const u64 bit = u64{1} << set % 64;
#if !GPU4FS_DEVICE_CODE
  fence<Order::seq_cst, Scope::engine>();
  if ((load<Order::relaxed, Scope::engine>(word) & bit) != 0) return;
#endif
  fetch_or<Order::release, Scope::engine>(word, bit);
}

// A set from `from` on that may have dirty lines, or no_set. Collective.
template <class Group>
GPU4FS_FN u32 next_dirty_set(Group g, const Cache& cache, u32 from) {
  const u32 word_count = dirty_word_count(cache.set_count);
  for (u32 first = from / 64; first < word_count; first += Group::size()) {
    const u32 own = first + g.rank();
    u64 bits = own < word_count ? load<Order::relaxed, Scope::engine>(&cache.dirty_sets[own]) : 0;
    if (own == from / 64) bits &= ~low_bits(from % 64);
    const u32 votes = g.ballot(bits != 0);
    if (votes == 0) continue;
    const u32 rank = count_trailing_zeros(votes);
    return (first + rank) * 64 + static_cast<u32>(count_trailing_zeros(g.shuffle(bits, rank)));
  }
  return no_set;
}

// Before a look at the lines of the set. One rank; the others look after it.
GPU4FS_FN inline void begin_set_scan(const Cache& cache, u32 set) {
  GPU4FS_CHECK_LT(set, cache.set_count);
  fetch_and<Order::acquire, Scope::engine>(&cache.dirty_sets[set / 64], ~(u64{1} << set % 64));
#if !GPU4FS_DEVICE_CODE
  fence<Order::seq_cst, Scope::engine>();
#endif
}

// After it. `is_left`: some line of the set was dirty. One rank.
GPU4FS_FN inline void end_set_scan(const Cache& cache, u32 set, bool is_left) {
  u64* const word = &cache.dirty_sets[set / 64];
  const u64 bit = u64{1} << set % 64;
  if (is_left) {
    fetch_or<Order::release, Scope::engine>(word, bit);
  } else if (GPU4FS_MUTANT(dirty_set_cleared_after_look, false, true)) {
    fetch_and<Order::acquire, Scope::engine>(word, ~bit);
  }
}

}  // namespace gpu4fs::cache
