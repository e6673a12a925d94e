// The content of a chunk of a mounted pool. Host only.
#pragma once

#include "base/types.hpp"

namespace gpu4fs::maintenance {

// The properties of a chunk. Only `pages_taken` changes.
struct ChunkUsage {
  u32 chunk = 0;  // number
  u32 page_class = 0;
  u64 page_count = 0;
  u64 pages_taken = 0;  // in use, or reserved
};

}  // namespace gpu4fs::maintenance
