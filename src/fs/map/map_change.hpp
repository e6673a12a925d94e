// Changes of a file map, inside the commit gate: nothing here fails or waits.
//
// Requirements of every function: the inode is locked exclusively and not inline; map_prepare (or map_prepare_remove)
// for the range has returned ok in this step, and the amounts that it counted are reserved. Data pages that lose their
// place in the map are freed here. Pages that enter it were allocated by the caller, which also calls commit_extent for
// them. Inode fields other than slots, height and page_count are left to the caller.
#pragma once

#include "base/mutant.hpp"
#include "fs/map/map_walk.hpp"

namespace gpu4fs::fs {
namespace detail {

// Leader, gate. On a damaged medium an inode's count may be too small.
GPU4FS_FN inline void lower_page_count(FileSystem& fs, format::Inode& inode, u64 pages) {
  if (inode.page_count < pages) store<Order::relaxed, Scope::engine>(&fs.had_error, 1u);
  inode.page_count -= minimum(inode.page_count, pages);
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void mark_place(Group g, FileSystem& fs, Operation& op, const InodeRef& ref,
                                          const MapPlace& place) {
  if (place.frame == no_frame) {
    mark_inode_dirty(g, fs, op, ref);
  } else {
    mark_dirty(g, fs, op, ref, place.frame);
  }
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE MapPlace place_in_gate(Group g, FileSystem& fs, Operation& op, const InodeRef& ref,
                                                 MapSlot target) {
  MapPlace place{};
  GPU4FS_CHECK_OK(map_descend(g, fs, op, ref, target, &place));
  return place;
}

// Frees the pages of `count` slots of level 0 in runs. No run crosses the border of a granule, and so none crosses that
// of a chunk. Returns the number of pages. Leader or Lane.
GPU4FS_FN inline u64 free_slot_pages(FileSystem& fs, const format::BlockPointer* slots, u32 count) {
  const u64 granule_bytes = u64{1} << fs.space.granule_shift;
  raid::Extent run{0, 0, 0};
  u64 freed = 0;
  for (u32 i = 0; i < count; ++i) {
    const format::BlockPointer pointer = load_slot(&slots[i]);
    if (pointer.is_hole()) continue;
    GPU4FS_CHECK(!pointer.is_indirect());
    const u64 address = pointer.address();
    ++freed;
    if (run.page_count != 0 && address == run.address + u64{run.page_count} * page_size &&
        !is_aligned(address, granule_bytes)) {
      ++run.page_count;
      continue;
    }
    if (run.page_count != 0) free_extent(Lane{}, fs, run);
    run = {address, 1, 0};
  }
  if (run.page_count != 0) free_extent(Lane{}, fs, run);
  return freed;
}

// Frees the pages of the direct block at place and leaves a hole.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void free_block(Group g, FileSystem& fs, Operation& op, const InodeRef& ref,
                                          const MapPlace& place) {
  GPU4FS_CHECK(place.pointer.is_valid());
  GPU4FS_CHECK(!place.pointer.is_indirect());
  const u32 pages = static_cast<u32>(map_span(place.level));
  free_extent(g, fs, raid::Extent{place.pointer.address(), pages, 0});
  on_leader(g, [&] {
    store_slot(&place.slots[place.slot], format::BlockPointer::hole());
    lower_page_count(fs, *ref.inode, pages);
  });
  mark_place(g, fs, op, ref, place);
}

// Turns the direct block at place (level >= 1), which covers `page`, into a map page of blocks one level smaller. The
// data pages stay the same.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void split_block(Group g, FileSystem& fs, Operation& op, const InodeRef& ref,
                                           const MapPlace& place, u64 page) {
  GPU4FS_CHECK_GE(place.level, 1u);
  GPU4FS_CHECK(place.pointer.is_valid() && !place.pointer.is_indirect());
  mark_place(g, fs, op, ref, place);
  on_leader(g, [&] { store_slot(&place.slots[place.slot], format::BlockPointer::hole()); });
  const u32 frame = add_page(g, fs, op, ref, {place.level, page >> (format::slot_shift * place.level)});
  format::BlockPointer* slots = map_slots(fs, frame);
  const u64 part_bytes = map_span(place.level - 1) * page_size;
  for (u32 i = g.rank(); i < format::slots_per_block; i += Group::size()) {
    store_slot(&slots[i],
               direct_pointer(place.pointer.address() + i * part_bytes, place.level - 1, place.pointer.is_unwritten()));
  }
  g.sync();
}

// Removes the map page of level from.level over from.page if it is empty, then its parents while they are, up to `top`.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void prune(Group g, FileSystem& fs, Operation& op, const InodeRef& ref, MapSlot from,
                                     u32 top) {
  GPU4FS_CHECK_GE(from.level, 1u);
  const u32 last = minimum<u32>(top, ref.inode->height);
  for (u32 level = from.level; level <= last; ++level) {
    const u64 index = from.page >> (format::slot_shift * level);
    const u32 frame = on_leader(g, [&] { return resident_frame(fs, ref.number, level, index); });
    GPU4FS_CHECK_NE(frame, no_frame);
    if (!all_holes(g, map_slots(fs, frame), format::slots_per_block)) return;
    remove_page(g, fs, op, ref, {level, index});
  }
}

// Slots [place.slot, + count) of an array of level 0 become holes. True if any was not a hole.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE bool clear_slots(Group g, FileSystem& fs, const InodeRef& ref, const MapPlace& place,
                                           u32 count) {
  GPU4FS_CHECK_EQ(place.level, 0u);
  GPU4FS_CHECK_LE(place.slot + count, place.slot_count);
  format::BlockPointer* slots = place.slots + place.slot;
  const u64 freed = on_leader(g, [&] {
    const u64 pages = free_slot_pages(fs, slots, count);
    lower_page_count(fs, *ref.inode, pages);
    return pages;
  });
  if (freed == 0) return false;
  for (u32 i = g.rank(); i < count; i += Group::size()) store_slot(&slots[i], format::BlockPointer::hole());
  g.sync();
  return true;
}

// Removes everything in the range, and map pages of levels up to `top` that become empty.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void remove_range(Group g, FileSystem& fs, Operation& op, const InodeRef& ref,
                                            PageRange range, u32 top) {
  GPU4FS_CHECK_LE(range.first, range.end);
  const u64 stop = minimum(range.end, map_capacity(ref.inode->height));
  u64 page = range.first;
  while (page < stop) {
    const MapPlace place = place_in_gate(g, fs, op, ref, {page, 0});
    const u64 span = map_span(place.level);
    const u64 slot_begin = page & ~(span - 1);
    const u64 next = minimum(slot_begin + span, stop);
    if (place.level == 0) {
      const u32 count = static_cast<u32>(minimum<u64>(place.slot_count - place.slot, stop - page));
      const bool has_changed = clear_slots(g, fs, ref, place, count);
      const bool goes = place.frame != no_frame && top >= 1 && all_holes(g, place.slots, place.slot_count);
      g.sync();
      if (goes) {
        prune(g, fs, op, ref, {page, 1}, top);
      } else if (has_changed) {
        mark_place(g, fs, op, ref, place);
      }
      page += count;
    } else if (place.pointer.is_hole()) {
      // An image may hold map pages without any valid slot.
      const bool at_array_begin = page == range.first || place.slot == 0;
      if (place.frame != no_frame && place.level < top && at_array_begin) {
        prune(g, fs, op, ref, {page, place.level + 1}, top);
      }
      page = next;
    } else if (page == slot_begin && next == slot_begin + span) {
      free_block(g, fs, op, ref, place);
      if (place.frame != no_frame) prune(g, fs, op, ref, {page, place.level + 1}, top);
      page = next;
    } else {
      split_block(g, fs, op, ref, place, page);
    }
  }
}

// Slots [place.slot, + run.page_count) of level 0 get the run; their old pages are freed.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void put_pages(Group g, FileSystem& fs, Operation& op, const InodeRef& ref,
                                         const MapPlace& place, MapRun run) {
  const u32 count = static_cast<u32>(run.page_count);
  GPU4FS_CHECK_EQ(place.level, 0u);
  GPU4FS_CHECK_LE(place.slot + count, place.slot_count);
  format::BlockPointer* slots = place.slots + place.slot;
  const bool is_fresh = all_holes(g, slots, count);
  mark_place(g, fs, op, ref, place);
  on_leader(g, [&] {
    const u64 freed = is_fresh ? 0 : free_slot_pages(fs, slots, count);
    GPU4FS_CHECK_LE(freed, u64{count});
    lower_page_count(fs, *ref.inode, freed);
    ref.inode->page_count += count;
  });
  for (u32 i = g.rank(); i < count; i += Group::size()) {
    store_slot(&slots[i], direct_pointer(run.address + u64{i} * page_size, 0, run.kind == MapKind::unwritten));
  }
  g.sync();
}

// The place of the slot, created if it is missing; it contains no larger block.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE MapPlace ensure_place(Group g, FileSystem& fs, Operation& op, const InodeRef& ref,
                                                MapSlot target) {
  for (;;) {
    const MapPlace place = place_in_gate(g, fs, op, ref, target);
    if (place.level == target.level) return place;
    GPU4FS_CHECK_GT(place.level, target.level);
    if (place.pointer.is_hole()) {
      add_page(g, fs, op, ref, {target.level + 1, target.page >> (format::slot_shift * (target.level + 1))});
      g.sync();
    } else {
      split_block(g, fs, op, ref, place, target.page);
    }
  }
}

// Stores direct blocks of first.level >= 1 from first.page on, which is aligned to it, for the run: at least one, for
// which the run has pages, and more as far as the run fills them and they fill holes of one array. Returns the number
// of blocks.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u32 put_blocks(Group g, FileSystem& fs, Operation& op, const InodeRef& ref, MapSlot first,
                                         MapRun run) {
  const u64 span = map_span(first.level);
  GPU4FS_CHECK(first.level >= 1 && first.level <= 2);
  GPU4FS_CHECK(is_aligned(first.page, span));
  GPU4FS_CHECK(is_aligned(run.address, span * page_size));
  MapPlace place = ensure_place(g, fs, op, ref, first);
  u32 count = 1;
  if (place.pointer.is_indirect()) {
    remove_range(g, fs, op, ref, {first.page, first.page + span}, first.level);
    place = place_in_gate(g, fs, op, ref, first);
  } else if (place.pointer.is_valid()) {
    free_block(g, fs, op, ref, place);
  } else {
    count += following_slots(g, place, run.page_count / span - 1,
                             [](format::BlockPointer next, u32) { return next.raw == 0; });
  }
  mark_place(g, fs, op, ref, place);
  g.sync();
  for (u32 i = g.rank(); i < count; i += Group::size()) {
    format::BlockPointer* const slot = &place.slots[place.slot + i];
    GPU4FS_CHECK(load_slot(slot).is_hole());
    store_slot(slot, direct_pointer(run.address + i * span * page_size, first.level, run.kind == MapKind::unwritten));
  }
  on_leader(g, [&] { ref.inode->page_count += GPU4FS_MUTANT(large_block_miscounted, count * span, count); });
  return count;
}

// The level of the largest block with which `count` pages from file page `page` at `address` can begin.
GPU4FS_FN constexpr u32 block_level(u64 page, u64 count, u64 address) {
  for (u32 level = 2; level > 0; --level) {
    const u64 span = map_span(level);
    if (count >= span && is_aligned(page, span) && is_aligned(address, span * page_size)) return level;
  }
  return 0;
}

}  // namespace detail
}  // namespace gpu4fs::fs
