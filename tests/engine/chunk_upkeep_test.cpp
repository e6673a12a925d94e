// The work of rebuilds and scrubs on one chunk, by plain calls.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "engine/handlers/rebuild_ops.hpp"
#include "raid/page_run_io.hpp"
#include "support/level_shapes.hpp"
#include "support/space_fixture.hpp"

namespace gpu4fs::test::chunk_upkeep_test {
namespace {

raid::Extent put_pages(SpaceFixture& pool, u32 count) {
  fs::Operation op = pool.operation();
  EXPECT_EQ(space::reserve_pages(*pool.fs, op, count), Status::ok);
  const raid::Extent run = space::allocate_run(Lane{}, *pool.fs, op, count, 1);
  const std::vector<u8> bytes(u64{run.page_count} * page_size, 0x35);
  EXPECT_EQ(raid::write_pages(Lane{}, pool.fs->space, run.address, run.page_count, bytes.data(), raid::PageUse::data),
            Status::ok);
  space::commit_extent(Lane{}, *pool.fs, run);
  return run;
}

// Pages of the durable epoch are still described when no file uses them: a crash brings them back. The descriptors lose
// their meaning only if that epoch has no page either; while the chunk is out of reach, nobody can write them.
TEST(ChunkForRebuild, KeepsDescriptorsThatTheDurableEpochNeeds) {
  SpaceFixture pool(options_of({"raid1", format::RaidLevel::raid1, 2, 0}));
  ASSERT_EQ(pool.load(1), Status::ok);
  raid::ChunkState& chunk = pool.fs->space.chunks[0];
  const raid::Extent run = put_pages(pool, 3);
  ASSERT_EQ(pool.checkpoint(2), Status::ok);
  const u64 entry = chunk.descriptor_table[0];
  ASSERT_NE(entry, format::descriptor_page_unwritten);
  space::free_extent(Lane{}, *pool.fs, run);
  chunk.presence &= ~raid::chunk_accessible;
  engine::detail::mark_chunk_for_rebuild(Lane{}, chunk);
  EXPECT_EQ(chunk.descriptor_table[0], entry);
  EXPECT_EQ(chunk.descriptor_table_staged[0], entry);
  EXPECT_EQ(chunk.descriptor_dirty[0] & 1, 1u) << "the device gets them";
  ASSERT_EQ(pool.checkpoint(3), Status::ok);
  EXPECT_NE(chunk.descriptor_table[0], format::descriptor_page_unwritten);
  // Now it is empty in that epoch, too.
  ASSERT_EQ(chunk.descriptor_dirty[0], 0u);
  engine::detail::mark_chunk_for_rebuild(Lane{}, chunk);
  EXPECT_EQ(chunk.descriptor_dirty[0], 0u) << "out of reach";
  EXPECT_EQ(chunk.descriptor_table[0], format::descriptor_page_unwritten);
  EXPECT_EQ(chunk.descriptor_table_staged[0], format::descriptor_page_unwritten);
  ASSERT_EQ(pool.checkpoint(4), Status::ok);
  SpaceFixture mounted = pool.remount();
  EXPECT_EQ(mounted.load(4), Status::ok);
  EXPECT_EQ(mounted.fs->space.damage->mismatch_counts[0] + mounted.fs->space.damage->mismatch_counts[1], 0u);
  // All of them are written while it is reachable.
  chunk.presence |= raid::chunk_accessible;
  engine::detail::mark_chunk_for_rebuild(Lane{}, chunk);
  EXPECT_EQ(chunk.descriptor_dirty[0] & 1, 1u);
}

// Parities of a row with only unverified pages are the sums of its pages.
TEST(ScrubOfRows, RepairsParitiesOfUnverifiedPages) {
  SpaceFixture pool(options_of({"raid5", format::RaidLevel::raid5, 4, 4096}));
  ASSERT_EQ(pool.load(1), Status::ok);
  raid::LogicalSpace& space = pool.fs->space;
  raid::ChunkState& chunk = space.chunks[0];
  const raid::Extent run = put_pages(pool, 3);
  const u64 first = (run.address - chunk.base_address) / page_size;
  const raid::RowView view = raid::row_view(space, 0, raid::row_place(chunk, first).row);
  ASSERT_EQ(run.page_count, view.slot_count);
  ASSERT_EQ(pool.checkpoint(2), Status::ok);
  for (u32 i = 0; i < run.page_count; ++i) chunk.descriptors[first + i].flags = format::page_flag_unverified;
  u8* const parity = raid::parity_memory(space, view, 0);
  const std::vector<u8> expected(parity, parity + page_size);
  parity[77] ^= 4;
  engine::detail::scrub_rows(Lane{}, space, 0, first, run.page_count);
  EXPECT_EQ(std::memcmp(parity, expected.data(), page_size), 0);
}

}  // namespace
}  // namespace gpu4fs::test::chunk_upkeep_test
