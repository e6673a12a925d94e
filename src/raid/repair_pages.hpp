// Repairs what a scrub finds: copies of pages, pages of rows, and parities.
//
// A scrub holds no locks of files, so the page that it examines may be freed, reused and written meanwhile. Repairs
// affect only pages of the durable checkpoint (`stable`). Such pages are not written, and become free only when a
// checkpoint is published. This checkpoint waits for the repairs that began before its snapshot (begin_repairs). A
// repair stores the earlier content.
//
// Uniform.
#pragma once

#include "base/mutant.hpp"
#include "raid/page_io.hpp"
#include "raid/verify_pages.hpp"

namespace gpu4fs::raid {

// Leader: until end_repairs(), pages keep their content if the durable checkpoint refers to them and nobody has freed
// them according to the bitmaps after this call. A checkpoint that would allow their reuse waits before it is
// published.
GPU4FS_FN inline u32 begin_repairs(const LogicalSpace& space) {
  GPU4FS_CHECK(space.damage != nullptr);
  return begin_use(space.damage->repairs);
}

GPU4FS_FN inline void end_repairs(const LogicalSpace& space, u32 counter) {
  end_use(space.damage->repairs, counter);
}

// Whether the page is one of those. After begin_repairs().
GPU4FS_FN inline bool page_is_settled(const LogicalSpace& space, const PageLocation& location) {
  GPU4FS_CHECK_LT(location.chunk, known_chunk_count(space));
  GPU4FS_CHECK_LT(location.page, space.chunks[location.chunk].page_count);
  const ChunkState& chunk = space.chunks[location.chunk];
  const bool is_durable = GPU4FS_MUTANT(unsettled_pages_repaired, page_bit(chunk.bitmaps.stable, location.page), true);
  return is_durable && page_bit(chunk.bitmaps.committed, location.page);
}

// Before a checkpoint is published: true while a repair runs that began before its snapshot.
GPU4FS_FN inline bool repairs_are_running(const LogicalSpace& space) {
  return space.damage != nullptr && older_uses_run(space.damage->repairs);
}

namespace detail {

template <class Group>
GPU4FS_FN bool copy_matches(Group g, const LogicalSpace& space, const PageLocation& location, u32 copy) {
  const CopyPlan plan = on_leader(g, [&] { return plan_copy(space, location, copy); });
  if (plan.status != Status::ok) return false;
  return xxh3_page(g, plan.memory, space.chunks[location.chunk].base_address + location.page * page_size) ==
         plan.checksum;
}

// Computes the page from the rest of its row. False: too little of it is left.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE bool repair_from_row(Group g, const LogicalSpace& space, const PageLocation& location) {
  if (copy_matches(g, space, location, 0)) return true;
  const u32 scratch = on_leader(g, [&] { return take_scratch(space); });
  u8* page = scratch_memory(space, scratch);
  const Status status = reconstruct_page(g, space, location, true, Status::checksum_mismatch, page);
  if (status == Status::ok) repair_copy(g, space, location, 0, page);
  on_leader(g, [&] { return_scratch(space, scratch); });
  return status == Status::ok;
}

}  // namespace detail

// Makes all copies of the page equal, if their devices accept it. True: a good copy exists, or the row yields one.
// Between begin_repairs() and end_repairs(), for settled pages that have a checksum.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE bool repair_page(Group g, const LogicalSpace& space, const PageLocation& location) {
  const ChunkState& chunk = space.chunks[location.chunk];
  const PinScope pins(g, space);
  if (chunk.parity_count != 0) return detail::repair_from_row(g, space, location);
  bool has_good = false;
  for (u32 copy = 0; copy < chunk.copy_count; ++copy) {
    if (detail::copy_matches(g, space, location, copy)) {
      has_good = true;
      continue;
    }
    if (chunk.copy_count == 1) return false;
    const CopyPlan good = find_good_copy(g, space, location, {copy, Status::checksum_mismatch}, true, false);
    if (good.status != Status::ok) return false;
    has_good = true;
  }
  return has_good;
}

namespace detail {

struct RowLook {
  u64 included;
  u64 bad;       // a slot that does not match, as a bit; 0: none
  u32 repaired;  // parities that were rewritten, one bit each
  u32 reserved;
};

// Adds up the pages of a row that `included` names. find(location) returns the place of a verified page, or nullptr.
// Returns the slot of the first page that is not found, as a bit; 0: the sums are complete. Uniform.
template <class Group, class Find>
GPU4FS_FN u64 sum_slots(Group g, const RowView& view, u64 included, ParityPages<Group, parity_count_max>& sums,
                        Find&& find) {
  clear_parities(g, sums);
  for (u32 slot = view.slot_count; slot-- > 0;) {
    if ((included >> slot & 1) == 0) {
      skip_slot(g, sums);
      continue;
    }
    const u8* memory = find(PageLocation{view.chunk, 0, row_page(view, slot)});
    if (memory == nullptr) return u64{1} << slot;
    add_lower_slot(g, sums, load_aligned_page(g, memory));
  }
  return 0;
}

// Under the row's lock: adds up the included pages. Stops at a page that does not match.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE RowLook sum_row(Group g, const LogicalSpace& space, const RowView& view,
                                          ParityPages<Group, parity_count_max>& sums) {
  const ChunkState& chunk = space.chunks[view.chunk];
  RowLook look{};
  look.included = on_leader(g, [&] { return slots_in_parity(space, view); });
  look.bad = sum_slots(g, view, look.included, sums, [&](const PageLocation& location) -> const u8* {
    const CopyPlan plan = on_leader(g, [&] { return plan_copy(space, location, 0); });
    if (plan.status != Status::ok) return nullptr;
    const u64 address = chunk.base_address + location.page * page_size;
    return xxh3_page(g, plan.memory, address) == plan.checksum ? plan.memory : nullptr;
  });
  return look;
}

template <class Group>
GPU4FS_FN bool same_page(Group g, const PageRegisters<Group>& a, const PageRegisters<Group>& b) {
  bool same = true;
  if constexpr (Group::size() == 1) {
    same = __builtin_memcmp(a.page, b.page, page_size) == 0;
  } else {
    GPU4FS_UNROLL
    for (u32 i = 0; i < page_chunk_rows; ++i) {
      same &= a.chunks[i].low == b.chunks[i].low && a.chunks[i].high == b.chunks[i].high;
    }
  }
  return g.all(same);
}

// Writes parities that differ from the sums of the row's pages. Returns them, one bit each. Under the row's lock.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u32 repair_parities(Group g, const LogicalSpace& space, const RowView& view,
                                              const ParityPages<Group, parity_count_max>& sums) {
  u32 repaired = 0;
  for (u32 j = 0; j < space.chunks[view.chunk].parity_count; ++j) {
    const PageRegisters<Group> expected = parity_page(g, sums, j);
    // A lost device may have no memory.
    const bool readable = on_leader(g, [&] { return begin_parity_read(space, view, j) == Status::ok; });
    if (readable && same_page(g, expected, load_aligned_page(g, parity_memory(space, view, j)))) continue;
    const bool writable = on_leader(g, [&] {
      if (space.devices[parity_place(space, view, j).device].read_only != 0) return false;
      return begin_parity_write(space, view, j) == Status::ok;
    });
    if (!writable) continue;
    GPU4FS_MUTANT(parity_repair_not_written, store_page(g, expected, parity_memory(space, view, j)),
                  static_cast<void>(0));
    g.sync();
    on_leader(g, [&] { end_parity_write(space, view, j); });
    repaired |= 1u << j;
  }
  return repaired;
}

// What is in a frame says nothing about the medium. One rank. The row's pages were looked at before.
GPU4FS_FN inline void look_at_parities(const LogicalSpace& space, const RowView& view) {
  if (space.staged == nullptr) return;
  for (u32 j = 0; j < space.chunks[view.chunk].parity_count; ++j) {
    const DevicePlace place = parity_place(space, view, j);
    device::look_at_medium(*space.staged, place.device, place.offset / page_size);
  }
}

// Makes the row's parities match its pages, unless a page does not match its checksum.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE RowLook look_at_row(Group g, const LogicalSpace& space, const RowView& view) {
  const PinScope pins(g, space);
  on_leader(g, [&] {
    row_lock(space, view).lock();
    look_at_parities(space, view);
  });
  ParityPages<Group, parity_count_max> sums;
  RowLook look = sum_row(g, space, view, sums);
  if (look.bad == 0) look.repaired = repair_parities(g, space, view, sums);
  g.sync();
  on_leader(g, [&] { row_lock(space, view).unlock(); });
  return look;
}

}  // namespace detail

// Verifies the parities of a row against its pages and rewrites those that do not match. Each page is verified first,
// and repaired if necessary. False: a page of the row cannot be repaired, so nothing is known of the parities. Between
// begin_repairs() and end_repairs(), for rows with a settled page, in pools in which all pages have checksums.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE bool repair_row(Group g, const LogicalSpace& space, const RowView& view) {
  // The content of a lost device is unknown.
  if (on_leader(g, [&] { return failed_devices(space) != 0; })) return true;
  for (u32 attempt = 0; attempt <= view.slot_count; ++attempt) {
    const detail::RowLook look = detail::look_at_row(g, space, view);
    if (look.bad == 0) {
      on_leader(g, [&] {
        for (u32 left = look.repaired; left != 0; left &= left - 1) {
          note_repair(space, parity_place(space, view, count_trailing_zeros(left)).device);
        }
      });
      return true;
    }
    const PageLocation location{view.chunk, 0, row_page(view, count_trailing_zeros(look.bad))};
    if (!repair_page(g, space, location)) return false;
  }
  return false;
}

}  // namespace gpu4fs::raid
