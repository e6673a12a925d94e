// What of a chunk's columns has to be within reach before the chunk itself is: the front of its header areas, and of
// chunks with pages in use their page descriptors too. The rest, which an empty chunk does not need, takes no memory
// until the engine wants the chunk (maintenance/chunk_mapper.hpp). Host only.
#pragma once

#include "pool/pool_open.hpp"

namespace gpu4fs::pool {

// Of a header area: the chunk header and both bitmap slots, in front of the descriptors.
u64 header_front_bytes(const format::ChunkDescriptor& chunk);
// All of it.
u64 header_area_bytes(const format::ChunkDescriptor& chunk);

// False: every bitmap slot on the medium that could count says that no page of the chunk is in use, so nobody reads its
// descriptors.
bool may_hold_pages(const OpenedPool& pool, const OpenedChunk& chunk);

// Bytes from the beginning of each column on that a mount needs.
u64 mounted_bytes(const OpenedPool& pool, const OpenedChunk& chunk);

}  // namespace gpu4fs::pool
