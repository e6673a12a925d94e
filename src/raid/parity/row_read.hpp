// Reading rows of chunks with parities while devices are lost.
//
// One pass over a row gives all its pages that are wanted: those that are there are verified, given out and added up in
// registers, and what is missing follows from the sums and the parities (base/galois.hpp). So a row is read once,
// whatever number of its pages is lost. What does not match its checksum is left to reading page by page
// (reconstruct.hpp), which tries all that can be tried.
//
// Uniform; under the row's lock.
#pragma once

#include "base/xxh3.hpp"
#include "raid/parity/parity_pages.hpp"
#include "raid/parity/row.hpp"

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
GPU4FS_FN void store_whole_page(Group g, PageRegisters<Group>& page, u8* destination) {
  if (is_aligned(destination, 16)) {
    store_page(g, page, destination);
  } else {
    store_page_range(g, page, destination, 0, static_cast<u32>(page_size));
  }
}

// What the ranks of a warp know of the row's slots, the slot of its number each. A Lane looks when it comes to a slot.
struct OwnSlot {
  u64 memory;
  u64 checksum;
};

// The plan for the slots of a row that are wanted.
struct RowReadPlan {
  RowView view;
  u32 is_possible;
  u32 sum_count;   // 0: nothing that is wanted is missing
  u32 parities;    // that are used, a bit each
  u32 power_count; // of them
  u32 powers[galois::equation_count_max];
  u32 reserved;
  u64 wanted;      // slots, a bit each, as the following
  u64 included;    // in the parities
  u64 missing;     // of those two, without them
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

struct SlotLook {
  u32 is_included;
  u32 is_missing;  // and wanted or included
};

// Any rank: a slot of the row, whose page is announced if it is to be read.
GPU4FS_FN GPU4FS_NOINLINE inline SlotLook look_at_slot(const LogicalSpace& space, const RowReadPlan& plan, u32 slot,
                                                       OwnSlot* own) {
  const PageLocation location{plan.view.chunk, 0, row_page(plan.view, slot)};
  const Vector16 descriptor = load_shared_16(&space.chunks[location.chunk].descriptors[location.page]);
  own->checksum = descriptor.low;
  SlotLook look{(descriptor.high >> 32 & format::page_flag_in_parity) != 0 ? 1u : 0u, 0};
  if (look.is_included == 0 && (plan.wanted >> slot & 1) == 0) return look;
  look.is_missing = begin_copy_read(space, location, 1, 0) == Status::ok ? 0 : 1;
  if (look.is_missing == 0) own->memory = reinterpret_cast<std::uintptr_t>(page_memory(space, location, 0));
  return look;
}

// All slots of the row, by the ranks side by side.
template <class Group>
GPU4FS_FN void look_at_slots(Group g, const LogicalSpace& space, RowReadPlan& plan, OwnSlot* own) {
  for (u32 base = 0; base < plan.view.slot_count; base += Group::size()) {
    const u32 slot = base + g.rank();
    OwnSlot here{};
    const SlotLook look = slot < plan.view.slot_count ? look_at_slot(space, plan, slot, &here) : SlotLook{0, 0};
    plan.included |= u64{g.ballot(look.is_included != 0)} << base;
    plan.missing |= u64{g.ballot(look.is_missing != 0)} << base;
    if (base == 0) *own = here;
  }
}

// Leader: the parities that the missing pages are made from.
GPU4FS_FN GPU4FS_NOINLINE inline RowReadPlan plan_row_read(const LogicalSpace& space, const RowTarget& target,
                                                           RowReadPlan plan) {
  plan.is_possible = 1;
  if ((plan.missing & plan.wanted) == 0) return plan;
  const u32 needed = popcount(plan.missing);
  const u32 parity_count = space.chunks[target.chunk].parity_count;
  for (u32 j = 0; j < parity_count && plan.power_count < needed; ++j) {
    if (begin_parity_read(space, plan.view, j) != Status::ok) continue;
    plan.parities |= 1u << j;
    plan.powers[plan.power_count++] = j;
    plan.sum_count = j + 1;
  }
  plan.is_possible = plan.power_count == needed && (plan.missing & ~plan.included) == 0 ? 1 : 0;
  return plan;
}

GPU4FS_FN GPU4FS_NOINLINE inline galois::Weights weights_of_slot(const RowReadPlan& plan, u32 slot) {
  u32 places[galois::equation_count_max] = {};
  u32 index = 0;
  u32 count = 0;
  for (u64 left = plan.missing; left != 0; left &= left - 1) {
    places[count] = static_cast<u32>(count_trailing_zeros(left));
    if (places[count] == slot) index = count;
    ++count;
  }
  GPU4FS_CHECK_EQ(count, plan.power_count);
  return galois::solve(plan.powers, places, count, index);
}

template <class Group>
GPU4FS_FN bool knows_slot(Group, u32 slot) {
  return Group::size() > 1 && slot < Group::size();
}

// Present, and announced.
template <class Group>
GPU4FS_FN PageRegisters<Group> load_slot(Group g, const LogicalSpace& space, const RowReadPlan& plan, const OwnSlot& own,
                                         u32 slot) {
  if (knows_slot(g, slot)) {
    return load_page(g, reinterpret_cast<const u8*>(static_cast<std::uintptr_t>(g.shuffle(own.memory, slot))));
  }
  return load_page(g, page_memory(space, {plan.view.chunk, 0, row_page(plan.view, slot)}, 0));
}

// False: the page is not what its checksum says.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE bool give_out(Group g, const LogicalSpace& space, const RowTarget& target,
                                        const RowReadPlan& plan, const OwnSlot& own, PageRegisters<Group>& page, u32 slot) {
  const ChunkState& chunk = space.chunks[target.chunk];
  const u64 at = row_page(plan.view, slot);
  u8* to = target.bytes + (at - target.first) * page_size;
  if (target.verifies != 0) {
    const u64 address = chunk.base_address + at * page_size;
    const u64 checksum = knows_slot(g, slot) ? g.shuffle(own.checksum, slot)
                                             : serial(g, [&] { return load_shared_16(&chunk.descriptors[at]).low; });
    if constexpr (Group::size() == 1) {
      return verify_copy_page(g, to, page.page, address, checksum);
    } else {
      if (xxh3_registers(g, page, address) != checksum) return false;
    }
  }
  store_whole_page(g, page, to);
  return true;
}

// With one sum there are registers for the next page on its way while one is hashed.
template <class Group, u32 count>
inline constexpr bool loads_ahead = Group::size() > 1 && count == 1;

// The pages that are there, highest slot first, and their sums. *parity: parity 0, which comes behind them where pages are
// loaded ahead.
template <class Group, u32 count>
GPU4FS_FN GPU4FS_NOINLINE bool sum_present(Group g, const LogicalSpace& space, const RowTarget& target,
                                           const RowReadPlan& plan, const OwnSlot& own, ParityPages<Group, count>& sums,
                                           PageRegisters<Group>* parity) {
  const ParityPages<Group, 1> none{};
  clear_parities(g, sums);
  u64 present = (plan.wanted | plan.included) & ~plan.missing;
  PageRegisters<Group> next = parity_page(g, none, 0);
  const auto load_next = [&] {
    next = present != 0 ? load_slot(g, space, plan, own, log2_floor(present))
                        : load_page(g, parity_memory(space, plan.view, 0));
  };
  if constexpr (loads_ahead<Group, count>) load_next();
  for (u32 slot = plan.view.slot_count; slot-- > 0;) {
    PageRegisters<Group> page = parity_page(g, none, 0);
    if ((present >> slot & 1) != 0) {
      present &= ~(u64{1} << slot);
      if constexpr (loads_ahead<Group, count>) {
        page = next;
        load_next();
      } else {
        page = load_slot(g, space, plan, own, slot);
      }
      if ((plan.wanted >> slot & 1) != 0 && !give_out(g, space, target, plan, own, page, slot)) return false;
      if ((plan.included >> slot & 1) == 0) page = parity_page(g, none, 0);
    }
    add_lower_slot(g, sums, page);
  }
  *parity = next;
  return true;
}

// What is wanted and missing.
template <class Group, u32 count>
GPU4FS_FN GPU4FS_NOINLINE bool make_missing(Group g, const LogicalSpace& space, const RowTarget& target,
                                            const RowReadPlan& plan, const OwnSlot& own, ParityPages<Group, count>& sums,
                                            const PageRegisters<Group>& parity) {
  for (u32 j = 0; j < count; ++j) {
    if ((plan.parities >> j & 1) == 0) continue;
    if constexpr (loads_ahead<Group, count>) {
      add_scaled(g, sums, j, parity, 1);
    } else {
      add_scaled(g, sums, j, load_page(g, parity_memory(space, plan.view, j)), 1);
    }
  }
  for (u64 left = plan.missing & plan.wanted; left != 0; left &= left - 1) {
    const u32 slot = static_cast<u32>(count_trailing_zeros(left));
    const galois::Weights weights = serial(g, [&] { return weights_of_slot(plan, slot); });
    ParityPages<Group, 1> made;
    clear_parities(g, made);
    u32 r = 0;
    for (u32 j = 0; j < count; ++j) {
      if ((plan.parities >> j & 1) != 0) add_scaled(g, made, 0, parity_page(g, sums, j), weights.values[r++]);
    }
    PageRegisters<Group> page = parity_page(g, made, 0);
    if (!give_out(g, space, target, plan, own, page, slot)) return false;
  }
  return true;
}

template <u32 count, class Group>
GPU4FS_FN GPU4FS_NOINLINE bool read_with_parities(Group g, const LogicalSpace& space, const RowTarget& target,
                                                  const RowReadPlan& plan, const OwnSlot& own) {
  ParityPages<Group, count> sums;
  PageRegisters<Group> parity;
  return sum_present(g, space, target, plan, own, sums, &parity) &&
         make_missing(g, space, target, plan, own, sums, parity);
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE bool read_present(Group g, const LogicalSpace& space, const RowTarget& target,
                                            const RowReadPlan& plan, const OwnSlot& own) {
  u64 left = plan.wanted;
  PageRegisters<Group> next = load_slot(g, space, plan, own, log2_floor(left));
  while (left != 0) {
    const u32 slot = log2_floor(left);
    left &= ~(u64{1} << slot);
    PageRegisters<Group> page = next;
    if (left != 0) next = load_slot(g, space, plan, own, log2_floor(left));
    if (!give_out(g, space, target, plan, own, page, slot)) return false;
  }
  return true;
}

}  // namespace detail

// The pages of `target` that lie in `row`, of which there is one at least. False: not all of them could be had, and
// any may have been given out.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE bool read_row(Group g, const LogicalSpace& space, const RowTarget& target, u64 row) {
  detail::RowReadPlan plan = serial(g, [&] { return detail::begin_row_read(space, target, row); });
  detail::OwnSlot own{};
  detail::look_at_slots(g, space, plan, &own);
  plan = serial(g, [&] { return detail::plan_row_read(space, target, plan); });
  bool is_read = plan.is_possible != 0;
  if (is_read) {
    switch (plan.sum_count) {
      case 0: is_read = detail::read_present(g, space, target, plan, own); break;
      case 1: is_read = detail::read_with_parities<1>(g, space, target, plan, own); break;
      case 2: is_read = detail::read_with_parities<2>(g, space, target, plan, own); break;
      default: is_read = detail::read_with_parities<3>(g, space, target, plan, own); break;
    }
  }
  g.sync();
  serial(g, [&] {
    row_lock(space, plan.view).unlock();
    const u32 made = popcount(plan.missing & plan.wanted);
    if (is_read && made != 0) fetch_add<Order::relaxed, Scope::engine>(&space.parity->reconstructed_count, u64{made});
  });
  return is_read;
}

}  // namespace gpu4fs::raid
