// Which chunk each granule of logical space belongs to. Host only.
//
// The pool was validated when it was opened; the bounds that the engine's memory safety rests on are tested here again,
// because the superblock and the chunk tree come from the medium.
#pragma once

#include <vector>

#include "base/types.hpp"
#include "device/device_types.hpp"
#include "format/superblock_format.hpp"
#include "pool/chunk_tree/tree_node.hpp"

namespace gpu4fs::pool {

// Validates all and returns the table: the index of a granule's chunk, raid::no_chunk for none. PoolError.
std::vector<u32> map_granules(const format::Superblock& superblock, const std::vector<device::Device>& devices,
                              const std::vector<OpenedChunk>& chunks);

}  // namespace gpu4fs::pool
