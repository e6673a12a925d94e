// mkfs: writes an empty pool to one or more devices.
//
// All devices are checked before the first byte is written, so that an error leaves every device as
// it was. Old superblocks go first, then everything but the superblocks is written and flushed,
// then the superblocks of epoch 1 are written and flushed: a crash in between leaves no pool, never
// half of one.
#pragma once

#include <unistd.h>

#include <string>
#include <vector>

#include "base/types.hpp"
#include "format/superblock_format.hpp"

namespace gpu4fs::server {

struct MakePoolOptions {
  // Regular files (also on tmpfs and hugetlbfs) or block devices, in the order of their
  // indices, 1..64.
  std::vector<std::string> device_paths;
  // Size of files that do not exist or are empty; 0: every device must have a size already. A
  // regular file of another size is refused without `force` and resized with it.
  u64 size_bytes = 0;
  std::string label;  // UTF-8, at most 64 bytes
  // Overwrites devices that hold something.
  bool force = false;
  // 0: an eighth of the smallest device; else a power of two from 8 MiB to 1 GiB.
  u64 chunk_size_bytes = 0;
  // Of the operation log on each device; 0: chosen by the device's size.
  u64 log_bytes = 0;
  // As parse_profile() has them; both the same.
  std::string data_profile = "single";
  std::string metadata_profile = "single";
  u32 stripe_length_bytes = 0;  // 0: 64 KiB where the profile has stripes
  // Off: only metadata has checksums.
  bool data_checksums = true;
  u32 root_uid = ::geteuid();
  u32 root_gid = ::getegid();
  u16 root_permissions = 0755;
};

// Throws PoolError{device, place, reason}. Returns the first device's superblock.
format::Superblock make_pool(const MakePoolOptions& options);

}  // namespace gpu4fs::server
