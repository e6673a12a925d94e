// All levels, and the one switch over them. Levels that are only reserved numbers of the format are not here.
#pragma once

#include "base/check.hpp"
#include "base/limits.hpp"
#include "raid/levels/parity_level.hpp"
#include "raid/levels/raid0.hpp"
#include "raid/levels/raid1.hpp"
#include "raid/levels/single.hpp"

namespace gpu4fs::raid {

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

// Bytes of each column: header area and data. The chunk's shape is valid.
GPU4FS_FN inline u64 column_length(const format::ChunkDescriptor& chunk) {
  const u64 data_pages = with_level(chunk.level, [&](auto level) { return level.column_pages(geometry_of(chunk)); });
  return (format::chunk_layout(chunk.size_bytes / page_size).header_pages + data_pages) * page_size;
}

}  // namespace gpu4fs::raid
