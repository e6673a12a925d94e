// Access times of inodes that a command has read.
#pragma once

#include "engine/handlers/access_check.hpp"
#include "fs/inode/access_time.hpp"
#include "fs/inode/inode.hpp"
#include "fs/inode/inode_rules.hpp"

namespace gpu4fs::engine {

// The end of a handler that has read `ref`: sets the access time if it is due. If the time
// cannot be set, for example for lack of space, it stays unchanged. Status: waits_for_gate.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status update_access_time(Group g, Engine& engine, CommandState& c, const fs::InodeRef& ref) {
  const u64 now = c.operation.now;
  const bool is_due = on_leader(g, [&] {
    const u64 access = load<Order::relaxed, Scope::engine>(&ref.inode->access_time);
    return access_time_is_due(engine.fs, *ref.inode, access, now);
  });
  if (!is_due) return Status::ok;
  if (fs::reserve_metadata(g, engine.fs, c.operation, {1, 0, 0}) != Status::ok) return Status::ok;
  GPU4FS_TRY(enter_gate(g, engine, c));
  on_leader(g, [&] { store<Order::relaxed, Scope::engine>(&ref.inode->access_time, now); });
  fs::mark_inode_dirty(g, engine.fs, c.operation, ref);
  return Status::ok;
}

}  // namespace gpu4fs::engine
