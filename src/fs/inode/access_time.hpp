// When a read changes the access time of an inode, according to the mount's option and the inode's own flag.
#pragma once

#include "base/config.hpp"
#include "base/types.hpp"
#include "format/inode_format.hpp"
#include "fs/fs_types.hpp"
#include "fs/names/permissions.hpp"

namespace gpu4fs::fs {

// Whether a read at `now` changes the access time `access`. The rules of relatime are those of mount(8).
GPU4FS_FN inline bool access_time_is_due(const FileSystem& fs, const format::Inode& inode, u64 access, u64 now) {
  if (fs.read_only != 0 || fs.access_time_mode == AccessTimeMode::never) return false;
  if (fs.access_time_mode == AccessTimeMode::directories_never && is_directory(inode.mode)) return false;
  if ((inode.flags & format::inode_flag_no_access_time) != 0) return false;
  if (fs.access_time_mode == AccessTimeMode::strict) return access != now;
  constexpr i64 day_seconds = 24 * 60 * 60;
  return access <= inode.modification_time || access <= inode.change_time ||
         format::time_seconds(now) - format::time_seconds(access) >= day_seconds;
}

}  // namespace gpu4fs::fs
