// Dirty lines and their way to the device.
//
// A holder of a pin stores into the frame and then marks the line. Write-back makes the line clean *before* it reads
// the frame. So bytes that it misses are followed by a mark that makes the line dirty again, and none is lost. It may
// write half of a store to the device. Nothing durable names such a page, or its owner keeps the two apart.
#pragma once

#include "base/group.hpp"
#include "base/mutant.hpp"
#include "cache/dirty_sets.hpp"
#include "cache/eviction.hpp"
#include "cache/flush_count.hpp"
#include "cache/line_state.hpp"

namespace gpu4fs::cache {

// By a holder of a pin, after its stores into the frame and before it answers anybody that they are done. One rank.
GPU4FS_FN GPU4FS_NOINLINE inline void mark_dirty(const Cache& cache, u32 line_index) {
  constexpr u32 not_counted = ~u32{0};
  Line& line = line_at(cache, line_index);
  LineWord seen = peek(line);
  PhaseUsers& lines = dirty_lines(cache, seen.key().device);
  u32 counter = not_counted;
  LineWord desired;
  do {
    GPU4FS_CHECK(seen.is_usable());
    GPU4FS_CHECK_GT(seen.pins(), 0u);
    // Counted before it is dirty: no flush ends in between.
    if (!seen.is_dirty() && counter == not_counted) counter = begin_use(lines);
    desired = seen.is_dirty() ? seen : seen.with(dirty_content(counter));
    // Also if nothing changes: the write-back has to acquire these stores.
  } while (!detail::replace<Order::release>(
      line, seen, desired.without_bits(GPU4FS_MUTANT(cache_verified_kept, verified_bit, u64{0}))));
  if (!seen.is_dirty()) return note_dirty_line(cache, line_index);
  if (counter != not_counted) end_use(lines, counter);
}

// The bytes of the frame match the page's checksum. By a holder of a pin; nobody may store into the frame meanwhile.
GPU4FS_FN inline void mark_verified(const Cache& cache, u32 line) {
  const LineWord before{fetch_or<Order::relaxed, Scope::engine>(&line_at(cache, line).word, verified_bit)};
  GPU4FS_CHECK(before.is_usable());
  GPU4FS_CHECK_GT(before.pins(), 0u);
}

// By a holder of a pin. The mark goes when the frame is loaded, overwritten or marked dirty.
GPU4FS_FN inline bool is_verified(const Cache& cache, u32 line) {
  const LineWord word = peek(line_at(cache, line));
  GPU4FS_CHECK_GT(word.pins(), 0u);
  return word.is_verified();
}

struct WriteBack {
  u32 line;  // no_line: nothing to write
  PageKey key;
};

namespace detail {

// `wanted`(word): whether this page is meant.
template <class Wanted>
GPU4FS_FN WriteBack try_write_back(const Cache& cache, u32 line_index, Wanted&& wanted) {
  Line& line = line_at(cache, line_index);
  LineWord seen = peek(line);
  do {
    if (!seen.is_dirty() || seen.is_writing() || !wanted(seen)) return {no_line, {}};
  } while (!replace<Order::acquire>(line, seen, seen.with(Content::clean).with(writing_transfer(seen.dirty_parity()))));
  return {line_index, seen.key()};
}

}  // namespace detail

// The line that it answers is being written: the caller copies the frame to page `key`, then calls finish_write_back().
// Nothing to write if the line is clean by now, or somebody else writes it. Needs no pin. One rank.
GPU4FS_FN inline WriteBack begin_write_back(const Cache& cache, u32 line) {
  return detail::try_write_back(cache, line, [](LineWord) { return true; });
}

// `ok`: the device has the bytes. Otherwise the line is dirty again, for the same flush. One rank.
GPU4FS_FN inline void finish_write_back(const Cache& cache, u32 line, bool ok) {
  const LineWord before = detail::change_word<Order::release>(line_at(cache, line), [ok](LineWord word) {
    GPU4FS_CHECK(word.is_writing());
    const LineWord idle = word.with(Transfer::idle);
    if (ok) return GPU4FS_MUTANT(cache_redirtied_line_cleaned, idle, idle.with(Content::clean));
    // If it was marked meanwhile, the bytes that could not be written are the older ones.
    return idle.with(
        dirty_content(GPU4FS_MUTANT(cache_flush_passes_failure, word.writing_parity(), word.dirty_parity())));
  });
  PhaseUsers& lines = dirty_lines(cache, before.key().device);
  if (ok) return end_use(lines, before.writing_parity());
  note_dirty_line(cache, line);
  // One line, one count: the older one stays.
  if (before.is_dirty()) end_use(lines, before.dirty_parity());
}

// Begins to write back the first dirty line from line `from` on whose word is_meant(word) accepts. Collective. Goes on
// behind the answered line. Lines that others write are passed over.
template <class Group, class IsMeant>
GPU4FS_FN WriteBack take_dirty_if(Group g, const Cache& cache, u32 from, IsMeant&& is_meant) {
  for (u32 set = next_dirty_set(g, cache, from / cache.set_size); set != no_set;
       set = next_dirty_set(g, cache, set + 1)) {
    const u32 first = set * cache.set_size;
    WriteBack taken{no_line, {}};
    bool is_left = false;
    on_leader(g, [&] { begin_set_scan(cache, set); });
    for (u32 i = 0; i < cache.set_size; i += Group::size()) {
      const u32 own = first + i + g.rank();
      const bool exists = i + g.rank() < cache.set_size;
      const LineWord word = exists ? peek(cache.lines[own]) : LineWord{0};
      u32 votes = g.ballot(own >= from && word.is_dirty() && !word.is_writing() && is_meant(word));
      for (; votes != 0 && taken.line == no_line; votes &= votes - 1) {
        const u32 line = first + i + count_trailing_zeros(votes);
        taken = on_leader(g, [&] { return detail::try_write_back(cache, line, is_meant); });
      }
      is_left |= g.any(exists && peek(cache.lines[own]).is_dirty());
    }
    on_leader(g, [&] { end_set_scan(cache, set, is_left); });
    if (taken.line != no_line) return taken;
  }
  return {no_line, {}};
}

// Begins to write back all dirty lines whose words is_meant(word) accepts, and calls visit(write_back) for each, on
// some rank. The calls are collective: a rank without a line has no_line. Lines that others write are passed over.
// Collective. Lines that become dirty meanwhile may be among them.
template <class Group, class IsMeant, class Visit>
GPU4FS_FN void take_all_dirty(Group g, const Cache& cache, IsMeant&& is_meant, Visit&& visit) {
  for (u32 set = next_dirty_set(g, cache, 0); set != no_set; set = next_dirty_set(g, cache, set + 1)) {
    const u32 first = set * cache.set_size;
    u32 taken = 0;
    bool is_left = false;
    on_leader(g, [&] { begin_set_scan(cache, set); });
    for (u32 i = g.rank(); i < cache.set_size; i += Group::size()) {
      const Line& line = cache.lines[first + i];
      if (!peek(line).is_dirty()) continue;
      if (detail::try_write_back(cache, first + i, is_meant).line != no_line) taken |= 1u << i;
      is_left |= peek(line).is_dirty();
    }
    is_left = g.any(is_left);
    // The bit is right again before anybody waits.
    on_leader(g, [&] { end_set_scan(cache, set, is_left); });
    for (; g.any(taken != 0); taken &= taken - 1) {
      const u32 line = first + count_trailing_zeros(u64{taken});
      visit(taken != 0 ? WriteBack{line, peek(cache.lines[line]).key()} : WriteBack{no_line, {}});
    }
  }
}

// The same for the lines of a device.
template <class Group>
GPU4FS_FN WriteBack take_dirty(Group g, const Cache& cache, u32 device, u32 from) {
  return take_dirty_if(g, cache, from, [device](LineWord word) { return word.key().device == device; });
}

// Removes the pages [first_page, first_page + page_count) of a device, dirty ones too: nobody needs what was stored.
// Collective. Nobody pins, loads or writes them meanwhile.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void forget(Group g, const Cache& cache, u32 device, u64 first_page, u64 page_count) {
  const detail::PageRange range{device, first_page, page_count};
  for (u32 from = 0;;) {
    const WriteBack taken = take_dirty_if(g, cache, from, [range](LineWord word) { return range.has(word); });
    if (taken.line == no_line) break;
    on_leader(g, [&] { finish_write_back(cache, taken.line, true); });
    from = taken.line + 1;
  }
  GPU4FS_CHECK_EQ(drop(g, cache, device, first_page, page_count), u64{0});
}

}  // namespace gpu4fs::cache
