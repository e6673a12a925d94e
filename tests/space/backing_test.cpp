// Free regions whose memory is returned to the system: no page of them is needed, no command gets one of their pages
// before the memory is back, and no page is lost.
#include "space/backing.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include "fs/journal/checkpoint.hpp"
#include "space/frozen_chunks.hpp"
#include "space/space.hpp"
#include "support/group_runner.hpp"
#include "support/level_shapes.hpp"
#include "support/space_fixture.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::space::backing_test {
namespace {

using test::SpaceFixture;

const test::LevelShape shapes[] = {
    {"single", format::RaidLevel::single, 1, 0},
    {"raid1_2", format::RaidLevel::raid1, 2, 0},
    {"raid5_4_4k", format::RaidLevel::raid5, 4, 4096},
    {"raid6_5_64k", format::RaidLevel::raid6, 5, 65536},
};

// A mount with a server that maps and punches only in its records.
class Backing : public ::testing::TestWithParam<test::LevelShape> {
 protected:
  Backing() : pool_(options()) {
    EXPECT_EQ(pool_.load(1), Status::ok);
    for (u32 i = 0; i < fs().space.chunk_count; ++i) has_memory_.emplace_back(chunk(i).page_count, true);
  }

  static test::SpaceOptions options() {
    test::SpaceOptions options = test::options_of(GetParam());
    options.chunks_per_device = 3;
    options.granules_per_chunk = 3;
    return options;
  }
  fs::FileSystem& fs() { return *pool_.fs; }
  raid::ChunkState& chunk(u32 index) { return fs().space.chunks[index]; }
  raid::PageLocation locate(u64 address) {
    raid::PageLocation location{};
    EXPECT_EQ(raid::find_page(fs().space, address, &location), Status::ok);
    return location;
  }
  void checkpoint() {
    close_stripes(fs());
    std::set<u64> snapshot;
    for (const raid::Extent& run : live_) add_pages(snapshot, run);
    before_ = durable_;
    durable_ = snapshot;
    ASSERT_EQ(pool_.checkpoint(++epoch_), Status::ok);
    before_.clear();
  }
  static void add_pages(std::set<u64>& pages, const raid::Extent& run) {
    for (u32 i = 0; i < run.page_count; ++i) pages.insert(run.address + u64{i} * page_size);
  }

  // The pages that a command gets, or its status.
  Status take(u32 page_count, u32 alignment, fs::Operation* op) {
    *op = pool_.operation(static_cast<u32>(random_.next() % 4));
    const Status status = reserve_pages(fs(), *op, page_count);
    if (status != Status::ok) return status;
    while (op->pages_reserved != 0) {
      raid::Extent run{raid::no_address, 0, 0};
      if (alignment != 1) run = allocate_run(Lane{}, fs(), *op, op->pages_reserved, alignment);
      if (run.page_count == 0) run = allocate_run(Lane{}, fs(), *op, op->pages_reserved, 1);
      const raid::PageLocation at = locate(run.address);
      for (u32 i = 0; i < run.page_count; ++i) {
        EXPECT_TRUE(has_memory_[at.chunk][at.page + i]) << "a page without memory, in chunk " << at.chunk;
      }
      commit_extent(Lane{}, fs(), run);
      live_.push_back(run);
    }
    return Status::ok;
  }
  void free_one() {
    if (live_.empty()) return;
    const std::size_t at = random_.next() % live_.size();
    free_extent(Lane{}, fs(), live_[at]);
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(at));
  }

  // The server's answer to the command that requested the chunk, as the command processes it.
  struct Wanted {
    u32 chunk;
    u32 generation;
  };
  void map(u32 index) { std::fill(has_memory_[index].begin(), has_memory_[index].end(), true); }
  void answer(const Wanted& wanted) {
    if (chunk(wanted.chunk).generation != wanted.generation || chunk(wanted.chunk).trimming != 0) return;
    make_chunk_accessible(fs(), wanted.chunk);
    restore_backing(fs(), wanted.chunk);
  }

  std::optional<TrimRun> begin(u64 kept_regions) {
    TrimRun run = find_trim_run(fs(), {0, 0, 1, 1 + static_cast<u32>(random_.next() % 6)});
    if (run.count == 0) return std::nullopt;
    chunk(run.chunk).trim_due = raid::trim_due_later;
    if (begin_trim(fs(), &run, kept_regions) != Status::ok) return std::nullopt;
    std::set<u64> needed = durable_;
    needed.insert(before_.begin(), before_.end());
    for (const raid::Extent& live : live_) add_pages(needed, live);
    const u64 base = chunk(run.chunk).base_address;
    for (u64 page = u64{run.first} * region_pages; page < u64{run.first + run.count} * region_pages; ++page) {
      EXPECT_EQ(needed.count(base + page * page_size), 0u)
          << "page " << page << " of chunk " << run.chunk << " is needed";
    }
    return run;
  }
  void punch(const TrimRun& run) {
    const auto first = has_memory_[run.chunk].begin() + run.first * region_pages;
    std::fill(first, first + run.count * region_pages, false);
  }
  void trim_everything() {
    while (const std::optional<TrimRun> run = begin(0)) {
      punch(*run);
      ASSERT_EQ(end_trim(fs(), run->chunk), Status::ok);
    }
  }

  // While no command has a reservation.
  void expect_sums(const char* when) {
    u64 free = 0;
    u64 unbacked = 0;
    for (u32 i = 0; i < fs().space.chunk_count; ++i) {
      u64 regions = 0;
      for (u32 r = 0; r < region_count_of(chunk(i)); ++r) regions += chunk(i).unbacked[r / 64] >> (r % 64) & 1;
      EXPECT_EQ(chunk(i).unbacked_pages, regions * region_cost(chunk(i))) << when;
      if (is_frozen(chunk(i))) continue;
      free += chunk(i).free_pages & free_number_mask;
      unbacked += chunk(i).unbacked_pages;
    }
    const SpaceCounters& counters = fs().data_counters();
    EXPECT_EQ(counters.free, free + unbacked) << when;
    EXPECT_EQ(counters.available, free) << when;
    EXPECT_EQ(counters.reserved, 0u) << when;
  }

  SpaceFixture pool_;
  test::Sequence random_{11};
  std::vector<raid::Extent> live_;
  std::set<u64> durable_;
  std::set<u64> before_;  // of the previous epoch, while the next one is written
  std::vector<std::vector<bool>> has_memory_;
  u64 epoch_ = 1;
};

TEST_P(Backing, WhoNeedsTheSpaceAsksForItsMemory) {
  trim_everything();
  expect_sums("all regions are gone");
  const ClassRoom room = room_of(fs(), fs().space.data_class);
  EXPECT_EQ(room.free, fs().data_counters().total * region_cost(chunk(0)) / region_pages);
  fs::Operation op{};
  const SpaceCounters& counters = fs().data_counters();
  const u64 spare = counters.available - std::min(counters.available, counters.emergency);
  const u32 pages = 1 + static_cast<u32>(spare / fs().space.page_cost[fs().space.data_class]);
  ASSERT_EQ(take(pages, 1, &op), Status::chunk_not_mapped);
  const u32 wanted = op.wanted_chunk;
  ASSERT_LT(wanted, fs().space.chunk_count);
  // A damaged pointer leads there as well.
  u32 found = raid::no_chunk;
  EXPECT_EQ(raid::chunk_of(fs().space, chunk(wanted).base_address, &found), Status::chunk_not_mapped);
  EXPECT_EQ(found, wanted);
  map(wanted);
  answer({wanted, chunk(wanted).generation});
  expect_sums("one chunk is back");
  EXPECT_EQ(take(pages, 1, &op), Status::ok);
  EXPECT_EQ(raid::chunk_of(fs().space, chunk(wanted).base_address, &found), Status::ok);
}

TEST_P(Backing, AnAnswerFromBeforeThePunchDoesNotCount) {
  const Wanted early{0, chunk(0).generation};
  const std::optional<TrimRun> run = begin(0);
  ASSERT_TRUE(run.has_value());
  ASSERT_EQ(run->chunk, 0u);
  answer(early);
  EXPECT_NE(chunk(0).unbacked_pages, 0u) << "asked before";
  const Wanted meanwhile{0, chunk(0).generation};
  answer(meanwhile);
  EXPECT_NE(chunk(0).unbacked_pages, 0u) << "not punched yet";
  punch(*run);
  ASSERT_EQ(end_trim(fs(), 0), Status::ok);
  EXPECT_EQ(end_trim(fs(), 0), Status::not_found);
  answer(meanwhile);
  EXPECT_NE(chunk(0).unbacked_pages, 0u) << "asked before it was punched";
  map(0);
  answer({0, chunk(0).generation});
  EXPECT_EQ(chunk(0).unbacked_pages, 0u);
  expect_sums("back");
}

TEST_P(Backing, SomeRegionsStay) {
  while (const std::optional<TrimRun> run = begin(5)) ASSERT_EQ(end_trim(fs(), run->chunk), Status::ok);
  const u64 kept = 5 + fs().data_counters().emergency / region_cost(chunk(0));
  const u64 backed = detail::count_backed_regions(fs(), fs().space.data_class, ~u64{0});
  EXPECT_GE(backed, 5u);
  EXPECT_LE(backed, kept + 1);
}

// Unless it is requested, space that was just freed waits for a second search.
TEST_P(Backing, SpaceInTurnoverStays) {
  const TrimSearch search{0, 0, 0, 4};
  fs::Operation op{};
  ASSERT_EQ(take(3, 1, &op), Status::ok);
  const u32 used = locate(live_.front().address).chunk;
  for (u32 i = 0; i < fs().space.chunk_count; ++i) chunk(i).trim_due = 0;
  EXPECT_EQ(find_trim_run(fs(), search).count, 0u);
  checkpoint();
  free_one();
  for (u32 i = 0; i < fs().space.chunk_count; ++i) detail::close_open_stripes_in(fs(), i);
  while (!live_.empty()) free_one();
  checkpoint();
  EXPECT_EQ(find_trim_run(fs(), search).count, 0u);
  const TrimRun run = find_trim_run(fs(), search);
  EXPECT_EQ(run.count, 4u);
  EXPECT_EQ(run.chunk, used);
  chunk(used).trim_due = raid::trim_due_later;
  EXPECT_EQ(find_trim_run(fs(), {0, 0, 1, 4}).chunk, used);
}

TEST_P(Backing, FrozenChunksKeepTheirSums) {
  trim_everything();
  // Room for the reserve.
  map(0);
  answer({0, chunk(0).generation});
  ASSERT_EQ(freeze_chunk(fs(), 1), Status::ok);
  expect_sums("frozen");
  EXPECT_EQ(pages_taken(fs(), 1), 0u);
  EXPECT_EQ(check_frozen_empty(fs(), 1), Status::ok);
  // A read in the chunk.
  map(1);
  answer({1, chunk(1).generation});
  expect_sums("frozen and back");
  ASSERT_EQ(unfreeze_chunk(fs(), 1), Status::ok);
  expect_sums("thawed");
  const std::optional<TrimRun> run = begin(0);
  ASSERT_TRUE(run.has_value());
  ASSERT_EQ(freeze_chunk(fs(), run->chunk), Status::ok);
  EXPECT_EQ(check_frozen_empty(fs(), run->chunk), Status::busy) << "its place is being punched";
  ASSERT_EQ(end_trim(fs(), run->chunk), Status::ok);
  EXPECT_EQ(check_frozen_empty(fs(), run->chunk), Status::ok);
  ASSERT_EQ(unfreeze_chunk(fs(), run->chunk), Status::ok);
  expect_sums("thawed after a trim");
}

TEST_P(Backing, NothingNeededIsTakenAndNothingIsLost) {
  std::vector<Wanted> asked;  // the server has not processed it yet
  std::vector<Wanted> answered;
  std::optional<TrimRun> run;  // that the server is punching
  const u64 steps = test::scaled(1500);
  for (u64 step = 0; step < steps; ++step) {
    const u64 choice = random_.next() % 16;
    fs::Operation op{};
    if (choice < 5) {
      const bool is_large = random_.next() % 4 == 0;
      const u32 pages = 1 + static_cast<u32>(random_.next() % (is_large ? 4 * region_pages : 40));
      if (take(pages, is_large ? region_pages : 1, &op) == Status::chunk_not_mapped) {
        asked.push_back({op.wanted_chunk, chunk(op.wanted_chunk).generation});
      }
    } else if (choice < 9) {
      free_one();
    } else if (choice < 11) {
      checkpoint();
    } else if (choice == 11 && !asked.empty()) {
      map(asked.back().chunk);
      answered.push_back(asked.back());
      asked.pop_back();
    } else if (choice == 12 && !answered.empty()) {
      answer(answered.back());
      answered.pop_back();
    } else if (choice == 13 && !run) {
      run = begin(random_.next() % 3);
    } else if (choice > 13 && run) {
      punch(*run);
      ASSERT_EQ(end_trim(fs(), run->chunk), Status::ok);
      run.reset();
    }
    if (HasFailure()) FAIL() << "step " << step;
  }
  if (run.has_value()) {
    EXPECT_EQ(end_trim(fs(), run->chunk), Status::ok);
  }
  while (!live_.empty()) free_one();
  for (u32 i = 0; i < fs().space.chunk_count; ++i) detail::close_open_stripes_in(fs(), i);
  checkpoint();
  checkpoint();
  for (u32 i = 0; i < fs().space.chunk_count; ++i) {
    map(i);
    answer({i, chunk(i).generation});
  }
  expect_sums("at the end");
  EXPECT_EQ(fs().data_counters().used, 0u);
  for (u32 i = 0; i < fs().space.chunk_count; ++i) EXPECT_EQ(pages_taken(fs(), i), 0u) << i;
}

INSTANTIATE_TEST_SUITE_P(Levels, Backing, ::testing::ValuesIn(shapes),
                         [](const auto& shape) { return std::string(shape.param.name); });

// No command takes a page of a chunk that the engine does not reach: the server has its regions without a mark.
TEST(BackingOfUnreachedChunks, NeedsNoMark) {
  SpaceFixture pool({.device_count = 1, .chunks_per_device = 2, .accessible = false});
  ASSERT_EQ(pool.load(1), Status::ok);
  fs::FileSystem& fs = *pool.fs;
  TrimRun run = find_trim_run(fs, {0, 0, 0, 3});
  ASSERT_EQ(run.count, 3u);
  ASSERT_EQ(begin_trim(fs, &run, 100), Status::ok);
  EXPECT_EQ(fs.space.chunks[0].unbacked_pages, 0u);
  EXPECT_EQ(fs.space.chunks[0].trimming, 1u);
  const u32 generation = fs.space.chunks[0].generation;
  ASSERT_EQ(end_trim(fs, 0), Status::ok);
  EXPECT_NE(fs.space.chunks[0].generation, generation);
  // The rest of the chunk, then the next one; then the search is complete.
  run = find_trim_run(fs, {run.chunk, run.first + run.count, 0, 3});
  EXPECT_EQ(run.chunk, 0u);
  EXPECT_EQ(run.count, std::min(3u, region_count_of(fs.space.chunks[0]) - 3));
  run = find_trim_run(fs, {0, region_count_of(fs.space.chunks[0]), 0, 3});
  EXPECT_EQ(run.chunk, 1u);
  run = find_trim_run(fs, {1, region_count_of(fs.space.chunks[1]), 0, 3});
  EXPECT_EQ(run.count, 0u);
  run = find_trim_run(fs, {0, 0, 0, 3});
  EXPECT_EQ(run.count, 0u);
}

}  // namespace
}  // namespace gpu4fs::space::backing_test
