// Allocation in chunks with parities: whole stripes leave the free pages and return whole, sums stay right, and a mount
// finds what was left.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "fs/journal/checkpoint.hpp"
#include "space/space.hpp"
#include "support/group_runner.hpp"
#include "support/level_shapes.hpp"
#include "support/space_fixture.hpp"

namespace gpu4fs::space::stripes_test {
namespace {

using test::SpaceFixture;

const test::LevelShape shapes[] = {
    {"raid5_2_4k", format::RaidLevel::raid5, 2, 4096},   {"raid5_4_4k", format::RaidLevel::raid5, 4, 4096},
    {"raid5_6_64k", format::RaidLevel::raid5, 6, 65536}, {"raid6_5_1m", format::RaidLevel::raid6, 5, 1 << 20},
    {"raid6_8_4k", format::RaidLevel::raid6, 8, 4096},   {"raid7_6_16k", format::RaidLevel::raid7, 6, 16384},
};

class Stripes : public ::testing::TestWithParam<test::LevelShape> {
 protected:
  Stripes() : pool_(options()) { EXPECT_EQ(pool_.load(1), Status::ok); }

  static test::SpaceOptions options() {
    test::SpaceOptions options = test::options_of(GetParam());
    options.chunks_per_device = 2;
    return options;
  }

  raid::Stripe stripe_of(u64 address) {
    raid::PageLocation location{};
    EXPECT_EQ(raid::find_page(pool_.fs->space, address, &location), Status::ok);
    return raid::stripe_of(pool_.fs->space.chunks[location.chunk], location.page);
  }
  u64 stripe_key(u64 address) {
    raid::PageLocation location{};
    EXPECT_EQ(raid::find_page(pool_.fs->space, address, &location), Status::ok);
    return u64{location.chunk} << 32 | stripe_of(address).index;
  }
  void checkpoint() {
    close_stripes(*pool_.fs);
    ASSERT_EQ(pool_.checkpoint(++epoch_), Status::ok);
  }
  // Free pages according to the bitmaps, in stripes that count.
  static u64 countable_free(const SpaceFixture& pool) {
    u64 sum = 0;
    for (u32 i = 0; i < pool.fs->space.chunk_count; ++i) {
      const raid::ChunkState& chunk = pool.fs->space.chunks[i];
      for (u64 s = 0; s < chunk.stripe_count; ++s) {
        const raid::Stripe stripe = raid::stripe_at(chunk, s);
        u32 busy = 0;
        for (u64 page = stripe.first; page < stripe.first + stripe.page_count; ++page) {
          busy += raid::page_bit(chunk.bitmaps.busy, page) ? 1 : 0;
        }
        EXPECT_TRUE(busy == 0 || busy == stripe.page_count) << "stripe " << s << " is partly free";
        if (busy == 0) sum += space::stripe_cost(chunk, stripe);
      }
    }
    return sum;
  }

  SpaceFixture pool_;
  u64 epoch_ = 1;
};

// Random operations on a pool's pages.
class StripeWalk : public Stripes {
 protected:
  // A command takes pages, and keeps most of them.
  void allocate(u32 step) {
    fs::FileSystem& fs = *pool_.fs;
    fs::Operation op = pool_.operation(static_cast<u32>(random_.next() % 4));
    op.whole_stripes = random_.next() % 2 == 0 ? 1 : 0;
    const bool large = random_.next() % 8 == 0;
    const u32 wanted = large ? 512 * (1 + static_cast<u32>(random_.next() % 3))
                             : 1 + static_cast<u32>(random_.next() % (op.whole_stripes != 0 ? 60 : 3));
    const Status status = reserve_pages(fs, op, wanted);
    if (status != Status::ok) {
      EXPECT_TRUE(status == Status::no_space || status == Status::retry_after_checkpoint);
      if (!live_.empty()) free_extent(Lane{}, fs, live_.back());
      if (!live_.empty()) live_.pop_back();
      return;
    }
    while (op.pages_reserved != 0) {
      raid::Extent run = large ? allocate_run(Lane{}, fs, op, op.pages_reserved, 512) : raid::Extent{};
      if (run.page_count == 0) run = allocate_run(Lane{}, fs, op, op.pages_reserved, 1);
      ASSERT_GT(run.page_count, 0u);
      keep_or_abandon(op, run, step);
    }
  }
  void keep_or_abandon(fs::Operation& op, const raid::Extent& run, u32 step) {
    fs::FileSystem& fs = *pool_.fs;
    std::set<u64> keys;
    for (u32 i = 0; i < run.page_count; ++i) keys.insert(stripe_key(run.address + i * page_size));
    for (const u64 key : keys) {
      const auto [entry, is_new] = owner_of_stripe_.try_emplace(key, op.whole_stripes != 0 ? step : 0);
      ASSERT_TRUE(is_new || (entry->second == 0 && op.whole_stripes == 0))
          << "a stripe of another command, or of an older checkpoint";
    }
    if (random_.next() % 8 != 0) {
      commit_extent(Lane{}, fs, run);
      live_.push_back(run);
      return;
    }
    EXPECT_EQ(abandon_extent(fs, op, run), 0u);
    for (const u64 key : keys) {
      // If no other page of a stripe was allocated, the stripe is free at once.
      const raid::ChunkState& chunk = fs.space.chunks[key >> 32];
      if (!raid::page_bit(chunk.bitmaps.busy, raid::stripe_at(chunk, key & 0xffffffff).first)) {
        owner_of_stripe_.erase(key);
      }
    }
  }
  void step(u32 number) {
    const u64 kind = random_.next() % 10;
    if (kind < 5) {
      allocate(number);
    } else if (kind < 8 && !live_.empty()) {
      const std::size_t i = random_.next() % live_.size();
      free_extent(Lane{}, *pool_.fs, live_[i]);
      live_[i] = live_.back();
      live_.pop_back();
    } else if (random_.next() % 4 == 0) {
      checkpoint();
      owner_of_stripe_.clear();
      for (const raid::Extent& extent : live_) {
        for (u32 i = 0; i < extent.page_count; ++i) owner_of_stripe_[stripe_key(extent.address + i * page_size)] = ~0u;
      }
    }
  }
  // Every page is free in the end, including the rests of open stripes.
  void free_everything() {
    fs::FileSystem& fs = *pool_.fs;
    for (const raid::Extent& extent : live_) free_extent(Lane{}, fs, extent);
    checkpoint();
    for (u32 shard = 0; shard < 4; ++shard) {
      fs::Operation op = pool_.operation(shard);
      op.emergency_use = space::EmergencyUse::all;
      ASSERT_EQ(reserve_pages(fs, op, 1), Status::ok);
      abandon_extent(fs, op, allocate_run(Lane{}, fs, op, 1, 1));
    }
    checkpoint();
    for (u32 shard = 0; shard < 4; ++shard)
      (void)space::take_from_open_stripe(fs, fs.shards[shard], fs.space.data_class, 1);
  }

  test::Sequence random_{GetParam().column_count * 100 + GetParam().stripe_length_bytes};
  std::vector<raid::Extent> live_;
  std::map<u64, u32> owner_of_stripe_;  // a step whose command has all of it; 0: shared
};

TEST_P(StripeWalk, RandomCommandsKeepTheSumsRight) {
  fs::FileSystem& fs = *pool_.fs;
  const u64 all_free = fs.data_counters().free;
  EXPECT_EQ(all_free, countable_free(pool_));
  EXPECT_EQ(fs.data_counters().available, all_free);
  for (u32 number = 1; number <= 3000; ++number) {
    step(number);
    ASSERT_FALSE(HasFatalFailure());
    ASSERT_EQ(fs.data_counters().reserved, 0u);
    ASSERT_EQ(fs.data_counters().available, fs.data_counters().free) << "step " << number;
    if (number % 100 == 0) {
      ASSERT_EQ(fs.data_counters().free, countable_free(pool_)) << "step " << number;
    }
  }
  u64 used = 0;
  for (const raid::Extent& extent : live_) used += extent.page_count;
  EXPECT_EQ(fs.data_counters().used, used);
  checkpoint();
  checkpoint();
  SpaceFixture mounted = pool_.remount();
  ASSERT_EQ(mounted.load(epoch_), Status::ok);
  EXPECT_EQ(mounted.fs->data_counters().used, used);
  EXPECT_EQ(mounted.fs->data_counters().free, countable_free(mounted));
  EXPECT_GE(mounted.fs->data_counters().free, fs.data_counters().free) << "a mount closes no stripe that was free";
  free_everything();
  EXPECT_EQ(fs.data_counters().free, all_free);
  EXPECT_EQ(fs.data_counters().available, all_free);
  EXPECT_EQ(countable_free(pool_), all_free);
}

INSTANTIATE_TEST_SUITE_P(Shapes, StripeWalk, ::testing::ValuesIn(shapes),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

// A pool can be filled to the last stripe, and reserved pages are always found.
TEST_P(Stripes, EveryStripeCanBeHad) {
  fs::FileSystem& fs = *pool_.fs;
  u64 pages = 0;
  for (;;) {
    fs::Operation op = pool_.operation(static_cast<u32>(pages % 4));
    op.emergency_use = space::EmergencyUse::all;
    op.whole_stripes = 1;
    if (reserve_pages(fs, op, 1) != Status::ok) break;
    const raid::Extent run = allocate_run(Lane{}, fs, op, 1, 1);
    ASSERT_EQ(run.page_count, 1u);
    commit_extent(Lane{}, fs, run);
    ++pages;
  }
  u64 stripes = 0;
  for (u32 i = 0; i < fs.space.chunk_count; ++i) {
    const raid::ChunkState& chunk = fs.space.chunks[i];
    stripes += chunk.page_count / 512 * (space::region_cost(chunk) / space::stripe_pages(chunk));
  }
  EXPECT_EQ(pages, stripes);
  EXPECT_EQ(fs.data_counters().available, 0u);
}

INSTANTIATE_TEST_SUITE_P(Shapes, Stripes, ::testing::ValuesIn(shapes),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

}  // namespace
}  // namespace gpu4fs::space::stripes_test
