// Eviction of clean metadata pages.
//
// Runs only while no other step runs and no checkpoint is being made, because a page whose copy is still being written
// must not be read back. A page is evicted if it is clean, has no resident child and no lock in use, and was not used
// since the clock hand last passed it.
#pragma once

#include "base/mutant.hpp"
#include "fs/journal/checkpoint.hpp"

namespace gpu4fs::fs {

namespace detail {

// The frame whose bytes hold the slot of frame `frame`; no_frame for the top pages of inode 0.
GPU4FS_FN inline u32 parent_frame(FileSystem& fs, u32 frame) {
  const PageKey key = fs.pages.frames[frame].key;
  const InodeRef file = resident_inode(fs, key.inode);
  if (key.level() < tree_of(file, key.level()).top_level()) {
    const u32 parent =
        find_frame(fs.pages, PageKey::make(key.inode, key.level() + 1, key.index() >> format::slot_shift));
    GPU4FS_CHECK_NE(parent, no_frame);
    return parent;
  }
  return file.frame;
}

GPU4FS_FN inline bool locks_are_idle(FileSystem& fs, u32 frame) {
  const PageKey key = fs.pages.frames[frame].key;
  if (key.inode != format::inode_number_inode_file || key.level() != 0) return true;
  for (u32 i = 0; i < format::inodes_per_page; ++i) {
    if (!fs.pages.inode_locks[u64{frame} * format::inodes_per_page + i].is_idle()) return false;
  }
  return true;
}

GPU4FS_FN inline void drain_limbo(PageTable& table) {
  u32 kept = 0;
  for (u32 i = 0; i < table.limbo_count; ++i) {
    const u32 frame = table.limbo_list[i];
    if (load<Order::relaxed, Scope::engine>(&table.frames[frame].dirty) != 0) {
      table.limbo_list[kept++] = frame;  // still in the dirty list
    } else {
      return_frame(table, frame);
    }
  }
  table.limbo_count = kept;
}

}  // namespace detail

// Frees frames until `free_target` are on the free list or nothing more can be evicted. The clock makes two rounds: the
// first clears the reference bits of the pages that it spares. Returns the number of free frames.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u32 evict_frames(Group g, FileSystem& fs, u32 free_target) {
  PageTable& table = fs.pages;
  on_leader(g, [&] { detail::drain_limbo(table); });
  // A page can be evicted only after its children, so each pass frees one level.
  for (u32 pass = 0; pass < 12; ++pass) {
    const bool enough = on_leader(g, [&] { return table.free_count >= free_target; });
    if (enough) break;
    for (u32 frame = g.rank(); frame < table.frame_count; frame += g.size()) {
      Frame& f = table.frames[frame];
      if (f.state == frame_valid && (f.referenced & frame_has_child) != 0) {
        store<Order::relaxed, Scope::engine>(&f.referenced, f.referenced & ~u32{frame_has_child});
      }
    }
    g.sync();
    for (u32 frame = g.rank(); frame < table.frame_count; frame += g.size()) {
      if (table.frames[frame].state != frame_valid) continue;
      const u32 parent = detail::parent_frame(fs, frame);
      if (parent == no_frame) continue;
      fetch_or<Order::relaxed, Scope::engine>(&table.frames[parent].referenced, frame_has_child);
    }
    g.sync();
    on_leader(g, [&] {
      for (u32 n = 0; n < table.frame_count && table.free_count < free_target; ++n) {
        const u32 frame = table.clock_hand;
        table.clock_hand = frame + 1 == table.frame_count ? 0 : frame + 1;
        Frame& f = table.frames[frame];
        const bool is_dirty = GPU4FS_MUTANT(dirty_pages_evicted, f.dirty != 0, false);
        if (f.state != frame_valid || is_dirty || (f.referenced & frame_has_child) != 0) continue;
        if ((f.referenced & frame_referenced) != 0) {
          store<Order::relaxed, Scope::engine>(&f.referenced, f.referenced & ~u32{frame_referenced});
          continue;
        }
        if (!detail::locks_are_idle(fs, frame)) continue;
        detail::unlink_frame(table, frame);
        detail::return_frame(table, frame);
      }
    });
  }
  return on_leader(g, [&] { return table.free_count; });
}

}  // namespace gpu4fs::fs
