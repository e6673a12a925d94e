// Values of the mode of fallocate.
#pragma once

#include "base/config.hpp"
#include "engine/command_types.hpp"

namespace gpu4fs::engine {

inline constexpr u32 fallocate_keep_size = 0x01;  // FALLOC_FL_* of Linux
inline constexpr u32 fallocate_punch_hole = 0x02;
inline constexpr u32 fallocate_zero_range = 0x10;

GPU4FS_FN constexpr bool is_known_allocation(u32 mode) {
  return (mode & ~(fallocate_keep_size | fallocate_zero_range)) == 0 ||
         mode == (fallocate_punch_hole | fallocate_keep_size);
}

// Maximum number of runs of unwritten blocks that one commit adds. Two extents are left for the pages at the ends of a
// range.
inline constexpr u32 allocate_extent_max = command_extent_capacity - 2;

}  // namespace gpu4fs::engine
