// Whole regions: each rank of a group takes one, and the consecutive ones are kept.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "support/on_all_groups.hpp"
#include "support/space_fixture.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::space {
namespace {

using test::on_all_groups;
using test::SpaceFixture;

constexpr u32 region_count = 64;
constexpr test::SpaceOptions one_large_chunk{.device_count = 1, .granules_per_chunk = region_count / 4};

u32 busy_pages(const raid::ChunkState& chunk, u32 region) {
  return static_cast<u32>(detail::count_busy(chunk, u64{region} * region_pages, region_pages));
}

// As if they were allocated.
void fill_region(raid::ChunkState& chunk, u32 region) {
  ASSERT_TRUE(take_whole_region(chunk, region));
}

// Another worker took a page of region `taken` after its count was read.
TEST(SpaceRegions, a_run_ends_where_somebody_was_faster_and_leaves_nothing_behind_it) {
  for (const u32 taken : {0u, 1u, 5u, 31u, 32u, 33u, 63u}) {
    on_all_groups([&](auto g) {
      static SpaceFixture* pool = nullptr;
      on_leader(g, [&] {
        pool = new SpaceFixture(one_large_chunk);
        ASSERT_EQ(pool->load(1), Status::ok);
        pool->fs->space.chunks[0].bitmaps.busy[u64{taken} * region_words + 3] = 1;
      });
      raid::ChunkState& chunk = pool->fs->space.chunks[0];
      ASSERT_EQ(region_count_of(chunk), region_count);
      EXPECT_EQ(take_regions_from(g, chunk, 0, region_count), taken);
      on_leader(g, [&] {
        for (u32 region = 0; region < region_count; ++region) {
          const u32 expected = region < taken ? region_pages : region == taken ? 1 : 0;
          EXPECT_EQ(busy_pages(chunk, region), expected) << region << " of " << taken;
          EXPECT_EQ(region_free(chunk, region), region < taken ? 0 : region_pages) << region;
        }
        delete pool;
      });
    });
  }
}

struct Case {
  u32 hint;
  u32 wanted;
  u32 first;
  u32 count;
};

// The result of take_regions() in a chunk with the free regions 3, 10 to 49 and those from `free_tail` on.
void expect_run(const Case& c, u32 free_tail) {
  const auto is_free = [&](u32 region) { return region == 3 || (region >= 10 && region < 50) || region >= free_tail; };
  on_all_groups([&](auto g) {
    static SpaceFixture* pool = nullptr;
    on_leader(g, [&] {
      pool = new SpaceFixture(one_large_chunk);
      ASSERT_EQ(pool->load(1), Status::ok);
      for (u32 region = 0; region < region_count; ++region) {
        if (!is_free(region)) fill_region(pool->fs->space.chunks[0], region);
      }
    });
    raid::ChunkState& chunk = pool->fs->space.chunks[0];
    const PageRun run = take_regions(g, chunk, region_count, c.hint, c.wanted);
    EXPECT_EQ(run.first, c.first * region_pages);
    EXPECT_EQ(run.count, c.count * region_pages);
    on_leader(g, [&] {
      for (u32 region = 0; region < region_count; ++region) {
        const bool in_run = region >= c.first && region < c.first + c.count;
        const bool expects_busy = in_run || !is_free(region);
        EXPECT_EQ(busy_pages(chunk, region), expects_busy ? region_pages : 0) << region;
        EXPECT_EQ(region_free(chunk, region), expects_busy ? 0 : region_pages) << region;
      }
      delete pool;
    });
  });
}

TEST(SpaceRegions, the_first_free_ones_from_the_hint_on_are_taken_up_to_the_end_of_the_chunk) {
  // Free are 3, 10 to 49 and, in the first group of cases, 60 to 63.
  const Case cases[] = {{0, 16, 3, 1},   {4, 16, 10, 16}, {4, 64, 10, 40}, {20, 64, 20, 30},
                        {50, 64, 60, 4}, {62, 64, 62, 2}, {63, 1, 63, 1},  {49, 7, 49, 1}};
  for (const Case& c : cases) expect_run(c, 60);
  const Case behind_the_end[] = {{50, 64, 3, 1}, {63, 2, 3, 1}, {40, 64, 40, 10}};
  for (const Case& c : behind_the_end) expect_run(c, region_count);
}

TEST(SpaceRegions, no_run_where_all_are_taken) {
  on_all_groups([](auto g) {
    static SpaceFixture* pool = nullptr;
    on_leader(g, [&] {
      pool = new SpaceFixture(one_large_chunk);
      ASSERT_EQ(pool->load(1), Status::ok);
      for (u32 region = 0; region < region_count; ++region) fill_region(pool->fs->space.chunks[0], region);
    });
    const PageRun run = take_regions(g, pool->fs->space.chunks[0], region_count, 17, 8);
    EXPECT_EQ(run.count, 0u);
    on_leader(g, [&] { delete pool; });
  });
}

TEST(SpaceRegions, an_empty_chunk_has_the_longest_run) {
  on_all_groups([](auto g) {
    static SpaceFixture* pool = nullptr;
    static fs::Operation op{};
    on_leader(g, [&] {
      pool = new SpaceFixture(one_large_chunk);
      ASSERT_EQ(pool->load(1), Status::ok);
      op = pool->operation();
      ASSERT_EQ(reserve_pages(*pool->fs, op, 20 * region_pages), Status::ok);
    });
    const raid::Extent run = allocate_run(g, *pool->fs, op, 20 * region_pages, region_pages);
    EXPECT_EQ(run.page_count, large_run_pages_max);
    on_leader(g, [&] {
      EXPECT_EQ(op.pages_reserved, u64{4} * region_pages);
      delete pool;
    });
  });
}

// Which worker has a region, to detect that two have it.
class RegionOwners {
 public:
  explicit RegionOwners(const raid::ChunkState& chunk) : base_(chunk.base_address), owners_(region_count) {}

  void take(const raid::Extent& run) {
    for_each(run, [](std::atomic<u32>& owner) { EXPECT_EQ(owner.exchange(1), 0u); });
  }
  void give(const raid::Extent& run) {
    for_each(run, [](std::atomic<u32>& owner) { EXPECT_EQ(owner.exchange(0), 1u); });
  }

 private:
  template <class Visit>
  void for_each(const raid::Extent& run, Visit&& visit) {
    const u64 first = (run.address - base_) / block_size_2m;
    for (u64 i = 0; i < run.page_count / region_pages; ++i) visit(owners_[first + i]);
  }

  u64 base_;
  std::vector<std::atomic<u32>> owners_;
};

// Keeps each run over the next round. Counts the runs.
template <class Group>
void take_and_give_back(Group g, fs::FileSystem& fs, fs::Operation& op, RegionOwners& owners, u32 rounds,
                        std::atomic<u32>& runs) {
  raid::Extent held{raid::no_address, 0, 0};
  const auto give_back = [&] {
    if (held.page_count == 0) return;
    owners.give(held);
    abandon_extent(fs, op, held);
  };
  for (u32 round = 0; round < rounds; ++round) {
    const u64 wanted = u64{1 + round % 15} * region_pages;
    const Status reserved = on_leader(g, [&] { return reserve_pages(fs, op, wanted); });
    raid::Extent run{raid::no_address, 0, 0};
    if (reserved == Status::ok) run = allocate_run(g, fs, op, wanted, region_pages);
    on_leader(g, [&] {
      EXPECT_LE(run.page_count, wanted);
      EXPECT_EQ(run.page_count % region_pages, 0u);
      if (run.page_count != 0) {
        owners.take(run);
        ++runs;
      }
      give_back();
      unreserve_pages(fs, op, op.pages_reserved);
    });
    held = run;
  }
  on_leader(g, [&] {
    give_back();
    unreserve_pages(fs, op, op.pages_reserved);
  });
}

TEST(SpaceRegions, groups_side_by_side_get_different_ones_and_all_come_back) {
  SpaceFixture pool(one_large_chunk);
  ASSERT_EQ(pool.load(1), Status::ok);
  fs::FileSystem& fs = *pool.fs;
  const SpaceCounters before = fs.data_counters();
  RegionOwners owners(fs.space.chunks[0]);
  std::vector<fs::Operation> operations(4);
  for (fs::Operation& op : operations) op = pool.operation();
  std::atomic<u32> runs_of_lanes{0};
  std::atomic<u32> runs_of_warps{0};
  std::vector<std::thread> threads;
  for (u32 i = 0; i < 2; ++i) {
    threads.emplace_back(
        [&, i] { take_and_give_back(Lane{}, fs, operations[i], owners, test::scaled(4000), runs_of_lanes); });
    threads.emplace_back([&, i] {
      run_emulated_warp([&](EmulatedWarp g) {
        take_and_give_back(g, fs, operations[2 + i], owners, test::scaled(200), runs_of_warps);
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(runs_of_lanes.load(), 0u);
  EXPECT_GT(runs_of_warps.load(), 0u);
  EXPECT_EQ(fs.data_counters().free, before.free);
  EXPECT_EQ(fs.data_counters().available, before.available);
  EXPECT_EQ(fs.data_counters().reserved, u64{0});
  for (u32 region = 0; region < region_count; ++region) {
    EXPECT_EQ(busy_pages(fs.space.chunks[0], region), 0u);
    EXPECT_EQ(region_free(fs.space.chunks[0], region), region_pages);
  }
}

}  // namespace
}  // namespace gpu4fs::space
