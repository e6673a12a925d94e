// The whiteout of RENAME_WHITEOUT in place of the old name: a character device 0/0. Overlay file systems read it as
// "the name in the lower layer is deleted". The commit of the rename creates it, so either the old name or the whiteout
// exists at every moment.
#pragma once

#include "engine/handlers/namespace_create.hpp"

namespace gpu4fs::engine::detail {

// The last lock of a rename: a command that holds a number that is only claimed waits for no other lock. It counts as
// one inode for reserve_metadata.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status prepare_whiteout(Group g, Engine& engine, CommandState& c, u64* number) {
  GPU4FS_TRY(fs::claim_inode(g, engine.fs, c.operation, number));
  GPU4FS_TRY(lock_claimed_inode(g, engine, c, *number));
  return fs::prepare_new_inode(g, engine.fs, c.operation, *number);
}

// Gate: creates the inode. The caller gives it its name.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE fs::InodeRef commit_whiteout(Group g, Engine& engine, CommandState& c,
                                                       const fs::InodeRef& dir, u64 number) {
  GPU4FS_CHECK_EQ(c.in_gate, 1u);
  GPU4FS_CHECK_EQ(c.operation.claimed_inode, number);
  GPU4FS_CHECK(holds_lock(c, dir.number, LockMode::exclusive));
  fs::NewInode values{};
  values.mode = static_cast<u16>(fs::mode_character_device);
  values.uid = c.command.uid;
  values.gid = fs::inherit_owner(*dir.inode, fs::mode_character_device, c.command.gid).gid;
  values.link_count = 1;
  const fs::InodeRef whiteout = fs::commit_new_inode(g, engine.fs, c.operation, number, values);
  fs::mark_inode_dirty(g, engine.fs, c.operation, whiteout);
  return whiteout;
}

}  // namespace gpu4fs::engine::detail
