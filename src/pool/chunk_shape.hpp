// What follows from the level, the columns and the stripes of a chunk. Host only.
#pragma once

#include "base/types.hpp"
#include "format/chunk_format.hpp"

namespace gpu4fs::pool {

inline constexpr u32 stripe_length_min = 4096;
inline constexpr u32 stripe_length_max = 1u << 20;

// Why a chunk cannot have this shape; nullptr: it can. `chunk` has a size of at least one page.
const char* find_shape_problem(const format::ChunkDescriptor& chunk);

// Of the chunk's profile: what pages are allocated in is a class of chunks.
u32 page_class_of(const format::ChunkDescriptor& chunk);

// Pages of the longest stripe that pages are allocated in.
u32 page_cost_of(const format::ChunkDescriptor& chunk);

// Stripes of a chunk with parities, else 0.
u64 stripe_count_of(const format::ChunkDescriptor& chunk);

}  // namespace gpu4fs::pool
