// Parities of rows for the server's own access to a medium on which no engine is running. The arithmetic is the
// engine's (raid/parity).
#pragma once

#include <functional>
#include <vector>

#include "base/limits.hpp"
#include "base/types.hpp"
#include "format/chunk_format.hpp"

namespace gpu4fs::pool {

// A row of a chunk whose level has parities.
struct RowOfPages {
  u64 row;                   // page of every column
  u32 slot;                  // of the requested page
  std::vector<u64> pages;    // of the chunk, by slot
  std::vector<u32> columns;  // by slot; after `data_slots` of them those of the parities
  u32 data_slots;
};

RowOfPages row_of_page(const format::ChunkDescriptor& chunk, u64 page);

// Parities of a level; 0 if it has none.
u32 parity_count_of(const format::ChunkDescriptor& chunk);

// The parities of a row. `slots`: 4096 bytes each, nullptr for slots that are not included.
std::vector<std::vector<u8>> compute_parities(u32 parity_count, const std::vector<const u8*>& slots);

// Computes slot `target` of a row from the others into `page` (4096 bytes). `included`: one bit for each slot that the
// parities include; `slots` and `parities`: nullptr for missing ones. `accepts` is called with each possible result
// until it returns true. False: it never did.
bool reconstruct_slot(u32 target, u64 included, const std::vector<const u8*>& slots,
                      const std::vector<const u8*>& parities, u8* page, const std::function<bool()>& accepts);

}  // namespace gpu4fs::pool
