// What a RAID level says about itself. A level is a type with these static members, at the end of
// its file:
//
//   level             format::RaidLevel
//   member_count_min  columns of a chunk
//   member_count_max
//   losses_survived   columns that may be lost; the header area has that many more copies
//   map(column_count, page)            place of a logical page
//   pages_together(column_count, page, page_count)  pages from `page` on, of a chunk of page_count, that
//                                      follow each other in one column
//   column_pages(column_count, pages)  data pages of each column of a chunk of `pages` pages
#pragma once

#include "base/config.hpp"
#include "base/types.hpp"
#include "format/chunk_format.hpp"

namespace gpu4fs::raid {

// A page of a column's data area.
struct PagePlace {
  u32 column;
  u32 reserved;
  u64 page;
};

}  // namespace gpu4fs::raid
