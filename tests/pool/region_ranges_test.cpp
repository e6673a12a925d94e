// Ranges of regions compared with the levels' own translation, page by page: all of a region's pages and parities, and
// nothing of another region.
#include "pool/region_ranges.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/limits.hpp"
#include "raid/levels/levels.hpp"

namespace gpu4fs::pool::region_ranges_test {
namespace {

using Place = std::pair<u32, u64>;  // column, page of it

struct Shape {
  format::RaidLevel level;
  u16 column_count;
  u32 stripe_length_bytes;
  friend std::ostream& operator<<(std::ostream& out, const Shape& shape) {
    return out << static_cast<u32>(shape.level) << " " << shape.column_count << " " << shape.stripe_length_bytes;
  }
};

class RegionRanges : public ::testing::TestWithParam<Shape> {
 protected:
  RegionRanges() {
    chunk_.level = GetParam().level;
    chunk_.column_count = GetParam().column_count;
    chunk_.stripe_length_bytes = GetParam().stripe_length_bytes;
    raid::with_level(chunk_.level, [&](auto level) {
      chunk_.redundancy = static_cast<u8>(level.redundancy(chunk_.column_count));
      chunk_.size_bytes = (u64{24} << 20) * level.data_columns(chunk_.column_count);
    });
  }
  // The places of the region's pages, with the parities of their rows.
  std::set<Place> places_of(u64 region) const {
    std::set<Place> places;
    const raid::Geometry geometry = raid::geometry_of(chunk_);
    raid::with_level(chunk_.level, [&](auto level) {
      for (u64 page = region * pages_per_block_2m; page < (region + 1) * pages_per_block_2m; ++page) {
        for (u32 copy = 0; copy < level.copies(chunk_.column_count); ++copy) {
          const raid::PagePlace place = level.map(geometry, page, copy);
          places.insert({place.column, place.page});
          if constexpr (level.parity_count != 0) {
            const u32 slots = level.data_columns(chunk_.column_count);
            for (u32 j = 0; j < level.parity_count; ++j)
              places.insert({level.column_of(geometry, place.page, slots + j), place.page});
          }
        }
      }
    });
    return places;
  }

  format::ChunkDescriptor chunk_{};
};

TEST_P(RegionRanges, AreTheRegionsPagesAndNoOthers) {
  const u64 region_count = chunk_.size_bytes / block_size_2m;
  for (const auto& [first, count] : {std::pair<u64, u64>{0, 1}, {3, 2}, {region_count - 4, 4}, {0, region_count}}) {
    std::set<Place> inside;
    u64 bytes = 0;
    for (const ColumnRange& range : ranges_of_regions(chunk_, first, count)) {
      ASSERT_EQ(range.offset % page_size, 0u);
      ASSERT_EQ(range.length % page_size, 0u);
      bytes += range.length;
      for (u64 at = 0; at < range.length; at += page_size)
        inside.insert({range.column, (range.offset + at) / page_size});
    }
    EXPECT_EQ(inside.size() * page_size, bytes) << "twice";
    for (u64 region = 0; region < region_count; ++region) {
      const std::set<Place> places = places_of(region);
      const bool is_meant = region >= first && region < first + count;
      const auto found =
          std::count_if(places.begin(), places.end(), [&](const Place& place) { return inside.count(place) != 0; });
      EXPECT_EQ(static_cast<u64>(found), is_meant ? places.size() : 0u)
          << "region " << region << " of " << first << " + " << count;
    }
    if (first == 0 && count == region_count) {
      EXPECT_EQ(bytes, raid::with_level(chunk_.level, [&](auto level) {
                  return level.column_pages(raid::geometry_of(chunk_)) * chunk_.column_count * page_size;
                }));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, RegionRanges,
    ::testing::Values(Shape{format::RaidLevel::single, 1, 0}, Shape{format::RaidLevel::raid0, 3, 65536},
                      Shape{format::RaidLevel::raid0, 4, 1u << 20}, Shape{format::RaidLevel::raid1, 3, 0},
                      Shape{format::RaidLevel::raid5, 3, 4096}, Shape{format::RaidLevel::raid5, 4, 65536},
                      Shape{format::RaidLevel::raid6, 6, 8192}, Shape{format::RaidLevel::raid7, 9, 4096}));

}  // namespace
}  // namespace gpu4fs::pool::region_ranges_test
