// mkfs: writes an empty pool to one or more devices.
//
// All devices are checked before the first byte is written, so an error leaves every device unchanged. First the old
// superblocks are cleared. Then everything except the superblocks is written and flushed, and finally the superblocks
// of epoch 1. A crash in between leaves no pool, never half of one.
#pragma once

#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "base/types.hpp"
#include "format/superblock_format.hpp"

namespace gpu4fs::pool {

// With files of 4 KiB, 7 % of the space is inodes and names, and changes occupy space twice until the next checkpoint.
inline constexpr double metadata_share_default = 0.1;
inline constexpr double chunk_share_min = 0.01;

struct MakePoolOptions {
  // Regular files (also on tmpfs and hugetlbfs) or block devices, in the order of their
  // indices, 1..64.
  std::vector<std::string> device_paths;
  // Size of files that do not exist or are empty; 0: every device must already have a size. A regular file of another
  // size is refused without `force` and resized with it.
  u64 size_bytes = 0;
  std::string label;  // UTF-8, at most 64 bytes
  // Overwrites devices that hold something.
  bool force = false;
  // 0: an eighth of the smallest device; else a power of two from 8 MiB to 1 GiB.
  u64 chunk_size_bytes = 0;
  // Size of the operation log on each device; 0: chosen by the size of the device.
  u64 log_bytes = 0;
  // Names for parse_profile(). If they differ, chunks for metadata get `metadata_share` of the space.
  std::string data_profile = "single";
  std::string metadata_profile = "single";
  double metadata_share = metadata_share_default;
  // Additional profiles for data of files that ask for them, with their shares of the space.
  std::vector<std::pair<std::string, double>> more_profiles;
  u32 stripe_length_bytes = 0;  // 0: 64 KiB if the profile has stripes
  // The share of the space that becomes chunks at once, 1 to 100 percent, at least one chunk. The rest stays
  // unallocated.
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
