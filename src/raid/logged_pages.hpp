// Pages that a record of the operation log names: whether they were completely written, and how they get redundancy.
//
// A record has one digest over the pages of an extent. If the extent was not synced, any part of it may be on the
// medium: pages, copies and parities. If it was synced, all of it is, but devices may have been lost since then. So the
// pages are first tried as they are. Then they are tried without each set of columns, computed from the rest of their
// rows or read from their other copies. The first result with the right digest is used. Pages, copies and parities that
// differ from it are written again. So an operation that the recovery accepts survives later losses, whether or not its
// parities were durable. Content that is already right is not written, so a crash in between does not damage a row.
//
// Runs before any command. Uniform.
#pragma once

#include "base/mutant.hpp"
#include "format/log_format.hpp"
#include "raid/describe_copies.hpp"
#include "raid/repair_pages.hpp"

namespace gpu4fs::raid {

// Limit of the pages that are read to try sets of columns; at least each column alone is tried.
inline constexpr u64 logged_pages_tried_max = u64{1} << 22;

namespace detail {

struct LoggedRun {
  u32 chunk;
  u32 page_count;
  u64 first;  // page
  u64 digest;
};

GPU4FS_FN inline u32 column_of_page(const ChunkState& chunk, u64 page) {
  GPU4FS_CHECK_LT(page, chunk.page_count);
  return with_level(chunk.level, [&](auto level) { return level.map(geometry_of(chunk), page, 0).column; });
}

// The row without the columns of `lost` and without unreadable pages, for computing the page of slot `target`.
GPU4FS_FN inline Losses losses_without(const LogicalSpace& space, const RowView& view, u32 target, u64 lost) {
  const ChunkState& chunk = space.chunks[view.chunk];
  Losses losses = find_losses(space, view, target);
  for (u64 left = losses.included & ~losses.missing; left != 0; left &= left - 1) {
    const u32 slot = static_cast<u32>(count_trailing_zeros(left));
    if ((lost >> column_of_page(chunk, row_page(view, slot)) & 1) != 0) losses.missing |= u64{1} << slot;
  }
  for (u32 j = 0; j < chunk.parity_count; ++j) {
    const u32 column = with_parity_level(
        chunk.level, [&](auto level) { return level.column_of(geometry_of(chunk), view.row, view.data_slots + j); });
    if ((lost >> column & 1) != 0) losses.parities &= ~(1u << j);
  }
  return losses;
}

// Computes the page from the rest of its row into `destination`. checksum_mismatch: too little of the row is left.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status make_logged_page(Group g, const LogicalSpace& space, const PageLocation& location,
                                                  u64 lost, u8* destination) {
  const PinScope pins(g, space);
  struct Plan {
    RowView view;
    Losses losses;
    Recipe recipe;
  };
  const Plan plan = on_leader(g, [&] {
    Plan made{};
    const RowPlace place = row_place(space.chunks[location.chunk], location.page);
    made.view = row_view(space, location.chunk, place.row);
    made.losses = losses_without(space, made.view, place.slot, lost);
    if (made.losses.status == Status::ok) made.recipe = make_recipe(made.losses, 0);
    return made;
  });
  if (plan.recipe.equation_count == 0) return Status::checksum_mismatch;
  combine_row(g, space, plan.view, plan.losses, plan.recipe, destination);
  return Status::ok;
}

// The place from which the page is read without the columns of `lost`: its first copy elsewhere, or `scratch`.
template <class Group>
GPU4FS_FN Status find_logged_page(Group g, const LogicalSpace& space, const PageLocation& location, u64 lost,
                                  u32 scratch, const u8** memory) {
  struct Place {
    Status status;
    u32 has_row;  // it can be computed from the rest of its row
    const u8* memory;
  };
  const Place place = on_leader(g, [&] {
    const ChunkState& chunk = space.chunks[location.chunk];
    u32 copy = 0;
    if (chunk.copy_count > 1) {
      while (copy < chunk.copy_count && (lost >> copy & 1) != 0) ++copy;
    } else if ((lost >> column_of_page(chunk, location.page) & 1) != 0) {
      return Place{Status::checksum_mismatch, 1, nullptr};
    }
    if (copy == chunk.copy_count) return Place{Status::checksum_mismatch, 0, nullptr};
    const Status status = begin_copy_read(space, location, 1, copy);
    const u8* found = status == Status::ok ? page_memory(space, location, copy) : nullptr;
    return Place{status, chunk.parity_count != 0 ? 1u : 0u, found};
  });
  *memory = place.memory;
  if (place.status == Status::ok) return Status::ok;
  if (place.has_row == 0 || scratch == no_scratch) return place.status;
  u8* to = scratch_memory(space, scratch);
  *memory = to;
  return make_logged_page(g, space, location, lost, to) == Status::ok ? Status::ok : place.status;
}

// Whether the pages have the digest without the columns of `lost`. Their descriptors are set accordingly.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status try_logged_pages(Group g, LogicalSpace& space, const LoggedRun& run, u64 lost,
                                                  u32 scratch) {
  u64 digest = 0;
  for (u32 i = 0; i < run.page_count; ++i) {
    const PinScope pins(g, space);
    const u64 address = space.chunks[run.chunk].base_address + (run.first + i) * page_size;
    const WritePlan plan = on_leader(g, [&] { return plan_description(space, address); });
    GPU4FS_TRY(plan.status);
    const u8* memory = nullptr;
    GPU4FS_TRY(find_logged_page(g, space, plan.location, lost, scratch, &memory));
    const u64 checksum = xxh3_page(g, memory, address);
    on_leader(
        g, [&] { put_descriptor(space, plan, checksum, is_in_rows(space, plan) ? format::page_flag_in_parity : 0); });
    digest += format::page_digest(checksum, i);
  }
  return GPU4FS_MUTANT(log_digest_ignored, digest == run.digest, true) ? Status::ok : Status::checksum_mismatch;
}

// The next set with the same number of the `count` columns; 0 after the last one.
GPU4FS_FN constexpr u64 next_set(u64 set, u32 count) {
  const u64 lowest = set & (~set + 1);
  const u64 ripple = set + lowest;
  if (ripple == 0) return 0;
  const u64 next = ((ripple ^ set) >> 2) / lowest | ripple;
  return count < 64 && next >> count != 0 ? 0 : next;
}

// Finds columns without which the pages have the digest, as few of them as possible.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status find_logged_pages(Group g, LogicalSpace& space, const LoggedRun& run, u32 scratch,
                                                   u64* lost) {
  const ChunkState& chunk = space.chunks[run.chunk];
  *lost = 0;
  const Status first = try_logged_pages(g, space, run, 0, scratch);
  if (first == Status::ok || !has_other_copies(space, {run.chunk, 0, run.first}, first)) return first;
  for (u32 copy = 1; copy < chunk.copy_count; ++copy) {
    *lost = (u64{1} << copy) - 1;
    if (try_logged_pages(g, space, run, *lost, scratch) == Status::ok) return Status::ok;
  }
  if (chunk.parity_count == 0) return first;
  // If the pages of an earlier record were lost on these columns, others probably are too.
  const u64 hint = on_leader(g, [&] {
    u64 columns = 0;
    for (u32 column = 0; column < chunk.column_count; ++column) {
      if ((space.parity->lost_devices >> chunk.columns[column].device & 1) != 0) columns |= u64{1} << column;
    }
    return columns;
  });
  *lost = hint;
  if (hint != 0 && try_logged_pages(g, space, run, hint, scratch) == Status::ok) return Status::ok;
  u64 tried = 0;
  for (u32 size = 1; size <= chunk.parity_count; ++size) {
    for (*lost = (u64{1} << size) - 1; *lost != 0; *lost = next_set(*lost, chunk.column_count)) {
      if (size > 1 && tried > logged_pages_tried_max) return first;
      tried += run.page_count;
      if (try_logged_pages(g, space, run, *lost, scratch) == Status::ok) return Status::ok;
    }
  }
  return first;
}

// Rewrites copies of the page that differ from the accepted content.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void settle_copies(Group g, const LogicalSpace& space, const PageLocation& location, u64 lost,
                                             u32 scratch) {
  const ChunkState& chunk = space.chunks[location.chunk];
  const u64 address = chunk.base_address + location.page * page_size;
  const PinScope pins(g, space);
  const u8* good = nullptr;
  for (u32 copy = 0; copy < chunk.copy_count; ++copy) {
    const CopyPlan plan = on_leader(g, [&] { return plan_copy(space, location, copy); });
    if (plan.status == Status::ok && xxh3_page(g, plan.memory, address) == plan.checksum) continue;
    if (good == nullptr && find_logged_page(g, space, location, lost, scratch, &good) != Status::ok) return;
    repair_copy(g, space, location, copy, good);
  }
}

// The row of `page`, if this is the first page of the run in that row.
struct FirstOfRow {
  u32 is_first;
  RowView view;
};
GPU4FS_FN inline FirstOfRow first_of_row(const LogicalSpace& space, const LoggedRun& run, u64 page) {
  FirstOfRow found{};
  const RowPlace place = row_place(space.chunks[run.chunk], page);
  found.view = row_view(space, run.chunk, place.row);
  const u64 before = page - found.view.step;
  found.is_first = place.slot == 0 || before < run.first ? 1 : 0;
  return found;
}

// Rewrites parities of the row that differ from the sums of its pages, some of which may have been computed from
// others. A row is skipped if it has a page of another extent that is not accepted yet.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void settle_row(Group g, const LogicalSpace& space, const RowView& view, u64 lost,
                                          u32 scratch) {
  const ChunkState& chunk = space.chunks[view.chunk];
  const PinScope pins(g, space);
  const u64 included = on_leader(g, [&] { return slots_in_parity(space, view); });
  ParityPages<Group, parity_count_max> sums;
  const u64 missing = sum_slots(g, view, included, sums, [&](const PageLocation& location) -> const u8* {
    const u8* memory = nullptr;
    if (find_logged_page(g, space, location, lost, scratch, &memory) != Status::ok) return nullptr;
    const u64 checksum = on_leader(g, [&] { return load_shared_16(&chunk.descriptors[location.page]).low; });
    const u64 address = chunk.base_address + location.page * page_size;
    return xxh3_page(g, memory, address) == checksum ? memory : nullptr;
  });
  if (missing == 0) (void)repair_parities(g, space, view, sums);
}

template <class Group>
GPU4FS_FN void settle_rows(Group g, const LogicalSpace& space, const LoggedRun& run, u64 lost, u32 scratch) {
  for (u64 page = run.first; page < run.first + run.page_count; ++page) {
    const FirstOfRow row = on_leader(g, [&] { return first_of_row(space, run, page); });
    if (row.is_first != 0) settle_row(g, space, row.view, lost, scratch);
  }
}

}  // namespace detail

// Gives the pages of an extent of a record, which the caller has adopted, descriptors and full redundancy, if their
// digest is `digest`. Status: checksum_mismatch if it is not; the error of a device that cannot be read, if there is
// nothing else to read.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status accept_logged_pages(Group g, LogicalSpace& space, u64 address, u32 page_count,
                                                     u64 digest) {
  const detail::WritePlan plan = on_leader(g, [&] { return detail::plan_description(space, address); });
  GPU4FS_TRY(plan.status);
  const u32 index = plan.location.chunk;
  const ChunkState& chunk = space.chunks[index];
  GPU4FS_CHECK_LE(plan.location.page + page_count, chunk.page_count);
  const detail::LoggedRun run{index, page_count, plan.location.page, digest};
  const bool in_rows = chunk.parity_count != 0;
  const u32 scratch = in_rows ? on_leader(g, [&] { return take_scratch(space); }) : no_scratch;
  u64 lost = 0;
  const Status status = detail::find_logged_pages(g, space, run, scratch, &lost);
  if (status == Status::ok && (in_rows || chunk.copy_count > 1)) {
    for (u32 i = 0; i < page_count; ++i) detail::settle_copies(g, space, {index, 0, run.first + i}, lost, scratch);
    if (in_rows) detail::settle_rows(g, space, run, lost, scratch);
  }
  if (in_rows) {
    on_leader(g, [&] {
      for (u32 column = 0; column < chunk.column_count && status == Status::ok; ++column) {
        if ((lost >> column & 1) != 0) space.parity->lost_devices |= u64{1} << chunk.columns[column].device;
      }
      return_scratch(space, scratch);
    });
  }
  // The pages may be good on different columns.
  return status == Status::ok ? status : describe_from_copies(g, space, address, page_count, digest, status);
}

}  // namespace gpu4fs::raid
