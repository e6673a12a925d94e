// Wire format of the internal command `relocate`: pages move to other places while the pool is in use.
#pragma once

#include <cstdint>

#include "base/config.hpp"

namespace gpu4fs::wire {

enum class RelocateStep : std::uint32_t {
  data = 0,        // of file `inode` one stretch of blocks, the first from page `offset` on that RelocateMask names;
                   // length: pages at most, 0: what a round has. RelocateReport at data
  metadata = 1,    // of `inode` pages of metadata in frozen chunks, from place `offset` on: the next checkpoint writes
                   // them elsewhere. RelocateReport at data
  next_inode = 2,  // result: the first inode from `inode` on that has pages; relocate_end: there is none
  freeze = 3,      // chunk `inode` gives out no more pages
  unfreeze = 4,
  usage = 5,  // ChunkUsage of chunks `inode` ... to data, as many as fit in length. Result: how many
};

enum RelocateMask : std::uint32_t {
  relocate_frozen = 1u << 0,     // blocks in frozen chunks
  relocate_class = 1u << 1,      // blocks in chunks of another profile than new ones of the file get
  relocate_scattered = 1u << 2,  // blocks that can be in fewer pieces
  relocate_known = 7,
};

inline constexpr std::uint64_t relocate_end = ~std::uint64_t{0};

struct RelocateReport {
  std::uint64_t next;    // `offset` of the command that goes on; relocate_end: nothing is left
  std::uint64_t moved;   // pages
  std::uint64_t stayed;  // pages that cannot be read anywhere, and map pages, of which nobody knows what they have
};
static_assert(sizeof(RelocateReport) == 24);

struct ChunkUsage {
  std::uint32_t page_count;
  std::uint32_t used;        // by what is committed
  std::uint32_t occupied;    // and by what waits for a checkpoint, or belongs to commands that run; 0: empty
  std::uint16_t page_class;  // Profile, less one
  std::uint16_t is_frozen;
};
static_assert(sizeof(ChunkUsage) == 16);

}  // namespace gpu4fs::wire
