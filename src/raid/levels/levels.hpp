// All levels, and the one switch over them. A level that is a reserved number of the format is not
// here.
#pragma once

#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/limits.hpp"
#include "raid/levels/parity_level.hpp"
#include "raid/levels/raid0.hpp"
#include "raid/levels/raid1.hpp"
#include "raid/levels/single.hpp"

namespace gpu4fs::raid {

inline constexpr u32 stripe_length_min = 4096;
inline constexpr u32 stripe_length_max = 1u << 20;

// True for the levels that this version can read and write.
GPU4FS_FN constexpr bool is_known_level(format::RaidLevel level) {
  return level >= format::RaidLevel::single && level <= format::RaidLevel::raid7;
}

// Calls visit(Level{}) with the descriptor of `level`, which is known.
template <class Visit>
GPU4FS_FN auto with_level(format::RaidLevel level, Visit&& visit) {
  GPU4FS_CHECK(is_known_level(level));
  switch (level) {
    case format::RaidLevel::raid0:
      return visit(Raid0Level{});
    case format::RaidLevel::raid1:
      return visit(Raid1Level{});
    case format::RaidLevel::raid5:
      return visit(Raid5Level{});
    case format::RaidLevel::raid6:
      return visit(Raid6Level{});
    case format::RaidLevel::raid7:
      return visit(Raid7Level{});
    default:
      return visit(SingleLevel{});
  }
}

// The same for a level with parities.
template <class Visit>
GPU4FS_FN auto with_parity_level(format::RaidLevel level, Visit&& visit) {
  switch (level) {
    case format::RaidLevel::raid5:
      return visit(Raid5Level{});
    case format::RaidLevel::raid6:
      return visit(Raid6Level{});
    default:
      GPU4FS_CHECK_EQ(level, format::RaidLevel::raid7);
      return visit(Raid7Level{});
  }
}

GPU4FS_FN inline Geometry geometry_of(const format::ChunkDescriptor& chunk) {
  return {chunk.column_count, static_cast<u32>(chunk.stripe_length_bytes / page_size), chunk.size_bytes / page_size};
}

// Why a chunk cannot have this shape; nullptr: it can. `chunk` has a size of at least one page.
GPU4FS_FN inline const char* find_shape_problem(const format::ChunkDescriptor& chunk) {
  if (!is_known_level(chunk.level)) return "its RAID level is unknown to this version";
  if ((chunk.flags & format::chunk_flag_physical) != 0) {
    if (chunk.level != format::RaidLevel::single) return "it belongs to a device, and its level is not single";
    if ((chunk.flags & format::chunk_flag_metadata) != 0) return "it belongs to a device, and holds metadata";
    if (chunk.physical_device >= format::physical_device_max) return "it belongs to a device of too great an index";
  } else if (chunk.physical_device != 0) {
    return "it names a device that it does not belong to";
  }
  return with_level(chunk.level, [&](auto level) -> const char* {
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

// Bytes of each column: header area and data. The chunk's shape is sound.
GPU4FS_FN inline u64 column_length(const format::ChunkDescriptor& chunk) {
  const u64 data_pages = with_level(chunk.level, [&](auto level) { return level.column_pages(geometry_of(chunk)); });
  return (format::chunk_layout(chunk.size_bytes / page_size).header_pages + data_pages) * page_size;
}

}  // namespace gpu4fs::raid
