// free_extent: each rank of a group frees one word of the bitmaps.
#include <gtest/gtest.h>

#include <vector>

#include "support/on_all_groups.hpp"
#include "support/space_fixture.hpp"

namespace gpu4fs::space {
namespace {

using test::on_all_groups;
using test::SpaceFixture;

constexpr u64 page_total = 2048;

bool is_stable_page(u64 page) {
  return page % 3 == 0 || (page >= 640 && page < 768);
}

struct FreeCase {
  u64 first;
  u32 count;
  bool has_log;
};

// For a chunk that is completely allocated and committed, with some of its pages stable.
void expect_freed(const FreeCase& c) {
  SCOPED_TRACE(testing::Message() << c.first << " + " << c.count << (c.has_log ? ", with a log" : ""));
  on_all_groups([&](auto g) {
    static SpaceFixture* pool = nullptr;
    static SpaceCounters before{};
    on_leader(g, [&] {
      pool = new SpaceFixture;
      ASSERT_EQ(pool->load(1), Status::ok);
      pool->fs->has_log = c.has_log ? 1 : 0;
      fs::Operation op = pool->operation();
      op.emergency_use = space::EmergencyUse::all;
      ASSERT_EQ(reserve_pages(*pool->fs, op, page_total), Status::ok);
      while (op.pages_reserved > 0) {
        commit_extent(Lane{}, *pool->fs, allocate_run(Lane{}, *pool->fs, op, op.pages_reserved, 1));
      }
      raid::ChunkState& chunk = pool->fs->space.chunks[0];
      for (u64 page = 0; page < page_total; ++page) {
        if (is_stable_page(page)) chunk.bitmaps.stable[page / 64] |= u64{1} << (page % 64);
      }
      before = pool->fs->data_counters();
    });
    raid::ChunkState& chunk = pool->fs->space.chunks[0];
    free_extent(g, *pool->fs, {chunk.base_address + c.first * page_size, c.count, 0});
    on_leader(g, [&] {
      u64 waiting = 0;
      for (u64 page = 0; page < page_total; ++page) {
        const bool is_freed = page >= c.first && page < c.first + c.count;
        const bool waits = is_freed && (c.has_log || is_stable_page(page));
        waiting += waits ? 1 : 0;
        ASSERT_EQ(raid::page_bit(chunk.bitmaps.committed, page), !is_freed) << page;
        ASSERT_EQ(raid::page_bit(chunk.bitmaps.freed_now, page), waits) << page;
        ASSERT_EQ(raid::page_bit(chunk.bitmaps.busy, page), !is_freed || waits) << page;
      }
      const SpaceCounters after = pool->fs->data_counters();
      EXPECT_EQ(after.used, before.used - c.count);
      EXPECT_EQ(after.freed_pending, before.freed_pending + waiting);
      EXPECT_EQ(after.free, before.free + c.count - waiting);
      EXPECT_EQ(after.available, before.available + c.count - waiting);
      EXPECT_EQ(pool->fs->had_error, 0u);
      delete pool;
    });
  });
}

TEST(SpaceFree, pages_of_any_range_go_once_and_those_that_a_checkpoint_needs_wait) {
  for (const bool has_log : {false, true}) {
    for (const FreeCase& c :
         {FreeCase{0, 1, has_log}, FreeCase{63, 2, has_log}, FreeCase{5, 700, has_log}, FreeCase{512, 512, has_log},
          FreeCase{64, 1984, has_log}, FreeCase{0, 2048, has_log}, FreeCase{2047, 1, has_log}}) {
      expect_freed(c);
    }
  }
}

// A damaged map names them: pages in use are freed, the others are recorded.
TEST(SpaceFree, pages_that_are_not_in_use_are_noted) {
  on_all_groups([](auto g) {
    static SpaceFixture* pool = nullptr;
    static raid::Extent run{};
    on_leader(g, [&] {
      pool = new SpaceFixture;
      ASSERT_EQ(pool->load(1), Status::ok);
      fs::Operation op = pool->operation();
      ASSERT_EQ(reserve_pages(*pool->fs, op, 100), Status::ok);
      run = allocate_run(Lane{}, *pool->fs, op, 100, 1);
      commit_extent(Lane{}, *pool->fs, run);
    });
    free_extent(g, *pool->fs, {run.address, 300, 0});
    on_leader(g, [&] {
      EXPECT_EQ(pool->fs->had_error, 1u);
      EXPECT_EQ(pool->fs->data_counters().used, u64{0});
      EXPECT_EQ(detail::count_busy(pool->fs->space.chunks[0], 0, page_total), u64{0});
      pool->fs->had_error = 0;
    });
    free_extent(g, *pool->fs, {run.address, static_cast<u32>(page_total) + 1, 0});
    on_leader(g, [&] {
      EXPECT_EQ(pool->fs->had_error, 1u) << "more pages than the chunk has";
      delete pool;
    });
  });
}

}  // namespace
}  // namespace gpu4fs::space
