// Wire format of the internal command `rebuild`: filling devices of a mounted pool with the pages that they lack.
#pragma once

#include <cstdint>

#include "base/config.hpp"
#include "format/superblock_format.hpp"

namespace gpu4fs::wire {

enum class RebuildStep : std::uint32_t {
  pages = 0,    // fills the pages [offset, + length) of chunk `inode` on devices being rebuilt; result: rebuild_count()
  begin = 1,    // RebuildTarget at data: device `inode`, a lost one, is written afterwards; result: pages that it may
                // lack
  finish = 2,   // if no page is missing, the next checkpoint makes the devices readable; result: number of missing
                // pages
  give_up = 3,  // device `inode` is not written afterwards, as if it had failed
};

enum RebuildMask : std::uint32_t {
  rebuild_mask_fresh = 1u << 0,  // pages: the devices were empty, so reading their content is useless
};

inline constexpr std::uint64_t rebuild_pages_max = 16384;  // of one command

// The engine's view of a device.
struct RebuildTarget {
  // Of its later superblocks. A new UUID replaces the member's in all of them.
  format::DevicePart part;
  std::uint64_t base;  // of its mapping, in the engine's address space; 0: it has none
  std::uint64_t mapped_bytes;
  std::uint64_t stack;  // for an engine of threads: its layers, 0: none
  std::uint32_t needs_flush;
  std::uint32_t file_number;  // contained in the report if the device is lost (UpcallKind::device_lost)
  std::uint32_t device_kind;  // device::DeviceKind
  std::uint32_t reserved;
};
static_assert(sizeof(RebuildTarget) == 168);

// Of the result of `pages`, in pages of 4 KiB.
enum class RebuildCount : std::uint32_t {
  looked_at = 0,
  written = 1,     // pages and parities
  unverified = 2,  // nowhere matched their checksums: unwritten blocks, or damaged before; they stay unchanged
  unreadable = 3,  // the remaining pool cannot be read there: the devices still lack them
};
GPU4FS_FN constexpr std::uint64_t rebuild_one(RebuildCount which) {
  return std::uint64_t{1} << (16 * static_cast<std::uint32_t>(which));
}
GPU4FS_FN constexpr std::uint64_t rebuild_count(std::uint64_t result, RebuildCount which) {
  return result >> (16 * static_cast<std::uint32_t>(which)) & 0xffff;
}

}  // namespace gpu4fs::wire
