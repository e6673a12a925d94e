// A table of copies: its frames hold pages that are elsewhere too, in faster memory.
//
// It is a table like others, but nobody writes through it and nobody pins its lines: a copy is read like memory that
// others change, and only a checksum of the page shows that it was this page. So a line is free, being filled by the
// only holder of its pin, or clean, and a copy that is dropped is gone at once. Whoever changes a page calls
// drop_copy() before the first store and after the last one:
//
//   begin_copy() ... the bytes are read ... finish_copy()        drop_copy() ... stores ... drop_copy()
//
// The second call decides. A copy that has begun before it may have old bytes: it is dropped, or its line is marked as
// outdated and freed when it has been filled. A copy that begins after it is filled with what was stored. Both sides
// change CacheSet::changes between their own step and their look at the other side's, and one of the two changes comes
// first: so either the writer sees the line, or the copy sees what was stored. The first call only keeps readers from
// bytes that are about to be replaced.
//
// All of this is in the engine's scope. One rank calls each function.
#pragma once

#include "base/mutant.hpp"
#include "cache/pin.hpp"

namespace gpu4fs::cache {

// Takes a line for a copy of a page; the caller fills the frame with bytes that it reads after this call, and calls
// finish_copy(). no_line: there is a copy, or one is on its way, or all lines of the set are being filled.
GPU4FS_FN GPU4FS_NOINLINE inline u32 begin_copy(const Cache& cache, PageKey key) {
  const u64 tag = tag_of(key);
  const u32 set_index = set_of(cache, key);
  CacheSet& set = cache.sets[set_index];
  set.lock.lock();
  const detail::SetView view = detail::look_at_set(Lane{}, cache, set_index, tag);
  detail::TakenLine taken{no_line, false, no_line};
  if (view.has_page == 0) taken = detail::take_line(cache, set_index, view, loading_word(tag));
  set.lock.unlock();
  if (taken.line == no_line) return no_line;
  add<Scope::engine>(taken.was_free ? &set.counts.cold_misses : &set.counts.misses, u64{1});
  fetch_add<Order::acq_rel, Scope::engine>(&set.changes, 1u);
  return taken.line;
}

// `ok`: the frame has the page. True: the copy is in the table. Otherwise the line is free.
GPU4FS_FN GPU4FS_NOINLINE inline bool finish_copy(const Cache& cache, u32 index, bool ok) {
  Line& line = line_at(cache, index);
  LineWord seen = peek(line);
  GPU4FS_CHECK(seen.is_loading());
  while (ok && GPU4FS_MUTANT(outdated_copy_kept, !seen.is_outdated(), true)) {
    const LineWord filled =
        LineWord{seen.bits - pin_unit}.without_bits(outdated_bit).with(Transfer::idle).with(Content::clean);
    if (detail::replace<Order::release>(line, seen, filled)) return true;
  }
  TicketLock& lock = cache.sets[index / cache.set_size].lock;
  lock.lock();
  detail::change_word<Order::release>(line, [](LineWord) { return LineWord{0}; });
  lock.unlock();
  return false;
}

namespace detail {

// The line had the page a moment ago. If it does not have it any more, a later copy began after the caller's change.
GPU4FS_FN GPU4FS_NOINLINE inline bool drop_from_line(const Cache& cache, u32 index, u64 tag) {
  Line& line = line_at(cache, index);
  TicketLock& lock = cache.sets[index / cache.set_size].lock;
  bool is_dropped = false;
  lock.lock();
  for (LineWord seen = peek(line); !is_dropped && seen.has_tag(tag) && !seen.is_outdated();) {
    const LineWord loading = GPU4FS_MUTANT(loading_copy_overlooked, seen.with_bits(outdated_bit), seen);
    is_dropped = replace<Order::acq_rel>(line, seen, seen.is_loading() ? loading : LineWord{0});
  }
  lock.unlock();
  return is_dropped;
}

}  // namespace detail

// The page is about to change, or has changed: no copy that began before is given out any more. True: there was one.
GPU4FS_FN GPU4FS_NOINLINE inline bool drop_copy(const Cache& cache, PageKey key) {
  u32* const changes = &cache.sets[set_of(cache, key)].changes;
  (void)GPU4FS_MUTANT(copy_looked_for_early, (fetch_add<Order::acq_rel, Scope::engine>(changes, 1u)), 0u);
  const FoundLine found = find(Lane{}, cache, key);
  if (found.line == no_line) return false;
  return detail::drop_from_line(cache, found.line, tag_of(key));
}

// nullptr: there is no copy. The caller loads the memory as such that others change (base/racy_access.hpp), and
// believes no byte before a checksum of this page matches.
GPU4FS_FN GPU4FS_NOINLINE inline const u8* look_at_copy(const Cache& cache, PageKey key) {
  const FoundLine found = find(Lane{}, cache, key);
  if (found.line == no_line || !found.word.is_usable()) return nullptr;
  note_use(cache, found);
  return frame_of(cache, found.line);
}

}  // namespace gpu4fs::cache
