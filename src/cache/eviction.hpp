// Removing pages from lines, under the lock of their set.
//
// The clock of a set: the hand goes around the lines and takes the first that is clean and that nobody uses. A line
// that was used since the hand passed it is passed over once more. All lines are looked at together, so a warp needs
// one look.
#pragma once

#include "base/bits.hpp"
#include "base/group.hpp"
#include "base/mutant.hpp"
#include "cache/ahead.hpp"
#include "cache/line_lookup.hpp"
#include "cache/line_state.hpp"

namespace gpu4fs::cache {

namespace detail {

// Nobody uses the frame.
GPU4FS_FN inline bool is_at_rest(LineWord word) {
  return GPU4FS_MUTANT(cache_pinned_line_evicted, word.pins() == 0, word.pins() <= 1) && !word.is_loading() &&
         GPU4FS_MUTANT(cache_written_line_evicted, !word.is_writing(), true);
}

GPU4FS_FN inline bool is_removable(LineWord word) {
  return word.is_usable() && is_at_rest(word) && GPU4FS_MUTANT(cache_dirty_line_evicted, !word.is_dirty(), true);
}

// It could be removed if it were clean.
GPU4FS_FN inline bool needs_write_back(LineWord word) {
  return word.is_dirty() && is_at_rest(word);
}

// A look at all lines of a set: bit i is about line i.
struct SetView {
  u32 has_page;  // that is looked for; at most one
  u32 free;
  u32 removable;
  u32 dirty;  // they need a write-back
  u32 used;   // since the hand passed them
};

GPU4FS_FN inline void add_to_view(SetView& view, LineWord word, u32 index, u64 tag) {
  view.has_page |= u32{word.has_tag(tag)} << index;
  view.free |= u32{word.is_free()} << index;
  view.removable |= u32{is_removable(word)} << index;
  view.dirty |= u32{needs_write_back(word)} << index;
  view.used |= u32{word.is_referenced()} << index;
}

// Collective. Under the lock of the set. `removable` and `dirty` may change at once, the others not.
template <class Group>
GPU4FS_FN SetView look_at_set(Group g, const Cache& cache, u32 set_index, u64 tag) {
  SetView view{};
  if constexpr (Group::size() == 1 && words_together > 1) {
    for (u32 i = 0; i < cache.set_size; i += words_together) {
      LineWord words[words_together];
      GPU4FS_UNROLL
      for (u32 j = 0; j < words_together; ++j) {
        words[j] = i + j < cache.set_size ? peek(cache.lines[set_index * cache.set_size + i + j]) : LineWord{0};
      }
      GPU4FS_UNROLL
      for (u32 j = 0; j < words_together; ++j) {
        if (i + j < cache.set_size) add_to_view(view, words[j], i + j, tag);
      }
    }
    return view;
  }
  for (u32 i = 0; i < cache.set_size; i += Group::size()) {
    const u32 own = i + g.rank();
    const bool exists = own < cache.set_size;
    const LineWord word = exists ? peek(cache.lines[set_index * cache.set_size + own]) : LineWord{0};
    view.has_page |= g.ballot(word.has_tag(tag)) << i;
    view.free |= g.ballot(exists && word.is_free()) << i;
    view.removable |= g.ballot(is_removable(word)) << i;
    view.dirty |= g.ballot(needs_write_back(word)) << i;
    view.used |= g.ballot(word.is_referenced()) << i;
  }
  return view;
}

// The first of `lines` that the hand comes to, preferably one that was not used. Some bit is set.
GPU4FS_FN constexpr u32 next_of_clock(u32 lines, u32 used, u32 hand) {
  const u32 preferred = (lines & ~used) != 0 ? lines & ~used : lines;
  const u32 ahead = preferred >> hand << hand;
  return count_trailing_zeros(ahead != 0 ? ahead : preferred);
}

// The hand goes from its place to behind `taken`, and marks the lines that it passes as not used. If `taken` was used
// itself, the hand has gone once around.
GPU4FS_FN inline void move_hand(const Cache& cache, u32 set_index, u32 used, u32 taken) {
  CacheSet& set = cache.sets[set_index];
  const u32 before = static_cast<u32>(low_bits(taken));
  const u32 passed = static_cast<u32>(~low_bits(set.hand));
  const bool goes_around = (used >> taken & 1) != 0;
  u32 left = used & (goes_around ? ~u32{0} : taken >= set.hand ? passed & before : passed | before) & ~(1u << taken);
  for (; left != 0; left &= left - 1) {
    Line& line = cache.lines[set_index * cache.set_size + count_trailing_zeros(left)];
    LineWord seen = peek(line);
    // If somebody changes the word at this moment, the line is used.
    replace<Order::relaxed>(line, seen, seen.without_bits(referenced_bit));
  }
  set.hand = taken + 1 == cache.set_size ? 0 : taken + 1;
}

struct TakenLine {
  u32 line;        // no_line: none could be taken
  bool was_free;   // valid if a line was taken
  u32 dirty_line;  // otherwise: one that needs a write-back, or no_line
};

// Gives a line of the set, free or removable, the word `desired`. One rank, under the lock of the set.
GPU4FS_FN inline TakenLine take_line(const Cache& cache, u32 set_index, const SetView& view, LineWord desired) {
  const u32 first = set_index * cache.set_size;
  if (view.free != 0) {
    const u32 index = first + count_trailing_zeros(view.free);
    LineWord seen{0};
    // Nobody else takes it. Whoever freed it had the lock too, which hands on what was done with the frame.
    GPU4FS_CHECK(replace<Order::relaxed>(cache.lines[index], seen, desired));
    return {index, true, no_line};
  }
  const u32 hand = cache.sets[set_index].hand;
  for (u32 left = view.removable; left != 0;) {
    const u32 chosen = next_of_clock(left, view.used, hand);
    Line& line = cache.lines[first + chosen];
    for (LineWord seen = peek(line); is_removable(seen);) {
      // Acquire: the frame is filled again after its last user has left.
      if (!replace<Order::acquire>(line, seen, desired)) continue;
      GPU4FS_MUTANT(dropped_ahead_uncounted, end_ahead(cache, seen, false), static_cast<void>(0));
      move_hand(cache, set_index, view.used, chosen);
      return {first + chosen, false, no_line};
    }
    left &= ~(1u << chosen);
  }
  return {no_line, false, view.dirty == 0 ? no_line : first + next_of_clock(view.dirty, view.used, hand)};
}

struct PageRange {
  u32 device;
  u64 first_page;
  u64 page_count;

  GPU4FS_FN constexpr bool has(LineWord word) const {
    const PageKey key = word.key();
    return !word.is_free() && key.device == device && key.page - first_page < page_count;
  }
};

// Frees the lines of a set that have pages of the range. Returns the number of those that are in use.
GPU4FS_FN inline u32 drop_from_set(const Cache& cache, u32 set_index, PageRange range) {
  u32 left = 0;
  for (u32 i = 0; i < cache.set_size; ++i) {
    Line& line = cache.lines[set_index * cache.set_size + i];
    LineWord seen = peek(line);
    bool is_freed = false;
    // Acquire: the lock hands on what its last users did with the page.
    while (range.has(seen) && is_removable(seen) && !is_freed) is_freed = replace<Order::acquire>(line, seen, {0});
    if (is_freed) end_ahead(cache, seen, false);
    if (!is_freed && range.has(seen)) ++left;
  }
  return left;
}

}  // namespace detail

// Removes a page from its line, if it is in one, clean, and used by nobody. One rank.
GPU4FS_FN GPU4FS_NOINLINE inline void drop_page(const Cache& cache, PageKey key) {
  const FoundLine found = find(Lane{}, cache, key);
  if (found.line == no_line || !detail::is_removable(found.word)) return;
  const u32 set = set_of(cache, key);
  cache.sets[set].lock.lock();
  (void)detail::drop_from_set(cache, set, {key.device, key.page, 1});
  cache.sets[set].lock.unlock();
}

// Removes the pages [first_page, first_page + page_count) of a device from the lines that nobody uses. Returns how many
// are left, because they are pinned, dirty, being loaded or being written. Collective. The caller knows that nobody
// pins further pages of the range.
template <class Group>
GPU4FS_FN u64 drop(Group g, const Cache& cache, u32 device, u64 first_page, u64 page_count) {
  const detail::PageRange range{device, first_page, page_count};
  u64 left = 0;
  for (u32 first = 0; first < cache.set_count; first += Group::size()) {
    const u32 own = first + g.rank();
    bool has_pages = false;
    for (u32 i = 0; own < cache.set_count && i < cache.set_size; ++i) {
      has_pages |= range.has(peek(cache.lines[own * cache.set_size + i]));
    }
    // The leader locks one set at a time: a rank that has its lock would wait for ranks that do not.
    for (u32 sets = g.ballot(has_pages); sets != 0; sets &= sets - 1) {
      const u32 set = first + count_trailing_zeros(sets);
      left += on_leader(g, [&] {
        cache.sets[set].lock.lock();
        const u32 in_use = detail::drop_from_set(cache, set, range);
        cache.sets[set].lock.unlock();
        return in_use;
      });
    }
  }
  return left;
}

}  // namespace gpu4fs::cache
