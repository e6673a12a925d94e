// The logical space is built from untrusted data of the medium, so every bound is tested.
#include "pool/logical_space/logical_space.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>

#include "pool/pool_error.hpp"
#include "raid/translate.hpp"
#include "support/space_fixture.hpp"

namespace gpu4fs::pool {
namespace {

using test::HeapAllocator;
using test::SpaceFixture;

TEST(LogicalSpaceOfAPool, every_page_has_a_place_of_its_own) {
  SpaceFixture pool({.device_count = 3, .chunks_per_device = 2, .granules_per_chunk = 2});
  ASSERT_EQ(pool.load(1), Status::ok);
  const raid::LogicalSpace& space = pool.fs->space;
  ASSERT_EQ(space.chunk_count, 6u);
  EXPECT_EQ(space.granule_count, 13u);
  EXPECT_EQ(space.epoch_open, 2u);
  std::set<const u8*> places;
  for (u32 c = 0; c < space.chunk_count; ++c) {
    const raid::ChunkState& chunk = space.chunks[c];
    for (u64 page = 0; page < chunk.page_count; ++page) {
      raid::PageLocation location;
      ASSERT_EQ(raid::find_page(space, chunk.base_address + page * page_size, &location), Status::ok);
      ASSERT_EQ(location.chunk, c);
      ASSERT_EQ(location.page, page);
      ASSERT_TRUE(places.insert(raid::page_memory(space, location)).second);
    }
    // No page lies in the header area of a column.
    const u64 header_pages = pool.layout().header_pages;
    for (u64 i = 0; i < header_pages; ++i) {
      const raid::DevicePlace place = raid::header_place(space, chunk, 0, i, 1);
      ASSERT_EQ(places.count(pool.device_base(place.device) + place.offset), 0u);
    }
  }
  for (u32 d = 0; d < 3; ++d) {
    for (u64 i = 0; i < format::layout_area_offset; i += page_size) {
      ASSERT_EQ(places.count(pool.device_base(d) + i), 0u);
    }
  }
}

TEST(LogicalSpaceOfAPool, chunks_may_come_in_any_order_with_gaps) {
  SpaceFixture pool({.chunks_per_device = 3});
  pool.chunks[2].descriptor.base_address = 9 * format::chunk_size_min;
  std::swap(pool.chunks[0], pool.chunks[1]);
  HeapAllocator allocator;
  const raid::LogicalSpace space = build_logical_space(allocator, pool.superblock, pool.devices, pool.chunks, true);
  u32 chunk;
  EXPECT_EQ(raid::find_chunk(space, format::chunk_size_min, &chunk), Status::ok);
  EXPECT_EQ(chunk, 1u);
  EXPECT_EQ(raid::find_chunk(space, 5 * format::chunk_size_min, &chunk), Status::corrupt_structure);
  EXPECT_EQ(raid::find_chunk(space, 10 * format::chunk_size_min - 1, &chunk), Status::ok);
  EXPECT_EQ(chunk, 2u);
  EXPECT_EQ(raid::find_chunk(space, 10 * format::chunk_size_min, &chunk), Status::corrupt_structure);
}

struct Damage {
  const char* says;
  std::function<void(SpaceFixture&)> apply;
};

TEST(LogicalSpaceOfAPool, refuses_what_does_not_fit) {
  constexpr u64 granule = format::chunk_size_min;
  using format::ColumnAddress;
  const Damage damages[] = {
      {"granule", [](SpaceFixture& p) { p.superblock.chunk_size_bytes = granule / 2; }},
      {"granule", [](SpaceFixture& p) { p.superblock.chunk_size_bytes = 3 * granule; }},
      {"devices", [](SpaceFixture& p) { p.superblock.device_count = 3; }},
      {"chunks", [](SpaceFixture& p) { p.superblock.chunk_count = 5; }},
      {"chunks", [](SpaceFixture& p) { p.chunks.clear(); }},
      {"pages", [](SpaceFixture& p) { p.superblock.page_total += 1; }},
      {"RAID level", [](SpaceFixture& p) { p.chunks[1].descriptor.level = static_cast<format::RaidLevel>(9); }},
      {"number of columns", [](SpaceFixture& p) { p.chunks[1].descriptor.column_count = 2; }},
      {"columns are missing", [](SpaceFixture& p) { p.chunks[1].columns.clear(); }},
      {"redundancy", [](SpaceFixture& p) { p.chunks[1].descriptor.redundancy = 1; }},
      {"stripe", [](SpaceFixture& p) { p.chunks[1].descriptor.stripe_length_bytes = 4096; }},
      {"flags", [](SpaceFixture& p) { p.chunks[1].descriptor.flags = 8; }},
      {"names a device", [](SpaceFixture& p) { p.chunks[1].descriptor.physical_device = 1; }},
      {"its size", [](SpaceFixture& p) { p.chunks[1].descriptor.size_bytes = granule / 2; }},
      {"its size", [](SpaceFixture& p) { p.chunks[1].descriptor.size_bytes = 0; }},
      {"beyond the logical space", [](SpaceFixture& p) { p.chunks[1].descriptor.size_bytes = u64{0} - granule; }},
      {"base address", [](SpaceFixture& p) { p.chunks[1].descriptor.base_address = 0; }},
      {"base address", [](SpaceFixture& p) { p.chunks[1].descriptor.base_address += page_size; }},
      {"beyond", [](SpaceFixture& p) { p.chunks[1].descriptor.base_address = u64{0} - granule; }},
      {"overlaps another chunk", [](SpaceFixture& p) { p.chunks[1].descriptor.base_address = granule; }},
      {"does not have", [](SpaceFixture& p) { p.chunks[1].columns[0] = ColumnAddress::make(7, 1u << 20); }},
      {"superblock area", [](SpaceFixture& p) { p.chunks[1].columns[0] = ColumnAddress::make(1, 65536); }},
      {"64 KiB", [](SpaceFixture& p) { p.chunks[1].columns[0] = ColumnAddress::make(1, (1u << 20) + 4096); }},
      {"beyond its device", [](SpaceFixture& p) { p.chunks[1].columns[0] = ColumnAddress::make(1, 10u << 20); }},
      {"beyond its device", [](SpaceFixture& p) { p.chunks[1].columns[0] = {(u64{1} << 49) - 16}; }},
      {"overlaps one of", [](SpaceFixture& p) { p.chunks[1].columns = p.chunks[0].columns; }},
  };
  for (const Damage& damage : damages) {
    SpaceFixture pool({.device_count = 2});
    damage.apply(pool);
    HeapAllocator allocator;
    try {
      build_logical_space(allocator, pool.superblock, pool.devices, pool.chunks, true);
      ADD_FAILURE() << "accepted: " << damage.says;
    } catch (const PoolError& error) {
      EXPECT_EQ(error.status(), Status::corrupt_structure);
      EXPECT_NE(std::string(error.what()).find(damage.says), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace gpu4fs::pool
