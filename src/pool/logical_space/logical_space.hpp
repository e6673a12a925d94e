// Builds the logical space of an opened pool in engine memory. Host only.
//
// Everything is laid out in one block, built as a host image where it is not zero, and copied in. One allocation is
// made, for the lifetime of the mount.
#pragma once

#include <vector>

#include "base/host/engine_allocator.hpp"
#include "base/types.hpp"
#include "device/device_types.hpp"
#include "format/superblock_format.hpp"
#include "pool/chunk_tree/tree_node.hpp"
#include "raid/raid_types.hpp"

namespace gpu4fs::pool {

// What may come while the pool is mounted.
struct SpaceRoom {
  u32 devices = 0;
  u32 chunks = 0;
  u64 granules = 0;  // of logical space, behind the last chunk
};

// `devices` in pool order, their `base` in the engine's address space (those marked as failed: any, and the greatest
// size); `chunks` in any order. No chunk is loaded yet; `room` for more is left. `accessible` says whether the engine
// reaches all data pages from the start; the header areas in front of them must be within its reach in any case.
// PoolError: what does not fit together, in words; and what the allocator throws.
raid::LogicalSpace build_logical_space(EngineAllocator& allocator, const format::Superblock& superblock,
                                       const std::vector<device::Device>& devices,
                                       const std::vector<OpenedChunk>& chunks, bool accessible,
                                       const SpaceRoom& room = {});

}  // namespace gpu4fs::pool
