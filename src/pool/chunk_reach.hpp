// Which parts of a chunk's columns must be reachable before the chunk itself is: the front of its header areas and, for
// chunks with pages in use, their page descriptors. An empty chunk does not need the rest, which takes no memory until
// the engine needs the chunk (maintenance/chunk_mapper.hpp). Host only.
#pragma once

#include "pool/pool_open.hpp"

namespace gpu4fs::pool {

// Of a header area: the chunk header and both bitmap slots, which lie before the descriptors.
u64 header_front_bytes(const format::ChunkDescriptor& chunk);
// Of the whole header area.
u64 header_area_bytes(const format::ChunkDescriptor& chunk);

// False if every valid bitmap slot on the medium says that no page of the chunk is in use, so nobody reads its
// descriptors.
bool may_hold_pages(const OpenedPool& pool, const OpenedChunk& chunk);

// The number of bytes at the beginning of each column that a mount needs.
u64 mounted_bytes(const OpenedPool& pool, const OpenedChunk& chunk);

}  // namespace gpu4fs::pool
