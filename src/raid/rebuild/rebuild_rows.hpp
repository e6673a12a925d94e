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

#include "raid/parity/row_slots.hpp"
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

// Pages of a row, a bit a slot.
struct RowBits {
  u64 todo;     // with their bit
  u64 settled;  // that the durable checkpoint or the log keeps from being written
};

// By the ranks side by side.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE RowBits row_bits(Group g, const ChunkState& chunk, const RowView& view) {
  RowBits bits{};
  for (u32 base = 0; base < view.slot_count; base += Group::size()) {
    const u32 slot = base + g.rank();
    const u64 page = row_page(view, slot < view.slot_count ? slot : 0);
    const bool has_todo = page_bit(chunk.rebuild_todo, page);
    const bool is_stable = page_bit(chunk.bitmaps.stable, page);
    const bool is_committed = page_bit(chunk.bitmaps.committed, page);
    bits.todo |= u64{g.ballot(slot < view.slot_count && has_todo)} << base;
    bits.settled |= u64{g.ballot(slot < view.slot_count && is_stable && is_committed)} << base;
  }
  return bits;
}

// Leader, with the row's lock, which is given back: nothing can be done about it now. Pages of it that are free lose
// their bits.
GPU4FS_FN GPU4FS_NOINLINE inline void leave_row(const LogicalSpace& space, const RowView& view) {
  const ChunkState& chunk = space.chunks[view.chunk];
  for (u32 slot = 0; slot < view.slot_count; ++slot) {
    const u64 at = row_page(view, slot);
    if (page_bit(chunk.rebuild_todo, at) && !page_bit(chunk.bitmaps.busy, at))
      clear_rebuild_todo(chunk, at);
  }
  row_lock(space, view).unlock();
  end_repair(space);
}

// Locks the row unless none of it is settled.
template <class Group>
GPU4FS_FN RowRebuild begin_row_rebuild(Group g, const LogicalSpace& space, u32 index, u64 page) {
  const ChunkState& chunk = space.chunks[index];
  RowRebuild row{};
  row.view = serial(g, [&] {
    const RowView view = row_view(space, index, row_place(chunk, page).row);
    fetch_add<Order::acq_rel, Scope::engine>(&space.damage->repairs_running, u64{1});
    row_lock(space, view).lock();
    return view;
  });
  const RowBits bits = row_bits(g, chunk, row.view);
  row.todo_count = popcount(bits.todo);
  row.is_begun = serial(g, [&] {
    fence<Order::seq_cst, Scope::engine>();
    const bool is_settled =
        bits.settled != 0 && load<Order::acquire, Scope::engine>(&chunk.staged_changed) == 0;
    if (bits.todo != 0 && is_settled) return 1u;
    leave_row(space, row.view);
    return 0u;
  });
  return row;
}

// Under the lock: what is wanted, and which parities there are.
template <class Group>
GPU4FS_FN void choose_outputs(Group g, const LogicalSpace& space, const RowSlots& slots, RowRebuild& row) {
  row.included = slots.included;
  row.missing = slots.missing;
  for (u64 left = slots.rebuilding; left != 0 && row.output_count < parity_count_max; left &= left - 1) {
    row.outputs[row.output_count++] = count_trailing_zeros(left);
  }
  const u32 parity_count = space.chunks[row.view.chunk].parity_count;
  u32 rebuilding = 0;
  for (u32 base = 0; base < parity_count; base += Group::size()) {
    const u32 j = base + g.rank();
    const bool is_readable = j < parity_count && begin_parity_read(space, row.view, j) == Status::ok;
    const bool is_lost = j < parity_count && !is_readable;
    row.parities |= g.ballot(is_readable) << base;
    rebuilding |= g.ballot(is_lost && is_rebuilding(space, parity_place(space, row.view, j).device)) << base;
  }
  for (; rebuilding != 0 && row.output_count < parity_count_max; rebuilding &= rebuilding - 1) {
    row.outputs[row.output_count++] = first_parity_output + count_trailing_zeros(rebuilding);
  }
}

// The `choice`-th way.
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

// Sums that are needed: of the parities that are used and of those that are made.
GPU4FS_FN inline u32 sums_needed(const RowRebuild& row, const RowRecipe& recipe) {
  u32 count = 1;
  for (u32 r = 0; r < recipe.equation_count; ++r) count = maximum(count, recipe.powers[r] + 1);
  for (u32 o = 0; o < row.output_count; ++o) {
    if (row.outputs[o] >= first_parity_output) count = maximum(count, row.outputs[o] - first_parity_output + 1);
  }
  return count;
}

// One reading of the row: sum j becomes parity j of the pages that are there, and, of parities that are used, what is
// missing of it. Answers the slots that do not match their checksum: sums of a row with such ones are worth nothing.
template <u32 count, class Group>
GPU4FS_FN GPU4FS_NOINLINE u64 sum_readable(Group g, const LogicalSpace& space, const RowRebuild& row,
                                           const RowSlots& slots, const RowRecipe& recipe,
                                           ParityPages<Group, count>& sums) {
  const bool verifies = space.data_checksums != 0;
  const u64 base = space.chunks[row.view.chunk].base_address;
  u32 parities = 0;
  for (u32 r = 0; r < recipe.equation_count; ++r) parities |= 1u << recipe.powers[r];
  u64 bad = 0;
  // Of what is included nothing changes under the lock.
  const auto verify = [&](const PageRegisters<Group>& page, u32 slot) {
    if (!verifies) return true;
    const u64 address = base + row_page(row.view, slot) * page_size;
    if (xxh3_registers(g, page, address) != checksum_of_slot(g, space, slots, slot)) bad |= u64{1} << slot;
    return true;
  };
  (void)sum_slots_and_parities<count>(g, space, slots, row.included & ~row.missing, parities, sums, verify,
                                      [](const PageRegisters<Group>&, u32) {});
  return bad;
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

enum class OutputResult : u32 { mismatch, is_there, stored };

// Brings an output to its place, unless it is there already.
template <class Group>
GPU4FS_FN OutputResult store_output(Group g, const LogicalSpace& space, const RowRebuild& row, u32 output,
                                    const PageRegisters<Group>& page, bool is_fresh) {
  const OutputPlace place = serial(g, [&] { return begin_output(space, row, output); });
  if (place.status != Status::ok) return OutputResult::is_there;
  const bool readable = !is_fresh && serial(g, [&] {
    return device::begin_known_read(space.devices[place.device], place.offset, page_size) == Status::ok;
  });
  const bool stores = !readable || !same_page(g, page, load_aligned_page(g, place.memory));
  if (stores) store_page(g, page, place.memory);
  g.sync();
  serial(g, [&] { device::end_write(space.devices[place.device], place.offset, page_size); });
  return stores ? OutputResult::stored : OutputResult::is_there;
}

// Makes an output from the sums; pages among them are what they should be, or it is a mismatch. `stores`: and brings it
// to its place.
template <u32 count, class Group>
GPU4FS_FN GPU4FS_NOINLINE OutputResult make_output(Group g, const LogicalSpace& space, const RowRebuild& row,
                                                   const RowRecipe& recipe, const ParityPages<Group, count>& sums,
                                                   u32 output, bool stores, bool is_fresh) {
  ParityPages<Group, 1> made;
  clear_parities(g, made);
  if (output >= first_parity_output) add_page(g, made, 0, parity_page(g, sums, output - first_parity_output));
  for (u32 r = 0; r < recipe.equation_count; ++r) {
    const u8 weight = weight_of_equation(recipe, output, r);
    add_scaled(g, made, 0, parity_page(g, sums, recipe.powers[r]), weight);
  }
  const PageRegisters<Group> page = parity_page(g, made, 0);
  if (output < first_parity_output && space.data_checksums != 0) {
    const ChunkState& chunk = space.chunks[row.view.chunk];
    const u64 at = row_page(row.view, output);
    const u64 checksum = load_shared_16(&chunk.descriptors[at]).low;
    if (xxh3_registers(g, page, chunk.base_address + at * page_size) != checksum) return OutputResult::mismatch;
  }
  return stores ? store_output(g, space, row, output, page, is_fresh) : OutputResult::is_there;
}

struct RowAttempt {
  u32 is_done;
  u32 stored;
  u64 bad;  // slots that can be read and do not match
};

// With one choice of parities. Nothing is stored unless all outputs match.
template <u32 count, class Group>
GPU4FS_FN GPU4FS_NOINLINE RowAttempt make_outputs(Group g, const LogicalSpace& space, const RowRebuild& row,
                                                  const RowSlots& slots, const RowRecipe& recipe, bool is_fresh) {
  ParityPages<Group, count> sums;
  const u64 bad = sum_readable<count>(g, space, row, slots, recipe, sums);
  if (bad != 0) return {0, 0, bad};
  u32 stored = 0;
  for (u32 turn = row.output_count == 1 ? 1 : 0; turn < 2; ++turn) {
    for (u32 o = 0; o < row.output_count; ++o) {
      const OutputResult result =
          make_output<count>(g, space, row, recipe, sums, row.outputs[o], turn == 1, is_fresh);
      if (result == OutputResult::mismatch) return {0, stored, 0};
      stored += result == OutputResult::stored ? 1 : 0;
    }
  }
  return {1, stored, 0};
}

// Every choice of parities until the outputs match.
template <class Group>
GPU4FS_FN RowAttempt make_row(Group g, const LogicalSpace& space, const RowRebuild& row, const RowSlots& slots,
                              bool is_fresh) {
  if (row.output_count == 0) return {1, 0, 0};
  for (u32 choice = 0;; ++choice) {
    const RowRecipe recipe = choose_recipe(row, choice);
    if (recipe.is_possible == 0) return {0, 0, 0};
    RowAttempt attempt{};
    switch (sums_needed(row, recipe)) {
      case 1: attempt = make_outputs<1>(g, space, row, slots, recipe, is_fresh); break;
      case 2: attempt = make_outputs<2>(g, space, row, slots, recipe, is_fresh); break;
      default: attempt = make_outputs<3>(g, space, row, slots, recipe, is_fresh); break;
    }
    if (attempt.is_done != 0 || attempt.bad != 0) return attempt;
  }
}

// The row is as it should be, or nothing can be done about it. By the ranks side by side.
template <class Group>
GPU4FS_FN void clear_row_todo(Group g, const LogicalSpace& space, const RowView& view) {
  for (u32 slot = g.rank(); slot < view.slot_count; slot += Group::size())
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
    RowRebuild row = begin_row_rebuild(g, space, index, page);
    if (row.is_begun == 0) {
      outcome.left +=
          serial(g, [&] { return u64{page_bit(space.chunks[index].rebuild_todo, page)}; });
      return;
    }
    const RowSlots slots = look_at_slots(g, space, row.view, 0);
    choose_outputs(g, space, slots, row);
    if (!is_fresh && space.data_checksums != 0) drop_known_pages(g, space, row);
    const RowAttempt made = make_row(g, space, row, slots, is_fresh);
    const bool too_few = popcount(row.missing) > popcount(u64{row.parities});
    const bool goes_on = made.bad != 0 && attempt < row.view.slot_count;
    g.sync();
    if (!goes_on && (made.is_done != 0 || !too_few)) clear_row_todo(g, space, row.view);
    serial(g, [&] { row_lock(space, row.view).unlock(); });
    bool repaired = false;
    if (goes_on) {
      const PageLocation location{index, 0, row_page(row.view, count_trailing_zeros(made.bad))};
      repaired = repair_page(g, space, location);
      if (!repaired) {
        serial(g, [&] { row_lock(space, row.view).lock(); });
        clear_row_todo(g, space, row.view);
        serial(g, [&] { row_lock(space, row.view).unlock(); });
      }
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
