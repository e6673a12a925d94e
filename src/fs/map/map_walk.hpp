// Reads a file map: the block at a page, and the cost of a change.
//
// All functions are uniform and need the inode's lock (shared suffices). Ranks read slots directly: under the lock only
// a checkpoint writes them, and it changes the address of an indirect slot, never its kind.
#pragma once

#include "base/mutant.hpp"
#include "fs/map/map_types.hpp"

namespace gpu4fs::fs {
namespace detail {

// The slot that determines target.page: the walk begins at the inode and ends at a slot that is not indirect or is of
// target.level. The page lies below the inode's capacity. Status: corrupt_structure, or as get_page.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status map_descend(Group g, FileSystem& fs, Operation& op, const InodeRef& ref,
                                             MapSlot target, MapPlace* place) {
  const u32 height = ref.inode->height;
  if (height > map_height_max) return Status::corrupt_structure;
  GPU4FS_CHECK_LT(target.page, map_capacity(height));
  MapPlace here{};
  here.slots = ref.inode->slots;
  here.slot_count = format::inode_slot_count;
  here.frame = no_frame;
  for (here.level = height;; --here.level) {
    here.slot = static_cast<u32>(target.page >> (format::slot_shift * here.level)) & (format::slots_per_block - 1);
    GPU4FS_CHECK_LT(here.slot, here.slot_count);
    here.pointer = load_slot(&here.slots[here.slot]);
    if (!slot_fits_level(here.pointer, here.level)) return Status::corrupt_structure;
    if (!here.pointer.is_indirect() || here.level == target.level) break;
    const Status status =
        get_page(g, fs, op, ref, {here.level, target.page >> (format::slot_shift * here.level)}, &here.frame);
    if (status == Status::page_absent) return Status::corrupt_structure;
    GPU4FS_TRY(status);
    here.slots = map_slots(fs, here.frame);
    here.slot_count = format::slots_per_block;
  }
  *place = here;
  return Status::ok;
}

GPU4FS_FN constexpr MapKind kind_of(format::BlockPointer pointer) {
  const bool is_unwritten = GPU4FS_MUTANT(unwritten_read_as_data, pointer.is_unwritten(), false);
  return pointer.is_hole() ? MapKind::hole : is_unwritten ? MapKind::unwritten : MapKind::data;
}

// Counts the slots after place.slot, at most `slot_max`, up to the first one for which goes_on(pointer, distance) is
// false; distance counts from 1.
template <class Group, class Predicate>
GPU4FS_FN u32 following_slots(Group g, const MapPlace& place, u64 slot_max, Predicate&& goes_on) {
  GPU4FS_CHECK_LT(place.slot, place.slot_count);
  const u64 left = place.slot_count - 1 - place.slot;
  const u32 limit = static_cast<u32>(minimum(left, slot_max));
  u32 found = 0;
  while (found < limit) {
    const u32 ahead = found + g.rank() + 1;
    const bool matches = ahead <= limit && goes_on(load_slot(&place.slots[place.slot + ahead]), ahead);
    const u32 here = leading_ranks(g, matches);
    found += here;
    if (here < Group::size()) break;
  }
  return minimum(found, limit);
}

// Pages from range.first on, at most the whole range, of the slot at place and of the slots that continue it. A hole at
// the end of the inode's slots has no end.
template <class Group, class Predicate>
GPU4FS_FN u64 pages_ahead(Group g, const MapPlace& place, PageRange range, Predicate&& goes_on) {
  const u64 limit = range.page_count();
  const u64 span = map_span(place.level);
  u64 count = span - (range.first & (span - 1));
  if (count >= limit) return limit;
  const u32 slots = following_slots(g, place, divide_up(limit - count, span), goes_on);
  count += span * slots;
  const bool at_end = place.frame == no_frame && place.slot + slots + 1 == place.slot_count;
  return at_end && place.pointer.is_hole() ? limit : minimum(count, limit);
}

// Every slot of [first, first + count) of an array of level 0 is well formed and inside the space.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE bool slots_are_sound(Group g, const FileSystem& fs, const format::BlockPointer* slots,
                                               u32 first, u32 count) {
  GPU4FS_CHECK_LE(first + count, format::slots_per_block);
  bool sound = true;
  for (u32 i = g.rank(); i < count; i += Group::size()) {
    const format::BlockPointer pointer = load_slot(&slots[first + i]);
    if (!slot_fits_level(pointer, 0)) sound = false;
    if (pointer.is_valid() && sound && GPU4FS_MUTANT(map_slot_unchecked, !block_in_space(fs, pointer, 0), false)) {
      sound = false;
    }
  }
  return g.all(sound);
}

}  // namespace detail

// The run that begins at range.first and stays inside the range. It may end earlier than necessary. It never crosses a
// granule, so its pages are of one chunk. Status: corrupt_structure, or as get_page.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status map_lookup(Group g, FileSystem& fs, Operation& op, const InodeRef& ref,
                                            PageRange range, MapRun* run) {
  GPU4FS_CHECK_LT(range.first, range.end);
  if (ref.inode->height > map_height_max) return Status::corrupt_structure;
  if (ref.inode->is_inline() || range.first >= map_capacity(ref.inode->height)) {
    *run = {MapKind::hole, 0, 0, range.page_count()};
    return Status::ok;
  }
  detail::MapPlace place{};
  GPU4FS_TRY(detail::map_descend(g, fs, op, ref, {range.first, 0}, &place));
  const u64 span = map_span(place.level);
  const u64 inside = range.first & (span - 1);
  if (place.pointer.is_valid() && !detail::block_in_space(fs, place.pointer, place.level)) {
    return Status::corrupt_structure;
  }
  const u64 block_bytes = span * page_size;
  const u64 count = detail::pages_ahead(g, place, range, [&](format::BlockPointer next, u32 distance) {
    return place.pointer.is_hole() ? next.raw == 0 : next.raw == place.pointer.raw + distance * block_bytes;
  });
  run->kind = detail::kind_of(place.pointer);
  run->reserved = 0;
  run->address = place.pointer.is_hole() ? 0 : place.pointer.address() + inside * page_size;
  run->page_count = count;
  if (run->kind != MapKind::hole) {
    const u64 granule_bytes = u64{1} << fs.space.granule_shift;
    const u64 in_granule = granule_bytes - (run->address & (granule_bytes - 1));
    run->page_count = minimum(run->page_count, in_granule / page_size);
  }
  return Status::ok;
}

namespace detail {

// Unwritten pages are filled in place, with two exceptions: in chunks with parities, where pages are written once, and
// in a file that has another profile meanwhile, they are replaced like any others.
GPU4FS_FN GPU4FS_NOINLINE inline bool is_filled_in_place(const FileSystem& fs, const format::Inode& inode,
                                                         format::BlockPointer pointer) {
  if (!pointer.is_unwritten() || !has_profile_of(fs, inode, pointer.address())) return false;
  return fs.space.parity == nullptr || !is_written_once(fs, pointer.address());
}

}  // namespace detail

// The map in the view of a write: unwritten pages are filled in place, everything else is replaced.
struct MapStretch {
  u64 page_count;
  bool unwritten;
};

// The stretch of pages that begins at range.first and stays inside the range: either all pages are filled in place or
// none. It may end earlier than necessary, but not inside an aligned span of 2 MiB. Status: as map_lookup.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status map_stretch(Group g, FileSystem& fs, Operation& op, const InodeRef& ref,
                                             PageRange range, MapStretch* stretch) {
  GPU4FS_CHECK_LT(range.first, range.end);
  if (ref.inode->height > map_height_max) return Status::corrupt_structure;
  if (ref.inode->is_inline() || range.first >= map_capacity(ref.inode->height)) {
    *stretch = {range.page_count(), false};
    return Status::ok;
  }
  detail::MapPlace place{};
  GPU4FS_TRY(detail::map_descend(g, fs, op, ref, {range.first, 0}, &place));
  const bool fills = detail::is_filled_in_place(fs, *ref.inode, place.pointer);
  stretch->unwritten = fills;
  stretch->page_count = detail::pages_ahead(g, place, range, [&](format::BlockPointer next, u32 /*distance*/) {
    return !next.is_indirect() && detail::is_filled_in_place(fs, *ref.inode, next) == fills;
  });
  return Status::ok;
}

struct MapSeek {
  PageRange range;  // to search; `first` advances
  bool wants_data;
  bool found;  // at range.first
};

// Searches for the first page that is data (seek->wants_data) or is not, with at most `lookup_max` look-ups. Sets
// seek->found, or seek->range.first to the page where to continue. An empty range without `found`: there is none.
// Unwritten pages count as holes.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status map_seek(Group g, FileSystem& fs, Operation& op, const InodeRef& ref, u32 lookup_max,
                                          MapSeek* seek) {
  GPU4FS_CHECK_LE(seek->range.first, seek->range.end);
  GPU4FS_CHECK_GT(lookup_max, 0u);
  seek->found = false;
  for (u32 i = 0; i < lookup_max && seek->range.first < seek->range.end; ++i) {
    MapRun run{};
    GPU4FS_TRY(map_lookup(g, fs, op, ref, seek->range, &run));
    if ((run.kind == MapKind::data) == seek->wants_data) {
      seek->found = true;
      return Status::ok;
    }
    seek->range.first += run.page_count;
  }
  return Status::ok;
}

// Prepare: loads every map page that a replacement of the range touches, checks all slots there, and counts the amounts
// to reserve. Status: file_too_large, corrupt_structure, or as get_page.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status map_prepare(Group g, FileSystem& fs, Operation& op, const InodeRef& ref,
                                             PageRange range, MapCost* cost) {
  GPU4FS_CHECK_LT(range.first, range.end);
  const u64 end = range.end;
  *cost = {0, 0};
  if (end > map_page_max) return Status::file_too_large;
  const u32 height = ref.inode->is_inline() ? 0 : ref.inode->height;
  if (height > map_height_max) return Status::corrupt_structure;
  const u64 capacity = ref.inode->is_inline() ? 0 : map_capacity(height);
  u64 previous = ~u64{0};
  u64 page = range.first;
  while (page < end && page < capacity) {
    detail::MapPlace place{};
    GPU4FS_TRY(detail::map_descend(g, fs, op, ref, {page, 0}, &place));
    cost->changed += detail::fresh_path(page, previous, place.level, height);
    previous = page;
    if (place.level == 0) {
      const u32 count = static_cast<u32>(minimum<u64>(place.slot_count - place.slot, end - page));
      if (!detail::slots_are_sound(g, fs, place.slots, place.slot, count)) return Status::corrupt_structure;
      page += count;
      continue;
    }
    if (place.pointer.is_valid() && !detail::block_in_space(fs, place.pointer, place.level)) {
      return Status::corrupt_structure;
    }
    const u64 span = map_span(place.level);
    const u64 stop = minimum(end, (page & ~(span - 1)) + span);
    cost->fresh += static_cast<u32>(detail::subtree_pages(place.level, page, stop));
    page = stop;
  }
  if (page < end) {
    // Growth moves the slots to the next level unchanged, so all of them have to be valid.
    for (u32 i = 0; i < format::inode_slot_count && !ref.inode->is_inline(); ++i) {
      if (!detail::slot_fits_level(load_slot(&ref.inode->slots[i]), height)) return Status::corrupt_structure;
    }
    const u32 new_height = map_height_for(end);
    cost->fresh += new_height - height + static_cast<u32>(detail::subtree_pages(new_height, page, end));
  }
  return Status::ok;
}

namespace detail {

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE bool all_holes(Group g, const format::BlockPointer* slots, u32 count) {
  bool holes = true;
  for (u32 i = g.rank(); i < count; i += Group::size()) holes = holes && load_slot(&slots[i]).is_hole();
  return g.all(holes);
}

// First page of the part that map_prepare_remove handles at once: the array of level 0, or the slot and, if it is a
// hole, the holes before it.
GPU4FS_FN inline u64 chunk_begin(const MapPlace& place, u64 page) {
  const u64 span = map_span(place.level);
  if (place.level == 0) return page - place.slot;
  u64 begin = page & ~(span - 1);
  if (place.pointer.is_valid()) return begin;
  // Not is_hole(): an invalid pointer with other bits is damage that map_descend has to detect.
  for (u32 slot = place.slot; slot > 0 && load_slot(&place.slots[slot - 1]).raw == 0; --slot) begin -= span;
  return begin;
}

}  // namespace detail

// Pages to remove.
struct MapRemoval {
  PageRange range;       // map_prepare_remove raises `first` to the part that one commit may remove
  u32 map_pages_wanted;  // approximate number of map pages that change
  MapCost cost;
};

// Prepare: as map_prepare, for removal of pages from the end of removal->range backwards.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status map_prepare_remove(Group g, FileSystem& fs, Operation& op, const InodeRef& ref,
                                                    MapRemoval* removal) {
  const u64 first = removal->range.first;
  GPU4FS_CHECK_LE(first, removal->range.end);
  GPU4FS_CHECK_GT(removal->map_pages_wanted, 0u);
  MapCost& cost = removal->cost;
  cost = {0, 0};
  if (ref.inode->is_inline()) return Status::ok;
  const u32 height = ref.inode->height;
  if (height > map_height_max) return Status::corrupt_structure;
  u64 previous = ~u64{0};
  u64 page = minimum(removal->range.end, map_capacity(height));
  // The array at the end may already be empty and stay because of the content after it. A commit that ended there would
  // change nothing, each time.
  bool has_block = false;
  while (page > first && (cost.changed < removal->map_pages_wanted || !has_block)) {
    detail::MapPlace place{};
    GPU4FS_TRY(detail::map_descend(g, fs, op, ref, {page - 1, 0}, &place));
    const u64 begin = maximum(first, detail::chunk_begin(place, page - 1));
    if (place.level == 0) {
      const u32 count = static_cast<u32>(page - begin);
      if (!detail::slots_are_sound(g, fs, place.slots, place.slot + 1 - count, count)) {
        return Status::corrupt_structure;
      }
      has_block = has_block || !detail::all_holes(g, &place.slots[place.slot + 1 - count], count);
    } else if (place.pointer.is_valid()) {
      if (!detail::block_in_space(fs, place.pointer, place.level)) return Status::corrupt_structure;
      has_block = true;
      if (page - begin != map_span(place.level)) cost.fresh += 2 * place.level;
    }
    cost.changed += detail::fresh_path(page - 1, previous, place.level, height);
    previous = page - 1;
    page = begin;
  }
  GPU4FS_CHECK_GE(page, minimum(first, map_capacity(height)));
  removal->range.first = maximum(page, first);
  return Status::ok;
}

}  // namespace gpu4fs::fs
