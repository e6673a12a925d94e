// Gives back pages of the inode file whose sixteen inodes are all free.
//
// This is a part of a checkpoint, before dirty pages get new places: the commit gate is closed and no step runs, so no
// command has found the page, and idle locks stay idle. A number of the page may be claimed by a command: the page is
// created again when it is needed.
//
// An inode of the page was freed in this epoch, so the page and everything above it are dirty. So its removal needs no
// page and works in a full pool. Only a page that had to stay earlier because of a lock may be clean; then it needs
// reservations for itself and the pages above it.
#pragma once

#include "fs/inode/inode.hpp"
#include "fs/pages/evict.hpp"

namespace gpu4fs::fs {

inline constexpr u32 emptied_per_task = 64;

GPU4FS_FN inline u32 emptied_count(const FileSystem& fs) {
  return load<Order::relaxed, Scope::engine>(&fs.pages.emptied_count);
}

namespace detail {

enum class EmptiedVerdict : u32 { forget, keep, give_back };

// Leader: the page will be tested again.
GPU4FS_FN inline EmptiedVerdict keep_emptied(Frame& f) {
  fetch_or<Order::relaxed, Scope::engine>(&f.referenced, u32{frame_emptied});
  return EmptiedVerdict::keep;
}

// Leader. A frame may be in the list twice if it was used for another page meanwhile; the caller that clears its mark
// handles it.
GPU4FS_FN GPU4FS_NOINLINE inline EmptiedVerdict judge_emptied(FileSystem& fs, Operation& op, u32 frame) {
  Frame& f = fs.pages.frames[frame];
  const bool is_listed =
      (fetch_and<Order::acq_rel, Scope::engine>(&f.referenced, ~u32{frame_emptied}) & frame_emptied) != 0;
  const bool is_inode_page = f.key.inode == format::inode_number_inode_file && f.key.level() == 0;
  if (load<Order::relaxed, Scope::engine>(&f.state) != frame_valid || !is_listed || !is_inode_page) {
    return EmptiedVerdict::forget;
  }
  const auto* inodes = reinterpret_cast<const format::Inode*>(page_data(fs, frame));
  for (u32 i = 0; i < format::inodes_per_page; ++i) {
    if (peek_mode(inodes[i]) != 0) return EmptiedVerdict::forget;
  }
  if (!locks_are_idle(fs, frame)) return keep_emptied(f);
  const bool is_dirty = load<Order::relaxed, Scope::engine>(&f.dirty) != 0;
  if (is_dirty || top_up_dirty(fs, op, format::inode_file_height) == Status::ok) return EmptiedVerdict::give_back;
  return keep_emptied(f);
}

// Leader: no number of the page gets one of its earlier generations again.
GPU4FS_FN GPU4FS_NOINLINE inline void keep_generations(FileSystem& fs, u32 frame) {
  const auto* inodes = reinterpret_cast<const format::Inode*>(page_data(fs, frame));
  u32 known = load<Order::relaxed, Scope::engine>(&fs.inode_file.generation);
  for (u32 i = 0; i < format::inodes_per_page; ++i) {
    const u32 found = inodes[i].generation;
    while (format::generation_is_later(found, known) &&
           !compare_exchange<Order::relaxed, Scope::engine>(&fs.inode_file.generation, known, found)) {
    }
  }
}

}  // namespace detail

// Task: entries [first, first + count) of PageTable::emptied_list. Removed frames, and pages that have to be tested
// again, stay in the list. `shard` is that of the operation.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void give_back_inode_pages(Group g, FileSystem& fs, u32 shard, u32 first, u32 count) {
  Operation op{};
  op.shard = shard % fs.shard_count;
  op.emergency_use = space::EmergencyUse::all;
  for (u32 i = first; i < first + count; ++i) {
    const u32 frame = fs.pages.emptied_list[i];
    const detail::EmptiedVerdict verdict = on_leader(g, [&] { return detail::judge_emptied(fs, op, frame); });
    if (verdict == detail::EmptiedVerdict::keep) continue;
    if (verdict == detail::EmptiedVerdict::forget) {
      on_leader(g, [&] { fs.pages.emptied_list[i] = no_frame; });
      continue;
    }
    on_leader(g, [&] {
      detail::keep_generations(fs, frame);
      add<Scope::engine>(&fs.inode_pages_given_back, u64{1});
    });
    remove_page(g, fs, op, detail::inode_file_ref(fs), {0, fs.pages.frames[frame].key.index()});
  }
  on_leader(g, [&] { release_reservations(fs, op); });
}

// After all tasks: map pages of the inode file that have become empty are removed too, and the list keeps the remaining
// work.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void end_giving_back(Group g, FileSystem& fs) {
  Operation op{};
  PageTable& table = fs.pages;
  const InodeRef inode_file = detail::inode_file_ref(fs);
  const u32 count = on_leader(g, [&] { return table.emptied_count; });
  u32 kept = 0;
  u64 looked_at = ~u64{0};
  for (u32 i = 0; i < count; ++i) {
    const u32 frame = table.emptied_list[i];
    if (frame == no_frame) continue;
    const Frame& f = table.frames[frame];
    const bool is_gone = on_leader(g, [&] { return load<Order::relaxed, Scope::engine>(&f.state) == frame_free; });
    if (!is_gone) {
      on_leader(g, [&] { table.emptied_list[kept] = frame; });
      ++kept;
      continue;
    }
    // The key of a removed frame stays until no step runs.
    const u64 index = f.key.index();
    if (index >> format::slot_shift == looked_at) continue;
    looked_at = index >> format::slot_shift;
    remove_empty_map_pages(g, fs, op, inode_file, 1, index);
  }
  on_leader(g, [&] { store<Order::relaxed, Scope::engine>(&table.emptied_count, kept); });
}

}  // namespace gpu4fs::fs
