// Common functions of the handlers of names: the names of a command and its inodes, access checks, times.
//
// A handler locks inodes before it relies on their content. A front end that has already checked permissions (FUSE with
// default_permissions) owns a trusted session. For all others the engine checks them, with the session's own
// credentials.
#pragma once

#include "base/mutant.hpp"
#include "engine/command_names.hpp"
#include "engine/handlers/access_check.hpp"
#include "engine/handlers/access_time.hpp"
#include "engine/log_records.hpp"
#include "engine/open_flags.hpp"
#include "fs/inode/inode.hpp"
#include "fs/inode/inode_rules.hpp"
#include "fs/names/directory_shrink.hpp"
#include "fs/names/stored_access_lists.hpp"

namespace gpu4fs::engine {

inline constexpr u32 link_count_max = 65000;  // of everything except directories, as in ext4

// The names of a command, in its own memory.
GPU4FS_FN inline NameBytes first_name(const CommandState& c) {
  GPU4FS_CHECK_LE(u32{c.command.name_length}, u32{command_name_capacity});
  return {c.names, c.command.name_length, 0};
}
GPU4FS_FN inline NameBytes second_name(const CommandState& c) {
  GPU4FS_CHECK_LE(u32{c.command.name_length} + c.command.second_name_length, u32{command_name_capacity});
  return {c.names + c.command.name_length, c.command.second_name_length, 0};
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE fs::HashedName hash_name(Group g, const Engine& engine, NameBytes name) {
  const fs::HashedName hashed = on_leader(g, [&] { return fs::make_name(engine.fs, name.bytes, name.length); });
  GPU4FS_TRACE_POINT(name);
  return hashed;
}

GPU4FS_FN inline Status check_writable(const Engine& engine) {
  return GPU4FS_MUTANT(read_only_ignored, engine.fs.read_only != 0, false) ? Status::read_only : Status::ok;
}

// Loads the inode and locks it. Status: stale if there is no such inode, corrupt_structure, and those of lock_inode and
// get_inode.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status lock_live_inode(Group g, Engine& engine, CommandState& c, u64 number, LockMode mode,
                                                 fs::InodeRef* ref) {
  if (!is_file_number(number)) return Status::stale;
  const Status status = fs::get_inode(g, engine.fs, c.operation, number, ref);
  GPU4FS_TRACE_POINT(inode);
  if (status == Status::not_found) return Status::stale;
  GPU4FS_TRY(status);
  GPU4FS_TRY(lock_inode(g, engine, c, *ref, mode));
  GPU4FS_TRACE_POINT(lock);
  GPU4FS_CHECK_EQ(ref->number, number);
  if (ref->inode->mode == 0) return Status::stale;
  return GPU4FS_MUTANT(inode_unchecked, fs::inode_is_sound(*ref->inode), true) ? Status::ok : Status::corrupt_structure;
}

// Locks the inode that a name in a locked directory leads to. If the inode does not exist, the pool is damaged.
template <class Group>
GPU4FS_FN Status lock_named_inode(Group g, Engine& engine, CommandState& c, u64 number, LockMode mode,
                                  fs::InodeRef* ref) {
  const Status status = lock_live_inode(g, engine, c, number, mode, ref);
  return status == Status::stale ? Status::corrupt_structure : status;
}

GPU4FS_FN inline Status check_sticky(const Engine& engine, const CommandState& c, const fs::InodeRef& dir,
                                     const fs::InodeRef& child) {
  GPU4FS_CHECK(fs::is_directory(dir.inode->mode));
  if (session_is_trusted(engine, c)) return Status::ok;
  return fs::sticky_allows(*dir.inode, *child.inode, credentials_of(engine, c).uid) ? Status::ok : Status::permission;
}

// Locks a directory for a search. Status: not_directory; access without the right to search it.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status lock_directory(Group g, Engine& engine, CommandState& c, u64 number, LockMode mode,
                                                fs::InodeRef* dir) {
  GPU4FS_TRY(lock_live_inode(g, engine, c, number, mode, dir));
  if (!fs::is_directory(dir->inode->mode)) return Status::not_directory;
  return require_access(g, engine, c, *dir, fs::may_execute);
}

// Locks a directory for a change of its names. not_found: it was removed and is only held open.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status lock_directory_for_change(Group g, Engine& engine, CommandState& c, u64 number,
                                                           fs::InodeRef* dir) {
  GPU4FS_TRY(lock_directory(g, engine, c, number, LockMode::exclusive, dir));
  if (dir->inode->link_count == 0) return Status::not_found;
  GPU4FS_TRY(require_access(g, engine, c, *dir, fs::may_write));
  return check_writable(engine);
}

// Leader, in the gate. The caller marks the inode dirty.
GPU4FS_FN inline void set_change_time(fs::InodeRef ref, u64 now) {
  GPU4FS_CHECK(ref.inode != nullptr);
  store<Order::relaxed, Scope::engine>(&ref.inode->change_time, now);
}
GPU4FS_FN inline void set_modification_times(fs::InodeRef ref, u64 now) {
  store<Order::relaxed, Scope::engine>(&ref.inode->modification_time, now);
  set_change_time(ref, now);
}

}  // namespace gpu4fs::engine
