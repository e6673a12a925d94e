// Metadata pages: finding, loading, creating, changing and removing them.
//
// Every page of a directory, of the inode file and the bitmap files, every indirect block of a file map and every
// attribute page is in a frame while it is used. Frames have the current state. Only a checkpoint updates the medium:
// it writes dirty frames to new places (docs/internals/architecture.md, section 4).
//
// Invariants:
//  - a resident page's ancestors (map pages up to the inode page, and that page's up to inode 0) are resident: pages
//    are loaded from the top and evicted from the bottom;
//  - a dirty page's ancestors are dirty, so the number of dirty frames is the number of pages that the next checkpoint
//    writes;
//  - every dirty frame has one page of SpaceCounters::reserved and one entry of the dirty list.
#pragma once

#include "base/xxh3.hpp"
#include "format/attribute_format.hpp"
#include "fs/errors.hpp"
#include "fs/fs_types.hpp"
#include "fs/pages/pages_internal.hpp"
#include "raid/page_io.hpp"
#include "space/space.hpp"

namespace gpu4fs::fs {

// An inode whose page is resident. Number 0 is the inode file itself: no frame, no lock.
struct InodeRef {
  u64 number;
  format::Inode* inode;
  u32 frame;
  u32 reserved;
  CommandLock* lock;
};

// Page (level, index) of a file's tree.
struct PagePosition {
  u32 level;
  u64 index;
};

GPU4FS_FN inline u8* page_data(FileSystem& fs, u32 frame) {
  GPU4FS_CHECK_LT(frame, fs.pages.frame_count);
  return fs.pages.data + u64{frame} * page_size;
}

// The eviction clock spares the page in its next round.
GPU4FS_FN inline void note_use(const PageRoot& pages, u32 frame) {
  set_bits<Scope::engine>(&pages.frames[frame].referenced, u32{frame_referenced});
}

// Slots and time stamps change by single 8-byte stores while readers run.
GPU4FS_FN inline format::BlockPointer load_slot(const format::BlockPointer* slot) {
  return {load<Order::relaxed, Scope::engine>(&slot->raw)};
}
GPU4FS_FN inline void store_slot(format::BlockPointer* slot, format::BlockPointer value) {
  store<Order::relaxed, Scope::engine>(&slot->raw, value.raw);
}

// The 512 slots of a resident map page (level >= 1), of level one below the page's.
GPU4FS_FN inline format::BlockPointer* map_slots(FileSystem& fs, u32 frame) {
  return reinterpret_cast<format::BlockPointer*>(page_data(fs, frame));
}

namespace detail {

GPU4FS_FN inline InodeRef inode_file_ref(FileSystem& fs) {
  return {format::inode_number_inode_file, &fs.inode_file, no_frame, 0, nullptr};
}

// The two trees of an inode: content with its map, and attributes.
struct PageTree {
  format::BlockPointer* slots;  // in the inode
  u8* height;                   // level of the slots, counted from the level of the pages
  u32 slot_count;
  u32 page_level;  // of the pages; their indirect blocks have the levels above it
  u32 height_max;

  GPU4FS_FN u32 top_level() const { return page_level + *height; }
};

GPU4FS_FN constexpr bool is_attribute_level(u32 level) {
  return level >= attribute_level;
}

// An indirect block of either tree.
GPU4FS_FN constexpr bool is_map_level(u32 level) {
  return level != 0 && level != attribute_level;
}

// The tree that contains pages of `level`. Inline content has no slots.
GPU4FS_FN inline PageTree tree_of(const InodeRef& file, u32 level) {
  format::Inode& inode = *file.inode;
  if (is_attribute_level(level)) {
    return {&inode.attributes, &inode.attribute_height, 1, attribute_level, format::attribute_height_max};
  }
  return {inode.slots, &inode.height, inode.is_inline() ? 0 : format::inode_slot_count, 0, 5};
}

// The slot that names page (level, index) of `file`; nullptr if its parent is not resident or the index lies beyond the
// inode's slots.
GPU4FS_FN inline format::BlockPointer* slot_of_page(FileSystem& fs, const InodeRef& file, PagePosition page) {
  const PageTree tree = tree_of(file, page.level);
  const u32 top = tree.top_level();
  if (page.level > top) return nullptr;
  if (page.level == top) return page.index < tree.slot_count ? &tree.slots[page.index] : nullptr;
  const u32 parent = find_frame(fs.pages, PageKey::make(file.number, page.level + 1, page.index >> format::slot_shift));
  if (parent == no_frame) return nullptr;
  return &map_slots(fs, parent)[page.index & (format::slots_per_block - 1)];
}

inline constexpr u32 no_level = ~u32{0};

// The level of the inode's slots over page (level, index); no_level: the index lies beyond them.
GPU4FS_FN inline u32 top_level_over(const InodeRef& file, PagePosition page) {
  const PageTree tree = tree_of(file, page.level);
  const u32 top = tree.top_level();
  if (page.level > top || *tree.height > tree.height_max) return no_level;
  return page.index >> (format::slot_shift * (top - page.level)) < tree.slot_count ? top : no_level;
}

struct LoadTicket {
  Status status;
  u32 frame;
  u64 address;
};

// Determines how page (level, index), whose parent is resident, is loaded: already resident, absent, damaged, or a
// fresh frame in state loading that the caller fills.
GPU4FS_FN GPU4FS_NOINLINE inline LoadTicket begin_load(FileSystem& fs, Operation& op, const InodeRef& file,
                                                       PagePosition page) {
  const PageKey key = PageKey::make(file.number, page.level, page.index);
  const format::BlockPointer* slot = slot_of_page(fs, file, page);
  GPU4FS_CHECK(slot != nullptr);
  const format::BlockPointer pointer = load_slot(slot);
  if (!pointer.is_well_formed()) return {Status::corrupt_structure, no_frame, 0};
  if (pointer.is_hole()) return {Status::page_absent, no_frame, 0};
  const bool is_map_page = is_map_level(page.level);
  // Metadata has no larger blocks, and a caller that adds a page here would find the slot in use.
  if (is_map_page && !pointer.is_indirect()) return {Status::corrupt_structure, no_frame, 0};
  if (!is_map_page &&
      (pointer.is_indirect() || pointer.is_unwritten() || pointer.size() != format::BlockSize::page_4k)) {
    return {Status::corrupt_structure, no_frame, 0};
  }
  // The page was created after the caller's test: its slot has no meaning before the next checkpoint.
  if (pointer.address() == 0 && find_frame(fs.pages, key) != no_frame) return {Status::again, no_frame, 0};
  const Status accessible = check_accessible(fs, op, pointer.address());
  if (accessible != Status::ok) return {accessible, no_frame, 0};
  const u32 frame = take_frame(fs.pages, false);
  if (frame == no_frame) return {Status::retry_after_checkpoint, no_frame, 0};
  const u32 winner = insert_frame(fs.pages, frame, key, pointer.address(), frame_loading);
  if (winner != frame) {
    return_frame(fs.pages, frame);
    return {Status::again, winner, 0};
  }
  return {Status::busy, frame, pointer.address()};  // busy: the caller has to fill it
}

// Loads page (level, index) of `file`, whose parent is resident.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status load_page(Group g, FileSystem& fs, Operation& op, const InodeRef& file,
                                           PagePosition page, u32* frame) {
  const LoadTicket ticket = on_leader(g, [&] { return begin_load(fs, op, file, page); });
  if (ticket.status != Status::busy) return ticket.status;
  const Status status = raid::read_page(g, fs.space, ticket.address, page_data(fs, ticket.frame));
  on_leader(g, [&] {
    Frame& f = fs.pages.frames[ticket.frame];
    if (status == Status::ok) {
      store<Order::release, Scope::engine>(&f.state, u32{frame_valid});
    } else {
      unlink_frame(fs.pages, ticket.frame);
      send_to_limbo(fs.pages, ticket.frame);
      note_metadata_error(fs, file.number, ticket.address);
    }
  });
  *frame = ticket.frame;
  return status;
}

GPU4FS_FN inline FoundFrame look_up(FileSystem& fs, PageKey key) {
  const FoundFrame found = search_frame(fs.pages, key);
  if (found.frame == no_frame) return found;
  note_use(fs.pages, found.frame);
  return found;
}

}  // namespace detail

// Makes page (level, index) of `file` resident for the rest of this step and returns its frame. Status: page_absent (a
// hole), corrupt_structure (also for a block of another size), checksum_mismatch, and the control codes again,
// retry_after_checkpoint, chunk_not_mapped. Requires the file's lock (shared suffices), except for inodes 0, 2 and 3.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status get_page(Group g, FileSystem& fs, Operation& op, const InodeRef& file,
                                          PagePosition page, u32* frame) {
  *frame = no_frame;
  // No file reaches that far; in a key the index would overwrite the level.
  if (page.index >= page_index_end) return Status::page_absent;
  const detail::FoundFrame hit =
      on_leader(g, [&] { return detail::look_up(fs, PageKey::make(file.number, page.level, page.index)); });
  if (hit.state == frame_valid) {
    *frame = hit.frame;
    return Status::ok;
  }
  if (hit.state == frame_loading) return Status::again;
  // Uniform: the file's lock is held, so every rank reads the same inode.
  const u32 top = on_leader(g, [&] { return detail::top_level_over(file, page); });
  if (top == detail::no_level) return Status::page_absent;
  for (u32 l = top;; --l) {
    const u64 index_here = page.index >> (format::slot_shift * (l - page.level));
    const detail::FoundFrame here =
        on_leader(g, [&] { return detail::look_up(fs, PageKey::make(file.number, l, index_here)); });
    if (here.state == frame_loading) return Status::again;
    if (here.state == frame_valid) {
      *frame = here.frame;
    } else {
      GPU4FS_TRY(detail::load_page(g, fs, op, file, {l, index_here}, frame));
    }
    if (l == page.level) return Status::ok;
  }
}

// The inode `number`, its page resident for the rest of this step; its mode may be 0 (free). Status: not_found for
// numbers beyond the inode file; otherwise as get_page.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status get_inode(Group g, FileSystem& fs, Operation& op, u64 number, InodeRef* out) {
  const InodeRef file = detail::inode_file_ref(fs);
  if (number == format::inode_number_inode_file) {
    *out = file;
    return Status::ok;
  }
  u32 frame = no_frame;
  const Status status = get_page(g, fs, op, file, {0, number / format::inodes_per_page}, &frame);
  if (status == Status::page_absent) return Status::not_found;
  GPU4FS_TRY(status);
  const u32 position = static_cast<u32>(number % format::inodes_per_page);
  auto* inodes = reinterpret_cast<format::Inode*>(page_data(fs, frame));
  *out = {number, &inodes[position], frame, 0, &fs.pages.inode_locks[u64{frame} * format::inodes_per_page + position]};
  return Status::ok;
}

// The resident frame of a page, or no_frame. Leader or Lane only.
GPU4FS_FN inline u32 resident_frame(FileSystem& fs, u64 inode, u32 level, u64 index) {
  return detail::find_frame(fs.pages, PageKey::make(inode, level, index));
}

}  // namespace gpu4fs::fs
