// The places of regions of a chunk, 512 logical pages each, on its columns, with the parities of their rows. Host only.
#pragma once

#include <vector>

#include "base/types.hpp"
#include "format/chunk_format.hpp"

namespace gpu4fs::pool {

// Bytes of a column, counted from its first data page. No other region has bytes there.
struct ColumnRange {
  u32 column;
  u64 offset;
  u64 length;
};

// All copies of regions [first, first + count), in ascending order for each column, with adjacent ones joined.
std::vector<ColumnRange> ranges_of_regions(const format::ChunkDescriptor& chunk, u64 first, u64 count);

}  // namespace gpu4fs::pool
