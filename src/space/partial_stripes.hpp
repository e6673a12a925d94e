// Rows of partial stripes (space/stripes.hpp): if a class has no whole stripe left, a command gets stranded pages of
// one row of a stripe that is partly used. It writes them together with all parities of the row, after a record of the
// log with all of these bytes is durable (raid/row_replacement.hpp, engine/handlers/file_write_rows.hpp).
//
// Pages of a row are taken if
//   - all pages of its stripe are in use, freed and waiting for a checkpoint, or stranded: then no other command still
//     has to write pages of it. Taken pages are none of these, so only one command at a time has pages of a stripe;
//   - the durable checkpoint includes all pages of the stripe that are not stranded, and no other checkpoint is being
//     written. So everything that the record sums up is durable before the record, a recovery finds the stripe in use,
//     and between two checkpoints pages of a stripe are taken again only if a command gave up;
//   - the chunk is not frozen, no device is lost, and there is a log.
// Stranded pages are in none of the counters of space_counters.hpp, and neither are taken ones: nothing is reserved.
// Taken pages are committed, freed and returned like any others. Plain functions, one rank, except for
// take_partial_row().
#pragma once

#include "base/status.hpp"
#include "format/log_format.hpp"
#include "space/reserve.hpp"
#include "space/space_types.hpp"
#include "space/stripes.hpp"

namespace gpu4fs::space {

struct PartialRow {
  Status status;
  u32 chunk;
  u64 row;
  u64 kept;   // slots, one bit each: pages that the parities include and that are not stranded
  u64 taken;  // those that the command gets
};

namespace detail {

// Pages of a bitmap word that nobody uses and no checkpoint needs. While a page changes between these states, the
// result may contain a few more.
GPU4FS_FN inline u64 idle_pages(const ChunkState& chunk, u64 word) {
  const raid::ChunkBitmaps& maps = chunk.bitmaps;
  const u64 needed = load<Order::acquire, Scope::engine>(&maps.freed_old[word]) |
                     load<Order::acquire, Scope::engine>(&maps.freed_now[word]) |
                     load<Order::acquire, Scope::engine>(&maps.committed[word]);
  return load<Order::relaxed, Scope::engine>(&maps.busy[word]) & ~needed;
}

GPU4FS_FN inline bool is_idle(const ChunkState& chunk, u64 page) {
  return (idle_pages(chunk, page / 64) >> (page % 64) & 1) != 0;
}

// Pages that may be stranded: a page that is being freed becomes stable before it stops being committed
// (free_extent()), and stranded pages are not stable.
GPU4FS_FN inline u64 maybe_stranded(const ChunkState& chunk, u64 word) {
  const u64 idle = idle_pages(chunk, word);
  return idle & ~load<Order::acquire, Scope::engine>(&chunk.bitmaps.stable[word]);
}

GPU4FS_FN inline bool may_be_stranded(const ChunkState& chunk, u64 page) {
  return (maybe_stranded(chunk, page / 64) >> (page % 64) & 1) != 0;
}

GPU4FS_FN GPU4FS_NOINLINE inline u32 count_maybe_stranded(const ChunkState& chunk, const raid::Stripe& stripe) {
  u32 count = 0;
  for_each_word(stripe.first, stripe.page_count,
                [&](u64 word, u64 mask) { count += popcount(maybe_stranded(chunk, word) & mask); });
  return count;
}

// Whether files have pages of the stripe.
GPU4FS_FN GPU4FS_NOINLINE inline bool is_in_use(const ChunkState& chunk, const raid::Stripe& stripe) {
  u64 found = 0;
  for_each_word(stripe.first, stripe.page_count, [&](u64 word, u64 mask) {
    found |= mask & load<Order::acquire, Scope::engine>(&chunk.bitmaps.committed[word]);
  });
  return found != 0;
}

// The newest snapshot of the chunk is that of the durable checkpoint.
GPU4FS_FN inline bool is_settled(const ChunkState& chunk) {
  fence<Order::seq_cst, Scope::engine>();
  return load<Order::acquire, Scope::engine>(&chunk.staged_changed) == 0;
}

// Whether the durable checkpoint includes all pages of the stripe, except for those that may be stranded.
GPU4FS_FN GPU4FS_NOINLINE inline bool is_durable(const ChunkState& chunk, const raid::Stripe& stripe) {
  u64 unknown = 0;
  for_each_word(stripe.first, stripe.page_count, [&](u64 word, u64 mask) {
    unknown |= mask & ~maybe_stranded(chunk, word) & ~load<Order::relaxed, Scope::engine>(&chunk.bitmaps.staged[word]);
  });
  return unknown == 0 && is_settled(chunk);
}

// The row of `page`, if all its pages that may be stranded are stranded. Status no_space: it has none.
GPU4FS_FN GPU4FS_NOINLINE inline PartialRow look_at_partial_row(const SpaceState& state, u32 index, u64 page,
                                                                u32 wanted) {
  const ChunkState& chunk = state.space.chunks[index];
  const raid::RowView view = raid::row_view(state.space, index, raid::row_place(chunk, page).row);
  PartialRow partial{Status::no_space, index, view.row, 0, 0};
  for (u32 slot = 0; slot < view.slot_count; ++slot) {
    const u64 at = raid::row_page(view, slot);
    if (may_be_stranded(chunk, at)) {
      if (popcount(partial.taken) < wanted) partial.taken |= u64{1} << slot;
    } else if (raid::is_in_parity(chunk, at)) {
      partial.kept |= u64{1} << slot;
    }
  }
  if (partial.taken != 0) partial.status = Status::ok;
  return partial;
}

// Tries to take up to `wanted` pages of a row of the stripe. Status busy: other commands still have to write pages of
// it.
GPU4FS_FN GPU4FS_NOINLINE inline PartialRow take_partial_row_of(SpaceState& state, u32 index, u32 stripe_index,
                                                                u32 wanted) {
  ChunkState& chunk = state.space.chunks[index];
  u32* word = &chunk.stripe_stranded[stripe_index];
  PartialRow partial{Status::no_space, index, 0, 0, 0};
  u32 stranded = load<Order::relaxed, Scope::engine>(word);
  if (stranded == 0) return partial;
  const raid::Stripe stripe = raid::stripe_at(chunk, stripe_index);
  if (stranded == stripe.page_count) return partial;
  partial.status = Status::busy;
  if ((stranded & stripe_held_bit) != 0) return partial;
  if (!compare_exchange<Order::acq_rel, Scope::engine>(word, stranded, stranded | stripe_held_bit)) return partial;
  // The pages that were stranded at that time are among those that may be; if the numbers are equal, the sets are.
  if (count_maybe_stranded(chunk, stripe) == stranded) {
    partial.status = Status::no_space;
    const bool is_ready = is_durable(chunk, stripe);
    const u64 unit = raid::row_view(state.space, index, raid::row_place(chunk, stripe.first).row).step;
    for (u64 i = 0; i < unit && i < stripe.page_count && is_ready && partial.status != Status::ok; ++i) {
      partial = look_at_partial_row(state, index, stripe.first + i, wanted);
    }
    if (!is_ready) partial.status = Status::retry_after_checkpoint;
    // A whole checkpoint may have happened in between; its pages are not among the `stranded`.
    if (count_maybe_stranded(chunk, stripe) != stranded) partial = PartialRow{Status::busy, index, 0, 0, 0};
  }
  const u32 count = partial.status == Status::ok ? popcount(partial.taken) : 0;
  if (count != 0) subtract<Scope::engine>(&chunk.stranded_pages, count);
  const u32 before = fetch_sub<Order::acq_rel, Scope::engine>(word, stripe_held_bit + count);
  // If a worker stranded the last page meanwhile, it left this to us.
  if (before - stripe_held_bit - count == stripe.page_count) release_stripe(state, chunk, stripe);
  return partial;
}

// The first of the chunk's stripes at or after `from` with stranded pages, counted from `first` on cyclically;
// stripe_count: there is none. Each rank tests one stripe.
template <class Group>
GPU4FS_FN u32 next_stripe_with_stranded(Group g, const ChunkState& chunk, u32 first, u32 from) {
  const u32 count = chunk.stripe_count;
  for (u32 base = from; base < count; base += Group::size()) {
    const u32 at = base + g.rank();
    const u32 stripe = static_cast<u32>((u64{first} + at) % count);
    const bool has_stranded = at < count && load<Order::relaxed, Scope::engine>(&chunk.stripe_stranded[stripe]) != 0;
    const u32 found = g.ballot(has_stranded);
    if (found != 0) return base + count_trailing_zeros(found);
  }
  return count;
}

// Of two results that are not ok, the more promising one.
GPU4FS_FN constexpr Status better_refusal(Status a, Status b) {
  if (a == Status::retry_after_checkpoint || b == Status::retry_after_checkpoint) return Status::retry_after_checkpoint;
  return a == Status::busy || b == Status::busy ? Status::busy : Status::no_space;
}

// In one chunk. Status: ok, retry_after_checkpoint, busy, no_space.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE PartialRow take_partial_row_in(Group g, SpaceState& state, u32 index, u32 wanted) {
  ChunkState& chunk = state.space.chunks[index];
  const u32 count = chunk.stripe_count;
  const u32 first = on_leader(g, [&] { return load<Order::relaxed, Scope::engine>(&chunk.partial_row_cursor); });
  PartialRow partial{Status::no_space, index, 0, 0, 0};
  for (u32 at = next_stripe_with_stranded(g, chunk, first, 0); at < count;
       at = next_stripe_with_stranded(g, chunk, first, at + 1)) {
    const PartialRow found = on_leader(g, [&] {
      const u32 stripe = static_cast<u32>((u64{first} + at) % count);
      const PartialRow taken = take_partial_row_of(state, index, stripe, wanted);
      if (taken.status == Status::ok) store<Order::relaxed, Scope::engine>(&chunk.partial_row_cursor, stripe);
      return taken;
    });
    if (found.status == Status::ok) return found;
    partial.status = better_refusal(partial.status, found.status);
  }
  return partial;
}

// The first chunk from `from` on that may have pages for the command, no_chunk: there is none. *out_of_reach: a chunk
// that the engine would have to reach first. Leader.
GPU4FS_FN GPU4FS_NOINLINE inline u32 next_chunk_with_partial_rows(const SpaceState& state, const SpaceRequest& request,
                                                                  u32 from, u32* out_of_reach) {
  const u32 page_class = class_of(state, request);
  for (u32 i = from; i < raid::chunk_count_of(state.space); ++i) {
    const raid::ChunkState& chunk = state.space.chunks[i];
    if (chunk.page_class != page_class || load<Order::relaxed, Scope::engine>(&chunk.stranded_pages) == 0) continue;
    const u32 bits = load<Order::acquire, Scope::engine>(&chunk.free_pages) & ~free_number_mask;
    if (bits == 0 && (devices_of(chunk) & request.refused_devices) == 0) *out_of_reach = i;
    if (bits == counted_bit) return i;
  }
  return raid::no_chunk;
}

}  // namespace detail

// The room of a row's record in pages, parities included.
inline constexpr u32 row_record_pages_max = 7;
static_assert(format::log_record_layout(0, row_record_pages_max* page_size, 0).length <= format::log_record_bytes_max);

// Takes pages of one row for the command, in profile op.profile: `wanted` > 0 or fewer. Uniform. Status:
//   no_space                there are none; op.blocked_by_reservations: other commands still have to write pages of
//                           stripes that have some
//   retry_after_checkpoint  there may be some after the next checkpoint
//   chunk_not_mapped        chunk op.wanted_chunk may have some
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE PartialRow take_partial_row(Group g, SpaceState& state, SpaceRequest& request, u32 wanted) {
  GPU4FS_CHECK_GT(wanted, 0u);
  PartialRow none{Status::no_space, raid::no_chunk, 0, 0, 0};
  if (!on_leader(g, [&] { return takes_partial_rows(state, class_of(state, request)); })) return none;
  u32 out_of_reach = raid::no_chunk;  // set by the leader
  for (u32 from = 0;;) {
    const u32 chunk =
        on_leader(g, [&] { return detail::next_chunk_with_partial_rows(state, request, from, &out_of_reach); });
    if (chunk == raid::no_chunk) break;
    const u32 most = minimum(wanted, row_record_pages_max - state.space.chunks[chunk].parity_count);
    const PartialRow found = detail::take_partial_row_in(g, state, chunk, most);
    if (found.status == Status::ok) return found;
    none.status = detail::better_refusal(none.status, found.status);
    from = chunk + 1;
  }
  none.status = on_leader(g, [&] {
    if (none.status == Status::retry_after_checkpoint) return none.status;
    if (out_of_reach != raid::no_chunk) return want_chunk(request, out_of_reach, Status::chunk_not_mapped);
    if (none.status == Status::busy) request.blocked_by_reservations = 1;
    return Status::no_space;
  });
  return none;
}

// Inside the commit gate: whether files have pages of the row's stripe. If this holds after the row's record and again
// at the commit of its pages, the stripe is in use in every state in between, because no page of such a stripe becomes
// part of a file otherwise. A recovery that finds the stripe free would take the row's parities for those of the pages
// that it adopts.
GPU4FS_FN GPU4FS_NOINLINE inline bool stripe_stays(const SpaceState& state, u32 index, u64 row) {
  const raid::ChunkState& chunk = state.space.chunks[index];
  return detail::is_in_use(chunk, raid::stripe_of(chunk, raid::row_view(state.space, index, row).first));
}

// Inside the commit gate: whether the row is unchanged; a whole checkpoint may have happened in between.
GPU4FS_FN GPU4FS_NOINLINE inline bool may_log_row(const SpaceState& state, const PartialRow& partial) {
  if (!detail::is_settled(state.space.chunks[partial.chunk]) || raid::failed_devices(state.space) != 0) return false;
  return stripe_stays(state, partial.chunk, partial.row);
}

// The pages of the row were returned, so its stripe becomes the last one in the next search.
GPU4FS_FN inline void skip_row(SpaceState& state, const PartialRow& partial) {
  raid::ChunkState& chunk = state.space.chunks[partial.chunk];
  const raid::Stripe stripe = raid::stripe_of(chunk, raid::row_view(state.space, partial.chunk, partial.row).first);
  store<Order::relaxed, Scope::engine>(&chunk.partial_row_cursor,
                                       static_cast<u32>((stripe.index + 1) % chunk.stripe_count));
}

// Before any command runs: gives the page, of a stripe that is partly used, to the command whose record names it, until
// the recovery ends. A repetition changes nothing. Status: corrupt_structure for a page that is in use or free.
GPU4FS_FN GPU4FS_NOINLINE inline Status adopt_stranded_page(raid::ChunkState& chunk, u64 page) {
  GPU4FS_CHECK_LT(page, chunk.page_count);
  if (!has_stripes(chunk) || !detail::is_idle(chunk, page)) return Status::corrupt_structure;
  const u64 bit = u64{1} << (page % 64);
  const u64 old = fetch_or<Order::relaxed, Scope::engine>(&chunk.bitmaps.stable[page / 64], bit);
  if ((old & bit) != 0) return Status::ok;
  const u32 before =
      fetch_sub<Order::relaxed, Scope::engine>(&chunk.stripe_stranded[raid::stripe_of(chunk, page).index], 1u);
  GPU4FS_CHECK_GT(before, 0u);
  subtract<Scope::engine>(&chunk.stranded_pages, 1u);
  return Status::ok;
}

}  // namespace gpu4fs::space
