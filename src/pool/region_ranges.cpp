#include "pool/region_ranges.hpp"

#include <algorithm>

#include "base/limits.hpp"
#include "raid/levels/levels.hpp"

namespace gpu4fs::pool {
namespace {

void add_pages(std::vector<ColumnRange>& ranges, u32 column, u64 page, u64 count) {
  const u64 offset = page * page_size;
  const auto last = std::find_if(ranges.rbegin(), ranges.rend(),
                                 [column](const ColumnRange& range) { return range.column == column; });
  if (last != ranges.rend() && last->offset + last->length == offset) {
    last->length += count * page_size;
  } else {
    ranges.push_back({column, offset, count * page_size});
  }
}

}  // namespace

std::vector<ColumnRange> ranges_of_regions(const format::ChunkDescriptor& chunk, u64 first, u64 count) {
  const raid::Geometry geometry = raid::geometry_of(chunk);
  const u64 begin = first * pages_per_block_2m;
  const u64 end = std::min(begin + count * pages_per_block_2m, geometry.page_count);
  std::vector<ColumnRange> ranges;
  if (begin >= end) return ranges;
  raid::with_level(chunk.level, [&](auto level) {
    if constexpr (level.parity_count != 0) {
      // A row has pages of one region only.
      const u64 rows = level.column_pages(geometry) / (geometry.page_count / pages_per_block_2m);
      for (u32 column = 0; column < geometry.column_count; ++column)
        add_pages(ranges, column, first * rows, count * rows);
    } else {
      for (u64 page = begin; page < end;) {
        const u64 together = std::min(level.contiguous_pages(geometry, page), end - page);
        for (u32 copy = 0; copy < level.copies(geometry.column_count); ++copy) {
          const raid::PagePlace place = level.map(geometry, page, copy);
          add_pages(ranges, place.column, place.page, together);
        }
        page += together;
      }
    }
  });
  return ranges;
}

}  // namespace gpu4fs::pool
