// Allocation and reservation: to the last page, in whole regions, over all chunks, and only within reach.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "support/space_fixture.hpp"

namespace gpu4fs::space {
namespace {

using raid::Extent;
using test::SpaceFixture;

struct FailedCheck {};

class CheckGuard {
 public:
  CheckGuard() : previous_(set_check_handler([](const CheckFailure&) { throw FailedCheck{}; })) {}
  ~CheckGuard() { set_check_handler(previous_); }

 private:
  CheckHandler previous_;
};

u32 chunk_of(const SpaceFixture& pool, u64 address) {
  u32 chunk = raid::no_chunk;
  EXPECT_EQ(raid::find_chunk(pool.fs->space, address, &chunk), Status::ok);
  return chunk;
}

TEST(SpaceAllocate, every_page_is_handed_out_once) {
  SpaceFixture pool({.device_count = 2, .chunks_per_device = 2});
  ASSERT_EQ(pool.load(1), Status::ok);
  const u64 total = pool.fs->data_counters().total;
  ASSERT_EQ(total, 4 * 2048u);
  fs::Operation op = pool.operation(1);
  op.emergency_use = space::EmergencyUse::all;
  ASSERT_EQ(reserve_pages(*pool.fs, op, total), Status::ok);
  std::set<u64> seen;
  for (u32 round = 0; op.pages_reserved > 0; ++round) {
    const Extent run = allocate_run(Lane{}, *pool.fs, op, 1 + round % 33, 1);
    ASSERT_GE(run.page_count, 1u);
    for (u32 i = 0; i < run.page_count; ++i) ASSERT_TRUE(seen.insert(run.address + i * page_size).second);
  }
  EXPECT_EQ(seen.size(), total);
  EXPECT_EQ(pool.fs->data_counters().free, 0u);
  EXPECT_EQ(pool.fs->data_counters().available, 0u);
  fs::Operation late = pool.operation();
  late.emergency_use = space::EmergencyUse::all;
  EXPECT_EQ(reserve_pages(*pool.fs, late, 1), Status::no_space);
}

// Unused reservations of others may return; the command's own do not, and neither do those of dirty frames.
TEST(SpaceAllocate, shortage_that_others_may_end_is_told) {
  SpaceFixture pool;
  ASSERT_EQ(pool.load(1), Status::ok);
  const u64 room = pool.fs->data_counters().total - pool.fs->data_counters().emergency;
  fs::Operation holder = pool.operation();
  ASSERT_EQ(reserve_pages(*pool.fs, holder, room - 10), Status::ok);
  const auto refused = [&](fs::Operation& op, u64 count) {
    op.blocked_by_reservations = 0;
    EXPECT_EQ(reserve_pages(*pool.fs, op, count), Status::no_space);
    return op.blocked_by_reservations != 0;
  };
  fs::Operation asking = pool.operation();
  EXPECT_TRUE(refused(asking, 11));
  EXPECT_TRUE(refused(asking, room));
  EXPECT_FALSE(refused(asking, room + 1)) << "more than all of it";
  EXPECT_FALSE(refused(holder, 11)) << "its own";
  ASSERT_EQ(reserve_pages(*pool.fs, asking, 10), Status::ok);
  EXPECT_TRUE(refused(asking, 1));
  EXPECT_TRUE(refused(asking, room - 10));
  EXPECT_FALSE(refused(asking, room - 9));
  EXPECT_TRUE(refused(holder, 10));
  EXPECT_FALSE(refused(holder, 11));
  // All of the other's reservations are those of dirty frames: the next checkpoint uses them.
  pool.fs->dirty.count = static_cast<u32>(room - 10);
  EXPECT_FALSE(refused(asking, 1));
  pool.fs->dirty.count = static_cast<u32>(room - 11);
  EXPECT_TRUE(refused(asking, 1));
  EXPECT_FALSE(refused(asking, 2));
}

TEST(SpaceAllocate, emergency_reserve_is_for_commands_that_free) {
  EXPECT_EQ(emergency_pages(2048), 128u);
  EXPECT_EQ(emergency_pages(50000), 500u);
  EXPECT_EQ(emergency_pages(10'000'000), 1024u);
  EXPECT_EQ(emergency_pages(50000, 80), 128u * 80) << "with stripes of 80 pages, not 1 % of the pool times 80";
  EXPECT_EQ(emergency_pages(10'000'000, 80), 1024u * 80);
  EXPECT_EQ(emergency_pages(2'000'000, 80), 20000u);
  SpaceFixture pool;
  ASSERT_EQ(pool.load(1), Status::ok);
  ASSERT_EQ(pool.fs->data_counters().emergency, 128u);
  fs::Operation consuming = pool.operation();
  EXPECT_EQ(reserve_pages(*pool.fs, consuming, 2048 - 127), Status::no_space);
  EXPECT_EQ(reserve_pages(*pool.fs, consuming, 2048 - 128), Status::ok);
  EXPECT_EQ(reserve_pages(*pool.fs, consuming, 1), Status::no_space);
  EXPECT_EQ(reserve_pages(*pool.fs, consuming, 0), Status::ok);
  fs::Operation freeing = pool.operation();
  freeing.emergency_use = space::EmergencyUse::all;
  EXPECT_EQ(reserve_pages(*pool.fs, freeing, 129), Status::no_space);
  EXPECT_EQ(reserve_pages(*pool.fs, freeing, 128), Status::ok);
  EXPECT_EQ(reserve_pages(*pool.fs, consuming, ~u64{0}), Status::no_space);
  unreserve_pages(*pool.fs, consuming, consuming.pages_reserved);
  unreserve_pages(*pool.fs, freeing, freeing.pages_reserved);
  EXPECT_EQ(pool.fs->data_counters().available, 2048u);
}

TEST(SpaceAllocate, large_runs_are_whole_regions_and_rotate_over_chunks) {
  SpaceFixture pool({.device_count = 4, .granules_per_chunk = 8});
  ASSERT_EQ(pool.load(1), Status::ok);
  fs::Operation op = pool.operation();
  ASSERT_EQ(reserve_pages(*pool.fs, op, 3 * 16384 + 700), Status::ok);
  std::set<u32> chunks;
  for (u32 i = 0; i < 4; ++i) {
    const Extent run = allocate_run(Lane{}, *pool.fs, op, 2 * 512 + 5, 512);
    ASSERT_EQ(run.page_count, 1024u);
    ASSERT_TRUE(is_aligned(run.address, block_size_2m));
    chunks.insert(chunk_of(pool, run.address));
  }
  EXPECT_EQ(chunks.size(), 4u);
  EXPECT_EQ(allocate_run(Lane{}, *pool.fs, op, 511, 512).page_count, 0u);
  EXPECT_EQ(allocate_run(Lane{}, *pool.fs, op, 100000, 512).page_count, large_run_pages_max);
  fs::Operation poor = pool.operation();
  ASSERT_EQ(reserve_pages(*pool.fs, poor, 511), Status::ok);
  EXPECT_EQ(allocate_run(Lane{}, *pool.fs, poor, 512, 512).page_count, 0u);
  EXPECT_EQ(poor.pages_reserved, 511u);
}

TEST(SpaceAllocate, no_large_run_without_a_free_region_but_every_small_one) {
  SpaceFixture pool;
  ASSERT_EQ(pool.load(1), Status::ok);
  fs::Operation op = pool.operation();
  op.emergency_use = space::EmergencyUse::all;
  ASSERT_EQ(reserve_pages(*pool.fs, op, 2048), Status::ok);
  std::vector<Extent> regions;
  for (u32 i = 0; i < 4; ++i) regions.push_back(allocate_run(Lane{}, *pool.fs, op, 512, 512));
  // All of each region except one page is returned.
  for (const Extent& region : regions) {
    ASSERT_EQ(region.page_count, 512u);
    abandon_extent(*pool.fs, op, {region.address, 200, 0});
    abandon_extent(*pool.fs, op, {region.address + 201 * page_size, 311, 0});
  }
  EXPECT_EQ(allocate_run(Lane{}, *pool.fs, op, 512, 512).page_count, 0u);
  EXPECT_EQ(op.pages_reserved, 2044u);
  // The longest hole comes first, then the other.
  EXPECT_EQ(allocate_run(Lane{}, *pool.fs, op, 400, 1).page_count, 311u);
  EXPECT_EQ(allocate_run(Lane{}, *pool.fs, op, 200, 1).page_count, 200u);
  u64 allocated = 511;
  while (op.pages_reserved > 0) allocated += allocate_run(Lane{}, *pool.fs, op, 3, 1).page_count;
  EXPECT_EQ(allocated, 2044u);
}

TEST(SpaceAllocate, shards_start_in_different_regions_and_move_over_devices) {
  SpaceFixture pool({.device_count = 2, .chunks_per_device = 2, .granules_per_chunk = 2, .shard_count = 8});
  ASSERT_EQ(pool.load(1), Status::ok);
  std::set<u64> regions;
  for (u32 shard = 0; shard < 8; ++shard) {
    fs::Operation op = pool.operation(shard);
    ASSERT_EQ(reserve_pages(*pool.fs, op, 1), Status::ok);
    regions.insert(allocate_run(Lane{}, *pool.fs, op, 1, 1).address / block_size_2m);
  }
  EXPECT_EQ(regions.size(), 8u);
  std::set<u32> chunks;
  fs::Operation op = pool.operation(0);
  ASSERT_EQ(reserve_pages(*pool.fs, op, 4 * 512), Status::ok);
  while (op.pages_reserved > 0) chunks.insert(chunk_of(pool, allocate_run(Lane{}, *pool.fs, op, 16, 1).address));
  EXPECT_GE(chunks.size(), 4u);
}

TEST(SpaceAllocate, chunks_out_of_reach_are_asked_for_only_when_needed) {
  SpaceFixture pool({.chunks_per_device = 3, .accessible = false});
  ASSERT_EQ(pool.load(1), Status::ok);
  EXPECT_EQ(pool.fs->data_counters().free, 3 * 2048u);
  EXPECT_EQ(pool.fs->data_counters().available, 0u);
  fs::Operation op = pool.operation();
  ASSERT_EQ(reserve_pages(*pool.fs, op, 10), Status::chunk_not_mapped);
  ASSERT_LT(op.wanted_chunk, 3u);
  const u32 first = op.wanted_chunk;
  make_chunk_accessible(*pool.fs, first);
  make_chunk_accessible(*pool.fs, first);
  EXPECT_EQ(pool.fs->data_counters().available, 2048u);
  ASSERT_EQ(reserve_pages(*pool.fs, op, 1500), Status::ok);
  for (u32 shard = 0; op.pages_reserved > 0; ++shard) {
    op.shard = shard % 4;
    EXPECT_EQ(chunk_of(pool, allocate_run(Lane{}, *pool.fs, op, 100, 1).address), first);
  }
  // More than is reachable: one chunk after the other; more than exists: no space.
  ASSERT_EQ(reserve_pages(*pool.fs, op, 4000), Status::chunk_not_mapped);
  EXPECT_NE(op.wanted_chunk, first);
  // The flag suffices: the chunk is counted when it is needed.
  pool.fs->space.chunks[op.wanted_chunk].presence |= raid::chunk_accessible;
  ASSERT_EQ(reserve_pages(*pool.fs, op, 4000), Status::chunk_not_mapped);
  make_chunk_accessible(*pool.fs, op.wanted_chunk);
  ASSERT_EQ(reserve_pages(*pool.fs, op, 4000), Status::ok);
  EXPECT_EQ(reserve_pages(*pool.fs, op, 5000), Status::no_space);
}

TEST(SpaceAllocate, pages_freed_out_of_reach_become_available_with_their_chunk) {
  SpaceFixture pool({.chunks_per_device = 2});
  std::vector<u64> bitmap = pool.empty_bitmap();
  for (u32 i = 0; i < 10; ++i) bitmap[i] = ~u64{0};
  pool.write_slot(1, 0, 1, bitmap);
  pool.fs->space.chunks[1].presence &= ~raid::chunk_accessible;
  ASSERT_EQ(pool.load(1), Status::ok);
  EXPECT_EQ(pool.fs->data_counters().available, 2048u);
  EXPECT_EQ(pool.fs->data_counters().used, 640u);
  free_extent(Lane{}, *pool.fs, {pool.chunks[1].descriptor.base_address, 100, 0});
  EXPECT_EQ(pool.fs->data_counters().freed_pending, 100u);
  ASSERT_EQ(pool.checkpoint(2), Status::ok);
  EXPECT_EQ(pool.fs->data_counters().freed_pending, 0u);
  EXPECT_EQ(pool.fs->data_counters().free, 2048u + 2048 - 540);
  EXPECT_EQ(pool.fs->data_counters().available, 2048u);
  make_chunk_accessible(*pool.fs, 1);
  EXPECT_EQ(pool.fs->data_counters().available, 2048u + 2048 - 540);
}

TEST(SpaceAllocate, damaged_block_pointers_free_nothing_else) {
  SpaceFixture pool;
  ASSERT_EQ(pool.load(1), Status::ok);
  fs::Operation op = pool.operation();
  ASSERT_EQ(reserve_pages(*pool.fs, op, 8), Status::ok);
  const Extent run = allocate_run(Lane{}, *pool.fs, op, 8, 1);
  ASSERT_EQ(run.page_count, 8u);
  commit_extent(Lane{}, *pool.fs, {run.address, 4, 0});
  free_extent(Lane{}, *pool.fs, {run.address, 2, 0});
  EXPECT_EQ(pool.fs->had_error, 0u);
  const SpaceCounters before = pool.fs->data_counters();
  for (const Extent bad : {Extent{run.address, 1, 0}, Extent{run.address + 5 * page_size, 1, 0}, Extent{0, 1, 0},
                           Extent{run.address + 1, 1, 0}, Extent{u64{1} << 40, 1, 0}, Extent{run.address, 5000, 0}}) {
    pool.fs->had_error = 0;
    free_extent(Lane{}, *pool.fs, bad);
    EXPECT_EQ(pool.fs->had_error, 1u);
    EXPECT_EQ(pool.fs->data_counters().used, before.used);
    EXPECT_EQ(pool.fs->data_counters().free, before.free);
  }
  pool.fs->had_error = 0;
  free_extent(Lane{}, *pool.fs, {run.address, 4, 0});  // two of them are in use
  EXPECT_EQ(pool.fs->had_error, 1u);
  EXPECT_EQ(pool.fs->data_counters().used, 0u);
}

// Another worker took a page between the search and the allocation.
TEST(SpaceAllocate, collision_leaves_a_prefix_and_nothing_else) {
  SpaceFixture pool;
  ASSERT_EQ(pool.load(1), Status::ok);
  raid::ChunkState& chunk = pool.fs->space.chunks[0];
  for (const u32 taken : {60u, 61u, 63u, 64u, 70u, 79u, 80u}) {
    std::fill_n(chunk.bitmaps.busy, 8, u64{0});
    chunk.bitmaps.busy[taken / 64] = u64{1} << (taken % 64);
    ASSERT_EQ(set_busy_prefix(chunk, 60, 20), taken - 60);
    for (u32 page = 0; page < 512; ++page) {
      const bool expected = page == taken || (page >= 60 && page < taken);
      ASSERT_EQ(raid::page_bit(chunk.bitmaps.busy, page), expected) << page << " " << taken;
    }
  }
  std::fill_n(chunk.bitmaps.busy, 8, u64{0});
  chunk.bitmaps.busy[5] = 2;
  EXPECT_FALSE(take_whole_region(chunk, 0));
  for (u32 w = 0; w < 8; ++w) EXPECT_EQ(chunk.bitmaps.busy[w], w == 5 ? 2u : 0u);
}

TEST(SpaceAllocate, misuse_fails_checks) {
  SpaceFixture pool;
  ASSERT_EQ(pool.load(1), Status::ok);
  fs::Operation op = pool.operation();
  ASSERT_EQ(reserve_pages(*pool.fs, op, 3), Status::ok);
  const Extent run = allocate_run(Lane{}, *pool.fs, op, 2, 1);
  const CheckGuard guard;
  EXPECT_THROW(unreserve_pages(*pool.fs, op, 2), FailedCheck);
  EXPECT_THROW(commit_extent(Lane{}, *pool.fs, {run.address + 2 * page_size, 1, 0}), FailedCheck);
  EXPECT_THROW(abandon_extent(*pool.fs, op, {run.address + 2 * page_size, 1, 0}), FailedCheck);
  commit_extent(Lane{}, *pool.fs, run);
  EXPECT_THROW(commit_extent(Lane{}, *pool.fs, run), FailedCheck);
  EXPECT_THROW(abandon_extent(*pool.fs, op, run), FailedCheck);
  EXPECT_THROW(allocate_run(Lane{}, *pool.fs, op, 1, 2), FailedCheck);
  EXPECT_THROW(allocate_run(Lane{}, *pool.fs, op, 0, 1), FailedCheck);
}

TEST(SpaceAllocate, read_only_mount_reserves_nothing) {
  SpaceFixture pool;
  pool.fs->read_only = 1;
  ASSERT_EQ(pool.load(1), Status::ok);
  fs::Operation op = pool.operation();
  EXPECT_EQ(reserve_pages(*pool.fs, op, 1), Status::read_only);
}

}  // namespace
}  // namespace gpu4fs::space
