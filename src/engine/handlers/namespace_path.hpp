// Handler of lookup_path: resolves a whole path in one command.
//
// The walk locks the next inode before it unlocks the directory. So each step of the path is taken in a directory that
// still contains the name. Only ".." unlocks first, because locks are taken from parents to children. The rest of the
// path is right-aligned in the command's buffer, so there is room before it for the target of a symbolic link. The
// scratch memory holds the state from which a parked walk continues.
#pragma once

#include "engine/handlers/namespace_lookup.hpp"

namespace gpu4fs::engine {

namespace detail {

struct PathWalk {
  u64 current;          // locked inode, 0: none
  u64 next;             // to be locked next, 0: none
  u32 begin;            // first byte of the rest in CommandState::buffer; the rest ends with the buffer
  u32 links;            // symbolic links followed
  u32 needs_directory;  // a slash followed the previous component
  u32 reserved;
};
static_assert(sizeof(PathWalk) <= command_scratch_size);

template <class Group>
GPU4FS_FN void save_walk(Group g, CommandState& c, const PathWalk& walk) {
  on_leader(g, [&] { *reinterpret_cast<PathWalk*>(c.scratch) = walk; });
}

template <class Group>
GPU4FS_FN Status begin_walk(Group g, CommandState& c, PathWalk* walk) {
  const u32 length = c.command.name_length;
  if (length >= path_length_max) return Status::name_too_long;
  *walk = {};
  walk->begin = command_buffer_size - length;
  walk->next = length > 0 && c.names[0] == '/' ? format::inode_number_root : c.command.inode;
  g.sync();
  copy_bytes(g, c.buffer + walk->begin, c.names, length);
  on_leader(g, [&] {
    *reinterpret_cast<PathWalk*>(c.scratch) = *walk;
    c.stage = 1;
  });
  return Status::ok;
}

// Locks walk->next and unlocks the directory in which it was found.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status advance_walk(Group g, Engine& engine, CommandState& c, PathWalk* walk) {
  GPU4FS_CHECK_NE(walk->next, 0u);
  fs::InodeRef next{};
  const Status status = lock_live_inode(g, engine, c, walk->next, LockMode::shared, &next);
  if (status == Status::stale && walk->current != 0) return Status::corrupt_structure;
  GPU4FS_TRY(status);
  if (walk->current != 0 && walk->current != walk->next) unlock_inode(g, engine, c, walk->current);
  walk->current = walk->next;
  walk->next = 0;
  save_walk(g, c, *walk);
  return Status::ok;
}

// Inserts the target of symbolic link `number` before the rest of the path, which begins at `rest`.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status follow_link(Group g, Engine& engine, CommandState& c, u64 number, u32 rest,
                                             PathWalk* walk) {
  GPU4FS_CHECK_LE(rest, u32{command_buffer_size});
  GPU4FS_CHECK_NE(walk->current, 0u);
  if (++walk->links > symlink_follow_max) return Status::loop;
  fs::InodeRef link{};
  GPU4FS_TRY(lock_named_inode(g, engine, c, number, LockMode::shared, &link));
  LinkTarget target{};
  const Status status = read_link_target(g, engine, c, link, &target);
  if (status == Status::not_a_symlink) return Status::corrupt_structure;
  GPU4FS_TRY(status);
  if (target.length > rest || target.length + (command_buffer_size - rest) >= path_length_max) {
    return Status::name_too_long;
  }
  walk->begin = rest - target.length;
  const bool is_absolute = target.bytes[0] == '/';
  g.sync();
  copy_bytes(g, c.buffer + walk->begin, target.bytes, target.length);
  g.sync();
  unlock_inode(g, engine, c, number);
  if (is_absolute) {
    unlock_inode(g, engine, c, walk->current);
    walk->current = 0;
    walk->next = format::inode_number_root;
  }
  save_walk(g, c, *walk);
  return Status::ok;
}

// Resolves one component of the path in the locked directory `dir`.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status walk_component(Group g, Engine& engine, CommandState& c, const fs::InodeRef& dir,
                                                const PathComponent& component, PathWalk* walk) {
  GPU4FS_CHECK_LT(component.begin, component.end);
  GPU4FS_CHECK_LE(component.end, u32{command_buffer_size});
  GPU4FS_CHECK_EQ(walk->current, dir.number);
  if (!fs::is_directory(dir.inode->mode)) return Status::not_directory;
  GPU4FS_TRY(require_access(g, engine, c, dir, fs::may_execute));
  const NameBytes name{c.buffer + component.begin, component.end - component.begin, 0};
  walk->needs_directory = component.has_slash;
  if (is_dots(name)) {
    const bool goes_up = is_dot_dot(name) && dir.number != format::inode_number_root;
    if (goes_up && dir.inode->link_count == 0) return Status::not_found;
    walk->begin = component.end;
    if (goes_up) {
      walk->next = dir.inode->parent_or_device;
      unlock_inode(g, engine, c, dir.number);
      walk->current = 0;
    }
    save_walk(g, c, *walk);
    return Status::ok;
  }
  GPU4FS_TRY(check_name(g, name));
  fs::FoundName found{};
  GPU4FS_TRY(fs::directory_find(g, engine.fs, c.operation, dir, hash_name(g, engine, name), &found));
  const bool follows =
      component.is_last == 0 || component.has_slash != 0 || (c.command.flags & wire::command_flag_follow) != 0;
  if (follows && found.type == fs::entry_type(fs::mode_symlink)) {
    return follow_link(g, engine, c, found.inode, component.end, walk);
  }
  walk->begin = component.end;
  walk->next = found.inode;
  save_walk(g, c, *walk);
  return Status::ok;
}

}  // namespace detail

// An empty path means the inode itself.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step step_lookup_path(Group g, Engine& engine, CommandState& c) {
  detail::PathWalk walk{};
  if (c.stage == 0) {
    GPU4FS_STEP_TRY(detail::begin_walk(g, c, &walk));
  } else {
    walk = on_leader(g, [&] { return *reinterpret_cast<const detail::PathWalk*>(c.scratch); });
  }
  for (;;) {
    if (walk.next != 0) {
      const bool went_up = walk.current == 0;
      const Status status = detail::advance_walk(g, engine, c, &walk);
      if (status == Status::stale && went_up && walk.begin != command_buffer_size - c.command.name_length) {
        return Step::end(Status::not_found);  // the parent was removed meanwhile
      }
      GPU4FS_STEP_TRY(status);
    }
    fs::InodeRef current{};
    GPU4FS_STEP_TRY(lock_live_inode(g, engine, c, walk.current, LockMode::shared, &current));
    const PathComponent component =
        on_leader(g, [&] { return next_component(c.buffer, walk.begin, command_buffer_size); });
    if (component.begin == component.end) {
      if (walk.needs_directory != 0 && !fs::is_directory(current.inode->mode)) {
        return Step::end(Status::not_directory);
      }
      put_attributes(g, engine, c, current);
      return Step::complete(current.number);
    }
    GPU4FS_STEP_TRY(detail::walk_component(g, engine, c, current, component, &walk));
  }
}

}  // namespace gpu4fs::engine
