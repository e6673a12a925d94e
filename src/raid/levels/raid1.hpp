// Level `raid1`: every column holds every page; all but one may be lost.
#pragma once

#include "raid/levels/level_types.hpp"

namespace gpu4fs::raid {

struct Raid1Level {
  static constexpr format::RaidLevel level = format::RaidLevel::raid1;
  static constexpr u32 parity_count = 0;
  static constexpr u32 member_count_min = 2;
  static constexpr u32 member_count_max = copy_count_max;
  static constexpr bool has_stripes = false;

  GPU4FS_FN static constexpr u32 redundancy(u32 column_count) { return column_count - 1; }
  GPU4FS_FN static constexpr u32 copies(u32 column_count) { return column_count; }
  GPU4FS_FN static constexpr u32 data_columns(u32 /*column_count*/) { return 1; }
  GPU4FS_FN static constexpr PagePlace map(const Geometry& /*geometry*/, u64 page, u32 copy) { return {copy, 0, page}; }
  GPU4FS_FN static constexpr u64 contiguous_pages(const Geometry& geometry, u64 page) {
    return geometry.page_count - page;
  }
  GPU4FS_FN static constexpr u64 column_pages(const Geometry& geometry) { return geometry.page_count; }
};

}  // namespace gpu4fs::raid
