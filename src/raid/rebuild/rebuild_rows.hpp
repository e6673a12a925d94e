// Filling devices that are being rebuilt: rows of chunks with parities.
//
// A row is made whole at once, under its lock. What of it lies on those devices, pages and
// parities, is a sum of multiples of what can be read, so one pass over the row yields up to three
// of them together. Every page that is read or made is compared with its checksum before anything
// is stored; parities, which have none, follow from the pages.
//
// A row is taken while a page of it is settled (rebuild_copies.hpp): then its stripe is nobody's to
// write as a whole, and what is added to it is added under the lock. Other rows wait for the
// checkpoint that settles them, or are free.
//
// Uniform.
#pragma once

#include "raid/parity/row_batch.hpp"
#include "raid/rebuild/rebuild_copies.hpp"

namespace gpu4fs::raid {
namespace detail {

inline constexpr u32 first_parity_output = 64;  // outputs: slots, and from here on parities

struct RowRebuild {
  BatchRow row;
  u32 output_count;
  u32 outputs[parity_count_max];
};

// How the missing slots follow from parities.
struct RowRecipe {
  u32 equation_count;  // 0: nothing is missing
  u32 is_possible;
  u32 powers[parity_count_max];
  u32 places[parity_count_max];                    // the missing slots
  u8 weights[parity_count_max][parity_count_max];  // of a missing one, by equation
};

// Outputs that are rebuilt: slots, then parities.
GPU4FS_FN inline RowRebuild choose_outputs(const BatchRow& row) {
  RowRebuild rebuild{};
  rebuild.row = row;
  for (u64 left = row.rebuilding; left != 0 && rebuild.output_count < parity_count_max; left &= left - 1) {
    rebuild.outputs[rebuild.output_count++] = count_trailing_zeros(left);
  }
  for (u32 left = row.rebuilding_parities; left != 0 && rebuild.output_count < parity_count_max; left &= left - 1) {
    rebuild.outputs[rebuild.output_count++] = first_parity_output + count_trailing_zeros(left);
  }
  return rebuild;
}

// The `choice`-th way.
GPU4FS_FN GPU4FS_NOINLINE inline RowRecipe choose_recipe(const BatchRow& row, u32 choice) {
  RowRecipe recipe{};
  recipe.is_possible = row.missing == 0 && choice == 0 ? 1 : 0;
  if (row.missing == 0 || popcount(row.missing) > parity_count_max) return recipe;
  u32 n = 0;
  for (u64 left = row.missing; left != 0; left &= left - 1, ++n) {
    const Losses losses{Status::ok, count_trailing_zeros(left), row.parities, 0, row.included, row.missing};
    const Recipe one = choose_parities(losses, choice);
    if (one.equation_count == 0) return recipe;
    recipe.places[n] = losses.target;
    recipe.equation_count = one.equation_count;
    for (u32 r = 0; r < one.equation_count; ++r) {
      recipe.powers[r] = one.powers[r];
      recipe.weights[n][r] = one.weights.values[r];
    }
  }
  GPU4FS_CHECK_EQ(n, recipe.equation_count);
  recipe.is_possible = 1;
  return recipe;
}

// The first way, whose weights are known already.
template <class Group>
GPU4FS_FN RowRecipe first_recipe(Group g, const RowBatch& batch, const BatchRow& row, const galois::Weights& own) {
  RowRecipe recipe{};
  const u32 parities = parities_for(row.missing, row.parities);
  recipe.is_possible = row.missing == 0 || parities != 0 ? 1 : 0;
  if (parities == 0) return recipe;
  recipe.equation_count = popcount(row.missing);
  u64 missing = row.missing;
  u32 powers = parities;
  for (u32 n = 0; n < recipe.equation_count; ++n, missing &= missing - 1, powers &= powers - 1) {
    recipe.places[n] = count_trailing_zeros(missing);
    recipe.powers[n] = count_trailing_zeros(powers);
    const galois::Weights weights = weights_in(g, batch, row, own, n);
    for (u32 r = 0; r < recipe.equation_count; ++r) recipe.weights[n][r] = weights.values[r];
  }
  return recipe;
}

// What equation r counts for in an output.
GPU4FS_FN GPU4FS_NOINLINE inline u8 weight_of_equation(const RowRecipe& recipe, u32 output, u32 r) {
  u8 weight = 0;
  for (u32 n = 0; n < recipe.equation_count; ++n) {
    if (output == recipe.places[n]) return recipe.weights[n][r];
    if (output < first_parity_output) continue;
    const u32 power = (output - first_parity_output) * recipe.places[n];
    weight ^= galois::multiply(galois::power_of_two(power), recipe.weights[n][r]);
  }
  return weight;
}

// Sums that are needed: of the parities that are used and of those that are made.
GPU4FS_FN inline u32 sums_needed(const RowRebuild& rebuild, const RowRecipe& recipe) {
  u32 count = 1;
  for (u32 r = 0; r < recipe.equation_count; ++r) count = maximum(count, recipe.powers[r] + 1);
  for (u32 o = 0; o < rebuild.output_count; ++o) {
    if (rebuild.outputs[o] >= first_parity_output) count = maximum(count, rebuild.outputs[o] - first_parity_output + 1);
  }
  return count;
}

// One reading of the row: sum j becomes parity j of the pages that are there, and, of parities that are used, what is
// missing of it. Answers the slots that do not match their checksum: sums of a row with such ones are worth nothing.
template <u32 count, class Group>
GPU4FS_FN GPU4FS_NOINLINE u64 sum_readable(Group g, const LogicalSpace& space, const RowBatch& batch, const BatchRow& row,
                                           const RowRecipe& recipe, ParityPages<Group, count>& sums) {
  const bool verifies = space.data_checksums != 0;
  const u64 base = space.chunks[batch.chunk].base_address;
  u32 parities = 0;
  for (u32 r = 0; r < recipe.equation_count; ++r) parities |= 1u << recipe.powers[r];
  u64 bad = 0;
  // Of what is included nothing changes under the lock.
  const auto verify = [&](const PageRegisters<Group>& page, u32 slot) {
    if (!verifies) return true;
    const u64 address = base + row_page(row.view, slot) * page_size;
    if (xxh3_registers(g, page, address) != checksum_of_slot(g, space, batch, row, slot)) bad |= u64{1} << slot;
    return true;
  };
  (void)sum_slots_and_parities<count>(g, space, batch, row, row.included & ~row.missing, parities, sums, verify,
                                      [](const PageRegisters<Group>&, u32) {});
  return bad;
}

struct OutputPlace {
  Status status;
  u32 device;
  u64 offset;
  u8* memory;
};

GPU4FS_FN GPU4FS_NOINLINE inline OutputPlace announce_output(const LogicalSpace& space, const RowView& view, u32 slot) {
  const DevicePlace place = row_entry_place(space, view, slot);
  const device::Device& device = space.devices[place.device];
  // Given up meanwhile, or read again already.
  if (!is_rebuilding(space, place.device)) return {Status::device_failed, place.device, 0, nullptr};
  const Status status = device::begin_write(device, place.offset, page_size);
  if (status != Status::ok) {
    (void)outlives_write_error(space, place.device);
    return {status, place.device, 0, nullptr};
  }
  return {Status::ok, place.device, place.offset,
          device::memory_at(device, place.offset, page_size)};
}

// A warp knows where it goes from its look at the row.
template <class Group>
GPU4FS_FN OutputPlace begin_output(Group g, const LogicalSpace& space, const RowBatch& batch, const BatchRow& row,
                                   u32 output) {
  const u32 slot = output < first_parity_output ? output : batch.data_slots + (output - first_parity_output);
  if constexpr (Group::size() > 1) {
    if (!is_stacked(space)) {
      const u32 entry = row.entry + slot;
      const u32 device = of_entry(g, batch.devices, entry);
      const bool is_taken = serial(g, [&] { return is_rebuilding(space, device) && !device_has_failed(space, device); });
      return {is_taken ? Status::ok : Status::device_failed, device, 0, known_memory(g, batch, entry)};
    }
  }
  return serial(g, [&] { return announce_output(space, row.view, slot); });
}

enum class OutputResult : u32 { mismatch, is_there, stored };

// Brings an output to its place, unless it is there already.
template <class Group>
GPU4FS_FN OutputResult store_output(Group g, const LogicalSpace& space, const RowBatch& batch, const BatchRow& row,
                                    u32 output, const PageRegisters<Group>& page, bool is_fresh) {
  const OutputPlace place = begin_output(g, space, batch, row, output);
  if (place.status != Status::ok) return OutputResult::is_there;
  const bool readable = !is_fresh && serial(g, [&] {
    return device::begin_known_read(space.devices[place.device], place.offset, page_size) == Status::ok;
  });
  const bool stores = !readable || !same_page(g, page, load_aligned_page(g, place.memory));
  if (stores) store_page(g, page, place.memory);
  g.sync();
  if (is_stacked(space)) serial(g, [&] { device::end_write(space.devices[place.device], place.offset, page_size); });
  return stores ? OutputResult::stored : OutputResult::is_there;
}

// Makes an output from the sums; pages among them are what they should be, or it is a mismatch. `stores`: and brings it
// to its place.
template <u32 count, class Group>
GPU4FS_FN GPU4FS_NOINLINE OutputResult make_output(Group g, const LogicalSpace& space, const RowBatch& batch,
                                                   const RowRebuild& rebuild, const RowRecipe& recipe,
                                                   const ParityPages<Group, count>& sums, u32 output, bool stores,
                                                   bool is_fresh) {
  ParityPages<Group, 1> made;
  clear_parities(g, made);
  if (output >= first_parity_output) add_page(g, made, 0, parity_page(g, sums, output - first_parity_output));
  for (u32 r = 0; r < recipe.equation_count; ++r) {
    const u8 weight = weight_of_equation(recipe, output, r);
    add_scaled_sum(g, made, sums, recipe.powers[r], weight);
  }
  if (output < first_parity_output && space.data_checksums != 0) {
    const u64 address = space.chunks[batch.chunk].base_address + row_page(rebuild.row.view, output) * page_size;
    if (hash_made_page(g, made, address) != checksum_of_slot(g, space, batch, rebuild.row, output)) {
      return OutputResult::mismatch;
    }
  }
  if (!stores) return OutputResult::is_there;
  return store_output(g, space, batch, rebuild.row, output, parity_page(g, made, 0), is_fresh);
}

struct RowAttempt {
  u32 is_done;
  u32 stored;
  u64 bad;  // slots that can be read and do not match
};

// With one choice of parities. Nothing is stored unless all outputs match.
template <u32 count, class Group>
GPU4FS_FN GPU4FS_NOINLINE RowAttempt make_outputs(Group g, const LogicalSpace& space, const RowBatch& batch,
                                                  const RowRebuild& rebuild, const RowRecipe& recipe, bool is_fresh) {
  ParityPages<Group, count> sums;
  const u64 bad = sum_readable<count>(g, space, batch, rebuild.row, recipe, sums);
  if (bad != 0) return {0, 0, bad};
  u32 stored = 0;
  for (u32 turn = rebuild.output_count == 1 ? 1 : 0; turn < 2; ++turn) {
    for (u32 o = 0; o < rebuild.output_count; ++o) {
      const OutputResult result =
          make_output<count>(g, space, batch, rebuild, recipe, sums, rebuild.outputs[o], turn == 1, is_fresh);
      if (result == OutputResult::mismatch) return {0, stored, 0};
      stored += result == OutputResult::stored ? 1 : 0;
    }
  }
  return {1, stored, 0};
}

// Every choice of parities until the outputs match.
template <class Group>
GPU4FS_FN RowAttempt make_row(Group g, const LogicalSpace& space, const RowBatch& batch, const RowRebuild& rebuild,
                              const galois::Weights& own, bool is_fresh) {
  if (rebuild.output_count == 0) return {1, 0, 0};
  for (u32 choice = 0;; ++choice) {
    const RowRecipe recipe =
        choice == 0 ? first_recipe(g, batch, rebuild.row, own) : choose_recipe(rebuild.row, choice);
    if (recipe.is_possible == 0) return {0, 0, 0};
    RowAttempt attempt{};
    switch (sums_needed(rebuild, recipe)) {
      case 1: attempt = make_outputs<1>(g, space, batch, rebuild, recipe, is_fresh); break;
      case 2: attempt = make_outputs<2>(g, space, batch, rebuild, recipe, is_fresh); break;
      default: attempt = make_outputs<3>(g, space, batch, rebuild, recipe, is_fresh); break;
    }
    if (attempt.is_done != 0 || attempt.bad != 0) return attempt;
  }
}

// Outputs that are pages and already right, as on a device that comes back, need not be made.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void drop_known_pages(Group g, const LogicalSpace& space, const RowBatch& batch,
                                                RowRebuild& rebuild) {
  const ChunkState& chunk = space.chunks[batch.chunk];
  u32 kept = 0;
  for (u32 o = 0; o < rebuild.output_count; ++o) {
    const u32 output = rebuild.outputs[o];
    bool is_right = false;
    if (output < first_parity_output) {
      const u64 at = row_page(rebuild.row.view, output);
      const bool readable = serial(g, [&] {
        const DevicePlace place = row_entry_place(space, rebuild.row.view, output);
        return device::begin_known_read(space.devices[place.device], place.offset, page_size) ==
               Status::ok;
      });
      const u64 checksum = checksum_of_slot(g, space, batch, rebuild.row, output);
      const u8* memory = page_memory(space, {batch.chunk, 0, at}, 0);
      is_right = readable && xxh3_page(g, memory, chunk.base_address + at * page_size) == checksum;
    }
    if (!is_right) rebuild.outputs[kept++] = output;
  }
  rebuild.output_count = kept;
}

// Rows that are locked lose the bits of their pages, but for those that have one in `keeping`, which may be null.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void clear_todo_of_rows(Group g, const LogicalSpace& space, const RowBatch& batch, u32 rows,
                                                  const u64* keeping) {
  if (rows == 0) return;
  const ChunkState& chunk = space.chunks[batch.chunk];
  const u64 entries = entries_of_rows(batch, rows);
  for_each_entry(g, batch, [&](u32 base, u32 slot, bool is_there) {
    if (!is_there || slot >= batch.view.slot_count || (entries >> (base + g.rank()) & 1) == 0) return;
    const u64 page = row_page(batch.view, slot);
    if (page_bit(chunk.rebuild_todo, page) && (keeping == nullptr || !page_bit(keeping, page))) clear_rebuild_todo(chunk, page);
  });
}

// Locks rows of the batch among `candidates`, the caller being counted by begin_repairs(); they are batch.rows then. Answers
// those that can be taken, with a page that is settled, and in *todo their pages with a bit.
template <class Group>
GPU4FS_FN u32 lock_rows_to_rebuild(Group g, const LogicalSpace& space, RowBatch& batch, u32 candidates, u64* todo) {
  const ChunkState& chunk = space.chunks[batch.chunk];
  batch.rows = lock_rows(g, space, batch, candidates);
  *todo = find_slots_in(g, batch, chunk.rebuild_todo);
  // That the durable checkpoint or the log keeps from being written.
  const u64 settled =
      find_slots_in(g, batch, chunk.bitmaps.stable) & find_slots_in(g, batch, chunk.bitmaps.committed);
  const bool is_changing = serial(g, [&] {
    fence<Order::seq_cst, Scope::engine>();
    return load<Order::acquire, Scope::engine>(&chunk.staged_changed) != 0;
  });
  const u32 begun = is_changing ? 0 : rows_of_entries(batch, *todo) & rows_of_entries(batch, settled);
  // Nothing can be done about the others now. Pages of them that are free lose their bits.
  clear_todo_of_rows(g, space, batch, batch.rows & ~begun, chunk.bitmaps.busy);
  return begun;
}

// Answers slots that do not match, for which the row was left as it was; 0: it is dealt with, and counted.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u64 rebuild_row(Group g, const LogicalSpace& space, const RowBatch& batch, u32 index,
                                          const galois::Weights& own, u32 todo_count, bool is_fresh, u32* cleared,
                                          RebuildOutcome& outcome) {
  RowRebuild rebuild = choose_outputs(row_of_batch(g, batch, index));
  if (!is_fresh && space.data_checksums != 0) drop_known_pages(g, space, batch, rebuild);
  const RowAttempt made = make_row(g, space, batch, rebuild, own, is_fresh);
  if (made.bad != 0) return made.bad;
  const bool too_few = popcount(rebuild.row.missing) > popcount(u64{rebuild.row.parities});
  if (made.is_done != 0 || !too_few) *cleared |= 1u << index;
  count_rebuilt(outcome, format::RebuildCount::looked_at, todo_count);
  count_rebuilt(outcome, format::RebuildCount::written, made.stored);
  if (made.is_done == 0) {
    count_rebuilt(outcome, too_few ? format::RebuildCount::unreadable : format::RebuildCount::unverified,
                  rebuild.output_count);
  }
  return 0;
}

// What became of some rows.
struct RowsRebuilt {
  u32 row_count;  // that were dealt with
  u32 reserved;
  u64 bad_slots;  // of the row behind them: what does not match; 0: nothing
};

// The first ones of rows [row, end). As lock_rows_to_rebuild().
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE RowsRebuilt rebuild_batch(Group g, const LogicalSpace& space, u32 index, u64 row, u64 end,
                                                    bool is_fresh, RebuildOutcome& outcome) {
  const ChunkState& chunk = space.chunks[index];
  const u32 most = static_cast<u32>(minimum<u64>(batch_rows_max<Group>(chunk), end - row));
  RowBatch batch = make_batch(g, space, index, row, most);
  const u32 candidates = rows_of_entries(batch, find_slots_in(g, batch, chunk.rebuild_todo));
  if (candidates == 0) return {most, 0, 0};
  u64 todo = 0;
  const u32 begun = lock_rows_to_rebuild(g, space, batch, candidates, &todo);
  const u32 locked = batch.rows;
  RowsRebuilt done{rows_passed(batch, candidates, locked), 0, 0};
  batch.rows = begun;
  look_at_slots(g, space, batch, 0);
  look_at_parities(g, space, batch, begun);
  const galois::Weights own = own_weights(g, batch);
  u32 cleared = 0;
  for (u32 left = begun; left != 0 && done.bad_slots == 0; left &= left - 1) {
    const u32 at = count_trailing_zeros(left);
    const u32 todo_count = popcount(bits_of_row(batch, todo, at));
    done.bad_slots = rebuild_row(g, space, batch, at, own, todo_count, is_fresh, &cleared, outcome);
    if (done.bad_slots != 0) done.row_count = at;
  }
  g.sync();
  clear_todo_of_rows(g, space, batch, cleared, nullptr);
  unlock_rows(g, space, batch, locked);
  return done;
}

// Of a row that is not locked: nothing more can be done for it.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void give_up_row(Group g, const LogicalSpace& space, u32 index, u64 row, RebuildOutcome& outcome) {
  RowBatch batch = make_batch(g, space, index, row, 1);
  const ChunkState& chunk = space.chunks[index];
  batch.rows = lock_rows(g, space, batch, 1);
  const u64 todo = find_slots_in(g, batch, chunk.rebuild_todo);
  look_at_slots(g, space, batch, 0);
  look_at_parities(g, space, batch, 1);
  const RowRebuild rebuild = choose_outputs(row_of_batch(g, batch, 0));
  const bool too_few = popcount(rebuild.row.missing) > popcount(u64{rebuild.row.parities});
  clear_todo_of_rows(g, space, batch, 1, nullptr);
  unlock_rows(g, space, batch, 1);
  count_rebuilt(outcome, format::RebuildCount::looked_at, popcount(todo));
  count_rebuilt(outcome, too_few ? format::RebuildCount::unreadable : format::RebuildCount::unverified,
                rebuild.output_count);
}

}  // namespace detail

// The rows of pages [page, page + count) of a chunk with parities, at most 64, that have pages with their bit.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE RebuildOutcome rebuild_rows(Group g, const LogicalSpace& space, u32 index,
                                                      u64 page, u32 count, bool is_fresh) {
  const ChunkState& chunk = space.chunks[index];
  GPU4FS_CHECK_LE(count, rebuild_task_pages);
  GPU4FS_CHECK_GT(chunk.parity_count, 0u);
  RebuildOutcome outcome{};
  const bool has_todo = serial(g, [&] {
    return (bitmap_bits_64(chunk, chunk.rebuild_todo, page) & low_bits(count)) != 0;
  });
  if (!has_todo) return outcome;
  const RowRange range = serial(g, [&] { return rows_of_pages(space, index, page, count); });
  const u32 counter = serial(g, [&] { return begin_repairs(space); });
  u32 attempts = 0;  // with the row that is tried
  for (u64 row = range.first; row < range.end;) {
    const detail::RowsRebuilt done = detail::rebuild_batch(g, space, index, row, range.end, is_fresh, outcome);
    row += done.row_count;
    if (done.bad_slots == 0) {
      // The row that was tried before, always the first one of a call, is behind.
      attempts = 0;
      continue;
    }
    attempts = done.row_count == 0 ? attempts + 1 : 1;
    const RowView view = serial(g, [&] { return row_view(space, index, row); });
    const PageLocation location{index, 0, row_page(view, count_trailing_zeros(done.bad_slots))};
    if (attempts <= view.slot_count && repair_page(g, space, location)) continue;
    detail::give_up_row(g, space, index, row++, outcome);
    attempts = 0;
  }
  g.sync();
  serial(g, [&] { end_repairs(space, counter); });
  return outcome;
}

}  // namespace gpu4fs::raid
