// Where the page's set is, and which of its lines has the page.
#pragma once

#include "base/bits.hpp"
#include "cache/cache_types.hpp"

namespace gpu4fs::cache {

// Multiplication with 2^64 divided by the golden ratio spreads consecutive pages most evenly: neighbours are at least
// 0.38 of the table apart. So they lie in different sets if there are at least three.
GPU4FS_FN inline u32 set_of(const Cache& cache, PageKey key) {
  const u64 place = key.page * 0x9e3779b97f4a7c15u + key.device * 0xd1b54a32d192ed03u;
  return static_cast<u32>((place >> 32) * cache.set_count >> 32);
}

struct FoundLine {
  u32 line;  // no_line: the page was in no line that was looked at
  LineWord word;
};

namespace detail {

// Words of consecutive lines that a lane loads together. On a GPU a load takes long, and the ranks of a warp look for
// pages of their own at the same time.
inline constexpr u32 words_together = GPU4FS_DEVICE_CODE ? 16 : 1;

}  // namespace detail

// Collective: each rank looks at lines of the set. Neither pins nor acquires. The answer holds for the moment at which
// the line was looked at. A page that enters a line meanwhile may be missed, unless the set's lock is held.
template <class Group>
GPU4FS_FN FoundLine find(Group g, const Cache& cache, PageKey key) {
  const u64 tag = tag_of(key);
  const u32 first = set_of(cache, key) * cache.set_size;
  if constexpr (Group::size() == 1 && detail::words_together > 1) {
    FoundLine found{no_line, {0}};
    for (u32 i = 0; i < cache.set_size; i += detail::words_together) {
      LineWord words[detail::words_together];
      GPU4FS_UNROLL
      for (u32 j = 0; j < detail::words_together; ++j) {
        words[j] = i + j < cache.set_size ? peek(cache.lines[first + i + j]) : LineWord{0};
      }
      GPU4FS_UNROLL
      for (u32 j = 0; j < detail::words_together; ++j) {
        if (words[j].has_tag(tag)) found = {first + i + j, words[j]};
      }
    }
    return found;
  }
  for (u32 i = 0; i < cache.set_size; i += Group::size()) {
    const u32 own = i + g.rank();
    const LineWord word = own < cache.set_size ? peek(cache.lines[first + own]) : LineWord{0};
    const u32 votes = g.ballot(word.has_tag(tag));
    if (votes == 0) continue;
    const u32 rank = count_trailing_zeros(votes);
    return {first + i + rank, g.shuffle(word, rank)};
  }
  return {no_line, {0}};
}

}  // namespace gpu4fs::cache
