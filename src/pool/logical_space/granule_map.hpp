// Which chunk each granule of logical space belongs to. Host only.
//
// The pool was validated when it was opened. The bounds on which the engine's memory safety depends are tested here
// again, because the superblock and the chunk tree come from the medium.
#pragma once

#include <vector>

#include "base/types.hpp"
#include "device/device_types.hpp"
#include "format/superblock_format.hpp"
#include "pool/chunk_tree/tree_node.hpp"

namespace gpu4fs::pool {

// Validates everything and returns the table: the index of each granule's chunk, or raid::no_chunk. PoolError.
std::vector<u32> map_granules(const format::Superblock& superblock, const std::vector<device::Device>& devices,
                              const std::vector<OpenedChunk>& chunks);

}  // namespace gpu4fs::pool
