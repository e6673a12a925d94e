// The place in a file's map that decides about a page, as seen by a reader without the inode's lock.
#pragma once

#include "base/bits.hpp"
#include "base/racy_access.hpp"
#include "engine/optimistic/views.hpp"
#include "fs/map/map_types.hpp"

namespace gpu4fs::engine::detail {

// Walks from the slots of the inode view->number down to the array with the slot that decides about `page`.
// find(key): the frame of a page of the map, or no_frame. False: not resident, or damaged.
template <class Find>
GPU4FS_FN bool find_slots(const fs::PageRoot& pages, const format::Inode* inode, u32 height, u64 page, FileView* view,
                          Find&& find) {
  view->slots = inode->slots;
  view->slot_count = format::inode_slot_count;
  view->first_page = 0;
  view->level = height;
  if (page >= fs::map_capacity(height)) return false;
  while (view->level > 0) {
    const u64 index = page >> (format::slot_shift * view->level);
    // An inode's slots may become inline content meanwhile.
    const format::BlockPointer pointer{
        load_racy_8(&view->slots[index - (view->first_page >> (format::slot_shift * view->level))].raw)};
    if (!fs::detail::slot_fits_level(pointer, view->level)) return false;
    if (!pointer.is_indirect()) break;
    const u32 frame = find(fs::PageKey::make(view->number, view->level, index));
    if (frame == fs::no_frame) return false;
    view->slots = reinterpret_cast<const format::BlockPointer*>(pages.data + u64{frame} * page_size);
    view->slot_count = format::slots_per_block;
    view->first_page = index << (format::slot_shift * view->level);
    --view->level;
  }
  return true;
}

GPU4FS_FN inline bool covers(const FileView& view, u64 page) {
  return page - view.first_page < u64{view.slot_count} << (format::slot_shift * view.level);
}

// The slot of a view that decides about a page, which the view covers. A slot of other pages may be an indirect one,
// below which there is another array.
GPU4FS_FN inline format::BlockPointer slot_of_page(const FileView& view, u64 page) {
  return {load_racy_8(&view.slots[(page - view.first_page) >> (format::slot_shift * view.level)].raw)};
}

// The same for the byte at `offset`.
GPU4FS_FN inline format::BlockPointer slot_over(const FileView& view, u64 offset) {
  return slot_of_page(view, minimum(offset, view.size_bytes) / page_size);
}

// Where a page is whose slot is a direct one.
GPU4FS_FN inline u64 address_in(const FileView& view, format::BlockPointer pointer, u64 page) {
  const u64 mask = (u64{1} << format::slot_shift * view.level) - 1;
  return pointer.address() + ((page - view.first_page) & mask) * page_size;
}

}  // namespace gpu4fs::engine::detail
