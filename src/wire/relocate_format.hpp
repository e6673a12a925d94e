// Wire format of the internal command `relocate`: moves pages to other places while the pool is in use.
#pragma once

#include <cstdint>

#include "base/config.hpp"

namespace gpu4fs::wire {

enum class RelocateStep : std::uint32_t {
  data = 0,        // one stretch of blocks of file `inode`, the first from page `offset` on that RelocateMask selects;
                   // length: page limit, 0: a whole round. RelocateReport at data
  metadata = 1,    // metadata pages of `inode` in frozen chunks, from place `offset` on: the next checkpoint writes
                   // them elsewhere. RelocateReport at data
  next_inode = 2,  // result: the first inode from `inode` on that has pages; relocate_end: there is none
  freeze = 3,      // no pages are allocated in chunk `inode`
  unfreeze = 4,
  usage = 5,  // ChunkUsage of chunks `inode` ... to data, as many as fit in length. Result: their number
};

enum RelocateMask : std::uint32_t {
  relocate_frozen = 1u << 0,     // blocks in frozen chunks
  relocate_class = 1u << 1,      // blocks in chunks of another profile than that of new blocks of the file
  relocate_scattered = 1u << 2,  // blocks that fit into fewer pieces
  relocate_known = 7,
};

inline constexpr std::uint64_t relocate_end = ~std::uint64_t{0};

struct RelocateReport {
  std::uint64_t next;    // `offset` of the next command; relocate_end: nothing is left
  std::uint64_t moved;   // pages
  std::uint64_t stayed;  // pages that cannot be read anywhere, and map pages whose content is therefore unknown
};
static_assert(sizeof(RelocateReport) == 24);

struct ChunkUsage {
  std::uint32_t page_count;
  std::uint32_t used;        // committed
  std::uint32_t occupied;    // also those that wait for a checkpoint or belong to running commands; 0: empty
  std::uint16_t page_class;  // Profile, minus one
  std::uint16_t is_frozen;
};
static_assert(sizeof(ChunkUsage) == 16);

}  // namespace gpu4fs::wire
