// Reads rows of chunks with parities while devices are lost.
//
// One pass over a row yields all its requested pages. Available pages are verified, copied and added up in registers.
// Missing pages follow from the sums and the parities (base/galois.hpp). So a row is read once, however many of its
// pages are lost. If a page does not match its checksum, the caller reads page by page (reconstruct.hpp), which tries
// all possibilities.
//
// Uniform.
#pragma once

#include "raid/parity/row_batch.hpp"
#include "raid/pin_scope.hpp"

namespace gpu4fs::raid {

// The target of a read: `count` pages of one chunk.
struct RowTarget {
  u32 chunk;
  u32 verifies;  // 1: pages have checksums
  u64 first;     // page
  u64 count;
  u8* bytes;  // any alignment
};

namespace detail {

// A row that is read.
struct RowReadPlan {
  BatchRow row;
  u64 wanted;     // slots, one bit each
  u32 parities;   // those from which missing pages are computed, one bit each
  SumRange sums;  // count 0: no requested page is missing
  u32 is_possible;
};

template <class Group>
GPU4FS_FN RowReadPlan plan_row_read(Group g, const RowBatch& batch, u64 wanted, u32 index) {
  RowReadPlan plan{};
  plan.row = row_of_batch(g, batch, index);
  plan.wanted = bits_of_row(batch, wanted, index);
  plan.is_possible = 1;
  if ((plan.row.missing & plan.wanted) == 0) return plan;
  plan.parities = parities_for(plan.row.missing, plan.row.parities);
  plan.is_possible = plan.parities != 0 && (plan.row.missing & ~plan.row.included) == 0 ? 1 : 0;
  plan.sums = sums_for(plan.parities);
  return plan;
}

// A row that is read, and its target.
struct RowReader {
  const LogicalSpace& space;
  const RowTarget& target;
  const RowBatch& batch;
  const RowReadPlan& plan;

  GPU4FS_FN RowAccess row() const { return {space, batch, plan.row}; }
  GPU4FS_FN u8* destination_of(u32 slot) const {
    return target.bytes + (row_page(plan.row.view, slot) - target.first) * page_size;
  }
};

// False: the page does not match its checksum. A Lane copies it in the same pass.
template <class Group>
GPU4FS_FN bool verify_slot(Group g, RowReader reader, const PageRegisters<Group>& page, u32 slot) {
  if (reader.target.verifies == 0) {
    if constexpr (Group::size() == 1) copy_bytes(g, reader.destination_of(slot), page.page, page_size);
    return true;
  }
  const u64 address = reader.row().address_of(slot);
  const u64 checksum = checksum_of_slot(g, reader.row(), slot);
  if constexpr (Group::size() == 1) {
    return verify_copy_page(g, reader.destination_of(slot), page.page, address, checksum);
  } else {
    return xxh3_registers(g, page, address) == checksum;
  }
}

// Called after verify_slot().
template <class Group>
GPU4FS_FN void give_out(Group g, RowReader reader, const PageRegisters<Group>& page, u32 slot) {
  if constexpr (Group::size() > 1) {
    store_mostly_whole_page(g, page, reader.destination_of(slot), whole_page());
  }
}

// The available pages and the used parities; the sums are then the missing parts of these parities.
template <class Group, u32 count>
GPU4FS_FN GPU4FS_NOINLINE bool sum_present(Group g, RowReader reader, ParityPages<Group, count>& sums) {
  const u64 present = (reader.plan.wanted | reader.plan.row.included) & ~reader.plan.row.missing;
  return sum_slots_and_parities<count>(
      g, reader.row(), {present, reader.plan.parities, reader.plan.sums.first}, sums,
      [&](const PageRegisters<Group>& page, u32 slot) {
        return (reader.plan.wanted >> slot & 1) == 0 || verify_slot(g, reader, page, slot);
      },
      [&](const PageRegisters<Group>& page, u32 slot) {
        if ((reader.plan.wanted >> slot & 1) != 0) give_out(g, reader, page, slot);
      });
}

// The requested missing pages. All missing pages add up to the sum of parity 0, so the second of two is this sum minus
// the first.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE bool make_missing(Group g, RowReader reader, SumWeights own, SumPage<Group>* sums) {
  const u64 missing = reader.plan.row.missing;
  // With three, the weights of the second page would apply to sums that the first has changed.
  const bool adds_up =
      (reader.plan.parities & 1) != 0 && popcount(missing) == 2 && (missing & ~reader.plan.wanted) == 0;
  for (u64 left = missing & reader.plan.wanted; left != 0; left &= left - 1) {
    const u32 slot = count_trailing_zeros(left);
    const bool is_last = (left & (left - 1)) == 0;
    SumWeights weights = weight_of_sum(0, 1);
    if (!adds_up || !is_last) {
      weights = weights_in(g, reader.batch, reader.plan.row, own, missing, slot) >> (8 * reader.plan.sums.first);
    }
    SumPage<Group> made;
    const SumPage<Group>& page = weighted_sum(g, made, sums, weights);
    if constexpr (Group::size() == 1) {
      if (!verify_slot(g, reader, sum_registers(g, page), slot)) return false;
    } else {
      const u64 address = reader.row().address_of(slot);
      if (reader.target.verifies != 0 && hash_sum(g, page, address) != checksum_of_slot(g, reader.row(), slot)) {
        return false;
      }
      give_out(g, reader, sum_registers(g, page), slot);
    }
    if (adds_up && !is_last) add_page(g, sums[0], sum_registers(g, page));
  }
  return true;
}

template <u32 count, class Group>
GPU4FS_FN GPU4FS_NOINLINE bool read_with_parities(Group g, RowReader reader, SumWeights own) {
  ParityPages<Group, count> sums;
  return sum_present(g, reader, sums) && make_missing(g, reader, own, sums.pages);
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE bool read_present(Group g, RowReader reader) {
  u64 left = reader.plan.wanted;
  PageRegisters<Group> next = load_entry(g, reader.row(), log2_floor(left));
  while (left != 0) {
    const u32 slot = log2_floor(left);
    left &= ~(u64{1} << slot);
    const PageRegisters<Group> page = next;
    if (left != 0) next = load_entry(g, reader.row(), log2_floor(left));
    if (!verify_slot(g, reader, page, slot)) return false;
    give_out(g, reader, page, slot);
  }
  return true;
}

template <class Group>
GPU4FS_FN bool read_planned_row(Group g, RowReader reader, SumWeights own) {
  if (reader.plan.is_possible == 0) return false;
  switch (reader.plan.sums.count) {
    case 0:
      return read_present(g, reader);
    case 1:
      return read_with_parities<1>(g, reader, own);
    case 2:
      return read_with_parities<2>(g, reader, own);
    default:
      return read_with_parities<3>(g, reader, own);
  }
}

}  // namespace detail

// The result for some rows.
struct RowsRead {
  u32 row_count;  // number of processed rows
  u32 failed;     // those of them, one bit each, of which not all requested pages could be had; any of these may have
                  // been copied
};

// The pages of `target` that lie in rows [row, end), or in the first ones of these rows.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE RowsRead read_rows(Group g, const LogicalSpace& space, const RowTarget& target, u64 row,
                                             u64 end) {
  GPU4FS_CHECK_LT(row, end);
  const PinScope pins(g, space);
  const ChunkState& chunk = space.chunks[target.chunk];
  const u32 most = static_cast<u32>(minimum<u64>(detail::batch_rows_max<Group>(chunk), end - row));
  detail::RowBatch batch = detail::make_batch(g, space, target.chunk, row, most);
  const u64 wanted = detail::find_slots_of_pages(g, batch, target.first, target.count);
  const u32 wanted_rows = detail::rows_of_entries(batch, wanted);
  if (wanted_rows == 0) return {most, 0};
  batch.rows = detail::lock_rows(g, space, batch, wanted_rows);
  detail::look_at_rows(g, space, batch, batch.rows, wanted, detail::LookAt::slots);
  if (batch.missing != 0) {
    const u32 rows = detail::rows_of_entries(batch, batch.missing & wanted);
    detail::look_at_rows(g, space, batch, rows, 0, detail::LookAt::parities);
  }
  const SumWeights own = detail::own_weights(g, batch, batch.missing);
  RowsRead done{detail::rows_passed(batch, wanted_rows, batch.rows), 0};
  u64 made = 0;
  for (u32 left = batch.rows; left != 0; left &= left - 1) {
    const u32 index = count_trailing_zeros(left);
    const detail::RowReadPlan plan = detail::plan_row_read(g, batch, wanted, index);
    if (detail::read_planned_row(g, {space, target, batch, plan}, own)) {
      made += popcount(plan.row.missing & plan.wanted);
    } else {
      done.failed |= 1u << index;
    }
  }
  detail::unlock_rows(g, space, batch, batch.rows);
  if (g.leader() && made != 0) add<Scope::engine>(&space.parity->reconstructed_count, made);
  return done;
}

}  // namespace gpu4fs::raid
