#include "pool/chunk_shape.hpp"

#include "base/bits.hpp"
#include "base/limits.hpp"
#include "raid/levels/levels.hpp"

namespace gpu4fs::pool {

const char* find_shape_problem(const format::ChunkDescriptor& chunk) {
  if (!raid::is_known_level(chunk.level)) return "its RAID level is unknown to this version";
  if ((chunk.flags & format::chunk_flag_physical) != 0) {
    if (chunk.level != format::RaidLevel::single) return "it belongs to a device, and its level is not single";
    if ((chunk.flags & format::chunk_flag_metadata) != 0) return "it belongs to a device, and holds metadata";
    if (chunk.physical_device >= format::physical_device_max) return "it belongs to a device of too great an index";
  } else if (chunk.physical_device != 0) {
    return "it names a device that it does not belong to";
  }
  return raid::with_level(chunk.level, [&](auto level) -> const char* {
    if (chunk.column_count < level.member_count_min || chunk.column_count > level.member_count_max) {
      return "its number of columns does not fit its level";
    }
    if (chunk.redundancy != level.redundancy(chunk.column_count)) return "its redundancy does not fit its level";
    if (!level.has_stripes) {
      return chunk.stripe_length_bytes == 0 ? nullptr : "it has a stripe length but no stripes";
    }
    if (!is_power_of_two(chunk.stripe_length_bytes) || chunk.stripe_length_bytes < stripe_length_min ||
        chunk.stripe_length_bytes > stripe_length_max) {
      return "its stripe length is no power of two from 4 KiB to 1 MiB";
    }
    const u64 row = level.parity_count != 0 ? block_size_2m
                                            : u64{chunk.stripe_length_bytes} * level.data_columns(chunk.column_count);
    return chunk.size_bytes % row == 0 ? nullptr : "its size is not a multiple of its stripes";
  });
}

u32 page_class_of(const format::ChunkDescriptor& chunk) {
  return static_cast<u32>(format::profile_of(chunk)) - 1;
}

u32 page_cost_of(const format::ChunkDescriptor& chunk) {
  return raid::with_level(chunk.level, [&](auto level) -> u32 {
    if constexpr (level.parity_count != 0) {
      return static_cast<u32>(level.stripe_at(raid::geometry_of(chunk), 0).page_count);
    } else {
      return 1;
    }
  });
}

u64 stripe_count_of(const format::ChunkDescriptor& chunk) {
  return raid::with_level(chunk.level, [&](auto level) -> u64 {
    if constexpr (level.parity_count != 0) {
      return chunk.size_bytes / block_size_2m * level.stripes_per_region(raid::geometry_of(chunk));
    } else {
      return 0;
    }
  });
}

}  // namespace gpu4fs::pool
