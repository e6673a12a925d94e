// Handlers that add and remove names of existing inodes: link, unlink, rmdir.
//
// An inode that loses its last name becomes an orphan. It keeps its content, has link count 0 and a bit in the orphan
// bitmap, and the command returns its number. `reclaim` frees it when nobody has it open.
#pragma once

#include "base/mutant.hpp"
#include "engine/handlers/namespace_common.hpp"

namespace gpu4fs::engine {

namespace detail {

// Leader, gate: removes one name from the link count, at time `now`.
GPU4FS_FN inline void drop_link(fs::InodeRef ref, u64 now) {
  GPU4FS_CHECK_GT(ref.inode->link_count, 0u);
  ref.inode->link_count -= 1;
  set_change_time(ref, now);
}

// Leader, gate: a subdirectory was removed or moved. A damaged count does not go below zero.
GPU4FS_FN inline void drop_subdirectory(fs::InodeRef dir) {
  GPU4FS_CHECK(fs::is_directory(dir.inode->mode));
  if (dir.inode->link_count > 1) dir.inode->link_count -= 1;
}

// Reserves the changes of a command that removes a name, with `others` in addition to the pages of the removal. If the
// directory cannot shrink because pages are lacking, the name is removed without shrinking it.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status reserve_removal(Group g, Engine& engine, CommandState& c, fs::MetadataChange others,
                                                 fs::RemovePlan* plan) {
  GPU4FS_CHECK_EQ(c.in_gate, 0u);
  GPU4FS_CHECK_GT(others.inode_count, 0u);
  fs::FileSystem& fs = engine.fs;
  fs::MetadataChange all = others;
  all.page_count += fs::touched_pages(*plan);
  const Status status = fs::reserve_metadata(g, fs, c.operation, all);
  if ((status != Status::no_space && status != Status::no_memory) || plan->merges == 0) return status;
  plan->merges = 0;
  all.page_count = others.page_count + fs::touched_pages(*plan);
  return fs::reserve_metadata(g, fs, c.operation, all);
}

// Finds a name to remove and its inode, and locks both.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status prepare_removal(Group g, Engine& engine, CommandState& c, fs::InodeRef* dir,
                                                 fs::RemovePlan* plan, fs::InodeRef* child) {
  GPU4FS_TRY(lock_directory_for_change(g, engine, c, c.command.inode, dir));
  GPU4FS_TRY(fs::directory_prepare_remove(g, engine.fs, c.operation, *dir, hash_name(g, engine, first_name(c)), plan));
  if (plan->name.inode == dir->number) return Status::corrupt_structure;
  GPU4FS_TRY(lock_named_inode(g, engine, c, plan->name.inode, LockMode::exclusive, child));
  if (child->inode->link_count == 0) return Status::corrupt_structure;
  GPU4FS_TRY(check_removable(c, *dir, *child));
  return check_sticky(engine, c, *dir, *child);
}

}  // namespace detail

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step step_unlink(Group g, Engine& engine, CommandState& c) {
  GPU4FS_STEP_TRY(check_name(g, first_name(c)));
  if (is_dots(first_name(c))) return Step::end(Status::is_directory);
  fs::FileSystem& fs = engine.fs;
  fs::Operation& op = c.operation;
  on_leader(g, [&] { op.emergency_use = space::EmergencyUse::all; });
  fs::InodeRef dir{};
  fs::InodeRef child{};
  fs::RemovePlan plan{};
  GPU4FS_STEP_TRY(detail::prepare_removal(g, engine, c, &dir, &plan, &child));
  if (fs::is_directory(child.inode->mode)) return Step::end(Status::is_directory);
  const bool is_last = child.inode->link_count == 1;
  if (is_last) GPU4FS_STEP_TRY(fs::prepare_orphan(g, fs, op, child.number));
  GPU4FS_STEP_TRY(detail::reserve_removal(g, engine, c, {3, 0, 0}, &plan));
  GPU4FS_STEP_TRY(reserve_record(g, engine, c));
  GPU4FS_STEP_TRY(enter_gate(g, engine, c));
  fs::directory_commit_remove(g, fs, op, dir, plan, c.buffer);
  on_leader(g, [&] {
    set_modification_times(dir, op.now);
    detail::drop_link(child, op.now);
  });
  fs::mark_inode_dirty(g, fs, op, child);
  if (GPU4FS_MUTANT(orphan_bit_missing, is_last, false)) fs::set_orphan(g, fs, op, child.number);
  append_record(g, engine, c, record_of(c, format::LogOpcode::unlink));
  return Step::complete(is_last ? child.number : 0);
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step step_rmdir(Group g, Engine& engine, CommandState& c) {
  GPU4FS_STEP_TRY(check_name(g, first_name(c)));
  if (is_dot(first_name(c))) return Step::end(Status::invalid_argument);
  if (is_dot_dot(first_name(c))) return Step::end(Status::directory_not_empty);
  fs::FileSystem& fs = engine.fs;
  fs::Operation& op = c.operation;
  on_leader(g, [&] { op.emergency_use = space::EmergencyUse::all; });
  fs::InodeRef dir{};
  fs::InodeRef child{};
  fs::RemovePlan plan{};
  GPU4FS_STEP_TRY(detail::prepare_removal(g, engine, c, &dir, &plan, &child));
  if (!fs::is_directory(child.inode->mode)) return Step::end(Status::not_directory);
  if (GPU4FS_MUTANT(full_directory_removed, child.inode->entry_count != 0, false)) {
    return Step::end(Status::directory_not_empty);
  }
  GPU4FS_STEP_TRY(fs::prepare_orphan(g, fs, op, child.number));
  GPU4FS_STEP_TRY(detail::reserve_removal(g, engine, c, {3, 0, 0}, &plan));
  GPU4FS_STEP_TRY(reserve_record(g, engine, c));
  GPU4FS_STEP_TRY(enter_gate(g, engine, c));
  fs::directory_commit_remove(g, fs, op, dir, plan, c.buffer);
  on_leader(g, [&] {
    set_modification_times(dir, op.now);
    detail::drop_subdirectory(dir);
    child.inode->link_count = 0;
    set_change_time(child, op.now);
  });
  fs::mark_inode_dirty(g, fs, op, child);
  fs::set_orphan(g, fs, op, child.number);
  append_record(g, engine, c, record_of(c, format::LogOpcode::rmdir));
  return Step::complete(child.number);
}

// Creates a new name for second_inode. An inode without a name (tmpfile) gets its first one. The program that holds a
// file open decides whether a file that lost its last name may get a new one. Link count and orphan bit change
// together, in one commit under the inode's exclusive lock. This holds here, in unlink and rename, for the creation of
// a temporary file, and when an inode is freed.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step step_link(Group g, Engine& engine, CommandState& c) {
  GPU4FS_STEP_TRY(check_name(g, first_name(c)));
  if (is_dots(first_name(c))) return Step::end(Status::exists);
  fs::FileSystem& fs = engine.fs;
  fs::Operation& op = c.operation;
  fs::InodeRef dir{};
  GPU4FS_STEP_TRY(lock_directory_for_change(g, engine, c, c.command.inode, &dir));
  const fs::HashedName name = hash_name(g, engine, first_name(c));
  fs::InsertPlan plan{};
  GPU4FS_STEP_TRY(fs::directory_prepare_insert(g, fs, op, dir, name, &plan));
  // Directories have one name, and a lock of one here could violate the lock order. The type of an inode in use does
  // not change. So it may be read before the lock, and is checked again after it.
  const u64 number = c.command.second_inode;
  if (!is_file_number(number)) return Step::end(Status::stale);
  fs::InodeRef file{};
  const Status status = fs::get_inode(g, fs, op, number, &file);
  if (status == Status::not_found) return Step::end(Status::stale);
  GPU4FS_STEP_TRY(status);
  const u32 mode_before = on_leader(g, [&] { return fs::peek_mode(*file.inode); });
  if (fs::is_directory(mode_before)) return Step::end(Status::permission);
  GPU4FS_STEP_TRY(lock_live_inode(g, engine, c, number, LockMode::exclusive, &file));
  if (fs::is_directory(file.inode->mode)) return Step::end(Status::permission);
  GPU4FS_STEP_TRY(check_changeable(c, file));
  if (file.inode->link_count >= link_count_max) return Step::end(Status::too_many_links);
  bool was_orphan = file.inode->link_count == 0;
  if (was_orphan) GPU4FS_STEP_TRY(fs::is_orphan(g, fs, op, number, &was_orphan));
  GPU4FS_STEP_TRY(fs::reserve_metadata(g, fs, op, {3, plan.touched_pages, plan.new_pages}));
  GPU4FS_STEP_TRY(reserve_record(g, engine, c));
  GPU4FS_STEP_TRY(enter_gate(g, engine, c));
  fs::directory_commit_insert(g, fs, op, dir, {plan, name, {number, fs::entry_type(file.inode->mode)}}, c.buffer);
  on_leader(g, [&] {
    set_modification_times(dir, op.now);
    file.inode->link_count += 1;
    set_change_time(file, op.now);
  });
  fs::mark_inode_dirty(g, fs, op, file);
  if (GPU4FS_MUTANT(orphan_bit_kept, was_orphan, false)) fs::clear_orphan(g, fs, op, number);
  format::LogRecord record = record_of(c, format::LogOpcode::link);
  record.second_inode = number;
  append_record(g, engine, c, record);
  put_attributes(g, engine, c, file);
  return Step::complete(number);
}

}  // namespace gpu4fs::engine
