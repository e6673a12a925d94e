// Level `raid0`: stripes of stripe_pages pages rotate over the columns, no redundancy (thesis Lucka 2023, section 2.2).
#pragma once

#include "raid/levels/level_types.hpp"

namespace gpu4fs::raid {

struct Raid0Level {
  static constexpr format::RaidLevel level = format::RaidLevel::raid0;
  static constexpr u32 parity_count = 0;
  static constexpr u32 member_count_min = 2;
  static constexpr u32 member_count_max = 64;
  static constexpr bool has_stripes = true;

  GPU4FS_FN static constexpr u32 redundancy(u32 /*column_count*/) { return 0; }
  GPU4FS_FN static constexpr u32 copies(u32 /*column_count*/) { return 1; }
  GPU4FS_FN static constexpr u32 data_columns(u32 column_count) { return column_count; }
  GPU4FS_FN static constexpr PagePlace map(const Geometry& geometry, u64 page, u32 /*copy*/) {
    const u64 stripe = page / geometry.stripe_pages;
    return {static_cast<u32>(stripe % geometry.column_count), 0,
            stripe / geometry.column_count * geometry.stripe_pages + page % geometry.stripe_pages};
  }
  GPU4FS_FN static constexpr u64 contiguous_pages(const Geometry& geometry, u64 page) {
    return geometry.stripe_pages - page % geometry.stripe_pages;
  }
  GPU4FS_FN static constexpr u64 column_pages(const Geometry& geometry) {
    return geometry.page_count / geometry.column_count;
  }
};

}  // namespace gpu4fs::raid
