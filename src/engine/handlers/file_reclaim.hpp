// reclaim and reclaim_orphans: free inodes that have no name.
//
// An orphan's content, and its attributes if they have map pages, are removed in commits of bounded size. The last
// commit also removes a single page of attributes, clears the inode's bit in the orphan bitmap and frees the inode. A
// crash or a deadline in between leaves a smaller orphan. Each commit is a step of its own, and the inode stays locked
// from the first to the last one.
#pragma once

#include "engine/handlers/file_truncate.hpp"

namespace gpu4fs::engine {
namespace detail {

inline constexpr u32 metadata_pages_per_round = 64;
inline constexpr u32 orphans_per_step = 16;

struct ReclaimState {
  u64 next;  // reclaim_orphans: first number not tested yet
  u64 freed;
  u32 page_count;
  u32 reserved;
  u64 pages[metadata_pages_per_round];  // level 0 pages of a directory that the next commit removes
};

// Loads the last pages of a directory or a long symbolic link, and stores their indices in the scratch memory.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status find_metadata_pages(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                                     u32* changed) {
  ReclaimState& state = scratch_of<ReclaimState>(c);
  fs::FileSystem& fs = engine.fs;
  const u32 height = ref.inode->height;
  if (height > fs::map_height_max) return Status::corrupt_structure;
  u64 page = fs::map_capacity(height);
  u64 previous = ~u64{0};
  u32 count = 0;
  *changed = 0;
  while (page > 0 && count < metadata_pages_per_round) {
    fs::detail::MapPlace place{};
    GPU4FS_TRY(fs::detail::map_descend(g, fs, c.operation, ref, {page - 1, 0}, &place));
    *changed += fs::detail::fresh_path(page - 1, previous, place.level, height);
    previous = page - 1;
    if (place.pointer.is_hole()) {
      page = place.level == 0 ? page - 1 : fs::detail::chunk_begin(place, page - 1);
      continue;
    }
    if (place.level != 0) return Status::corrupt_structure;
    --page;
    u32 frame = fs::no_frame;
    GPU4FS_TRY(fs::get_page(g, fs, c.operation, ref, {0, page}, &frame));
    GPU4FS_CHECK_LT(count, metadata_pages_per_round);
    on_leader(g, [&] { state.pages[count] = page; });
    ++count;
  }
  *changed += count;
  on_leader(g, [&] { state.page_count = count; });
  return Status::ok;
}

// Removes the pages of a directory or a long symbolic link. ok: none are left. again: a part of them was removed, and
// another call removes more.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status remove_metadata_pages(Group g, Engine& engine, CommandState& c,
                                                       const fs::InodeRef& ref) {
  GPU4FS_CHECK_EQ(c.in_gate, 0u);
  fs::FileSystem& fs = engine.fs;
  const ReclaimState& state = scratch_of<ReclaimState>(c);
  u32 changed = 0;
  GPU4FS_TRY(find_metadata_pages(g, engine, c, ref, &changed));
  const u32 count = state.page_count;
  if (count == 0) return Status::ok;
  GPU4FS_TRY(fs::reserve_metadata(g, fs, c.operation, {1, changed, 0}));
  GPU4FS_TRY(enter_gate(g, engine, c));
  for (u32 i = 0; i < count; ++i) {
    const u64 page = state.pages[i];
    fs::remove_page(g, fs, c.operation, ref, {0, page});
    fs::detail::prune(g, fs, c.operation, ref, {page, 1}, fs::map_height_max);
  }
  fs::mark_inode_dirty(g, fs, c.operation, ref);
  leave_gate(g, engine, c);
  // Fewer pages than a round can hold: no other pages are left.
  return count < metadata_pages_per_round ? Status::ok : end_round(g, engine, c);
}

// Finds the first map page of attributes above their pages, all of which can be removed. Status: page_absent if there
// is none, corrupt_structure.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status find_attribute_block(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                                      u64* block) {
  GPU4FS_CHECK_GT(u32{ref.inode->attribute_height}, 0u);
  fs::FileSystem& fs = engine.fs;
  u32 frame = fs::no_frame;
  *block = 0;
  if (ref.inode->attribute_height == format::attribute_height_max) {
    GPU4FS_TRY(fs::get_page(g, fs, c.operation, ref, {fs::attribute_level + 2, 0}, &frame));
    *block =
        on_leader(g, [&] { return fs::detail::next_valid_slot(fs::map_slots(fs, frame), 0, format::slots_per_block); });
  }
  GPU4FS_TRY(fs::get_page(g, fs, c.operation, ref, {fs::attribute_level + 1, *block}, &frame));
  const bool sound = on_leader(g, [&] {
    const format::BlockPointer* slots = fs::map_slots(fs, frame);
    for (u32 i = 0; i < format::slots_per_block; ++i) {
      const format::BlockPointer pointer = fs::load_slot(&slots[i]);
      if (pointer.raw != 0 && !fs::is_page_pointer(pointer)) return false;
    }
    return true;
  });
  return sound ? Status::ok : Status::corrupt_structure;
}

// Removes attributes that have map pages. Each commit removes a map page and the pages below it. ok: none are left.
// again: a part of them was removed.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status remove_attribute_blocks(Group g, Engine& engine, CommandState& c,
                                                         const fs::InodeRef& ref) {
  if (ref.inode->attribute_height == 0) return Status::ok;
  fs::FileSystem& fs = engine.fs;
  u64 block = 0;
  const Status status = find_attribute_block(g, engine, c, ref, &block);
  if (status == Status::page_absent) return Status::corrupt_structure;
  GPU4FS_TRY(status);
  GPU4FS_TRY(fs::reserve_metadata(g, fs, c.operation, {1, 2, 0}));
  GPU4FS_TRY(enter_gate(g, engine, c));
  const u64 first = block * format::slots_per_block;
  fs::drop_pages(g, fs, c.operation, ref, {fs::attribute_level, first}, format::slots_per_block);
  fs::detail::prune_attributes(g, fs, c.operation, ref, first);
  fs::mark_inode_dirty(g, fs, c.operation, ref);
  leave_gate(g, engine, c);
  return end_round(g, engine, c);
}

// Prepares the changes of the last commit outside the map.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status prepare_release(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref) {
  fs::FileSystem& fs = engine.fs;
  if (ref.inode->attributes.is_valid()) {
    u32 frame = fs::no_frame;
    GPU4FS_TRY(fs::get_page(g, fs, c.operation, ref, {fs::attribute_level, 0}, &frame));
  }
  GPU4FS_TRY(fs::prepare_orphan(g, fs, c.operation, ref.number));
  return fs::prepare_free_inode(g, fs, c.operation, ref.number);
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void commit_release(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref) {
  fs::FileSystem& fs = engine.fs;
  on_leader(g, [&] {
    GPU4FS_CHECK_EQ(c.in_gate, 1u);
    GPU4FS_CHECK_EQ(ref.inode->link_count, 0u);
    const bool has_attributes = ref.inode->attributes.is_valid();
    if (ref.inode->page_count == (has_attributes ? 1u : 0u)) return;
    store<Order::relaxed, Scope::engine>(&fs.had_error, 1u);
    ref.inode->page_count = has_attributes ? 1 : 0;
  });
  if (ref.inode->attributes.is_valid()) {
    g.sync();
    fs::remove_page(g, fs, c.operation, ref, {fs::attribute_level, 0});
  }
  fs::clear_orphan(g, fs, c.operation, ref.number);
  fs::commit_free_inode(g, fs, c.operation, ref);
}

// Frees an orphan that is exclusively locked. ok: done, inside the gate. again: a part was freed.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status reclaim_inode(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref) {
  GPU4FS_CHECK(holds_lock(c, ref.number, LockMode::exclusive));
  GPU4FS_CHECK_EQ(c.in_gate, 0u);
  fs::FileSystem& fs = engine.fs;
  on_leader(g, [&] { c.operation.emergency_use = space::EmergencyUse::all; });
  const u32 type = ref.inode->mode & fs::mode_type_mask;
  if ((type == fs::mode_directory || type == fs::mode_symlink) && !ref.inode->is_inline()) {
    GPU4FS_TRY(remove_metadata_pages(g, engine, c, ref));
  }
  GPU4FS_TRY(remove_attribute_blocks(g, engine, c, ref));
  fs::MapRemoval removal{{0, fs::map_page_max}, map_pages_per_round(engine), {}};
  GPU4FS_TRY(fs::map_prepare_remove(g, fs, c.operation, ref, &removal));
  const u64 from = removal.range.first;
  if (from == 0) GPU4FS_TRY(prepare_release(g, engine, c, ref));
  GPU4FS_TRY(fs::reserve_metadata(g, fs, c.operation, {3, removal.cost.changed + 1, removal.cost.fresh}));
  GPU4FS_TRY(reserve_record(g, engine, c));
  GPU4FS_TRY(enter_gate(g, engine, c));
  if (!ref.inode->is_inline()) fs::map_remove(g, fs, c.operation, ref, removal.range);
  if (from == 0) {
    commit_release(g, engine, c, ref);
    append_record(g, engine, c, file_record_of(c, format::LogOpcode::reclaim, ref.number));
    return Status::ok;
  }
  on_leader(g, [&] { ref.inode->size_bytes = minimum(ref.inode->size_bytes, from * page_size); });
  fs::mark_inode_dirty(g, fs, c.operation, ref);
  leave_gate(g, engine, c);
  return end_round(g, engine, c);
}

// *orphan: the inode, which is then exclusively locked, is to be freed.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status lock_orphan(Group g, Engine& engine, CommandState& c, u64 number, fs::InodeRef* ref,
                                             bool* orphan) {
  *orphan = false;
  const Status status = lock_any(g, engine, c, number, LockMode::exclusive, ref);
  if (status == Status::stale) return Status::ok;
  GPU4FS_TRY(status);
  GPU4FS_TRY(fs::is_orphan(g, engine.fs, c.operation, number, orphan));
  *orphan = *orphan && ref->inode->link_count == 0;
  return Status::ok;
}

}  // namespace detail

// Frees the inode if it is an orphan, else does nothing. The sender guarantees that nobody has it open. Result: 1 if it
// was an orphan.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step step_reclaim(Group g, Engine& engine, CommandState& c) {
  if (engine.fs.read_only != 0) return Step::complete(0);
  fs::InodeRef ref{};
  bool orphan = false;
  GPU4FS_STEP_TRY(detail::lock_orphan(g, engine, c, c.command.inode, &ref, &orphan));
  if (!orphan) return Step::complete(0);
  GPU4FS_STEP_TRY(detail::reclaim_inode(g, engine, c, ref));
  return Step::complete(1);
}

// Internal, at mount: frees all orphans. Those that cannot be read are left to fsck. Result: the number of freed
// orphans.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step step_reclaim_orphans(Group g, Engine& engine, CommandState& c) {
  fs::FileSystem& fs = engine.fs;
  detail::ReclaimState& state = detail::scratch_of<detail::ReclaimState>(c);
  if (fs.read_only != 0) return Step::complete(0);
  for (u32 i = 0; i < detail::orphans_per_step; ++i) {
    u64 number = 0;
    const u64 next = on_leader(g, [&] { return state.next; });
    GPU4FS_STEP_TRY(fs::next_orphan(g, fs, c.operation, next, &number));
    if (number == 0) return Step::complete(state.freed);
    fs::InodeRef ref{};
    bool orphan = false;
    Status status = detail::lock_orphan(g, engine, c, number, &ref, &orphan);
    if (status == Status::ok && orphan) {
      status = detail::reclaim_inode(g, engine, c, ref);
      if (status == Status::ok) leave_gate(g, engine, c);
    }
    if (is_control(status) || status == Status::deadline_exceeded) return Step::end(status);
    on_leader(g, [&] {
      if (status != Status::ok || !orphan) store<Order::relaxed, Scope::engine>(&fs.had_error, 1u);
      if (status == Status::ok && orphan) ++state.freed;
      state.next = number + 1;
      // If there is no such inode, no lock was taken.
      if (c.lock_count != 0) release_all_locks(engine, c);
    });
  }
  return Step::end(detail::end_round(g, engine, c));
}

}  // namespace gpu4fs::engine
