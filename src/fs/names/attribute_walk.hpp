// All pages of an inode's attributes, map pages included, in an order of their own: for code that moves or lists them.
#pragma once

#include "fs/pages/pages.hpp"

namespace gpu4fs::fs {

// A page of the tree; a hole: there are no more.
struct AttributePage {
  format::BlockPointer pointer;
  u64 index;
  u32 level;
  u32 reserved;
};

// A walk that numbers content and then attributes has places of attributes from here on, after all pages of content.
inline constexpr u64 attribute_places = u64{1} << 62;

namespace detail {

// Places of the walk: 0 is the root of the tree. With one level of map pages place 1 + i is page i. With two, place 1 +
// 513 b is map page b, and the places after it are its pages.
inline constexpr u64 places_per_block = format::slots_per_block + 1;

// Leader: the first slot of a resident map page from `first` on that is not a hole, as a page of `level` after `base`.
GPU4FS_FN inline AttributePage next_in_block(FileSystem& fs, u32 frame, u32 level, u64 base, u32 first) {
  const format::BlockPointer* slots = map_slots(fs, frame);
  for (u32 i = first; i < format::slots_per_block; ++i) {
    const format::BlockPointer pointer = load_slot(&slots[i]);
    if (!pointer.is_hole()) return {pointer, base + i, level, 0};
  }
  return {format::BlockPointer::hole(), 0, 0, 0};
}

// The first page from `first` on that is below the same map page.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status next_page_below(Group g, FileSystem& fs, Operation& op, const InodeRef& file,
                                                 u64 first, AttributePage* found) {
  const u64 block = first / format::slots_per_block;
  u32 frame = no_frame;
  GPU4FS_TRY(get_page(g, fs, op, file, {attribute_level + 1, block}, &frame));
  *found = on_leader(g, [&] {
    return next_in_block(fs, frame, attribute_level, block * format::slots_per_block,
                         static_cast<u32>(first % format::slots_per_block));
  });
  return Status::ok;
}

}  // namespace detail

// The first page at place *place or after it; *place becomes the next place. Status: as get_page. After an error *place
// is after the map page that cannot be read.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status next_attribute_page_at(Group g, FileSystem& fs, Operation& op, const InodeRef& file,
                                                        u64* place, AttributePage* found) {
  const format::BlockPointer top = load_slot(&file.inode->attributes);
  const u32 height = file.inode->attribute_height;
  *found = {format::BlockPointer::hole(), 0, 0, 0};
  if (top.is_hole() || height > format::attribute_height_max) return Status::ok;
  if (*place == 0) {
    *place = 1;
    *found = {top, 0, attribute_level + height, 0};
    return Status::ok;
  }
  if (height == 0) return Status::ok;
  u64 at = *place - 1;
  if (height == 1) {
    *place = detail::places_per_block;
    if (at >= format::slots_per_block) return Status::ok;
    GPU4FS_TRY(detail::next_page_below(g, fs, op, file, at, found));
    if (!found->pointer.is_hole()) *place = found->index + 2;
    return Status::ok;
  }
  const u64 end = u64{format::slots_per_block} * detail::places_per_block;
  while (at < end) {
    u64 block = at / detail::places_per_block;
    u32 inside = static_cast<u32>(at % detail::places_per_block);
    u32 frame = no_frame;
    *place = end + 1;
    GPU4FS_TRY(get_page(g, fs, op, file, {attribute_level + 2, 0}, &frame));
    const u64 first = block;
    const AttributePage here =
        on_leader(g, [&] { return detail::next_in_block(fs, frame, attribute_level + 1, 0, static_cast<u32>(first)); });
    if (here.pointer.is_hole()) return Status::ok;
    if (here.index != block) inside = 0;
    block = here.index;
    at = (block + 1) * detail::places_per_block;
    if (inside == 0) {
      *place = block * detail::places_per_block + 2;
      *found = here;
      return Status::ok;
    }
    *place = at + 1;
    GPU4FS_TRY(detail::next_page_below(g, fs, op, file, block * format::slots_per_block + inside - 1, found));
    if (found->pointer.is_hole()) continue;
    *place = block * detail::places_per_block + found->index % format::slots_per_block + 3;
    return Status::ok;
  }
  return Status::ok;
}

}  // namespace gpu4fs::fs
