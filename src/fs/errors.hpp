// What follows from damage of metadata. Plain functions, called by one rank.
//
// A metadata page that cannot be read, or makes no sense, says that more may be wrong than is known. Mounted with
// `stop_on_error` the pool then takes no more changes: commands that change something are refused from their
// beginning (engine/admission.hpp). Those that had begun end, and what has committed is still written: checkpoints
// go on, so fsync keeps its word.
#pragma once

#include "base/atomics.hpp"
#include "fs/fs_types.hpp"
#include "raid/damage.hpp"

namespace gpu4fs::fs {

// The metadata page of `inode` that lies at `address` could not be used.
GPU4FS_FN GPU4FS_NOINLINE inline void note_metadata_error(FileSystem& fs, u64 inode, u64 address) {
  raid::name_damage(fs.space, address, 1, inode, wire::DamageKind::metadata);
  store<Order::relaxed, Scope::engine>(&fs.had_error, 1u);
}

GPU4FS_FN inline bool takes_changes(const FileSystem& fs) {
  return fs.stop_on_error == 0 || load<Order::relaxed, Scope::engine>(&fs.had_error) == 0;
}

}  // namespace gpu4fs::fs
