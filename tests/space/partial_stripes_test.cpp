// Taking stranded pages of partly used stripes: only such pages, by one command at a time, in rows that the durable
// checkpoint includes. The sums stay right, and all pages are returned in the end.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <set>
#include <shared_mutex>
#include <thread>
#include <vector>

#include "fs/journal/checkpoint.hpp"
#include "space/space.hpp"
#include "support/group_runner.hpp"
#include "support/level_shapes.hpp"
#include "support/on_all_groups.hpp"
#include "support/space_fixture.hpp"

namespace gpu4fs::space::partial_stripes_test {
namespace {

using test::SpaceFixture;

const test::LevelShape shapes[] = {
    {"raid5_3_4k", format::RaidLevel::raid5, 3, 4096},
    {"raid5_6_64k", format::RaidLevel::raid5, 6, 65536},
    {"raid6_5_16k", format::RaidLevel::raid6, 5, 16384},
    {"raid7_6_4k", format::RaidLevel::raid7, 6, 4096},
};

class PartialStripes : public ::testing::TestWithParam<test::LevelShape> {
 protected:
  PartialStripes() : pool_(options()) {
    EXPECT_EQ(pool_.load(1), Status::ok);
    pool_.fs->has_log = 1;
  }
  static test::SpaceOptions options() {
    test::SpaceOptions options = test::options_of(GetParam());
    options.chunks_per_device = 1;
    return options;
  }

  fs::FileSystem& fs() { return *pool_.fs; }
  u64 stranded_pages() { return stranded_pages_of(fs(), fs().space.data_class); }
  // From the counts of the stripes.
  u64 stranded_by_stripe() {
    u64 sum = 0;
    for (u32 i = 0; i < fs().space.chunk_count; ++i) {
      const raid::ChunkState& chunk = fs().space.chunks[i];
      for (u32 s = 0; s < chunk.stripe_count; ++s) sum += chunk.stripe_stranded[s];
    }
    return sum;
  }
  void checkpoint() {
    close_stripes(fs());
    ASSERT_EQ(pool_.checkpoint(++epoch_), Status::ok);
  }
  // Takes a page of each whole stripe until there is none; written: its bytes are in the parities.
  void fill() {
    for (u32 shard = 0;; ++shard) {
      fs::Operation op = pool_.operation(shard);
      op.emergency_use = space::EmergencyUse::all;
      op.whole_stripes = 1;
      if (reserve_pages(fs(), op, 1) != Status::ok) break;
      const raid::Extent run = allocate_run(Lane{}, fs(), op, 1, 1);
      keep(run);
    }
  }
  // When all pages are freed, no partly used stripe is left: as many whole ones can be allocated as in the beginning.
  void expect_all_comes_back(u64 page_count) {
    const std::set<u64> pages = live_;
    for (const u64 page : pages) free_page(page);
    checkpoint();
    checkpoint();
    check_sums();
    EXPECT_EQ(stranded_pages(), 0u);
    fill();
    EXPECT_EQ(live_.size(), page_count);
  }
  void keep(const raid::Extent& run) {
    for (u32 i = 0; i < run.page_count; ++i) {
      const raid::Extent page{run.address + i * page_size, 1, 0};
      raid::PageLocation location{};
      ASSERT_EQ(raid::find_page(fs().space, page.address, &location), Status::ok);
      store_shared_16(&fs().space.chunks[location.chunk].descriptors[location.page],
                      raid::make_descriptor(0, 1, format::page_flag_in_parity));
      commit_extent(Lane{}, fs(), page);
      ASSERT_TRUE(live_.insert(page.address).second) << "given out twice";
    }
  }
  void free_page(u64 address) {
    ASSERT_EQ(live_.erase(address), 1u);
    free_extent(Lane{}, fs(), raid::Extent{address, 1, 0});
  }
  PartialRow take(u32 wanted) {
    fs::Operation op = pool_.operation(0);
    return take_partial_row(Lane{}, fs(), op, wanted);
  }
  std::vector<u64> pages_of(const PartialRow& partial) {
    const raid::RowView view = raid::row_view(fs().space, partial.chunk, partial.row);
    std::vector<u64> pages;
    for (u32 slot = 0; slot < 64; ++slot) {
      if ((partial.taken >> slot & 1) == 0) continue;
      pages.push_back(fs().space.chunks[partial.chunk].base_address + raid::row_page(view, slot) * page_size);
    }
    return pages;
  }
  void check_sums() {
    ASSERT_EQ(fs().data_counters().reserved, 0u);
    ASSERT_EQ(fs().data_counters().available, fs().data_counters().free);
    ASSERT_EQ(fs().data_counters().used, live_.size());
    ASSERT_EQ(stranded_pages(), stranded_by_stripe());
  }

  SpaceFixture pool_;
  u64 epoch_ = 1;
  std::set<u64> live_;
};

TEST_P(PartialStripes, NothingIsLentWithoutALogOrWhileADeviceIsLostOrInAFrozenChunk) {
  fill();
  checkpoint();
  ASSERT_GT(stranded_pages(), 0u);
  fs().has_log = 0;
  EXPECT_EQ(take(1).status, Status::no_space);
  EXPECT_EQ(stranded_pages(), 0u);
  fs().has_log = 1;
  fs().space.health->failed = 1;
  EXPECT_EQ(take(1).status, Status::no_space);
  fs().space.health->failed = 0;
  for (u32 i = 0; i < fs().space.chunk_count; ++i) {
    fs().space.chunks[i].free_pages = (fs().space.chunks[i].free_pages & ~counted_bit) | frozen_bit;
  }
  EXPECT_EQ(take(1).status, Status::no_space);
  EXPECT_EQ(stranded_pages(), 0u);
}

TEST_P(PartialStripes, ARowIsLentWhenTheDurableCheckpointKnowsItsPages) {
  fill();
  ASSERT_GT(stranded_pages(), 0u);
  EXPECT_EQ(take(1).status, Status::retry_after_checkpoint);
  close_stripes(fs());
  for (u32 i = 0; i < fs().space.chunk_count; ++i) snapshot_chunk(Lane{}, fs(), i);
  EXPECT_EQ(take(1).status, Status::retry_after_checkpoint) << "that checkpoint is not durable";
  for (u32 i = 0; i < fs().space.chunk_count; ++i) {
    ASSERT_EQ(write_chunk(Lane{}, fs(), i, ++epoch_), Status::ok);
    publish_chunk(Lane{}, fs(), i);
  }
  fs().space.epoch_open = epoch_ + 1;
  const PartialRow partial = take(1);
  ASSERT_EQ(partial.status, Status::ok);
  EXPECT_EQ(popcount(partial.taken), 1u);
  EXPECT_TRUE(may_log_row(fs(), partial));
  // The others of its stripe are not taken meanwhile.
  std::set<u64> stripes;
  for (PartialRow other = partial; other.status == Status::ok; other = take(1)) {
    const raid::RowView view = raid::row_view(fs().space, other.chunk, other.row);
    const raid::Stripe stripe = raid::stripe_of(fs().space.chunks[other.chunk], view.first);
    EXPECT_TRUE(stripes.insert(u64{other.chunk} << 32 | stripe.index).second);
  }
  EXPECT_GT(stripes.size(), 1u);
  // Their stranded pages may be taken when these pages are written or returned.
  fs::Operation asking = pool_.operation(0);
  EXPECT_EQ(take_partial_row(Lane{}, fs(), asking, 1).status, Status::no_space);
  EXPECT_EQ(asking.blocked_by_reservations, stranded_pages() == 0 ? 0u : 1u);
}

// A recovery would find such a stripe free, and its parities meaningless.
TEST_P(PartialStripes, ARowIsNotLoggedWhenFilesHaveNoPageOfItsStripeAnyMore) {
  fill();
  checkpoint();
  const PartialRow partial = take(1);
  ASSERT_EQ(partial.status, Status::ok);
  ASSERT_TRUE(may_log_row(fs(), partial));
  const raid::ChunkState& chunk = fs().space.chunks[partial.chunk];
  const raid::Stripe stripe = raid::stripe_of(chunk, raid::row_view(fs().space, partial.chunk, partial.row).first);
  const std::set<u64> live = live_;
  for (const u64 address : live) {
    if (address < chunk.base_address) continue;
    const u64 page = (address - chunk.base_address) / page_size;
    if (page >= stripe.first && page < stripe.first + stripe.page_count) free_page(address);
  }
  EXPECT_LT(live_.size(), live.size());
  EXPECT_FALSE(may_log_row(fs(), partial));
}

// The row's new parities include a page that the old ones may include; otherwise the page would lose its redundancy.
TEST_P(PartialStripes, UnverifiedPagesOfARowStayInItsParities) {
  fill();
  checkpoint();
  for (const u64 address : live_) {
    raid::PageLocation location{};
    ASSERT_EQ(raid::find_page(fs().space, address, &location), Status::ok);
    store_shared_16(&fs().space.chunks[location.chunk].descriptors[location.page],
                    raid::make_descriptor(0, 1, format::page_flag_unverified));
  }
  u32 kept = 0;
  for (PartialRow partial = take(7); partial.status == Status::ok; partial = take(7)) {
    const raid::RowView view = raid::row_view(fs().space, partial.chunk, partial.row);
    for (u32 slot = 0; slot < view.slot_count; ++slot) {
      const u64 address = fs().space.chunks[partial.chunk].base_address + raid::row_page(view, slot) * page_size;
      EXPECT_EQ(partial.kept >> slot & 1, live_.count(address));
    }
    kept += popcount(partial.kept);
  }
  EXPECT_GT(kept, 0u);
}

// Stranded pages are taken, one by one, until none is left.
TEST_P(PartialStripes, EveryStrandedPageCanBeHad) {
  fill();
  const u64 before = live_.size();
  const u64 stranded = stranded_pages();
  ASSERT_GT(stranded, 0u);
  u64 taken = 0;
  for (u32 round = 0; stranded_pages() != 0; ++round) {
    ASSERT_LT(round, 100u) << stranded_pages() << " pages are never taken";
    checkpoint();
    for (PartialRow partial = take(1 + round % 7); partial.status == Status::ok; partial = take(1 + round % 7)) {
      for (const u64 page : pages_of(partial)) keep({page, 1, 0});
      taken += popcount(partial.taken);
    }
  }
  EXPECT_EQ(taken, stranded);
  EXPECT_EQ(live_.size(), before + stranded);
  check_sums();
  // And all of them return as whole stripes.
  expect_all_comes_back(before);
}

// Whichever ranks search for it, and wherever they begin.
TEST_P(PartialStripes, AllGroupsFindTheNextStripeThatHasStrandedPages) {
  raid::ChunkState& chunk = fs().space.chunks[0];
  const u32 count = chunk.stripe_count;
  ASSERT_GT(count, 1u);
  std::vector<u32> before(chunk.stripe_stranded, chunk.stripe_stranded + count);
  test::Sequence random(11);
  for (u32 round = 0; round < 40; ++round) {
    // None, one, or some.
    const u64 wanted = round % 4 == 0 ? 0 : round % 4 == 1 ? 1 : random.next() % count;
    std::fill_n(chunk.stripe_stranded, count, 0u);
    for (u64 i = 0; i < wanted; ++i) chunk.stripe_stranded[random.next() % count] = 1;
    const u32 first = round < 4 ? count + 5 : static_cast<u32>(random.next() % count);
    const u32 from = static_cast<u32>(random.next() % (count + 1));
    u32 expected = from;
    while (expected < count && chunk.stripe_stranded[(u64{first} + expected) % count] == 0) ++expected;
    test::on_all_groups(
        [&](auto g) { EXPECT_EQ(detail::next_stripe_with_stranded(g, chunk, first, from), expected) << round; });
  }
  std::copy(before.begin(), before.end(), chunk.stripe_stranded);
}

template <class Group>
void take_some(Group g, fs::FileSystem& fs, fs::Operation& op, std::vector<std::array<u64, 3>>* partials) {
  for (u32 round = 0; round < 24; ++round) {
    const PartialRow partial = take_partial_row(g, fs, op, 1 + round % 6);
    on_leader(g, [&] { partials->push_back({static_cast<u64>(partial.status), partial.row, partial.taken}); });
  }
}

TEST_P(PartialStripes, AllGroupsTakeTheSameRows) {
  fill();
  // A few stripes stay in use, far apart.
  const std::set<u64> pages = live_;
  u32 number = 0;
  for (const u64 page : pages) {
    if (number++ % (pages.size() / 12) != 5) free_page(page);
  }
  checkpoint();
  checkpoint();
  const auto partials_of = [&](auto run) {
    SpaceFixture mounted = pool_.remount();
    EXPECT_EQ(mounted.load(epoch_), Status::ok);
    mounted.fs->has_log = 1;
    std::vector<std::array<u64, 3>> partials;
    fs::Operation op = mounted.operation(0);
    run(*mounted.fs, op, &partials);
    return partials;
  };
  const auto by_lane =
      partials_of([](fs::FileSystem& fs, fs::Operation& op, auto* partials) { take_some(Lane{}, fs, op, partials); });
  const auto by_warp = partials_of([](fs::FileSystem& fs, fs::Operation& op, auto* partials) {
    run_emulated_warp([&](EmulatedWarp g) { take_some(g, fs, op, partials); });
  });
  EXPECT_EQ(by_lane.front()[0], static_cast<u64>(Status::ok));
  EXPECT_EQ(by_lane.back()[0], static_cast<u64>(Status::no_space)) << "each stripe once";
  EXPECT_EQ(by_lane, by_warp);
}

TEST_P(PartialStripes, AStripeOfWhichAPageIsOnItsWayIsNotLent) {
  fs::Operation op = pool_.operation(0);
  ASSERT_EQ(reserve_pages(fs(), op, 2), Status::ok);
  op.whole_stripes = 0;
  const raid::Extent kept = allocate_run(Lane{}, fs(), op, 1, 1);
  const raid::Extent way = allocate_run(Lane{}, fs(), op, 1, 1);
  keep(kept);
  if (op.pages_reserved != 0) unreserve_pages(fs(), op, op.pages_reserved);
  checkpoint();
  checkpoint();
  // The stripe is open, or `way` is not written yet.
  EXPECT_EQ(take(1).status, Status::no_space);
  EXPECT_EQ(abandon_extent(fs(), op, way), 0u);
  (void)take_from_open_stripe(fs(), fs().shards[0], fs().space.data_class, 1);
  const PartialRow partial = take(1);
  EXPECT_EQ(partial.status, Status::ok);
}

// The state after a crash: pages of records are claimed, also twice; others are refused.
TEST_P(PartialStripes, StrandedPagesOfRecordsAreAdopted) {
  fill();
  checkpoint();
  checkpoint();
  SpaceFixture mounted = pool_.remount();
  ASSERT_EQ(mounted.load(epoch_), Status::ok);
  mounted.fs->has_log = 1;
  fs::Operation op = mounted.operation(0);
  const PartialRow partial = take_partial_row(Lane{}, *mounted.fs, op, 1);
  ASSERT_EQ(partial.status, Status::ok);
  const u64 page = pages_of(partial)[0];
  raid::PageLocation location{};
  ASSERT_EQ(raid::find_page(mounted.fs->space, page, &location), Status::ok);
  raid::ChunkState& chunk = mounted.fs->space.chunks[location.chunk];
  EXPECT_EQ(abandon_extent(*mounted.fs, op, {page, 1, 0}), 0u);
  const u64 stranded = stranded_pages_of(*mounted.fs, mounted.fs->space.data_class);
  EXPECT_EQ(adopt_stranded_page(chunk, location.page), Status::ok);
  EXPECT_EQ(adopt_stranded_page(chunk, location.page), Status::ok);
  EXPECT_EQ(adopt_extent(*mounted.fs, {page, 1, 0}), Status::ok);
  EXPECT_EQ(stranded_pages_of(*mounted.fs, mounted.fs->space.data_class), stranded - 1);
  EXPECT_TRUE(pages_are_uncommitted(*mounted.fs, {page, 1, 0}));
  commit_extent(Lane{}, *mounted.fs, {page, 1, 0});
  EXPECT_FALSE(pages_are_uncommitted(*mounted.fs, {page, 1, 0}));
  EXPECT_EQ(adopt_stranded_page(chunk, location.page), Status::corrupt_structure);
  EXPECT_EQ(adopt_extent(*mounted.fs, {*live_.begin(), 1, 0}), Status::corrupt_structure);
}

// Commands of several threads that take, commit, return and free, with concurrent checkpoints.
class PartialRowThreads {
 public:
  PartialRowThreads(SpaceFixture& pool, u64 epoch, const std::set<u64>& live) : pool_(pool), epoch_(epoch) {
    for (u32 i = 0; i < fs().space.chunk_count; ++i) {
      const raid::ChunkState& chunk = fs().space.chunks[i];
      for (u64 page = 0; page < chunk.page_count; ++page) owners_[chunk.base_address + page * page_size] = 0;
    }
    u32 next = 0;
    for (const u64 page : live) {
      owners_.at(page) = 1;
      kept_[next++ % thread_count].push_back(page);
    }
  }

  void run(u32 round_count) {
    std::vector<std::thread> threads;
    for (u32 i = 0; i < thread_count; ++i) {
      threads.emplace_back([this, i, round_count] {
        work(i, round_count);
        ++ended_;
      });
    }
    while (ended_ < thread_count) {
      checkpoint();
      std::this_thread::yield();
    }
    for (std::thread& thread : threads) thread.join();
  }
  u64 epoch() const { return epoch_; }
  u32 conflicts() const { return conflicts_; }
  u64 committed() const { return committed_; }
  u64 freed() const { return freed_; }
  std::set<u64> live() const {
    std::set<u64> pages;
    for (const std::vector<u64>& kept : kept_) pages.insert(kept.begin(), kept.end());
    return pages;
  }

 private:
  static constexpr u32 thread_count = 3;

  fs::FileSystem& fs() { return *pool_.fs; }

  void work(u32 number, u32 round_count) {
    test::Sequence random(number + 1);
    fs::Operation op = pool_.operation(number);
    for (u32 i = 0; i < round_count; ++i) {
      const PartialRow partial = take_partial_row(Lane{}, fs(), op, 1 + static_cast<u32>(random.next() % 6));
      if (partial.status != Status::ok) {
        std::this_thread::yield();
        continue;
      }
      const u32 taken = use(op, kept_[number], partial, random.next() % 3 == 0);
      if (random.next() % 2 == 0) skip_row(fs(), partial);
      // On average as many as were taken, so some stripes stay in use.
      const u64 frees = random.next() % (2 * taken + 1);
      for (u64 k = 0; k < frees && !kept_[number].empty(); ++k) free_one(kept_[number], random.next());
    }
  }

  // Returns how many pages a file has got.
  u32 use(fs::Operation& op, std::vector<u64>& kept, const PartialRow& partial, bool gives_up) {
    const raid::RowView view = raid::row_view(fs().space, partial.chunk, partial.row);
    const raid::ChunkState& chunk = fs().space.chunks[partial.chunk];
    std::vector<u64> pages;
    for (u64 left = partial.taken; left != 0; left &= left - 1) {
      pages.push_back(raid::row_page(view, static_cast<u32>(count_trailing_zeros(left))));
      conflicts_ += owners_.at(chunk.base_address + pages.back() * page_size).exchange(1);
    }
    const std::shared_lock<std::shared_mutex> inside(gate_);
    const bool commits = !gives_up && may_log_row(fs(), partial);
    for (const u64 page : pages) {
      const u64 address = chunk.base_address + page * page_size;
      if (commits) {
        store_shared_16(&chunk.descriptors[page], raid::make_descriptor(0, 1, format::page_flag_in_parity));
        commit_extent(Lane{}, fs(), {address, 1, 0}, true);
        kept.push_back(address);
        ++committed_;
      } else {
        owners_.at(address) = 0;
        EXPECT_EQ(abandon_extent(fs(), op, {address, 1, 0}), 0u);
      }
    }
    return commits ? static_cast<u32>(pages.size()) : 0;
  }

  void free_one(std::vector<u64>& kept, u64 which) {
    std::swap(kept[which % kept.size()], kept.back());
    const std::shared_lock<std::shared_mutex> inside(gate_);
    owners_.at(kept.back()) = 0;
    free_extent(Lane{}, fs(), {kept.back(), 1, 0});
    kept.pop_back();
    ++freed_;
  }

  void checkpoint() {
    {
      const std::unique_lock<std::shared_mutex> closed(gate_);
      close_stripes(fs());
      for (u32 i = 0; i < fs().space.chunk_count; ++i) snapshot_chunk(Lane{}, fs(), i);
    }
    ++epoch_;
    for (u32 i = 0; i < fs().space.chunk_count; ++i) EXPECT_EQ(write_chunk(Lane{}, fs(), i, epoch_), Status::ok);
    for (u32 i = 0; i < fs().space.chunk_count; ++i) publish_chunk(Lane{}, fs(), i);
  }

  SpaceFixture& pool_;
  u64 epoch_;
  std::map<u64, std::atomic<u32>> owners_;
  std::array<std::vector<u64>, thread_count> kept_;
  std::shared_mutex gate_;
  std::atomic<u32> ended_{0};
  std::atomic<u32> conflicts_{0};
  std::atomic<u64> committed_{0};
  std::atomic<u64> freed_{0};
};

// No page is taken twice or while a file has it, the sums add up in the end, and all pages are returned.
TEST_P(PartialStripes, ThreadsNeverGetTheSamePage) {
  fill();
  const u64 stripes = live_.size();
  checkpoint();
  checkpoint();
  PartialRowThreads threads(pool_, epoch_, live_);
  threads.run(3000);
  EXPECT_EQ(threads.conflicts(), 0u);
  EXPECT_GT(threads.committed(), 100u);
  EXPECT_GT(threads.freed(), 100u);
  EXPECT_EQ(fs().had_error, 0u);
  epoch_ = threads.epoch();
  live_ = threads.live();
  checkpoint();
  checkpoint();
  check_sums();
  expect_all_comes_back(stripes);
}

INSTANTIATE_TEST_SUITE_P(Shapes, PartialStripes, ::testing::ValuesIn(shapes),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

}  // namespace
}  // namespace gpu4fs::space::partial_stripes_test
