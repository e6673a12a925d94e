// Dirty lines and their way to the device.
//
// A holder of a pin stores into the frame and then marks the line. Write-back makes the line clean *before* it reads
// the frame. So bytes that it misses are followed by a mark that makes the line dirty again, and none is lost. It may
// write half of a store to the device. Nothing durable names such a page, or its owner keeps the two apart.
#pragma once

#include "base/group.hpp"
#include "base/mutant.hpp"
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
  if (seen.is_dirty() && counter != not_counted) end_use(lines, counter);
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
  if (ok) {
    end_use(lines, before.writing_parity());
  } else if (before.is_dirty()) {
    // One line, one count: the older one stays.
    end_use(lines, before.dirty_parity());
  }
}

// Begins to write back the first dirty line from line `from` on whose word is_meant(word) accepts, for write-behind and
// flushes. Collective. Goes on behind the answered line. Lines that others write are passed over.
template <class Group, class IsMeant>
GPU4FS_FN WriteBack take_dirty_if(Group g, const Cache& cache, u32 from, IsMeant&& is_meant) {
  for (u32 first = from; first < cache.line_count; first += Group::size()) {
    const u32 own = first + g.rank();
    const LineWord word = own < cache.line_count ? peek(cache.lines[own]) : LineWord{0};
    u32 votes = g.ballot(word.is_dirty() && !word.is_writing() && is_meant(word));
    for (; votes != 0; votes &= votes - 1) {
      const u32 line = first + count_trailing_zeros(votes);
      const WriteBack taken = on_leader(g, [&] { return detail::try_write_back(cache, line, is_meant); });
      if (taken.line != no_line) return taken;
    }
  }
  return {no_line, {}};
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
