// What a chunk of a mounted pool holds. Host only.
#pragma once

#include "base/types.hpp"

namespace gpu4fs::maintenance {

// What a chunk is like. Only `pages_taken` changes.
struct ChunkUsage {
  u32 chunk = 0;  // number
  u32 page_class = 0;
  u64 page_count = 0;
  u64 pages_taken = 0;  // in use, or promised to somebody
};

}  // namespace gpu4fs::maintenance
