// Every limit and every size that more than one layer must agree on. Sizes are bytes.
#pragma once

#include "base/types.hpp"

namespace gpu4fs {

inline constexpr u64 page_size = 4096;              // unit of allocation, checksum and parity
inline constexpr u64 page_shift = 12;               // log2 of page_size
inline constexpr u64 block_size_2m = u64{2} << 20;  // block of a level-1 slot of the file map
inline constexpr u64 block_size_1g = u64{1} << 30;  // block of a level-2 slot of the file map
inline constexpr u64 pages_per_block_2m = block_size_2m / page_size;
inline constexpr u64 pages_per_block_1g = block_size_1g / page_size;

inline constexpr u32 name_length_max = 255;    // without a terminator, as in POSIX NAME_MAX
inline constexpr u32 path_length_max = 4096;   // with a terminator, as in POSIX PATH_MAX
inline constexpr u32 symlink_follow_max = 40;  // as in Linux; then Status::loop
inline constexpr u32 device_count_max = 64;    // members of one pool

inline constexpr u32 warp_size = 32;    // ranks of Warp and EmulatedWarp
inline constexpr u32 cache_line = 128;  // L2 line of the GPU, two lines of the CPU

static_assert(page_size == u64{1} << page_shift);

}  // namespace gpu4fs
