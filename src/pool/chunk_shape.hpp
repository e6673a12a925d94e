// Properties that follow from the level, the columns and the stripes of a chunk. Host only.
#pragma once

#include "base/types.hpp"
#include "format/chunk_format.hpp"

namespace gpu4fs::pool {

inline constexpr u32 stripe_length_min = 4096;
inline constexpr u32 stripe_length_max = 1u << 20;

// Why a chunk cannot have this shape, or nullptr if it can. `chunk` has a size of at least one page.
const char* find_shape_problem(const format::ChunkDescriptor& chunk);

// The class of the chunk's profile; pages are allocated in classes.
u32 page_class_of(const format::ChunkDescriptor& chunk);

// Pages of the longest stripe, the unit in which pages are allocated.
u32 page_cost_of(const format::ChunkDescriptor& chunk);

// The number of stripes of a chunk with parities, otherwise 0.
u64 stripe_count_of(const format::ChunkDescriptor& chunk);

}  // namespace gpu4fs::pool
