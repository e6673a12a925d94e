// mkfs: writes an empty pool to one or more devices.
//
// All devices are checked before the first byte is written, so that an error leaves every device as
// it was. Old superblocks go first, then everything but the superblocks is written and flushed,
// then the superblocks of epoch 1 are written and flushed: a crash in between leaves no pool, never
// half of one.
#pragma once

#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "base/types.hpp"
#include "format/superblock_format.hpp"

namespace gpu4fs::pool {

// Of files of 4 KiB 7 % are inodes and names; what is changed stands twice until the next checkpoint.
inline constexpr double metadata_share_default = 0.1;
inline constexpr double chunk_share_min = 0.01;

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
  // As parse_profile() has them. Where they differ, chunks for metadata get `metadata_share` of the space.
  std::string data_profile = "single";
  std::string metadata_profile = "single";
  double metadata_share = metadata_share_default;
  // Further profiles for data of files that ask for them, with their shares of the space.
  std::vector<std::pair<std::string, double>> more_profiles;
  u32 stripe_length_bytes = 0;  // 0: 64 KiB where the profile has stripes
  // Of the space: what chunks are made of now, 1 to 100 percent, at least one chunk. The rest stays unallocated.
  u32 initial_share = 100;
  // Off: only metadata has checksums.
  bool data_checksums = true;
  u32 root_uid = ::geteuid();
  u32 root_gid = ::getegid();
  u16 root_permissions = 0755;
};

// Throws PoolError{device, place, reason}. Returns the first device's superblock.
format::Superblock make_pool(const MakePoolOptions& options);

}  // namespace gpu4fs::pool
