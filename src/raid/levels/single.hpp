// Level `single`: one column, pages in order, no redundancy.
#pragma once

#include "raid/levels/level_types.hpp"

namespace gpu4fs::raid {

struct SingleLevel {
  static constexpr format::RaidLevel level = format::RaidLevel::single;
  static constexpr u32 member_count_min = 1;
  static constexpr u32 member_count_max = 1;
  static constexpr u32 losses_survived = 0;

  GPU4FS_FN static constexpr PagePlace map(u32 /*column_count*/, u64 page) { return {0, 0, page}; }
  GPU4FS_FN static constexpr u64 pages_together(u32 /*column_count*/, u64 page, u64 page_count) {
    return page_count - page;
  }
  GPU4FS_FN static constexpr u64 column_pages(u32 /*column_count*/, u64 pages) { return pages; }
};

}  // namespace gpu4fs::raid
