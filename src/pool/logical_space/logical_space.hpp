// Builds the logical space of an opened pool in engine memory. Host only.
//
// Everything is in one block. Parts that are not zero are built as a host image and copied into it. There is one
// allocation for the lifetime of the mount.
#pragma once

#include <vector>

#include "base/host/engine_allocator.hpp"
#include "base/types.hpp"
#include "device/device_types.hpp"
#include "format/superblock_format.hpp"
#include "pool/chunk_tree/tree_node.hpp"
#include "raid/raid_types.hpp"

namespace gpu4fs::pool {

// Room for additions while the pool is mounted.
struct SpaceRoom {
  u32 devices = 0;
  u32 chunks = 0;
  u64 granules = 0;  // of logical space, after the last chunk
};

// The data pages that the engine reaches from the start. It must always reach the header areas before them.
struct ReachedPages {
  // NOLINTNEXTLINE(google-explicit-constructor): most callers have all or none.
  ReachedPages(bool all_chunks) : all(all_chunks) {}

  bool all;
  // By chunk: empty, and then as `all` says. Otherwise the chunk is reached, and has one bit for each of its regions
  // that lacks blocks on its media (space/backing.hpp); bits of regions with pages in use do not matter.
  std::vector<std::vector<u64>> unbacked;
};

// `devices` are in pool order, with their `base` in the engine's address space. Failed devices have any base and the
// greatest size. `chunks` are in any order. No chunk is loaded yet; `room` for more is left. PoolError says which parts
// do not fit together. Exceptions of the allocator are passed on.
raid::LogicalSpace build_logical_space(EngineAllocator& allocator, const format::Superblock& superblock,
                                       const std::vector<device::Device>& devices,
                                       const std::vector<OpenedChunk>& chunks, const ReachedPages& reached,
                                       const SpaceRoom& room = {});

}  // namespace gpu4fs::pool
