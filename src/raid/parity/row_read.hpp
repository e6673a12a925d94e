// Reading rows of chunks with parities while devices are lost.
//
// One pass over a row gives all its pages that are wanted: those that are there are verified, given out and added up in
// registers, and what is missing follows from the sums and the parities (base/galois.hpp). So a row is read once,
// whatever number of its pages is lost. What does not match its checksum is left to reading page by page
// (reconstruct.hpp), which tries all that can be tried.
//
// Uniform; under the row's lock.
#pragma once

#include "raid/parity/row_slots.hpp"

namespace gpu4fs::raid {

// What is read: `count` pages of one chunk.
struct RowTarget {
  u32 chunk;
  u32 verifies;  // 1: pages have checksums
  u64 first;     // page
  u64 count;
  u8* bytes;     // any alignment
};

namespace detail {

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void store_page_unaligned(Group g, PageRegisters<Group>& page, u8* destination) {
  store_page_range(g, page, destination, 0, static_cast<u32>(page_size));
}

template <class Group>
GPU4FS_FN void store_whole_page(Group g, const PageRegisters<Group>& page, u8* destination) {
  if (is_aligned(destination, 16)) return store_page(g, page, destination);
  PageRegisters<Group> copy = page;  // only this one is in memory
  store_page_unaligned(g, copy, destination);
}

// The plan for the slots of a row that are wanted.
struct RowReadPlan {
  RowView view;
  u32 is_possible;
  u32 sum_count;   // 0: nothing that is wanted is missing
  u32 parities;    // that are used, a bit each
  u32 power_count; // of them
  u32 powers[galois::equation_count_max];
  u32 reserved;
  u64 wanted;      // slots, a bit each
};

// Locks the row.
GPU4FS_FN GPU4FS_NOINLINE inline RowReadPlan begin_row_read(const LogicalSpace& space, const RowTarget& target,
                                                            u64 row) {
  RowReadPlan plan{};
  plan.view = row_view(space, target.chunk, row);
  const SlotRange range = covered_slots(plan.view, target.first, target.count);
  plan.wanted = ((u64{1} << range.high) - 1) & ~((u64{1} << range.low) - 1);
  row_lock(space, plan.view).lock();
  return plan;
}

// Leader: the parities that the missing pages are made from.
GPU4FS_FN GPU4FS_NOINLINE inline RowReadPlan plan_row_read(const LogicalSpace& space, const RowTarget& target,
                                                           const RowSlots& slots, RowReadPlan plan) {
  plan.is_possible = 1;
  if ((slots.missing & plan.wanted) == 0) return plan;
  const u32 needed = popcount(slots.missing);
  const u32 parity_count = space.chunks[target.chunk].parity_count;
  for (u32 j = 0; j < parity_count && plan.power_count < needed; ++j) {
    if (begin_parity_read(space, plan.view, j) != Status::ok) continue;
    plan.parities |= 1u << j;
    plan.powers[plan.power_count++] = j;
    plan.sum_count = j + 1;
  }
  plan.is_possible = plan.power_count == needed && (slots.missing & ~slots.included) == 0 ? 1 : 0;
  return plan;
}

// Of the parities that are used, in the missing page of that number.
GPU4FS_FN GPU4FS_NOINLINE inline galois::Weights weights_of_missing(const RowReadPlan& plan, u64 missing, u32 index) {
  u32 places[galois::equation_count_max] = {};
  u32 count = 0;
  for (u64 left = missing; left != 0; left &= left - 1) places[count++] = static_cast<u32>(count_trailing_zeros(left));
  GPU4FS_CHECK_EQ(count, plan.power_count);
  return galois::solve(plan.powers, places, count, index);
}

GPU4FS_FN inline u8* destination_of(const RowTarget& target, const RowReadPlan& plan, u32 slot) {
  return target.bytes + (row_page(plan.view, slot) - target.first) * page_size;
}

// False: the page is not what its checksum says. A Lane gives it out in the same pass.
template <class Group>
GPU4FS_FN bool verify_slot(Group g, const LogicalSpace& space, const RowTarget& target, const RowSlots& slots,
                           const RowReadPlan& plan, const PageRegisters<Group>& page, u32 slot) {
  if (target.verifies == 0) {
    if constexpr (Group::size() == 1) copy_bytes(g, destination_of(target, plan, slot), page.page, page_size);
    return true;
  }
  const u64 address = space.chunks[target.chunk].base_address + row_page(plan.view, slot) * page_size;
  const u64 checksum = checksum_of_slot(g, space, slots, slot);
  if constexpr (Group::size() == 1) {
    return verify_copy_page(g, destination_of(target, plan, slot), page.page, address, checksum);
  } else {
    return xxh3_registers(g, page, address) == checksum;
  }
}

// Behind verify_slot().
template <class Group>
GPU4FS_FN void give_out(Group g, const RowTarget& target, const RowReadPlan& plan, const PageRegisters<Group>& page,
                        u32 slot) {
  if constexpr (Group::size() > 1) {
    store_whole_page(g, page, destination_of(target, plan, slot));
  }
}

// The pages that are there and the parities that are used: sums[j] is what is missing of parity j then.
template <class Group, u32 count>
GPU4FS_FN GPU4FS_NOINLINE bool sum_present(Group g, const LogicalSpace& space, const RowTarget& target,
                                           const RowReadPlan& plan, const RowSlots& slots,
                                           ParityPages<Group, count>& sums) {
  const u64 present = (plan.wanted | slots.included) & ~slots.missing;
  return sum_slots_and_parities<count>(
      g, space, slots, present, plan.parities, sums,
      [&](const PageRegisters<Group>& page, u32 slot) {
        return (plan.wanted >> slot & 1) == 0 || verify_slot(g, space, target, slots, plan, page, slot);
      },
      [&](const PageRegisters<Group>& page, u32 slot) {
        if ((plan.wanted >> slot & 1) != 0) give_out(g, target, plan, page, slot);
      });
}

// What is wanted and missing.
template <class Group, u32 count>
GPU4FS_FN GPU4FS_NOINLINE bool make_missing(Group g, const LogicalSpace& space, const RowTarget& target,
                                            const RowReadPlan& plan, const RowSlots& slots,
                                            const ParityPages<Group, count>& sums) {
  // By the ranks side by side.
  galois::Weights own{};
  if (Group::size() > 1 && g.rank() < plan.power_count) own = weights_of_missing(plan, slots.missing, g.rank());
  for (u64 left = slots.missing & plan.wanted; left != 0; left &= left - 1) {
    const u32 slot = static_cast<u32>(count_trailing_zeros(left));
    const u32 index = popcount(slots.missing & low_bits(slot));
    const galois::Weights weights =
        Group::size() > 1 ? g.shuffle(own, index) : weights_of_missing(plan, slots.missing, index);
    ParityPages<Group, 1> made;
    clear_parities(g, made);
    for (u32 r = 0; r < plan.power_count; ++r) {
      add_scaled(g, made, 0, parity_page(g, sums, plan.powers[r]), weights.values[r]);
    }
    const PageRegisters<Group> page = parity_page(g, made, 0);
    if (!verify_slot(g, space, target, slots, plan, page, slot)) return false;
    give_out(g, target, plan, page, slot);
  }
  return true;
}

template <u32 count, class Group>
GPU4FS_FN GPU4FS_NOINLINE bool read_with_parities(Group g, const LogicalSpace& space, const RowTarget& target,
                                                  const RowReadPlan& plan, const RowSlots& slots) {
  ParityPages<Group, count> sums;
  return sum_present(g, space, target, plan, slots, sums) && make_missing(g, space, target, plan, slots, sums);
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE bool read_present(Group g, const LogicalSpace& space, const RowTarget& target,
                                            const RowReadPlan& plan, const RowSlots& slots) {
  u64 left = plan.wanted;
  PageRegisters<Group> next = load_slot(g, space, slots, log2_floor(left));
  while (left != 0) {
    const u32 slot = log2_floor(left);
    left &= ~(u64{1} << slot);
    const PageRegisters<Group> page = next;
    if (left != 0) next = load_slot(g, space, slots, log2_floor(left));
    if (!verify_slot(g, space, target, slots, plan, page, slot)) return false;
    give_out(g, target, plan, page, slot);
  }
  return true;
}

}  // namespace detail

// The pages of `target` that lie in `row`, of which there is one at least. False: not all of them could be had, and
// any may have been given out.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE bool read_row(Group g, const LogicalSpace& space, const RowTarget& target, u64 row) {
  detail::RowReadPlan plan = serial(g, [&] { return detail::begin_row_read(space, target, row); });
  const detail::RowSlots slots = detail::look_at_slots(g, space, plan.view, plan.wanted);
  plan = serial(g, [&] { return detail::plan_row_read(space, target, slots, plan); });
  bool is_read = plan.is_possible != 0;
  if (is_read) {
    switch (plan.sum_count) {
      case 0: is_read = detail::read_present(g, space, target, plan, slots); break;
      case 1: is_read = detail::read_with_parities<1>(g, space, target, plan, slots); break;
      case 2: is_read = detail::read_with_parities<2>(g, space, target, plan, slots); break;
      default: is_read = detail::read_with_parities<3>(g, space, target, plan, slots); break;
    }
  }
  g.sync();
  serial(g, [&] {
    row_lock(space, plan.view).unlock();
    const u32 made = popcount(slots.missing & plan.wanted);
    if (is_read && made != 0) fetch_add<Order::relaxed, Scope::engine>(&space.parity->reconstructed_count, u64{made});
  });
  return is_read;
}

}  // namespace gpu4fs::raid
