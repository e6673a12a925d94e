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

#include "raid/rebuild/rebuild_copies.hpp"

namespace gpu4fs::raid {
namespace detail {

inline constexpr u32 first_parity_output = 64;  // outputs: slots, and from here on parities

struct RowRebuild {
  RowView view;
  u64 included;  // slots whose bytes are in the parities
  u64 missing;   // of those, which cannot be read
  u32 parities;  // that can be read, a bit each
  u32 output_count;
  u32 outputs[parity_count_max];
  u32 is_begun;    // 1: repairs_running counts it, and the row is locked
  u32 todo_count;  // pages with their bit
  u32 reserved;
};

// How the missing slots follow from parities.
struct RowRecipe {
  u32 equation_count;  // 0: nothing is missing
  u32 is_possible;
  u32 powers[parity_count_max];
  u32 places[parity_count_max];                    // the missing slots
  u8 weights[parity_count_max][parity_count_max];  // of a missing one, by equation
};

// Leader. Locks the row unless none of it is settled; then pages of it that are free lose their
// bits.
GPU4FS_FN GPU4FS_NOINLINE inline RowRebuild begin_row_rebuild(const LogicalSpace& space, u32 index,
                                                              u64 page) {
  const ChunkState& chunk = space.chunks[index];
  RowRebuild row{};
  row.view = row_view(space, index, row_place(chunk, page).row);
  fetch_add<Order::acq_rel, Scope::engine>(&space.damage->repairs_running, u64{1});
  row_lock(space, row.view).lock();
  bool is_settled = false;
  for (u32 slot = 0; slot < row.view.slot_count; ++slot) {
    const u64 at = row_page(row.view, slot);
    row.todo_count += page_bit(chunk.rebuild_todo, at) ? 1 : 0;
    is_settled =
        is_settled || (page_bit(chunk.bitmaps.stable, at) && page_bit(chunk.bitmaps.committed, at));
  }
  fence<Order::seq_cst, Scope::engine>();
  is_settled = is_settled && load<Order::acquire, Scope::engine>(&chunk.staged_changed) == 0;
  if (row.todo_count != 0 && is_settled) {
    row.is_begun = 1;
    return row;
  }
  for (u32 slot = 0; slot < row.view.slot_count; ++slot) {
    const u64 at = row_page(row.view, slot);
    if (page_bit(chunk.rebuild_todo, at) && !page_bit(chunk.bitmaps.busy, at))
      clear_rebuild_todo(chunk, at);
  }
  row_lock(space, row.view).unlock();
  end_repair(space);
  return row;
}

// Leader, under the lock: what is there and what is wanted.
GPU4FS_FN GPU4FS_NOINLINE inline void look_at_devices(const LogicalSpace& space, RowRebuild& row) {
  const ChunkState& chunk = space.chunks[row.view.chunk];
  row.included = slots_in_parity(space, row.view);
  row.missing = 0;
  row.parities = 0;
  row.output_count = 0;
  for (u64 left = row.included; left != 0; left &= left - 1) {
    const u32 slot = count_trailing_zeros(left);
    const PageLocation location{row.view.chunk, 0, row_page(row.view, slot)};
    if (begin_copy_read(space, location, 1, 0) == Status::ok) continue;
    row.missing |= u64{1} << slot;
    if (!is_rebuilding(space, page_place(space, location, 0).device)) continue;
    if (row.output_count < parity_count_max) row.outputs[row.output_count++] = slot;
  }
  for (u32 j = 0; j < chunk.parity_count; ++j) {
    if (begin_parity_read(space, row.view, j) == Status::ok) {
      row.parities |= 1u << j;
    } else if (is_rebuilding(space, parity_place(space, row.view, j).device) &&
               row.output_count < parity_count_max) {
      row.outputs[row.output_count++] = first_parity_output + j;
    }
  }
}

// Leader: the `choice`-th way.
GPU4FS_FN GPU4FS_NOINLINE inline RowRecipe choose_recipe(const RowRebuild& row, u32 choice) {
  RowRecipe recipe{};
  recipe.is_possible = row.missing == 0 && choice == 0 ? 1 : 0;
  if (row.missing == 0 || popcount(row.missing) > parity_count_max) return recipe;
  u32 n = 0;
  for (u64 left = row.missing; left != 0; left &= left - 1, ++n) {
    Losses losses{Status::ok, count_trailing_zeros(left), row.parities, 0, row.included,
                  row.missing};
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

// What the bytes of a slot that can be read count for in an output.
GPU4FS_FN GPU4FS_NOINLINE inline u8 weight_in_output(const RowRecipe& recipe, u32 output,
                                                     u32 slot) {
  u8 weight = output < first_parity_output
                  ? 0
                  : galois::power_of_two((output - first_parity_output) * slot);
  for (u32 r = 0; r < recipe.equation_count; ++r) {
    const u8 in_equation = galois::power_of_two(recipe.powers[r] * slot);
    weight ^= galois::multiply(weight_of_equation(recipe, output, r), in_equation);
  }
  return weight;
}

// Adds up the outputs from one reading of the row. Answers the slots that do not match their
// checksum: sums of a row with such ones are worth nothing.
template <u32 count, class Group>
GPU4FS_FN GPU4FS_NOINLINE u64 add_up_outputs(Group g, const LogicalSpace& space,
                                             const RowRebuild& row, const RowRecipe& recipe,
                                             ParityPages<Group, count>& sums) {
  const ChunkState& chunk = space.chunks[row.view.chunk];
  clear_parities(g, sums);
  u64 bad = 0;
  const bool verifies = space.data_checksums != 0;
  u64 left = row.included & ~row.missing;
  PageRegisters<Group> next{};
  const auto load_slot = [&](u32 slot) {
    return load_page(g, page_memory(space, {row.view.chunk, 0, row_page(row.view, slot)}, 0));
  };
  // On its way while the parities are added.
  if (left != 0) next = load_slot(count_trailing_zeros(left));
  for (u32 r = 0; r < recipe.equation_count; ++r) {
    const PageRegisters<Group> page =
        load_page(g, parity_memory(space, row.view, recipe.powers[r]));
    for (u32 o = 0; o < count; ++o)
      add_scaled(g, sums, o, page, weight_of_equation(recipe, row.outputs[o], r));
  }
  while (left != 0) {
    const u32 slot = count_trailing_zeros(left);
    const PageRegisters<Group> page = next;
    left &= left - 1;
    if (left != 0) next = load_slot(count_trailing_zeros(left));
    const u64 at = row_page(row.view, slot);
    // Of what is included nothing changes under the lock.
    const u64 checksum = load_shared_16(&chunk.descriptors[at]).low;
    if (verifies && xxh3_registers(g, page, chunk.base_address + at * page_size) != checksum)
      bad |= u64{1} << slot;
    for (u32 o = 0; o < count; ++o)
      add_scaled(g, sums, o, page, weight_in_output(recipe, row.outputs[o], slot));
  }
  return bad;
}

// Whether pages among the outputs are what they should be.
template <u32 count, class Group>
GPU4FS_FN bool outputs_match(Group g, const LogicalSpace& space, const RowRebuild& row,
                             const ParityPages<Group, count>& sums) {
  if (space.data_checksums == 0) return true;
  const ChunkState& chunk = space.chunks[row.view.chunk];
  for (u32 o = 0; o < count; ++o) {
    if (row.outputs[o] >= first_parity_output) continue;
    const u64 at = row_page(row.view, row.outputs[o]);
    const u64 checksum = load_shared_16(&chunk.descriptors[at]).low;
    const PageRegisters<Group> page = parity_page(g, sums, o);
    if (xxh3_registers(g, page, chunk.base_address + at * page_size) != checksum) return false;
  }
  return true;
}

struct OutputPlace {
  Status status;
  u32 device;
  u64 offset;
  u8* memory;
};

GPU4FS_FN GPU4FS_NOINLINE inline OutputPlace begin_output(const LogicalSpace& space,
                                                          const RowRebuild& row, u32 output) {
  const DevicePlace place =
      output < first_parity_output
          ? page_place(space, {row.view.chunk, 0, row_page(row.view, output)}, 0)
          : parity_place(space, row.view, output - first_parity_output);
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

// Stores outputs that are not there yet. Answers how many.
template <u32 count, class Group>
GPU4FS_FN GPU4FS_NOINLINE u32 store_outputs(Group g, const LogicalSpace& space,
                                            const RowRebuild& row,
                                            const ParityPages<Group, count>& sums, bool is_fresh) {
  u32 stored = 0;
  for (u32 o = 0; o < count; ++o) {
    const OutputPlace place = serial(g, [&] { return begin_output(space, row, row.outputs[o]); });
    if (place.status != Status::ok) continue;
    const PageRegisters<Group> page = parity_page(g, sums, o);
    const bool readable = !is_fresh && serial(g, [&] {
      return device::begin_known_read(space.devices[place.device], place.offset, page_size) ==
             Status::ok;
    });
    if (!readable || !same_page(g, page, load_page(g, place.memory))) {
      store_page(g, page, place.memory);
      ++stored;
    }
    g.sync();
    serial(g, [&] { device::end_write(space.devices[place.device], place.offset, page_size); });
  }
  return stored;
}

struct RowAttempt {
  u32 is_done;
  u32 stored;
  u64 bad;  // slots that can be read and do not match
};

// Every choice of parities until the outputs match.
template <u32 count, class Group>
GPU4FS_FN GPU4FS_NOINLINE RowAttempt make_outputs(Group g, const LogicalSpace& space,
                                                  const RowRebuild& row, bool is_fresh) {
  ParityPages<Group, count> sums;
  for (u32 choice = 0;; ++choice) {
    const RowRecipe recipe = serial(g, [&] { return choose_recipe(row, choice); });
    if (recipe.is_possible == 0) return {0, 0, 0};
    const u64 bad = add_up_outputs<count>(g, space, row, recipe, sums);
    if (bad != 0) return {0, 0, bad};
    if (!outputs_match<count>(g, space, row, sums)) continue;
    return {1, store_outputs<count>(g, space, row, sums, is_fresh), 0};
  }
}

template <class Group>
GPU4FS_FN RowAttempt make_row(Group g, const LogicalSpace& space, const RowRebuild& row,
                              bool is_fresh) {
  switch (row.output_count) {
    case 0:
      return {1, 0, 0};
    case 1:
      return make_outputs<1>(g, space, row, is_fresh);
    case 2:
      return make_outputs<2>(g, space, row, is_fresh);
    default:
      return make_outputs<3>(g, space, row, is_fresh);
  }
}

// Leader: the row is as it should be, or nothing can be done about it.
GPU4FS_FN inline void clear_row_todo(const LogicalSpace& space, const RowView& view) {
  for (u32 slot = 0; slot < view.slot_count; ++slot)
    clear_rebuild_todo(space.chunks[view.chunk], row_page(view, slot));
}

// Outputs that are pages and already right, as on a device that comes back, need not be made.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void drop_known_pages(Group g, const LogicalSpace& space,
                                                RowRebuild& row) {
  const ChunkState& chunk = space.chunks[row.view.chunk];
  u32 kept = 0;
  for (u32 o = 0; o < row.output_count; ++o) {
    const u32 output = row.outputs[o];
    bool is_right = false;
    if (output < first_parity_output) {
      const u64 at = row_page(row.view, output);
      const bool readable = serial(g, [&] {
        const DevicePlace place = page_place(space, {row.view.chunk, 0, at}, 0);
        return device::begin_known_read(space.devices[place.device], place.offset, page_size) ==
               Status::ok;
      });
      const u64 checksum = load_shared_16(&chunk.descriptors[at]).low;
      const u8* memory = page_memory(space, {row.view.chunk, 0, at}, 0);
      is_right = readable && xxh3_page(g, memory, chunk.base_address + at * page_size) == checksum;
    }
    if (!is_right) row.outputs[kept++] = output;
  }
  row.output_count = kept;
}

// The row of `page`.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void rebuild_row(Group g, const LogicalSpace& space, u32 index, u64 page,
                                           bool is_fresh, RebuildOutcome& outcome) {
  for (u32 attempt = 0;; ++attempt) {
    RowRebuild row = serial(g, [&] {
      RowRebuild begun = begin_row_rebuild(space, index, page);
      if (begun.is_begun != 0) look_at_devices(space, begun);
      return begun;
    });
    if (row.is_begun == 0) {
      outcome.left +=
          serial(g, [&] { return u64{page_bit(space.chunks[index].rebuild_todo, page)}; });
      return;
    }
    if (!is_fresh && space.data_checksums != 0) drop_known_pages(g, space, row);
    const RowAttempt made = make_row(g, space, row, is_fresh);
    const bool too_few = popcount(row.missing) > popcount(u64{row.parities});
    const bool goes_on = made.bad != 0 && attempt < row.view.slot_count;
    g.sync();
    serial(g, [&] {
      if (!goes_on && (made.is_done != 0 || !too_few)) clear_row_todo(space, row.view);
      row_lock(space, row.view).unlock();
    });
    bool repaired = false;
    if (goes_on) {
      const PageLocation location{index, 0, row_page(row.view, count_trailing_zeros(made.bad))};
      repaired = repair_page(g, space, location);
      if (!repaired)
        serial(g, [&] {
          row_lock(space, row.view).lock();
          clear_row_todo(space, row.view);
          row_lock(space, row.view).unlock();
        });
    }
    g.sync();
    serial(g, [&] { end_repair(space); });
    if (repaired) continue;
    count_rebuilt(outcome, format::RebuildCount::looked_at, row.todo_count);
    count_rebuilt(outcome, format::RebuildCount::written, made.stored);
    if (made.is_done != 0) return;
    count_rebuilt(outcome,
                  too_few ? format::RebuildCount::unreadable : format::RebuildCount::unverified,
                  row.output_count);
    return;
  }
}

}  // namespace detail

// The rows of pages [page, page + count) of a chunk with parities, at most 64, that have their bit.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE RebuildOutcome rebuild_rows(Group g, const LogicalSpace& space, u32 index,
                                                      u64 page, u32 count, bool is_fresh) {
  const ChunkState& chunk = space.chunks[index];
  GPU4FS_CHECK_LE(count, rebuild_task_pages);
  GPU4FS_CHECK_GT(chunk.parity_count, 0u);
  RebuildOutcome outcome{};
  for (u32 i = 0; i < count;) {
    // The next page with its bit; rows that were made whole have lost theirs.
    const u32 next = serial(g, [&] {
      const u64 todo = bitmap_bits_64(chunk, chunk.rebuild_todo, page + i);
      return i + static_cast<u32>(todo == 0 ? 64 : count_trailing_zeros(todo));
    });
    if (next >= count) break;
    detail::rebuild_row(g, space, index, page + next, is_fresh, outcome);
    i = next + 1;
  }
  return outcome;
}

}  // namespace gpu4fs::raid
