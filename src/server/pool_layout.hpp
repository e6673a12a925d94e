// Where everything lies on the devices of a new pool. Pure arithmetic: no device is touched.
#pragma once

#include <string>
#include <vector>

#include "base/types.hpp"
#include "format/chunk_format.hpp"
#include "format/superblock_format.hpp"

namespace gpu4fs::server {

// A logical chunk and its only column (profile `single`).
struct ChunkPlacement {
  u64 base_address;  // logical
  u32 device_index;
  u64 first_granule;  // in the device's chunk area, units of 64 KiB
};

struct PoolLayout {
  u64 chunk_size_bytes;
  u64 pages_per_chunk;                    // data pages
  format::ChunkLayout chunk;              // header area of every chunk
  u64 granules_per_chunk;                 // header area and data, in physical granules
  std::vector<format::DevicePart> parts;  // UUIDs are zero
  std::vector<ChunkPlacement> chunks;     // ascending base address
};

struct NamedSize {
  std::string name;  // path, for messages
  u64 size_bytes;
};

// The chunk size for a pool whose smallest device has this size: an eighth of it, rounded down to a
// power of two, between 8 MiB and 1 GiB.
u64 default_chunk_size(u64 smallest_device_bytes);

// The smallest device that holds one chunk of this size and everything in front of it.
u64 minimum_device_size(u64 chunk_size_bytes, u64 tree_pages);

// As many chunks of profile `single` as fit. Logical bases are dealt to the devices in turn, so
// that neighbouring chunks are on different devices while several have room. `chunk_size_bytes` 0
// takes the default, otherwise a power of two from 8 MiB to 1 GiB. `log_bytes` of each device's
// operation log, rounded up to pages; 0: a 64th of the device, between 1 and 256 MiB. Throws PoolError
// where a device is too small or the pool would exceed a limit of the format.
PoolLayout compute_layout(const std::vector<NamedSize>& devices, u64 chunk_size_bytes,
                          u64 log_bytes = 0);

// Pages of the nodes of a chunk tree with this many chunks of one column.
u64 chunk_tree_node_count(u64 chunk_count);

inline constexpr u64 leaf_entry_bytes =
    sizeof(format::ChunkDescriptor) + sizeof(format::ColumnAddress);
inline constexpr u64 entries_per_leaf = sizeof(format::ChunkTreeNode::entries) / leaf_entry_bytes;
inline constexpr u64 entries_per_branch_node =
    sizeof(format::ChunkTreeNode::entries) / sizeof(format::ChunkTreeBranch);

}  // namespace gpu4fs::server
