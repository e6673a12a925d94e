// Pins: whoever uses a frame holds a pin of its line, and the page stays there.
#pragma once

#include "base/group.hpp"
#include "base/mutant.hpp"
#include "cache/ahead.hpp"
#include "cache/eviction.hpp"
#include "cache/line_lookup.hpp"

namespace gpu4fs::cache {

enum class PinMode : u32 {
  read,       // the page's bytes are needed
  overwrite,  // the holder stores the whole page
  modify,     // the bytes are needed, and the holder stores a part
};

enum class PinOutcome : u32 {
  hit,              // pinned, and the frame has the page
  must_load,        // pinned: the caller fills the frame from the device, then calls finish_load()
  fills,            // pinned: the page was absent; the caller stores all of it, then calls finish_load()
  loading,          // not pinned: somebody fills the frame; the caller comes again
  must_write_back,  // not pinned: the caller writes this line back and comes again (cache/write_back.hpp)
  no_room,          // not pinned: the lines of the set are in use, or the page has too many pins; comes again
};

struct PinResult {
  PinOutcome outcome;
  u32 line;  // no_line with no_room
};

namespace detail {

// Pins the line, which was seen with this word, if it still has the page. Its frame is then acquired.
struct PinAttempt {
  bool has_page;  // false: the page has left the line
  PinResult result;
};

GPU4FS_FN inline PinAttempt try_pin(const Cache& cache, FoundLine found, PageKey key, PinMode mode) {
  const u64 tag = tag_of(key);
  Line& line = line_at(cache, found.line);
  // The holder replaces all of what was verified.
  const u64 cleared =
      GPU4FS_MUTANT(ahead_mark_kept, ahead_bit, u64{0}) | (mode == PinMode::overwrite ? verified_bit : 0);
  LineWord seen = found.word;
  do {
    if (GPU4FS_MUTANT(cache_tag_ignored, !seen.has_tag(tag), seen.is_free())) return {false, {}};
    if (seen.is_loading()) return {true, {PinOutcome::loading, found.line}};
    if (seen.pins() == GPU4FS_MUTANT(cache_pins_overflow, pin_max, pin_max + 1)) {
      return {true, {PinOutcome::no_room, no_line}};
    }
  } while (!replace<Order::acquire>(line, seen,
                                    LineWord{seen.bits + pin_unit}.with_bits(referenced_bit).without_bits(cleared)));
  end_ahead(cache, seen, mode != PinMode::overwrite);
  return {true, {PinOutcome::hit, found.line}};
}

GPU4FS_FN inline void count_found(CacheSet& set, PinOutcome outcome) {
  CacheStatistics& counts = set.counts;
  u64* const kind = outcome == PinOutcome::hit       ? &counts.hits
                    : outcome == PinOutcome::loading ? &counts.loading_hits
                                                     : &counts.refusals;
  add<Scope::engine>(kind, u64{1});
}

// The leader's part of a miss, under the lock of the set: no page enters or leaves one of its lines meanwhile.
GPU4FS_FN inline PinResult pin_in_set(const Cache& cache, u32 set_index, const SetView& view, PageKey key,
                                      PinMode mode) {
  CacheSet& set = cache.sets[set_index];
  if (GPU4FS_MUTANT(cache_second_look_omitted, view.has_page != 0, false)) {
    const u32 line = set_index * cache.set_size + count_trailing_zeros(view.has_page);
    const PinAttempt attempt = try_pin(cache, {line, peek(cache.lines[line])}, key, mode);
    GPU4FS_CHECK(attempt.has_page);
    count_found(set, attempt.result.outcome);
    return attempt.result;
  }
  const TakenLine taken = take_line(cache, set_index, view, loading_word(tag_of(key)));
  if (taken.line != no_line) {
    add<Scope::engine>(taken.was_free ? &set.counts.cold_misses : &set.counts.misses, u64{1});
    return {mode == PinMode::overwrite ? PinOutcome::fills : PinOutcome::must_load, taken.line};
  }
  if (taken.dirty_line != no_line) {
    add<Scope::engine>(&set.counts.dirty_misses, u64{1});
    return {PinOutcome::must_write_back, taken.dirty_line};
  }
  add<Scope::engine>(&set.counts.refusals, u64{1});
  return {PinOutcome::no_room, no_line};
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE PinResult pin_missing(Group g, const Cache& cache, PageKey key, PinMode mode) {
  const u32 set_index = set_of(cache, key);
  TicketLock& lock = cache.sets[set_index].lock;
  on_leader(g, [&] { lock.lock(); });
  const SetView view = look_at_set(g, cache, set_index, tag_of(key));
  return on_leader(g, [&] {
    const PinResult result = pin_in_set(cache, set_index, view, key, mode);
    if (GPU4FS_MUTANT(cache_set_stays_locked, true, result.outcome != PinOutcome::no_room)) lock.unlock();
    return result;
  });
}

}  // namespace detail

// Collective: the ranks look for the page, and the leader pins it for the group. A single lane passes Lane{}. Never
// waits for a transfer. Who holds pins must not wait for a line that another needs: on no_room it gives up its pins
// before it comes again.
template <class Group>
GPU4FS_FN PinResult pin(Group g, const Cache& cache, PageKey key, PinMode mode) {
  const FoundLine found = find(g, cache, key);
  if (found.line != no_line) {
    const detail::PinAttempt attempt = on_leader(g, [&] {
      const detail::PinAttempt made = detail::try_pin(cache, found, key, mode);
      if (made.has_page) detail::count_found(cache.sets[set_of(cache, key)], made.result.outcome);
      return made;
    });
    if (attempt.has_page) return attempt.result;
  }
  return detail::pin_missing(g, cache, key, mode);
}

// Somebody has looked at a page of a line without a pin: counts a hit, and the clock passes the line.
GPU4FS_FN inline void note_use(const Cache& cache, const FoundLine& found) {
  const LineWord word = found.word;
  add<Scope::engine>(&cache.sets[found.line / cache.set_size].counts.hits, u64{1});
  if (word.is_referenced() && !word.is_ahead()) return;
  Line& line = line_at(cache, found.line);
  LineWord seen = peek(line);
  // A page that has left the line meanwhile was not used.
  if (seen.is_usable() && seen.has_tag(word.bits & low_bits(pin_shift))) {
    const LineWord used = seen.with_bits(referenced_bit).without_bits(ahead_bit);
    if (detail::replace<Order::relaxed>(line, seen, used)) end_ahead(cache, seen, true);
  }
}

// Ends must_load and fills. `ok`: the frame has the page, and the caller keeps its pin. Otherwise the line is free, and
// whoever comes for the page loads it. One rank.
GPU4FS_FN inline void finish_load(const Cache& cache, u32 line_index, bool ok) {
  Line& line = line_at(cache, line_index);
  const auto end_load = [&line](bool keeps_page) {
    detail::change_word<Order::release>(line, [keeps_page](LineWord word) {
      GPU4FS_CHECK(word.is_loading());
      return keeps_page ? word.with(Transfer::idle).with(Content::clean) : LineWord{0};
    });
  };
  if (GPU4FS_MUTANT(cache_failed_load_kept, ok, true)) return end_load(true);
  TicketLock& lock = cache.sets[line_index / cache.set_size].lock;
  lock.lock();
  end_load(false);
  lock.unlock();
}

// Ends a load for which nobody waits: the frame has the page, and the pin of the load goes with it. One change of the
// word, so nobody who knows that no page is used meets the pin. `is_ahead`: nobody has asked for the page; the clock
// passes it once, as a page that was used: others of the set were, and it would be the first to leave. One rank.
GPU4FS_FN inline void finish_unwaited_load(const Cache& cache, u32 line_index, bool is_ahead = false) {
  const u64 marks = is_ahead ? ahead_bit | GPU4FS_MUTANT(ahead_leaves_first, referenced_bit, u64{0}) : 0;
  detail::change_word<Order::release>(line_at(cache, line_index), [marks](LineWord word) {
    GPU4FS_CHECK(word.is_loading());
    return LineWord{word.bits - pin_unit}.with(Transfer::idle).with(Content::clean).with_bits(marks);
  });
}

// One rank, after all of the group have used the frame.
GPU4FS_FN inline void unpin(const Cache& cache, u32 line) {
  const LineWord before{fetch_sub<Order::release, Scope::engine>(&line_at(cache, line).word, pin_unit)};
  GPU4FS_CHECK_GT(before.pins(), 0u);
  GPU4FS_CHECK(before.is_usable());
}

}  // namespace gpu4fs::cache
