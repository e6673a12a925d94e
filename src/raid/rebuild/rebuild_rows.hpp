// Fills devices that are being rebuilt: rows of chunks with parities.
//
// A row is completed at once, under its lock. Its pages and parities on these devices are sums of multiples of the
// readable ones, so one pass over the row yields up to three of them together. Every page that is read or computed is
// compared with its checksum before anything is stored. Parities have no checksums; they follow from the pages.
//
// A row is processed while one of its pages is settled (rebuild_copies.hpp). Then no command writes its stripe as a
// whole, and additions to it happen under the lock. Other rows wait for the checkpoint that settles them, or are free.
//
// Uniform.
#pragma once

#include "base/mutant.hpp"
#include "raid/parity/row_batch.hpp"
#include "raid/rebuild/rebuild_copies.hpp"

namespace gpu4fs::raid {
namespace detail {

// How the outputs of a row, the computed entries, follow from the available ones.
struct RowRecipe {
  u32 parities;  // those that are used, one bit each
  SumRange sums;
  u32 is_first;    // 1: those of parities_for(), for which ranks have the weights
  SumWeights own;  // a rank's
};

// With the set of parities number `choice`. If pages are missing and the recipe has no parities, there is no such set.
GPU4FS_FN inline RowRecipe make_recipe(const RowBatch& batch, const BatchRow& row, u64 outputs, SumWeights own,
                                       u32 choice) {
  const u32 parities = choose_parities(row.parities, popcount(row.missing), choice);
  return {parities, sums_for(parities | outputs >> batch.data_slots), choice == 0 ? 1u : 0u, own};
}

template <class Group>
GPU4FS_FN SumWeights weights_of_output(Group g, const RowBatch& batch, const BatchRow& row, const RowRecipe& recipe,
                                       u32 output) {
  const bool is_known = recipe.is_first != 0 && (row.rebuilding >> output & 1) != 0;
  const SumWeights weights = is_known ? weights_in(g, batch, row, recipe.own, row.rebuilding, output)
                                      : weights_of_entry(row.missing, recipe.parities, batch.data_slots, output);
  return weights >> (8 * recipe.sums.first);
}

// One read of the row. The sums become the parities of the available pages, and for used parities the missing part.
// Returns the slots that do not match their checksums; then the sums are useless.
template <u32 count, class Group>
GPU4FS_FN GPU4FS_NOINLINE u64 sum_readable(Group g, RowAccess at, const RowRecipe& recipe,
                                           ParityPages<Group, count>& sums) {
  const bool verifies = at.space.data_checksums != 0;
  u64 bad = 0;
  // Included pages do not change under the lock.
  const auto verify = [&](const PageRegisters<Group>& page, u32 slot) {
    if (!verifies) return true;
    if (xxh3_registers(g, page, at.address_of(slot)) != checksum_of_slot(g, at, slot)) bad |= u64{1} << slot;
    return true;
  };
  (void)sum_slots_and_parities<count>(g, at, {at.row.included & ~at.row.missing, recipe.parities, recipe.sums.first},
                                      sums, verify, [](const PageRegisters<Group>&, u32) {});
  return bad;
}

struct OutputPlace {
  Status status;
  u32 device;
  u64 offset;
  u8* memory;
  u32 is_announced;  // 1: end_output() tells the device that it was written
  u32 reserved;
};

GPU4FS_FN GPU4FS_NOINLINE inline OutputPlace announce_output(const LogicalSpace& space, const RowView& view, u32 slot) {
  const DevicePlace place = row_entry_place(space, view, slot);
  const device::Device& device = space.devices[place.device];
  // The device was given up meanwhile, or is already read again.
  if (!is_rebuilding(space, place.device)) return {Status::device_failed, place.device, 0, nullptr, 0, 0};
  const Status status = device::begin_write(device, place.offset, page_size);
  if (status != Status::ok) {
    (void)tolerates_write_error(space, place.device);
    return {status, place.device, 0, nullptr, 0, 0};
  }
  return {Status::ok, place.device, place.offset, device::memory_at(device, place.offset, page_size), 1, 0};
}

// Unless accesses are announced, a warp knows the place from its examination of the row, which also says that the
// device is being rebuilt. If the device has been given up since then, the write does no harm: the memory stays mapped
// while a task is in the step gate.
template <class Group>
GPU4FS_FN OutputPlace begin_output(Group g, RowAccess at, u32 output) {
  if constexpr (Group::size() > 1) {
    if (!g.any(is_announced(at.space))) {
      return {Status::ok, 0, 0, known_memory(g, at.batch, at.row.entry + output), 0, 0};
    }
  }
  return on_leader(g, [&] { return announce_output(at.space, at.row.view, output); });
}

template <class Group>
GPU4FS_FN void end_output(Group g, const LogicalSpace& space, const OutputPlace& place) {
  if (GPU4FS_MUTANT(row_output_not_ended, place.is_announced, 0u) == 0) return;
  g.sync();
  on_leader(g, [&] { device::end_write(space.devices[place.device], place.offset, page_size); });
}

// The existing content on a device that is being rebuilt.
template <class Group>
GPU4FS_FN bool can_be_read(Group g, const LogicalSpace& space, const BatchRow& row, u32 entry) {
  return on_leader(g, [&] {
    const DevicePlace place = row_entry_place(space, row.view, entry);
    return device::begin_known_read(space.devices[place.device], place.offset, page_size) == Status::ok;
  });
}

enum class OutputResult : u32 { mismatch, is_there, stored };

// Which outputs are stored.
enum class Storing : u32 { nothing, changes, everything };

// Writes an output to its place unless the place has the same content.
template <class Group>
GPU4FS_FN OutputResult store_output(Group g, RowAccess at, u32 output, const PageRegisters<Group>& page,
                                    Storing storing) {
  // The read is announced first: a page whose write is announced need not have its old content.
  const bool has_old = storing != Storing::everything && can_be_read(g, at.space, at.row, output);
  const OutputPlace place = begin_output(g, at, output);
  if (place.status != Status::ok) return OutputResult::is_there;
  const bool stores = !has_old || !same_page(g, page, load_aligned_page(g, place.memory));
  if (stores) store_page(g, page, place.memory);
  end_output(g, at.space, place);
  return stores ? OutputResult::stored : OutputResult::is_there;
}

// Computes an output from the sums. A page must match its checksum, otherwise this is a mismatch. Then the output may
// be stored.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE OutputResult make_output(Group g, RowAccess at, const RowRecipe& recipe,
                                                   const SumPage<Group>* sums, u32 output, Storing storing) {
  SumPage<Group> made;
  const SumPage<Group>& page = weighted_sum(g, made, sums, weights_of_output(g, at.batch, at.row, recipe, output));
  if (output < at.batch.data_slots && at.space.data_checksums != 0) {
    if (hash_sum(g, page, at.address_of(output)) != checksum_of_slot(g, at, output)) return OutputResult::mismatch;
  }
  if (storing == Storing::nothing) return OutputResult::is_there;
  return store_output(g, at, output, sum_registers(g, page), storing);
}

struct RowAttempt {
  u32 is_done;
  u32 stored;
  u64 bad;  // slots that can be read and do not match
};

// With one choice of parities. Nothing is stored unless all outputs match and, if parities follow from them, all other
// missing pages, which are lost or need not be stored.
template <u32 count, class Group>
GPU4FS_FN GPU4FS_NOINLINE RowAttempt make_outputs(Group g, RowAccess at, u64 outputs, const RowRecipe& recipe,
                                                  bool is_fresh) {
  ParityPages<Group, count> sums;
  const u64 bad = sum_readable<count>(g, at, recipe, sums);
  if (bad != 0) return {0, 0, bad};
  u32 stored = 0;
  const u64 pages = low_bits(at.batch.data_slots);
  const u64 verified = (outputs & ~pages) != 0 ? at.row.missing : (outputs & (outputs - 1)) != 0 ? outputs : 0;
  for (u32 turn = 0; turn < 2; ++turn) {
    const Storing storing = turn == 0 ? Storing::nothing : is_fresh ? Storing::everything : Storing::changes;
    for (u64 left = turn == 0 ? verified : outputs; left != 0; left &= left - 1) {
      const u32 output = count_trailing_zeros(left);
      const OutputResult result = make_output(g, at, recipe, sums.pages, output, storing);
      if (result == OutputResult::mismatch) return {0, stored, 0};
      stored += result == OutputResult::stored ? 1 : 0;
    }
  }
  return {1, stored, 0};
}

// Tries every choice of parities until the outputs match.
template <class Group>
GPU4FS_FN RowAttempt make_row(Group g, RowAccess at, u64 outputs, SumWeights own, bool is_fresh) {
  if (outputs == 0) return {1, 0, 0};
  for (u32 choice = 0;; ++choice) {
    const RowRecipe recipe = make_recipe(at.batch, at.row, outputs, own, choice);
    // Without a missing slot there is only one choice.
    if (at.row.missing != 0 ? recipe.parities == 0 : choice != 0) return {0, 0, 0};
    RowAttempt attempt{};
    switch (recipe.sums.count) {
      case 1:
        attempt = make_outputs<1>(g, at, outputs, recipe, is_fresh);
        break;
      case 2:
        attempt = make_outputs<2>(g, at, outputs, recipe, is_fresh);
        break;
      default:
        attempt = make_outputs<3>(g, at, outputs, recipe, is_fresh);
        break;
    }
    if (attempt.is_done != 0 || attempt.bad != 0) return attempt;
  }
}

// The outputs without pages that are already right, as on a device that returns.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u64 without_known_pages(Group g, RowAccess at) {
  const ChunkState& chunk = at.space.chunks[at.batch.chunk];
  u64 outputs = at.row.rebuilding;
  for (u64 left = at.row.rebuilding & low_bits(at.batch.data_slots); left != 0; left &= left - 1) {
    const u32 slot = count_trailing_zeros(left);
    if (!can_be_read(g, at.space, at.row, slot)) continue;
    const u64 page = row_page(at.row.view, slot);
    const u64 checksum = checksum_of_slot(g, at, slot);
    const u8* memory = page_memory(at.space, {at.batch.chunk, 0, page}, 0);
    if (xxh3_page(g, memory, chunk.base_address + page * page_size) == checksum) outputs &= ~(u64{1} << slot);
  }
  return outputs;
}

// Clears the bits of the pages of locked rows, except for rows with a page in `keeping`, which may be null.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void clear_todo_of_rows(Group g, const LogicalSpace& space, const RowBatch& batch, u32 rows,
                                                  const u64* keeping) {
  if (rows == 0) return;
  const ChunkState& chunk = space.chunks[batch.chunk];
  for_each_entry(g, batch, rows, [&](u32, u32 slot, bool is_there) {
    if (!is_there || slot >= batch.view.slot_count) return;
    const u64 page = row_page(batch.view, slot);
    if (page_bit(chunk.rebuild_todo, page) && (keeping == nullptr || !page_bit(keeping, page)))
      clear_rebuild_todo(chunk, page);
  });
}

// Locks rows of the batch among `candidates`; they are then batch.rows. The caller is counted by begin_repairs().
// Returns those that can be processed because they have a settled page, and in *todo those of their pages that have a
// bit.
template <class Group>
GPU4FS_FN u32 lock_rows_to_rebuild(Group g, const LogicalSpace& space, RowBatch& batch, u32 candidates, u64* todo) {
  const ChunkState& chunk = space.chunks[batch.chunk];
  batch.rows = lock_rows(g, space, batch, candidates);
  u64 settled = 0;  // protected from writes by the durable checkpoint or the log
  u64 found = 0;
  for_each_entry(g, batch, batch.rows, [&](u32 base, u32 slot, bool is_there) {
    const bool is_slot = is_there && slot < batch.view.slot_count;
    const u64 page = row_page(batch.view, slot);
    settled |= u64{g.ballot(is_slot && page_bit(chunk.bitmaps.stable, page) && page_bit(chunk.bitmaps.committed, page))}
               << base;
    found |= u64{g.ballot(is_slot && page_bit(chunk.rebuild_todo, page))} << base;
  });
  *todo = found;
  const bool is_changing = on_leader(g, [&] {
    fence<Order::seq_cst, Scope::engine>();
    return load<Order::acquire, Scope::engine>(&chunk.staged_changed) != 0;
  });
  const u32 begun = is_changing ? 0 : rows_of_entries(batch, *todo) & rows_of_entries(batch, settled);
  // The others cannot be processed at this time. Their free pages lose their bits.
  clear_todo_of_rows(g, space, batch, batch.rows & ~begun, chunk.bitmaps.busy);
  return begun;
}

struct RowRebuilt {
  u64 bad;          // slots that do not match, because of which the row was left unchanged; 0: it is done and counted
  bool is_cleared;  // its pages need no more work
};

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE RowRebuilt rebuild_row(Group g, RowAccess at, SumWeights own, u32 todo_count, bool is_fresh,
                                                 RebuildOutcome& outcome) {
  const PinScope pins(g, at.space);
  const u64 outputs = is_fresh || at.space.data_checksums == 0 ? at.row.rebuilding : without_known_pages(g, at);
  const RowAttempt made = make_row(g, at, outputs, own, is_fresh);
  if (made.bad != 0) return {made.bad, false};
  const bool too_few = popcount(at.row.missing) > popcount(u64{at.row.parities});
  count_rebuilt(outcome, wire::RebuildCount::looked_at, todo_count);
  count_rebuilt(outcome, wire::RebuildCount::written, made.stored);
  if (made.is_done == 0) {
    count_rebuilt(outcome, too_few ? wire::RebuildCount::unreadable : wire::RebuildCount::unverified,
                  popcount(outputs));
  }
  return {0, made.is_done != 0 || !too_few};
}

// The result for some rows.
struct RowsRebuilt {
  u32 row_count;  // number of processed rows
  u32 reserved;
  u64 bad_slots;  // of the next row: slots that do not match; 0: none
};

// For the first ones of the rows. As lock_rows_to_rebuild().
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE RowsRebuilt rebuild_batch(Group g, const LogicalSpace& space, u32 index, RowRange rows,
                                                    bool is_fresh, RebuildOutcome& outcome) {
  const ChunkState& chunk = space.chunks[index];
  const u32 most = static_cast<u32>(minimum<u64>(batch_rows_max<Group>(chunk), rows.end - rows.first));
  RowBatch batch = make_batch(g, space, index, rows.first, most);
  const u32 candidates = rows_of_entries(batch, find_slots_in(g, batch, chunk.rebuild_todo));
  if (candidates == 0) return {most, 0, 0};
  const PinScope pins(g, space);
  u64 todo = 0;
  const u32 begun = lock_rows_to_rebuild(g, space, batch, candidates, &todo);
  const u32 locked = batch.rows;
  RowsRebuilt done{rows_passed(batch, candidates, locked), 0, 0};
  batch.rows = begun;
  look_at_rows(g, space, batch, begun, 0, LookAt::both);
  const SumWeights own = own_weights(g, batch, batch.rebuilding);
  u32 cleared = 0;
  for (u32 left = begun; left != 0 && done.bad_slots == 0; left &= left - 1) {
    const u32 at = count_trailing_zeros(left);
    const u32 todo_count = popcount(bits_of_row(batch, todo, at));
    const BatchRow seen = row_of_batch(g, batch, at);
    const RowRebuilt made = rebuild_row(g, {space, batch, seen}, own, todo_count, is_fresh, outcome);
    if (made.is_cleared) cleared |= 1u << at;
    done.bad_slots = made.bad;
    if (done.bad_slots != 0) done.row_count = at;
  }
  g.sync();
  clear_todo_of_rows(g, space, batch, cleared, nullptr);
  unlock_rows(g, space, batch, locked);
  return done;
}

// For a row that is not locked: nothing more can be done for it.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void give_up_row(Group g, const LogicalSpace& space, u32 index, u64 row,
                                           RebuildOutcome& outcome) {
  const PinScope pins(g, space);
  RowBatch batch = make_batch(g, space, index, row, 1);
  const ChunkState& chunk = space.chunks[index];
  batch.rows = lock_rows(g, space, batch, 1);
  const u64 todo = find_slots_in(g, batch, chunk.rebuild_todo);
  look_at_rows(g, space, batch, 1, 0, LookAt::both);
  const BatchRow seen = row_of_batch(g, batch, 0);
  const bool too_few = popcount(seen.missing) > popcount(u64{seen.parities});
  clear_todo_of_rows(g, space, batch, 1, nullptr);
  unlock_rows(g, space, batch, 1);
  count_rebuilt(outcome, wire::RebuildCount::looked_at, popcount(todo));
  count_rebuilt(outcome, too_few ? wire::RebuildCount::unreadable : wire::RebuildCount::unverified,
                popcount(seen.rebuilding));
}

}  // namespace detail

// The rows of pages [page, page + count), at most 64, of a chunk with parities: those that have pages with their bit.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE RebuildOutcome rebuild_rows(Group g, const LogicalSpace& space, u32 index, u64 page,
                                                      u32 count, bool is_fresh) {
  const ChunkState& chunk = space.chunks[index];
  GPU4FS_CHECK_LE(count, rebuild_task_pages);
  GPU4FS_CHECK_GT(chunk.parity_count, 0u);
  RebuildOutcome outcome{};
  const bool has_todo =
      on_leader(g, [&] { return (bitmap_bits_64(chunk, chunk.rebuild_todo, page) & low_bits(count)) != 0; });
  if (!has_todo) return outcome;
  const RowRange range = on_leader(g, [&] { return rows_of_pages(space, index, page, count); });
  const u32 counter = on_leader(g, [&] { return begin_repairs(space); });
  u32 attempts = 0;  // for the row that is being tried
  for (u64 row = range.first; row < range.end;) {
    const detail::RowsRebuilt done = detail::rebuild_batch(g, space, index, {row, range.end}, is_fresh, outcome);
    row += GPU4FS_MUTANT(rebuild_row_skipped, done.row_count, done.row_count + 1);
    if (done.bad_slots == 0) {
      // The row that was tried before, always the first one of a call, is done.
      attempts = 0;
      continue;
    }
    attempts = done.row_count == 0 ? attempts + 1 : 1;
    const RowView view = on_leader(g, [&] { return row_view(space, index, row); });
    const PageLocation location{index, 0, row_page(view, count_trailing_zeros(done.bad_slots))};
    if (attempts <= view.slot_count && repair_page(g, space, location)) continue;
    detail::give_up_row(g, space, index, row++, outcome);
    attempts = 0;
  }
  g.sync();
  on_leader(g, [&] { end_repairs(space, counter); });
  return outcome;
}

}  // namespace gpu4fs::raid
