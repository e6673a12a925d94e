// Reads the chunk tree of a pool whose devices are open and whose superblock is chosen.
#pragma once

#include <string>
#include <vector>

#include "format/superblock_format.hpp"
#include "pool/chunk_tree/tree_node.hpp"
#include "pool/chunk_tree/tree_store.hpp"

namespace gpu4fs::pool {

// All chunks in ascending order of base addresses. If replicas differ, the newest valid one is used and, with
// `may_repair`, written over the others, with a line in `warnings`. A node without a valid replica is a PoolError. The
// checks cover node checksums, levels, counts and key order. For every chunk they cover its alignment and bounds, that
// its columns lie in chunk areas, and that no two columns share a granule.
std::vector<OpenedChunk> read_chunk_tree(const format::Superblock& superblock, const std::vector<TreeDevice>& devices,
                                         std::vector<std::string>& warnings, bool may_repair = false);

}  // namespace gpu4fs::pool
