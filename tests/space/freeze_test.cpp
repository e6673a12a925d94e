// Frozen chunks: nothing is allocated in them, and the sums of their class are those of the others, whatever happens to
// pages that were taken before.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "fs/journal/checkpoint.hpp"
#include "space/space.hpp"
#include "support/group_runner.hpp"
#include "support/level_shapes.hpp"
#include "support/space_fixture.hpp"

namespace gpu4fs::space::freeze_test {
namespace {

using test::SpaceFixture;

const test::LevelShape shapes[] = {
    {"single", format::RaidLevel::single, 1, 0},
    {"raid5_4_4k", format::RaidLevel::raid5, 4, 4096},
    {"raid6_5_64k", format::RaidLevel::raid6, 5, 65536},
};

class Freeze : public ::testing::TestWithParam<test::LevelShape> {
 protected:
  Freeze() : pool_(options()) { EXPECT_EQ(pool_.load(1), Status::ok); }

  static test::SpaceOptions options() {
    test::SpaceOptions options = test::options_of(GetParam());
    options.chunks_per_device = 4;
    return options;
  }
  fs::FileSystem& fs() { return *pool_.fs; }
  raid::ChunkState& chunk(u32 index) { return fs().space.chunks[index]; }
  u32 chunk_of(u64 address) {
    raid::PageLocation location{};
    EXPECT_EQ(raid::find_page(fs().space, address, &location), Status::ok);
    return location.chunk;
  }
  void checkpoint() {
    close_stripes(fs());
    ASSERT_EQ(pool_.checkpoint(++epoch_), Status::ok);
  }
  // While no command has a reservation.
  void expect_sums(const char* when) {
    u64 free = 0;
    u64 pending = 0;
    for (u32 i = 0; i < fs().space.chunk_count; ++i) {
      if (space::is_frozen(chunk(i))) continue;
      free += chunk(i).free_pages & space::free_number_mask;
      pending += space::detail::count_pending(chunk(i));
    }
    const SpaceCounters& counters = fs().data_counters();
    EXPECT_EQ(counters.free, free) << when;
    EXPECT_EQ(counters.available, free) << when;
    EXPECT_EQ(counters.freed_pending, pending) << when;
    EXPECT_EQ(counters.reserved, 0u) << when;
  }
  std::vector<raid::Extent> take(u32 page_count, bool whole_stripes, fs::Operation* op) {
    *op = pool_.operation(static_cast<u32>(random_.next() % 4));
    op->whole_stripes = whole_stripes ? 1 : 0;
    std::vector<raid::Extent> taken;
    if (reserve_pages(fs(), *op, page_count) != Status::ok) return taken;
    while (op->pages_reserved != 0) {
      taken.push_back(allocate_run(Lane{}, fs(), *op, op->pages_reserved, 1));
      EXPECT_GT(taken.back().page_count, 0u);
      EXPECT_FALSE(space::is_frozen(chunk(chunk_of(taken.back().address)))) << "a page of a frozen chunk";
    }
    return taken;
  }
  void commit(const raid::Extent& run) {
    commit_extent(Lane{}, fs(), run);
    live_.push_back(run);
  }

  SpaceFixture pool_;
  test::Sequence random_{7};
  std::vector<raid::Extent> live_;
  u64 epoch_ = 1;
};

TEST_P(Freeze, AnEmptyChunkIsNeitherFreeNorAvailable) {
  const SpaceCounters before = fs().data_counters();
  const u64 cost = space::detail::chunk_cost(chunk(1));
  EXPECT_EQ(u64{chunk(1).free_pages & space::free_number_mask}, cost);
  ASSERT_EQ(freeze_chunk(fs(), 1), Status::ok);
  EXPECT_EQ(fs().data_counters().available, before.available - cost);
  EXPECT_EQ(fs().data_counters().free, before.free - cost);
  ASSERT_EQ(freeze_chunk(fs(), 1), Status::ok);
  EXPECT_EQ(fs().data_counters().free, before.free - cost) << "once is enough";
  make_chunk_accessible(fs(), 1);
  expect_sums("a frozen chunk is not counted");
  ASSERT_EQ(unfreeze_chunk(fs(), 1), Status::ok);
  ASSERT_EQ(unfreeze_chunk(fs(), 1), Status::ok);
  EXPECT_EQ(fs().data_counters().available, before.available);
  EXPECT_EQ(fs().data_counters().free, before.free);
  EXPECT_EQ(freeze_chunk(fs(), 99), Status::out_of_range);
}

TEST_P(Freeze, NotWithoutRoomElsewhere) {
  // One after the other, until the remaining ones have no room for their pages.
  u32 frozen = 0;
  fs::Operation op{};
  for (const raid::Extent& run : take(static_cast<u32>(fs().data_counters().total / 8), true, &op)) commit(run);
  while (frozen < 4 && freeze_chunk(fs(), frozen) == Status::ok) ++frozen;
  EXPECT_GT(frozen, 0u);
  EXPECT_LT(frozen, 4u);
  expect_sums("after a refusal");
  for (u32 i = 0; i < frozen; ++i) ASSERT_EQ(unfreeze_chunk(fs(), i), Status::ok);
  expect_sums("as before");
}

TEST_P(Freeze, SumsHoldWhateverHappens) {
  struct Owner {
    fs::Operation op;
    std::vector<raid::Extent> runs;
  };
  std::vector<Owner> owners;
  for (u32 step = 0; step < 1500 && !HasFailure(); ++step) {
    const u64 kind = random_.next() % 12;
    const u32 index = static_cast<u32>(random_.next() % 4);
    if (kind < 4) {
      Owner owner{};
      owner.runs = take(1 + static_cast<u32>(random_.next() % 40), kind < 2, &owner.op);
      owners.push_back(std::move(owner));
    } else if (kind < 7 && !owners.empty()) {
      Owner& owner = owners[random_.next() % owners.size()];
      const bool keeps = random_.next() % 3 != 0;
      for (const raid::Extent& run : owner.runs) {
        if (keeps) {
          commit(run);
          continue;
        }
        const u32 back = abandon_extent(fs(), owner.op, run);
        EXPECT_EQ(owner.op.pages_reserved, back);
        if (back != 0) unreserve_pages(fs(), owner.op, back);
      }
      owner = owners.back();
      owners.pop_back();
    } else if (kind < 9 && !live_.empty()) {
      const std::size_t i = random_.next() % live_.size();
      free_extent(Lane{}, fs(), live_[i]);
      live_[i] = live_.back();
      live_.pop_back();
    } else if (kind == 9) {
      checkpoint();
    } else if (kind == 10) {
      const Status status = freeze_chunk(fs(), index);
      EXPECT_TRUE(status == Status::ok || status == Status::no_space) << status_name(status);
    } else {
      EXPECT_EQ(unfreeze_chunk(fs(), index), Status::ok);
    }
    expect_sums("after a step");
  }
  EXPECT_EQ(fs().had_error, 0u);
}

INSTANTIATE_TEST_SUITE_P(Levels, Freeze, ::testing::ValuesIn(shapes),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

}  // namespace
}  // namespace gpu4fs::space::freeze_test
