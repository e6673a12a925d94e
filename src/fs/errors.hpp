// The consequences of damaged metadata. Plain functions, called by one rank.
//
// A metadata page that cannot be read, or has invalid content, shows that more may be wrong than is known. If mounted
// with `stop_on_error`, the pool then accepts no changes: commands that change something are refused before their first
// step (engine/admission.hpp). Commands that had begun are completed, and committed changes are still written:
// checkpoints continue, so fsync keeps its promise.
#pragma once

#include "base/atomics.hpp"
#include "fs/fs_types.hpp"
#include "raid/damage.hpp"

namespace gpu4fs::fs {

// The metadata page of `inode` at `address` could not be used.
GPU4FS_FN GPU4FS_NOINLINE inline void note_metadata_error(FileSystem& fs, u64 inode, u64 address) {
  raid::name_damage(fs.space, address, 1, inode, wire::DamageKind::metadata);
  store<Order::relaxed, Scope::engine>(&fs.had_error, 1u);
}

GPU4FS_FN inline bool takes_changes(const FileSystem& fs) {
  return fs.stop_on_error == 0 || load<Order::relaxed, Scope::engine>(&fs.had_error) == 0;
}

}  // namespace gpu4fs::fs
