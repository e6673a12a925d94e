// The layout of a new pool on its devices. Pure arithmetic: no device is accessed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/types.hpp"
#include "format/chunk_format.hpp"
#include "format/superblock_format.hpp"
#include "pool/chunk_tree/tree_node.hpp"

namespace gpu4fs::pool {

// How chunks are spread over the devices.
struct ChunkProfile {
  format::RaidLevel level = format::RaidLevel::single;
  u32 column_count = 1;         // 0: as many as there are devices with room
  u32 stripe_length_bytes = 0;  // of levels with stripes
  std::optional<u32> device;    // the only one on which chunks may lie
};

// Chunks of one profile and their share of the space.
struct ChunkShare {
  ChunkProfile profile;
  u32 flags = format::chunk_flag_any_content;  // what the chunks may hold
  double share = 1;                            // of all space on the devices; the shares of a pool add up to 1
};

// `single`, `raid0`, `raid1` (two copies), `raid1c3`, `raid1c4`, `raid5` and `raid6`, as in mkfs.btrfs; `raid7` (three
// parities); `physical:INDEX`, one column on the device with that index. `stripe_length_bytes` 0 means 64 KiB, or 4 KiB
// with parities. Throws PoolError.
ChunkProfile parse_profile(const std::string& name, u32 stripe_length_bytes);

struct ColumnPlacement {
  u32 device_index;
  u64 first_granule;  // in the device's chunk area, units of 64 KiB
};

struct ChunkPlacement {
  format::ChunkDescriptor descriptor;
  std::vector<ColumnPlacement> columns;
  u64 column_granules() const;  // header area and data, in physical granules
};

struct PoolLayout {
  u64 chunk_size_bytes;                   // the granule of the logical space
  std::vector<format::DevicePart> parts;  // UUIDs are zero
  std::vector<ChunkPlacement> chunks;     // ascending base address
  u64 page_total() const;
};

struct NamedSize {
  std::string name;  // path, for messages
  u64 size_bytes;
};

// The places of a device's areas; `log_bytes` as below.
format::DevicePart device_layout(u64 size_bytes, u64 tree_pages, u64 log_bytes = 0);

// A chunk without a place and an epoch.
format::ChunkDescriptor describe_chunk(const ChunkProfile& profile, u32 column_count, u64 chunk_size_bytes);

// The least number of columns that a chunk of the level can have.
u32 column_count_least(format::RaidLevel level);

// The chunk size for a pool whose smallest device has this size: an eighth of it, rounded down to a
// power of two, between 8 MiB and 1 GiB.
u64 default_chunk_size(u64 smallest_device_bytes);

// The size of the smallest device that holds one column of a chunk of this size and everything before it.
u64 minimum_device_size(u64 chunk_size_bytes, u64 tree_pages);

// As many chunks as fit; the first one has the first of `shares`. The next chunk is always of the profile that lacks
// most of its share, until none has room. Columns are placed where most space is free, at most one of a chunk on each
// device. So neighbouring chunks are on different devices while several have room. `chunk_size_bytes` 0 means the
// default, otherwise it is a power of two from 8 MiB to 1 GiB. `log_bytes` is the size of each device's operation log,
// rounded up to pages; 0: a 64th of the device, between 1 and 256 MiB. Throws PoolError if a device is too small, if
// there are too few for a profile or too little room for one chunk of each, or if the pool would exceed a limit of the
// format.
PoolLayout compute_layout(const std::vector<NamedSize>& devices, u64 chunk_size_bytes, u64 log_bytes,
                          const std::vector<ChunkShare>& shares);
PoolLayout compute_layout(const std::vector<NamedSize>& devices, u64 chunk_size_bytes, u64 log_bytes = 0,
                          const ChunkProfile& profile = {});

// The format's number of a profile.
format::Profile profile_number(const ChunkProfile& profile);

// Pages of the nodes of a chunk tree with this many chunks of `column_count` columns.
u64 chunk_tree_node_count(u64 chunk_count, u64 column_count = 1);

constexpr u64 entries_per_leaf(u64 column_count) {
  return sizeof(format::ChunkTreeNode::entries) / leaf_entry_bytes(column_count);
}
inline constexpr u64 entries_per_branch_node = sizeof(format::ChunkTreeNode::entries) / sizeof(format::ChunkTreeBranch);

}  // namespace gpu4fs::pool
