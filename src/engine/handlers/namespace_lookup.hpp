// Handlers that read names and inodes: lookup, getattr, open, access, readlink.
#pragma once

#include "engine/handlers/namespace_common.hpp"

namespace gpu4fs::engine {

namespace detail {

// Looks up "..". The parent's lock comes before the directory's, so the directory is unlocked first. `stage` 1: the
// parent's number is in scratch memory.
template <class Group>
GPU4FS_FN Step look_up_parent(Group g, Engine& engine, CommandState& c) {
  u64* saved = reinterpret_cast<u64*>(c.scratch);
  if (c.stage == 0) {
    fs::InodeRef dir{};
    GPU4FS_STEP_TRY(lock_directory(g, engine, c, c.command.inode, LockMode::shared, &dir));
    const u64 parent = dir.inode->parent_or_device;
    if (dir.inode->link_count == 0) return Step::end(Status::not_found);
    unlock_inode(g, engine, c, dir.number);
    on_leader(g, [&] {
      *saved = parent;
      c.stage = 1;
    });
  }
  fs::InodeRef parent{};
  const Status status = lock_live_inode(g, engine, c, *saved, LockMode::shared, &parent);
  if (status == Status::stale) return Step::end(Status::not_found);
  GPU4FS_STEP_TRY(status);
  put_attributes(g, engine, c, parent);
  return Step::complete(parent.number);
}

}  // namespace detail

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step step_lookup(Group g, Engine& engine, CommandState& c) {
  const NameBytes name = first_name(c);
  GPU4FS_STEP_TRY(check_name(g, name));
  if (is_dot_dot(name)) return detail::look_up_parent(g, engine, c);
  fs::InodeRef dir{};
  GPU4FS_STEP_TRY(lock_directory(g, engine, c, c.command.inode, LockMode::shared, &dir));
  if (is_dot(name)) {
    put_attributes(g, engine, c, dir);
    return Step::complete(dir.number);
  }
  fs::FoundName found{};
  GPU4FS_STEP_TRY(fs::directory_find(g, engine.fs, c.operation, dir, hash_name(g, engine, name), &found));
  GPU4FS_TRACE_POINT(walk);
  fs::InodeRef child{};
  GPU4FS_STEP_TRY(lock_named_inode(g, engine, c, found.inode, LockMode::shared, &child));
  put_attributes(g, engine, c, child);
  return Step::complete(child.number);
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step step_getattr(Group g, Engine& engine, CommandState& c) {
  fs::InodeRef ref{};
  GPU4FS_STEP_TRY(lock_live_inode(g, engine, c, c.command.inode, LockMode::shared, &ref));
  put_attributes(g, engine, c, ref);
  return Step::complete(ref.number);
}

namespace detail {

// The checks of open(2) for an existing inode.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status check_open(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref,
                                            u32 flags) {
  const u32 mode = ref.inode->mode;
  const u32 wanted = open_rights(flags);
  if (fs::is_symlink(mode)) return Status::loop;
  if ((flags & open_directory) != 0 && !fs::is_directory(mode)) return Status::not_directory;
  if (fs::is_directory(mode) && (wanted & fs::may_write) != 0) return Status::is_directory;
  GPU4FS_TRY(require_access(g, engine, c, ref, wanted));
  const bool appends = (flags & (open_append | open_truncate)) == open_append;
  if ((wanted & fs::may_write) != 0 && !appends && has_flags(c, ref, format::inode_flag_append_only)) {
    return Status::permission;
  }
  if (fs::is_regular(mode) && (wanted & fs::may_write) != 0) GPU4FS_TRY(check_writable(engine));
  if ((flags & open_no_access_time) != 0 && !session_is_trusted(engine, c)) {
    const u32 uid = credentials_of(engine, c).uid;
    if (uid != 0 && uid != ref.inode->uid) return Status::permission;
  }
  return Status::ok;
}

}  // namespace detail

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step step_open(Group g, Engine& engine, CommandState& c) {
  fs::InodeRef ref{};
  GPU4FS_STEP_TRY(lock_live_inode(g, engine, c, c.command.inode, LockMode::shared, &ref));
  GPU4FS_STEP_TRY(detail::check_open(g, engine, c, ref, c.command.mask));
  put_attributes(g, engine, c, ref);
  return Step::complete(ref.number);
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step step_access(Group g, Engine& engine, CommandState& c) {
  if ((c.command.mode & ~7u) != 0) return Step::end(Status::invalid_argument);
  fs::InodeRef ref{};
  GPU4FS_STEP_TRY(lock_live_inode(g, engine, c, c.command.inode, LockMode::shared, &ref));
  const u32 mode = ref.inode->mode;
  const bool is_stored = fs::is_regular(mode) || fs::is_directory(mode) || fs::is_symlink(mode);
  if (is_stored && (c.command.mode & fs::may_write) != 0) GPU4FS_STEP_TRY(check_writable(engine));
  GPU4FS_STEP_TRY(require_access(g, engine, c, ref, c.command.mode));
  return Step::complete();
}

namespace detail {

// The target of a symbolic link. The bytes stay in place during this step.
struct LinkTarget {
  const u8* bytes;
  u32 length;
  u32 reserved;
};

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status read_link_target(Group g, Engine& engine, CommandState& c, const fs::InodeRef& link,
                                                  LinkTarget* target) {
  if (!fs::is_symlink(link.inode->mode)) return Status::not_a_symlink;
  if (!fs::inode_is_sound(*link.inode)) return Status::corrupt_structure;
  const u64 length = link.inode->size_bytes;
  if (link.inode->is_inline()) {
    *target = {link.inode->inline_data(), static_cast<u32>(length), 0};
    return Status::ok;
  }
  u32 frame = fs::no_frame;
  const Status status = fs::get_page(g, engine.fs, c.operation, link, {0, 0}, &frame);
  if (status == Status::page_absent) return Status::corrupt_structure;
  GPU4FS_TRY(status);
  *target = {fs::page_data(engine.fs, frame), static_cast<u32>(length), 0};
  return Status::ok;
}

}  // namespace detail

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step step_readlink(Group g, Engine& engine, CommandState& c) {
  if (c.command.length == 0) return Step::end(Status::invalid_argument);
  fs::InodeRef link{};
  GPU4FS_STEP_TRY(lock_live_inode(g, engine, c, c.command.inode, LockMode::shared, &link));
  detail::LinkTarget target{};
  GPU4FS_STEP_TRY(detail::read_link_target(g, engine, c, link, &target));
  const u64 length = minimum<u64>(target.length, c.command.length);
  u8* destination = nullptr;
  GPU4FS_STEP_TRY(resolve(g, engine, c, c.command.data, length, &destination));
  copy_bytes(g, destination, target.bytes, length);
  g.sync();
  GPU4FS_STEP_TRY(update_access_time(g, engine, c, link));
  return Step::complete(length);
}

}  // namespace gpu4fs::engine
