// Chunks of several profiles: each class of them has counters of its own, gives pages only to requests for it, and
// becomes full on its own.
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "fs/journal/checkpoint.hpp"
#include "pool/logical_space/logical_space.hpp"
#include "pool/pool_error.hpp"
#include "space/space.hpp"
#include "support/group_runner.hpp"
#include "support/on_all_groups.hpp"
#include "support/space_fixture.hpp"

namespace gpu4fs::space::classes_test {
namespace {

using format::RaidLevel;
using test::SpaceFixture;
using test::SpaceOptions;

struct Mix {
  const char* name;
  RaidLevel data;
  u32 data_columns;
  u32 stripe_length_bytes;
  RaidLevel metadata;
  u32 metadata_columns;
};

const Mix mixes[] = {
    {"single_raid1", RaidLevel::single, 1, 0, RaidLevel::raid1, 2},
    {"raid5_raid1c3", RaidLevel::raid5, 4, 4096, RaidLevel::raid1, 3},
    {"raid0_raid6", RaidLevel::raid0, 3, 65536, RaidLevel::raid6, 4},
    {"raid7_raid5", RaidLevel::raid7, 5, 16384, RaidLevel::raid5, 3},
    {"raid1_raid1c4", RaidLevel::raid1, 2, 0, RaidLevel::raid1, 4},
};

SpaceOptions options_of(const Mix& mix) {
  SpaceOptions options;
  options.device_count = 5;
  options.chunks_per_device = mix.data == RaidLevel::single ? 1 : 2;
  options.level = mix.data;
  options.column_count = mix.data_columns;
  options.stripe_length_bytes = mix.stripe_length_bytes;
  options.metadata_chunks = 2;
  options.metadata_level = mix.metadata;
  options.metadata_column_count = mix.metadata_columns;
  return options;
}

// Free pages of a class according to the bitmaps, in stripes that count.
u64 countable_free(const fs::FileSystem& fs, u32 page_class) {
  u64 sum = 0;
  for (u32 i = 0; i < fs.space.chunk_count; ++i) {
    const raid::ChunkState& chunk = fs.space.chunks[i];
    if (chunk.page_class != page_class) continue;
    u64 busy = detail::count_busy(chunk, 0, chunk.page_count);
    if (!has_stripes(chunk)) sum += chunk.page_count - busy;
    for (u64 s = 0; s < chunk.stripe_count; ++s) {
      const raid::Stripe stripe = raid::stripe_at(chunk, s);
      if (detail::count_busy(chunk, stripe.first, stripe.page_count) == 0) sum += stripe_cost(chunk, stripe);
    }
  }
  return sum;
}

u64 committed(const fs::FileSystem& fs, u32 page_class) {
  u64 sum = 0;
  for (u32 i = 0; i < fs.space.chunk_count; ++i) {
    const raid::ChunkState& chunk = fs.space.chunks[i];
    if (chunk.page_class == page_class) sum += count_set_bits(Lane{}, chunk, chunk.bitmaps.committed);
  }
  return sum;
}

u32 class_at(const fs::FileSystem& fs, u64 address) {
  raid::PageLocation location{};
  EXPECT_EQ(raid::find_page(fs.space, address, &location), Status::ok);
  return fs.space.chunks[location.chunk].page_class;
}

class Classes : public ::testing::TestWithParam<Mix> {
 protected:
  Classes() : pool_(options_of(GetParam())) { EXPECT_EQ(pool_.load(1), Status::ok); }

  fs::FileSystem& fs() { return *pool_.fs; }
  u32 data() { return fs().space.data_class; }
  u32 metadata() { return fs().space.metadata_class; }
  fs::Operation operation(bool for_metadata, u32 shard = 0) {
    fs::Operation op = pool_.operation(shard);
    if (for_metadata) op.profile = metadata() + 1;
    return op;
  }
  void checkpoint() {
    close_stripes(fs());
    ASSERT_EQ(pool_.checkpoint(++epoch_), Status::ok);
  }
  // Takes pages of the class until there are none; returns what the command got.
  std::vector<raid::Extent> fill(bool for_metadata, Status* end) {
    std::vector<raid::Extent> extents;
    for (;;) {
      fs::Operation op = operation(for_metadata);
      op.whole_stripes = 1;
      *end = reserve_pages(fs(), op, 1);
      if (*end != Status::ok) return extents;
      const raid::Extent run = allocate_run(Lane{}, fs(), op, 1, 1);
      commit_extent(Lane{}, fs(), run);
      extents.push_back(run);
    }
  }

  SpaceFixture pool_;
  u64 epoch_ = 1;
};

TEST_P(Classes, RandomCommandsKeepTheSumsOfEachRight) {
  ASSERT_NE(data(), metadata());
  test::Sequence random(GetParam().data_columns * 10 + GetParam().metadata_columns);
  std::vector<raid::Extent> live;
  for (u32 step = 0; step < 1500; ++step) {
    const u64 kind = random.next() % 10;
    if (kind < 6) {
      const bool for_metadata = random.next() % 2 == 0;
      fs::Operation op = operation(for_metadata, static_cast<u32>(random.next() % 4));
      op.whole_stripes = static_cast<u32>(random.next() % 2);
      const u32 wanted = 1 + static_cast<u32>(random.next() % 40);
      if (reserve_pages(fs(), op, wanted) != Status::ok) continue;
      if (random.next() % 4 == 0) unreserve_pages(fs(), op, op.pages_reserved / 2);
      while (op.pages_reserved != 0) {
        const raid::Extent run = allocate_run(Lane{}, fs(), op, op.pages_reserved, 1);
        ASSERT_EQ(class_at(fs(), run.address), for_metadata ? metadata() : data());
        if (random.next() % 6 == 0) {
          const u32 back = abandon_extent(fs(), op, run);
          unreserve_pages(fs(), op, back);
        } else {
          commit_extent(Lane{}, fs(), run);
          live.push_back(run);
        }
      }
    } else if (kind < 9 && !live.empty()) {
      const std::size_t i = random.next() % live.size();
      free_extent(Lane{}, fs(), live[i]);
      live[i] = live.back();
      live.pop_back();
    } else if (random.next() % 4 == 0) {
      checkpoint();
    }
    for (const u32 page_class : {data(), metadata()}) {
      const SpaceCounters& counters = fs().counters[page_class];
      ASSERT_EQ(counters.reserved, 0u);
      ASSERT_EQ(counters.available, counters.free) << "step " << step;
      ASSERT_EQ(counters.used, committed(fs(), page_class)) << "step " << step;
      if (step % 50 == 0) {
        ASSERT_EQ(counters.free, countable_free(fs(), page_class)) << "step " << step;
      }
    }
  }
  checkpoint();
  // A mount finds what was left, whichever group loads it.
  SpaceFixture again = pool_.remount();
  ASSERT_EQ(again.load(epoch_), Status::ok);
  for (const u32 page_class : {data(), metadata()}) {
    EXPECT_EQ(again.fs->counters[page_class].used, fs().counters[page_class].used);
    EXPECT_EQ(again.fs->counters[page_class].total, fs().counters[page_class].total);
    EXPECT_EQ(again.fs->counters[page_class].free, countable_free(*again.fs, page_class));
  }
  EXPECT_EQ(check_page_used(*again.fs, pages_used(fs())), Status::ok);
  EXPECT_EQ(pages_total(*again.fs), pool_.superblock.page_total);
}

TEST_P(Classes, OneRunsFullAloneAndWaitsForItsOwnPages) {
  for (const bool metadata_is_full : {false, true}) {
    Status end = Status::ok;
    const std::vector<raid::Extent> extents = fill(metadata_is_full, &end);
    EXPECT_EQ(end, Status::no_space);
    EXPECT_FALSE(extents.empty());
    // The other has room, also for many pages at once.
    fs::Operation other = operation(!metadata_is_full);
    ASSERT_EQ(reserve_pages(fs(), other, 16), Status::ok);
    const raid::Extent run = allocate_run(Lane{}, fs(), other, 1, 1);
    EXPECT_EQ(class_at(fs(), run.address), metadata_is_full ? data() : metadata());
    commit_extent(Lane{}, fs(), run);
    unreserve_pages(fs(), other, other.pages_reserved);
    // Commands that free space get a few more pages of the full class.
    fs::Operation freeing = operation(metadata_is_full);
    freeing.emergency_use = space::EmergencyUse::all;
    EXPECT_EQ(reserve_pages(fs(), freeing, 4), Status::ok);
    unreserve_pages(fs(), freeing, 4);
    // Freed pages of the other class do not help; those of its own do, after a checkpoint.
    checkpoint();
    free_extent(Lane{}, fs(), run);
    fs::Operation more = operation(metadata_is_full);
    EXPECT_EQ(reserve_pages(fs(), more, 1), Status::no_space);
    for (const raid::Extent& extent : extents) free_extent(Lane{}, fs(), extent);
    EXPECT_EQ(reserve_pages(fs(), more, 1), Status::retry_after_checkpoint);
    checkpoint();
    EXPECT_EQ(reserve_pages(fs(), more, 1), Status::ok);
    unreserve_pages(fs(), more, 1);
  }
}

TEST_P(Classes, LargeRunsStayInTheirClass) {
  for (const bool for_metadata : {false, true}) {
    fs::Operation op = operation(for_metadata);
    ASSERT_EQ(reserve_pages(fs(), op, 512), Status::ok);
    const raid::Extent run = allocate_run(Lane{}, fs(), op, 512, 512);
    ASSERT_GE(run.page_count, 512u);
    EXPECT_EQ(class_at(fs(), run.address), for_metadata ? metadata() : data());
    commit_extent(Lane{}, fs(), run);
    if (op.pages_reserved != 0) unreserve_pages(fs(), op, op.pages_reserved);
  }
}

TEST_P(Classes, PagesOfAnotherClassGoBackToTheirOwn) {
  fs::Operation op = operation(true);
  ASSERT_EQ(reserve_pages(fs(), op, 1), Status::ok);
  const raid::Extent run = allocate_run(Lane{}, fs(), op, 1, 1);
  op.profile = 0;
  EXPECT_EQ(abandon_extent(fs(), op, run), 0u);
  EXPECT_EQ(op.pages_reserved, 0u);
  for (const u32 page_class : {data(), metadata()}) {
    EXPECT_EQ(fs().counters[page_class].reserved, 0u);
    EXPECT_EQ(fs().counters[page_class].available, fs().counters[page_class].free);
  }
}

TEST_P(Classes, WorkersInBothKeepTheSums) {
  std::vector<std::thread> threads;
  for (u32 t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      test::Sequence random(t + 1);
      std::vector<raid::Extent> live;
      for (u32 step = 0; step < 400; ++step) {
        fs::Operation op = operation(random.next() % 2 == 0, t);
        if (reserve_pages(fs(), op, 1 + random.next() % 9) != Status::ok) continue;
        while (op.pages_reserved != 0) {
          const raid::Extent run = allocate_run(Lane{}, fs(), op, op.pages_reserved, 1);
          EXPECT_EQ(class_at(fs(), run.address), class_of(fs(), op));
          commit_extent(Lane{}, fs(), run);
          live.push_back(run);
        }
        while (live.size() > 8) {
          free_extent(Lane{}, fs(), live.back());
          live.pop_back();
        }
      }
      for (const raid::Extent& extent : live) free_extent(Lane{}, fs(), extent);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const u32 page_class : {data(), metadata()}) {
    const SpaceCounters& counters = fs().counters[page_class];
    EXPECT_EQ(counters.used, 0u);
    EXPECT_EQ(counters.reserved, 0u);
    EXPECT_EQ(counters.free, countable_free(fs(), page_class));
    EXPECT_EQ(counters.available, counters.free);
  }
}

INSTANTIATE_TEST_SUITE_P(Mixes, Classes, ::testing::ValuesIn(mixes),
                         [](const auto& mix) { return std::string(mix.param.name); });

// Loading, committing and a checkpoint by every kind of group.
TEST(ClassesOnGroups, CountTheSame) {
  u64 used[2] = {0, 0};
  std::unique_ptr<SpaceFixture> pool;
  test::on_all_groups([&](auto g) {
    on_leader(g, [&] { pool = std::make_unique<SpaceFixture>(options_of(mixes[1])); });
    fs::FileSystem& fs = *pool->fs;
    for (u32 i = 0; i < fs.space.chunk_count; ++i) EXPECT_EQ(load_chunk(g, fs, i, 1), Status::ok);
    for (const u32 profile : {0u, fs.space.metadata_class + 1}) {
      const raid::Extent run = on_leader(g, [&] {
        fs::Operation op = pool->operation(0);
        op.profile = profile;
        EXPECT_EQ(reserve_pages(fs, op, 7), Status::ok);
        const raid::Extent taken = allocate_run(Lane{}, fs, op, 7, 1);
        if (op.pages_reserved != 0) unreserve_pages(fs, op, op.pages_reserved);
        return taken;
      });
      commit_extent(g, fs, run);
    }
    for (u32 i = 0; i < fs.space.chunk_count; ++i) snapshot_chunk(g, fs, i);
    for (u32 i = 0; i < fs.space.chunk_count; ++i) EXPECT_EQ(write_chunk(g, fs, i, 2), Status::ok);
    for (u32 i = 0; i < fs.space.chunk_count; ++i) publish_chunk(g, fs, i);
    on_leader(g, [&] {
      const u64 now[2] = {fs.data_counters().used, fs.counters[fs.space.metadata_class].used};
      EXPECT_GT(now[0], 0u);
      EXPECT_GT(now[1], 0u);
      for (u32 i = 0; i < 2; ++i) {
        EXPECT_TRUE(used[i] == 0 || used[i] == now[i]) << "class " << i;
        used[i] = now[i];
      }
    });
  });
}

TEST(ClassesOfAPool, MustFitWhatTheSuperblockSays) {
  const SpaceFixture pool(options_of(mixes[0]));
  test::HeapAllocator memory;
  format::Superblock superblock = pool.superblock;
  EXPECT_NO_THROW(pool::build_logical_space(memory, superblock, pool.devices, pool.chunks, true));
  superblock.metadata_profile = static_cast<u16>(format::Profile::raid7);
  EXPECT_THROW(pool::build_logical_space(memory, superblock, pool.devices, pool.chunks, true), pool::PoolError);
  superblock.metadata_profile = 9;
  EXPECT_THROW(pool::build_logical_space(memory, superblock, pool.devices, pool.chunks, true), pool::PoolError);
  superblock.metadata_profile = 0;
  EXPECT_THROW(pool::build_logical_space(memory, superblock, pool.devices, pool.chunks, true), pool::PoolError);
  superblock = pool.superblock;
  superblock.feature_incompatible &= ~u64{format::feature_mixed_profiles};
  EXPECT_THROW(pool::build_logical_space(memory, superblock, pool.devices, pool.chunks, true), pool::PoolError);
}

// A file may request profiles that have chunks for data.
TEST(ClassesOfAPool, FilesGetWhatIsThere) {
  const SpaceFixture pool(options_of(mixes[0]));
  const fs::FileSystem& fs = *pool.fs;
  const auto number = [](format::Profile profile) { return static_cast<u32>(profile); };
  EXPECT_TRUE(has_data_profile(fs, number(format::Profile::single)));
  EXPECT_FALSE(has_data_profile(fs, number(format::Profile::raid1))) << "it is for metadata only";
  EXPECT_FALSE(has_data_profile(fs, 0));
  EXPECT_FALSE(has_data_profile(fs, 9));
  EXPECT_EQ(effective_profile(fs, 0), number(format::Profile::single));
  EXPECT_EQ(effective_profile(fs, number(format::Profile::raid1)), number(format::Profile::single));
  EXPECT_EQ(effective_profile(fs, 65535), number(format::Profile::single));
}

}  // namespace
}  // namespace gpu4fs::space::classes_test
