// Level `single`: one column, pages in order, no redundancy.
#pragma once

#include "raid/levels/level_types.hpp"

namespace gpu4fs::raid {

struct SingleLevel {
  static constexpr format::RaidLevel level = format::RaidLevel::single;
  static constexpr u32 parity_count = 0;
  static constexpr u32 member_count_min = 1;
  static constexpr u32 member_count_max = 1;
  static constexpr bool has_stripes = false;

  GPU4FS_FN static constexpr u32 redundancy(u32 /*column_count*/) { return 0; }
  GPU4FS_FN static constexpr u32 copies(u32 /*column_count*/) { return 1; }
  GPU4FS_FN static constexpr u32 data_columns(u32 /*column_count*/) { return 1; }
  GPU4FS_FN static constexpr PagePlace map(const Geometry& /*geometry*/, u64 page, u32 /*copy*/) {
    return {0, 0, page};
  }
  GPU4FS_FN static constexpr u64 contiguous_pages(const Geometry& geometry, u64 page) {
    return geometry.page_count - page;
  }
  GPU4FS_FN static constexpr u64 column_pages(const Geometry& geometry) { return geometry.page_count; }
};

}  // namespace gpu4fs::raid
