// The least work of a redundant write: pages are copied once or twice and the parities of their rows are computed. This
// is the limit with which writes into such pools are compared, on CPU threads and as a kernel.
#pragma once

#include "base/copy.hpp"
#include "base/limits.hpp"
#include "raid/parity/parity_pages.hpp"

namespace gpu4fs::bench {

struct RowShape {
  u32 data_slots;    // k pages of a row, contiguous in the source
  u32 parity_count;  // 0 to 3
  u32 copy_count;    // 1 or 2
};

// The kernel's buffers are aligned.
template <class Group>
GPU4FS_FN PageRegisters<Group> load_bare_page(Group g, const u8* from) {
  if constexpr (Group::size() == 1) {
    return load_page(g, from);
  } else {
    return load_aligned_page(g, from);
  }
}

// Pages of the row are written to the same place in `to`, second copies to `extra`, parity j of row r to its page r * m
// + j.
template <u32 m, class Group>
GPU4FS_FN void copy_row(Group g, const u8* from, u8* to, u8* extra, u64 row, u64 page_count, const RowShape& shape) {
  const u64 first = row * shape.data_slots;
  const u64 end = minimum(first + shape.data_slots, page_count);
  raid::ParityPages<Group, m == 0 ? 1 : m> sums;
  if constexpr (m != 0) raid::clear_parities(g, sums);
  for (u64 at = end; at-- > first;) {
    PageRegisters<Group> page = load_bare_page(g, from + at * page_size);
    store_page(g, page, to + at * page_size);
    if constexpr (Group::size() == 1) page.page = to + at * page_size;
    if (shape.copy_count > 1) store_page(g, page, extra + at * page_size);
    if constexpr (m != 0) raid::add_lower_slot(g, sums, page);
  }
  if constexpr (m != 0) {
    for (u32 j = 0; j < m; ++j) store_page(g, raid::parity_page(g, sums, j), extra + (row * m + j) * page_size);
  }
}

// Rows first, first + step ...
template <class Group>
GPU4FS_FN void copy_rows(Group g, const u8* from, u8* to, u8* extra, u64 first, u64 step, u64 page_count,
                         const RowShape& shape) {
  const u64 row_count = (page_count + shape.data_slots - 1) / shape.data_slots;
  for (u64 row = first; row < row_count; row += step) {
    switch (shape.parity_count) {
      case 0:
        copy_row<0>(g, from, to, extra, row, page_count, shape);
        break;
      case 1:
        copy_row<1>(g, from, to, extra, row, page_count, shape);
        break;
      case 2:
        copy_row<2>(g, from, to, extra, row, page_count, shape);
        break;
      default:
        copy_row<3>(g, from, to, extra, row, page_count, shape);
        break;
    }
  }
}

}  // namespace gpu4fs::bench
