// Reads the chunk tree of a pool whose devices are open and whose superblock is chosen.
#pragma once

#include <string>
#include <vector>

#include "format/chunk_format.hpp"
#include "format/superblock_format.hpp"
#include "server/pool_device_file.hpp"

namespace gpu4fs::server {

struct OpenedChunk {
  format::ChunkDescriptor descriptor;
  std::vector<format::ColumnAddress> columns;  // column_count
};

// What the reader of a tree needs to know of a member.
struct TreeDevice {
  const DeviceFile* file;
  format::DevicePart part;
};

// All chunks in ascending order of base addresses. A node that is bad on one replica is read from
// the next, with a line in `warnings`; a node that is bad on all is a PoolError. Checked are node
// checksums, levels, counts and key order, and of every chunk its alignment and bounds, that its
// columns lie in chunk areas, and that no two columns share a granule.
std::vector<OpenedChunk> read_chunk_tree(const format::Superblock& superblock,
                                         const std::vector<TreeDevice>& devices,
                                         std::vector<std::string>& warnings);

}  // namespace gpu4fs::server
