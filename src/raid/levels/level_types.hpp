// The description of a RAID level. A level is a type with these static members, at the end of its file:
//
//   level             format::RaidLevel
//   parity_count      parities of each row; 0: a level without them (parity_level.hpp has more to say)
//   member_count_min  columns of a chunk
//   member_count_max
//   has_stripes       whether a chunk has a stripe length
//   redundancy(column_count)   columns that may be lost; the header area has that many more copies
//   copies(column_count)       places that hold each page, 1 to copy_count_max
//   data_columns(column_count) granules of logical space that a chunk covers for each granule of a column
//   map(geometry, page, copy)  place of a copy of a logical page; the place in the column is the same for all copies
//   contiguous_pages(geometry, page)  pages from `page` on that follow each other in their columns
//   column_pages(geometry)     data pages of each column
#pragma once

#include "base/config.hpp"
#include "base/types.hpp"
#include "format/chunk_format.hpp"

namespace gpu4fs::raid {

inline constexpr u32 copy_count_max = 4;

// Shape of a chunk.
struct Geometry {
  u32 column_count;
  u32 stripe_pages;  // 0 without stripes
  u64 page_count;    // logical
};

// A page of a column's data area.
struct PagePlace {
  u32 column;
  u32 reserved;
  u64 page;
};

}  // namespace gpu4fs::raid
