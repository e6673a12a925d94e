// Wire format of the internal command `rebuild`: filling devices of a mounted pool with what they
// lack.
#pragma once

#include <cstdint>

#include "base/config.hpp"
#include "format/superblock_format.hpp"

namespace gpu4fs::wire {

enum class RebuildStep : std::uint32_t {
  pages = 0,    // of pages [offset, + length) of chunk `inode` what devices being rebuilt lack;
                // result: rebuild_count()
  begin = 1,    // RebuildTarget at data: device `inode`, a lost one, is written from now on; result:
                // pages that it may lack
  finish = 2,   // if nothing is lacking, the next checkpoint makes the devices readable; result:
                // pages that are
  give_up = 3,  // device `inode` is not written any more, as if it had failed
};

enum RebuildMask : std::uint32_t {
  rebuild_mask_fresh = 1u << 0,  // pages: the devices were empty, so that looking at what they have is no use
};

inline constexpr std::uint64_t rebuild_pages_max = 16384;  // of one command

// A device as the engine is to use it.
struct RebuildTarget {
  // Of its superblocks from now on. Another UUID replaces the member's in all of them.
  format::DevicePart part;
  std::uint64_t base;  // of its mapping, in the engine's address space
  std::uint64_t mapped_bytes;
  std::uint64_t stack;  // of an engine of threads: its layers, 0: none
  std::uint32_t needs_flush;
  std::uint32_t file_number;  // comes back when the device is lost (UpcallKind::device_lost)
};
static_assert(sizeof(RebuildTarget) == 160);

// Of the result of `pages`, in pages of 4 KiB.
enum class RebuildCount : std::uint32_t {
  looked_at = 0,
  written = 1,     // pages and parities
  unverified = 2,  // matched their checksum nowhere: unwritten blocks, or damaged before; they are
                   // left as they are
  unreadable = 3,  // what is left of the pool cannot be read there: the devices still lack them
};
GPU4FS_FN constexpr std::uint64_t rebuild_one(RebuildCount which) {
  return std::uint64_t{1} << (16 * static_cast<std::uint32_t>(which));
}
GPU4FS_FN constexpr std::uint64_t rebuild_count(std::uint64_t result, RebuildCount which) {
  return result >> (16 * static_cast<std::uint32_t>(which)) & 0xffff;
}

}  // namespace gpu4fs::wire
