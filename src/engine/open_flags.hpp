// Flags of open(2), and the rights that they need.
#pragma once

#include "base/config.hpp"
#include "fs/names/permissions.hpp"

namespace gpu4fs::engine {

// Flags of open(2) as in Linux on x86-64, which FUSE uses too.
inline constexpr u32 open_access_mask = 03;
inline constexpr u32 open_write_only = 01;
inline constexpr u32 open_read_write = 02;
inline constexpr u32 open_exclusive = 0200;
inline constexpr u32 open_truncate = 01000;
inline constexpr u32 open_append = 02000;
inline constexpr u32 open_directory = 0200000;
inline constexpr u32 open_no_access_time = 01000000;

// The rights that open(2) needs for these flags.
GPU4FS_FN constexpr u32 open_rights(u32 flags) {
  const u32 access = flags & open_access_mask;
  u32 wanted = access == open_write_only ? fs::may_write : fs::may_read;
  if (access >= open_read_write) wanted = fs::may_read | fs::may_write;
  return (flags & open_truncate) != 0 ? wanted | fs::may_write : wanted;
}

}  // namespace gpu4fs::engine
