// Random work on metadata pages: the invariants of the table, checkpoints, eviction, reopening.
#include <gtest/gtest.h>

#include "support/page_walk.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test {
namespace {

struct WalkPlan {
  u32 steps;
  u32 check_interval;
  u32 checkpoint_interval;
};

template <class Walk>
void run_plan(Walk& walk, const WalkPlan& plan) {
  for (u32 i = 1; i <= plan.steps; ++i) {
    walk.step();
    if (i % plan.check_interval == 0) walk.expect_table_holds();
    if (i % plan.checkpoint_interval == 0) walk.checkpoint();
    if (::testing::Test::HasFatalFailure()) return;
  }
  walk.expect_table_holds();
  walk.verify();
  walk.checkpoint();
  walk.expect_pages_accounted();
  walk.expect_table_holds();
}

TEST(PagesWalk, LaneKeepsInvariantsAndContents) {
  for (u64 seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SmallFileSystem small;
    ASSERT_EQ(small.load_status(), Status::ok);
    const WalkModel model = walk_on_lane(small, seed, {}, [&](Lane, auto& walk) {
      run_plan(walk, {scaled(2000), 10, 150});
    });
    SmallFileSystem again(small.options(), small.images());
    ASSERT_EQ(again.load_status(), Status::ok);
    walk_on_lane(again, seed, model, [&](Lane, auto& walk) {
      walk.verify();
      walk.expect_pages_accounted();
      walk.expect_table_holds();
    });
  }
}

TEST(PagesWalk, WarpKeepsInvariantsAndContents) {
  SmallFileSystem small;
  ASSERT_EQ(small.load_status(), Status::ok);
  const WalkModel model = walk_on_warp(small, 11, {}, [&](EmulatedWarp, auto& walk) {
    run_plan(walk, {scaled(500), 20, 90});
  });
  // A lane reads what a warp wrote.
  SmallFileSystem again(small.options(), small.images());
  ASSERT_EQ(again.load_status(), Status::ok);
  walk_on_lane(again, 1, model, [&](Lane, auto& walk) {
    walk.verify();
    walk.expect_pages_accounted();
  });
}

TEST(PagesWalk, LaneAndWarpDoTheSame) {
  SmallFileSystem on_lane;
  SmallFileSystem on_warp;
  const auto body = [](auto, auto& walk) {
    for (u32 i = 0; i < 60; ++i) walk.step();
    walk.checkpoint();
  };
  const WalkModel a = walk_on_lane(on_lane, 5, {}, body);
  const WalkModel b = walk_on_warp(on_warp, 5, {}, body);
  EXPECT_EQ(a, b);
  // Byte for byte, except for the superblocks' time, which both take from their options.
  EXPECT_EQ(on_lane.images(), on_warp.images());
}

// More pages than frames: every step may have to make room.
TEST(PagesWalk, SmallTableEvictsAndReloads) {
  SmallPoolOptions options;
  options.frame_count = 128;
  options.staging_count = 96;
  SmallFileSystem small(options);
  u32 checkpoints = 0;
  const WalkModel model = walk_on_lane(small, 21, {}, [&](Lane, auto& walk) {
    run_plan(walk, {1000 + scaled(2000), 25, 1u << 30});
    checkpoints = walk.checkpoint_count();
  });
  u64 pages = 0;
  for (const auto& [number, file] : model) pages += file.pages.size();
  EXPECT_GT(pages, options.frame_count) << "the walk did not fill the table";
  EXPECT_GT(checkpoints, 4u) << "nothing had to wait for room";
}

// A pool that becomes full: no_space changes nothing, and removing makes room again.
TEST(PagesWalk, FullPoolAnswersNoSpace) {
  SmallPoolOptions options;
  options.chunk_count = 1;
  options.frame_count = 4096;
  options.staging_count = 4096;
  SmallFileSystem small(options);
  fs::FileSystem& fs = small.fs();
  fs::Operation greedy = small.operation();
  // Another command holds most of the pool.
  ASSERT_EQ(space::reserve_pages(fs, greedy, fs.data_counters().available - fs.data_counters().emergency - 150),
            Status::ok);
  const u64 held = greedy.pages_reserved;
  walk_on_lane(small, 31, {}, [&](Lane, auto& walk) {
    for (u32 i = 0; i < 800 + scaled(700); ++i) {
      walk.step();
      if (i % 50 == 0) walk.checkpoint();
    }
    EXPECT_GT(walk.refused_count(), 10u);
    space::unreserve_pages(fs, greedy, held);
    walk.verify();
    walk.checkpoint();
    walk.expect_table_holds();
    walk.expect_pages_accounted();
  });
}

}  // namespace
}  // namespace gpu4fs::test
