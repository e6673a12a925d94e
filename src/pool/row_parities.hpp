// Parities of rows for the server's own reading and writing of a medium that no engine is running on: the arithmetic is
// the engine's (raid/parity).
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
  u32 slot;                  // of the page that was asked for
  std::vector<u64> pages;    // of the chunk, by slot
  std::vector<u32> columns;  // by slot; behind `data_slots` those of the parities
  u32 data_slots;
};

RowOfPages row_of_page(const format::ChunkDescriptor& chunk, u64 page);

// Parities of a level; 0: it has none.
u32 parity_count_of(const format::ChunkDescriptor& chunk);

// The parities of a row. `slots`: 4096 bytes each, nullptr for what is not included.
std::vector<std::vector<u8>> compute_parities(u32 parity_count, const std::vector<const u8*>& slots);

// Slot `target` of a row, made from the others, into `page` (4096 bytes). `included`: a bit a slot that is in the
// parities; `slots` and `parities`: nullptr for what is missing. `accepts` is asked of each possible answer until it
// says yes. False: it never did.
bool reconstruct_slot(u32 target, u64 included, const std::vector<const u8*>& slots,
                      const std::vector<const u8*>& parities, u8* page, const std::function<bool()>& accepts);

}  // namespace gpu4fs::pool
