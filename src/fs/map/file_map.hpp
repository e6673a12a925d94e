// The file map of regular files: which logical page holds which page of a file (theory: map_types.hpp).
//
//   map_lookup, map_seek                         reads (map_walk.hpp)
//   map_prepare, map_prepare_remove              before the gate: residency, checks, amounts to reserve
//   map_replace, map_mark_written, map_remove    in the gate
//
// A write consists of: map_prepare; allocate and write the pages; reserve_metadata(1, cost.changed, cost.fresh); enter
// the gate; map_replace and commit_extent for each extent; size and times.
#pragma once

#include "base/mutant.hpp"
#include "fs/map/map_change.hpp"
#include "fs/map/map_walk.hpp"

namespace gpu4fs::fs {

// Gate: pages [first, first + run.page_count) become those of `run`; the old ones are freed. Spans that are aligned in
// the file and in logical space become 2 MiB and 1 GiB blocks. Requirements: as in map_change.hpp. None of the run's
// pages is in the map.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void map_replace(Group g, FileSystem& fs, Operation& op, const InodeRef& ref, u64 first,
                                           MapRun run) {
  GPU4FS_CHECK_NE(run.kind, MapKind::hole);
  GPU4FS_CHECK(!ref.inode->is_inline());
  const u64 end = first + run.page_count;
  GPU4FS_CHECK_GT(run.page_count, u64{0});
  GPU4FS_CHECK(is_aligned(run.address, page_size));
  GPU4FS_CHECK_LE(end, map_page_max);
  while (map_capacity(ref.inode->height) < end) {
    g.sync();
    detail::grow_height(g, fs, op, ref);
    mark_inode_dirty(g, fs, op, ref);
    g.sync();
  }
  u64 page = first;
  while (page < end) {
    const u64 address = run.address + (page - first) * page_size;
    const u32 level = detail::block_level(page, end - page, address);
    if (level > 0) {
      const u64 span = map_span(level);
      page += span * detail::put_blocks(g, fs, op, ref, {page, level}, {run.kind, 0, address, end - page});
      continue;
    }
    const detail::MapPlace place = detail::ensure_place(g, fs, op, ref, {page, 0});
    const u32 count = static_cast<u32>(minimum<u64>(place.slot_count - place.slot, end - page));
    detail::put_pages(g, fs, op, ref, place, {run.kind, 0, address, count});
    page += count;
  }
}

// Gate: unwritten pages of the range become data in place; all of the range is unwritten or data. Their content is
// already written.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void map_mark_written(Group g, FileSystem& fs, Operation& op, const InodeRef& ref,
                                                PageRange range) {
  GPU4FS_CHECK_LT(range.first, range.end);
  GPU4FS_CHECK(!ref.inode->is_inline());
  u64 page = range.first;
  while (page < range.end) {
    const detail::MapPlace place = detail::place_in_gate(g, fs, op, ref, {page, 0});
    GPU4FS_CHECK(place.pointer.is_valid());
    const u64 span = map_span(place.level);
    const u64 slot_begin = page & ~(span - 1);
    const bool whole = page == slot_begin && range.end >= slot_begin + span;
    if (!whole && place.pointer.is_unwritten()) {
      detail::split_block(g, fs, op, ref, place, page);
      continue;
    }
    u64 next = slot_begin + span;
    u32 count = 1;
    if (place.level == 0) {
      count = static_cast<u32>(minimum<u64>(place.slot_count - place.slot, range.end - page));
      next = page + count;
    }
    detail::mark_place(g, fs, op, ref, place);
    for (u32 i = g.rank(); i < count; i += Group::size()) {
      format::BlockPointer* slot = &place.slots[place.slot + i];
      const format::BlockPointer pointer = load_slot(slot);
      GPU4FS_CHECK(pointer.is_valid());
      store_slot(slot, {pointer.raw & ~format::BlockPointer::unwritten_bit});
    }
    g.sync();
    page = next;
  }
}

// Gate: the range becomes a hole. Its pages are freed, map pages that become empty are removed, and the height of a map
// without any block becomes 0.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void map_remove(Group g, FileSystem& fs, Operation& op, const InodeRef& ref,
                                          PageRange range) {
  GPU4FS_CHECK(!ref.inode->is_inline());
  detail::remove_range(g, fs, op, ref, range, map_height_max);
  const bool is_empty = detail::all_holes(g, ref.inode->slots, format::inode_slot_count);
  if (!is_empty || GPU4FS_MUTANT(map_height_kept, ref.inode->height == 0, true)) return;
  g.sync();
  on_leader(g, [&] { ref.inode->height = 0; });
  mark_inode_dirty(g, fs, op, ref);
}

// No block and no map page: the content is inline or there is none.
template <class Group>
GPU4FS_FN bool map_is_empty(Group g, const InodeRef& ref) {
  return ref.inode->is_inline() || detail::all_holes(g, ref.inode->slots, format::inode_slot_count);
}

}  // namespace gpu4fs::fs
