// The slots of a row for whoever reads it as a whole: what is there, where, and the sums of it.
//
// What the loop over a row's pages needs to know of them, addresses and checksums, the ranks of a warp find out side by
// side before the first page is loaded. In the loop nothing is called then, so that no register with a page on its way
// has to be saved, for which it would have to arrive: while one page is hashed and added the next one is loaded.
//
// Uniform; under the row's lock.
#pragma once

#include "base/xxh3.hpp"
#include "raid/parity/parity_pages.hpp"
#include "raid/parity/row.hpp"

namespace gpu4fs::raid {
namespace detail {

inline constexpr u32 slots_of_rank = 2;
static_assert(slots_of_rank * warp_size == 64);  // the columns of a chunk

// What a rank of a warp knows: slots rank() and rank() + 32, and the parity of its number. A Lane looks when it comes to
// a slot.
struct RowSlots {
  RowView view;
  u64 included;  // slots in the parities, a bit each
  u64 missing;   // those that are wanted or included and cannot be read
  u64 rebuilding;  // of these, those on devices that are being rebuilt
  u64 memory[slots_of_rank];
  u64 checksums[slots_of_rank];
  u64 parity;
};

struct SlotLook {
  u32 is_included;
  u32 is_missing;     // and wanted or included
  u32 is_rebuilding;  // and missing
  u32 reserved;
  u64 memory;
  u64 checksum;
};

// Any rank: a slot of the row, whose page is announced if it is to be read.
GPU4FS_FN GPU4FS_NOINLINE inline SlotLook look_at_slot(const LogicalSpace& space, const RowView& view, bool is_wanted,
                                                       u32 slot) {
  const PageLocation location{view.chunk, 0, row_page(view, slot)};
  const Vector16 descriptor = load_shared_16(&space.chunks[location.chunk].descriptors[location.page]);
  const bool is_included = (descriptor.high >> 32 & format::page_flag_in_parity) != 0;
  SlotLook look{is_included ? 1u : 0u, 0, 0, 0, 0, descriptor.low};
  if (!is_included && !is_wanted) return look;
  const DevicePlace place = page_place(space, location, 0);
  if (begin_noted_read(space, place.device, place.offset, page_size) == Status::ok) {
    look.memory = reinterpret_cast<std::uintptr_t>(device::memory_at(space.devices[place.device], place.offset, page_size));
    return look;
  }
  look.is_missing = 1;
  look.is_rebuilding = static_cast<u32>(rebuilding_devices(space) >> place.device & 1);
  return look;
}

// All slots of the row; `wanted` ones, a bit each, also if they are in no parity.
template <class Group>
GPU4FS_FN RowSlots look_at_slots(Group g, const LogicalSpace& space, const RowView& view, u64 wanted) {
  RowSlots slots{};
  slots.view = view;
  for (u32 base = 0; base < view.slot_count; base += Group::size()) {
    const u32 slot = base + g.rank();
    const SlotLook look =
        slot < view.slot_count ? look_at_slot(space, view, (wanted >> slot & 1) != 0, slot) : SlotLook{};
    slots.included |= u64{g.ballot(look.is_included != 0)} << base;
    slots.missing |= u64{g.ballot(look.is_missing != 0)} << base;
    slots.rebuilding |= u64{g.ballot(look.is_rebuilding != 0)} << base;
    if constexpr (Group::size() > 1) {
      if (base == 0) {
        slots.memory[0] = look.memory;
        slots.checksums[0] = look.checksum;
      } else {
        slots.memory[1] = look.memory;
        slots.checksums[1] = look.checksum;
      }
    }
  }
  if constexpr (Group::size() > 1) {
    const u32 j = g.rank();
    if (j < space.chunks[view.chunk].parity_count) {
      const DevicePlace place = parity_place(space, view, j);
      const device::Device& device = space.devices[place.device];
      // One that is lost may have no memory.
      if (device.base != nullptr) {
        slots.parity = reinterpret_cast<std::uintptr_t>(device::memory_at(device, place.offset, page_size));
      }
    }
  }
  return slots;
}

// A slot that is there.
template <class Group>
GPU4FS_FN PageRegisters<Group> load_slot(Group g, const LogicalSpace& space, const RowSlots& slots, u32 slot) {
  if constexpr (Group::size() > 1) {
    const u64 memory = g.shuffle(slot < warp_size ? slots.memory[0] : slots.memory[1], slot % warp_size);
    return load_aligned_page(g, reinterpret_cast<const u8*>(static_cast<std::uintptr_t>(memory)));
  } else {
    return load_aligned_page(g, page_memory(space, {slots.view.chunk, 0, row_page(slots.view, slot)}, 0));
  }
}

template <class Group>
GPU4FS_FN u64 checksum_of_slot(Group g, const LogicalSpace& space, const RowSlots& slots, u32 slot) {
  if constexpr (Group::size() > 1) {
    return g.shuffle(slot < warp_size ? slots.checksums[0] : slots.checksums[1], slot % warp_size);
  } else {
    return load_shared_16(&space.chunks[slots.view.chunk].descriptors[row_page(slots.view, slot)]).low;
  }
}

template <class Group>
GPU4FS_FN PageRegisters<Group> load_parity(Group g, const LogicalSpace& space, const RowSlots& slots, u32 j) {
  if constexpr (Group::size() > 1) {
    return load_aligned_page(g, reinterpret_cast<const u8*>(static_cast<std::uintptr_t>(g.shuffle(slots.parity, j))));
  } else {
    return load_aligned_page(g, parity_memory(space, slots.view, j));
  }
}

// Adds up the pages of `present` that are in the parities, and to sum j parity j, if `parities` has its bit. Of each page
// accept(page, slot) says whether it is good, and behind its sum comes pass(page, slot); what is not good ends it with
// false.
template <u32 count, class Group, class Accept, class Pass>
GPU4FS_FN GPU4FS_FORCE_INLINE bool sum_slots_and_parities(Group g, const LogicalSpace& space, const RowSlots& slots,
                                                          u64 present, u32 parities, ParityPages<Group, count>& sums,
                                                          Accept&& accept, Pass&& pass) {
  clear_parities(g, sums);
  PageRegisters<Group> next{};
  const auto load_next = [&] {
    if (present != 0) {
      next = load_slot(g, space, slots, log2_floor(present));
    } else if (parities != 0) {
      next = load_parity(g, space, slots, count_trailing_zeros(parities));
    }
  };
  load_next();
  for (u32 slot = slots.view.slot_count; slot-- > 0;) {
    if ((present >> slot & 1) == 0) {
      skip_slot(g, sums);
      continue;
    }
    const PageRegisters<Group> page = next;
    present &= ~(u64{1} << slot);
    load_next();
    if (!accept(page, slot)) return false;
    if ((slots.included >> slot & 1) != 0) {
      add_lower_slot(g, sums, page);
    } else {
      skip_slot(g, sums);
    }
    pass(page, slot);
  }
  while (parities != 0) {
    const u32 j = count_trailing_zeros(parities);
    const PageRegisters<Group> page = next;
    parities &= parities - 1;
    load_next();
    add_page(g, sums, j, page);
  }
  return true;
}

}  // namespace detail
}  // namespace gpu4fs::raid
