// Space compared with a model: random orders of all operations, every answer and every counter compared with sets of
// pages. After each checkpoint the medium is mounted a second time, at this epoch and at the previous one.
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "support/space_fixture.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::space {
namespace {

using raid::Extent;
using test::is_short;
using test::scaled;
using test::SpaceFixture;

class SpaceModel {
 public:
  SpaceModel(const test::SpaceOptions& options, u64 seed) : pool_(options), random_(seed) {
    EXPECT_EQ(pool_.load(1), Status::ok);
    for (const pool::OpenedChunk& chunk : pool_.chunks) {
      for (u64 offset = 0; offset < chunk.descriptor.size_bytes; offset += page_size) {
        free_.insert(chunk.descriptor.base_address + offset);
      }
    }
    total_ = free_.size();
    durable_ = committed_;
    for (u32 i = 0; i < 3; ++i) commands_.push_back({pool_.operation(i), {}});
    commands_[2].op.emergency_use = space::EmergencyUse::all;
  }

  void step() {
    Command& command = commands_[random_() % commands_.size()];
    switch (random_() % 12) {
      case 0:
      case 1:
        return reserve(command);
      case 2:
        return unreserve(command);
      case 3:
      case 4:
      case 5:
        return allocate(command);
      case 6:
      case 7:
        return commit(command);
      case 8:
        return abandon(command);
      case 9:
      case 10:
        return free_some();
      default:
        if (random_() % 8 == 0) advance_checkpoint();
    }
  }

  void compare() {
    const SpaceCounters& counters = pool_.fs->data_counters();
    u64 reserved = 0;
    for (const Command& command : commands_) reserved += command.op.pages_reserved;
    ASSERT_EQ(counters.total, total_);
    ASSERT_EQ(counters.free, free_.size());
    ASSERT_EQ(counters.reserved, reserved);
    ASSERT_EQ(counters.available, free_.size() - reserved);
    ASSERT_EQ(counters.used, committed_.size());
    ASSERT_EQ(counters.freed_pending, freed_now_.size() + freed_old_.size());
    ASSERT_EQ(pool_.fs->had_error, 0u);
  }

  void compare_pages() {
    for (u32 c = 0; c < pool_.fs->space.chunk_count; ++c) {
      const raid::ChunkState& chunk = pool_.fs->space.chunks[c];
      u32 free_count = 0;
      for (u64 page = 0; page < chunk.page_count; ++page) {
        const u64 address = chunk.base_address + page * page_size;
        ASSERT_EQ(raid::page_bit(chunk.bitmaps.busy, page), free_.count(address) == 0);
        ASSERT_EQ(raid::page_bit(chunk.bitmaps.committed, page), committed_.count(address) == 1);
        ASSERT_EQ(is_stable(*pool_.fs, address), stable_.count(address) == 1);
        free_count += free_.count(address) == 1 ? 1 : 0;
        if (page % 512 == 511) {
          ASSERT_EQ(region_free(chunk, static_cast<u32>(page / 512)), free_count);
          free_count = 0;
        }
      }
    }
  }

  // Everything is returned; the pool must be like a new one.
  void finish() {
    while (staged_.has_value()) advance_checkpoint();
    for (Command& command : commands_) {
      while (!command.extents.empty()) abandon(command);
      unreserve_pages(*pool_.fs, command.op, command.op.pages_reserved);
    }
    for (const u64 address : std::set<u64>(committed_)) free_pages({address, 1, 0});
    advance_checkpoint();
    while (staged_.has_value()) advance_checkpoint();
    compare();
    EXPECT_EQ(pool_.fs->data_counters().available, total_);
  }

  const std::set<std::string>& seen() const { return seen_; }

 private:
  struct Command {
    fs::Operation op;
    std::vector<Extent> extents;
  };

  void reserve(Command& command) {
    const u64 count = random_() % 4 == 0 ? random_() % (total_ / 2) : random_() % 64;
    const u64 kept_back = command.op.emergency_use != EmergencyUse::none ? 0 : emergency_pages(total_);
    u64 reserved = 0;
    for (const Command& other : commands_) reserved += other.op.pages_reserved;
    const u64 available = free_.size() - reserved;
    const u64 pending = freed_now_.size() + freed_old_.size();
    Status expected = Status::no_space;
    if (count == 0 || available >= count + kept_back) {
      expected = Status::ok;
    } else if (available + pending >= count + kept_back) {
      expected = Status::retry_after_checkpoint;
    }
    const u64 before = command.op.pages_reserved;
    ASSERT_EQ(reserve_pages(*pool_.fs, command.op, count), expected);
    seen_.insert(status_name(expected));
    ASSERT_EQ(command.op.pages_reserved, before + (expected == Status::ok ? count : 0));
  }

  void unreserve(Command& command) {
    unreserve_pages(*pool_.fs, command.op, random_() % (command.op.pages_reserved + 1));
  }

  void allocate(Command& command) {
    if (command.op.pages_reserved == 0) return;
    const bool large = random_() % 4 == 0;
    const u64 before = command.op.pages_reserved;
    const u64 wanted = 1 + random_() % (large ? 2000 : 90);
    const Extent run = allocate_run(Lane{}, *pool_.fs, command.op, wanted, large ? 512 : 1);
    if (large) {
      ASSERT_EQ(run.page_count % 512, 0u);
      if (run.page_count == 0) {
        if (wanted >= 512 && before >= 512) seen_.insert("no large run left");
        ASSERT_TRUE(wanted < 512 || before < 512 || !has_free_region());
        return;
      }
      ASSERT_TRUE(is_aligned(run.address, block_size_2m));
      seen_.insert("large run");
    }
    ASSERT_GE(run.page_count, 1u);
    ASSERT_LE(run.page_count, std::min(wanted, before));
    ASSERT_EQ(command.op.pages_reserved, before - run.page_count);
    for (u32 i = 0; i < run.page_count; ++i) {
      ASSERT_EQ(free_.erase(run.address + i * page_size), 1u);
      ASSERT_FALSE(is_stable(*pool_.fs, run.address + i * page_size));
    }
    command.extents.push_back(run);
  }

  bool has_free_region() const {
    for (const pool::OpenedChunk& chunk : pool_.chunks) {
      const u64 base = chunk.descriptor.base_address;
      for (u64 first = base; first < base + chunk.descriptor.size_bytes; first += block_size_2m) {
        const auto begin = free_.lower_bound(first);
        const auto end = free_.lower_bound(first + block_size_2m);
        if (static_cast<u64>(std::distance(begin, end)) == 512) return true;
      }
    }
    return false;
  }

  std::optional<Extent> take_extent(Command& command) {
    if (command.extents.empty()) return {};
    std::swap(command.extents[random_() % command.extents.size()], command.extents.back());
    Extent extent = command.extents.back();
    command.extents.pop_back();
    if (extent.page_count > 1 && random_() % 3 == 0) {
      const u32 kept = 1 + static_cast<u32>(random_() % (extent.page_count - 1));
      command.extents.push_back({extent.address + kept * page_size, extent.page_count - kept, 0});
      extent.page_count = kept;
    }
    return extent;
  }

  void commit(Command& command) {
    const std::optional<Extent> extent = take_extent(command);
    if (!extent) return;
    commit_extent(Lane{}, *pool_.fs, *extent);
    for (u32 i = 0; i < extent->page_count; ++i) committed_.insert(extent->address + i * page_size);
  }

  void abandon(Command& command) {
    const std::optional<Extent> extent = take_extent(command);
    if (!extent) return;
    abandon_extent(*pool_.fs, command.op, *extent);
    for (u32 i = 0; i < extent->page_count; ++i) free_.insert(extent->address + i * page_size);
  }

  void free_some() {
    if (committed_.empty()) return;
    auto first = committed_.begin();
    std::advance(first, static_cast<std::ptrdiff_t>(random_() % committed_.size()));
    u32 count = 1;
    const u32 count_max = 1 + static_cast<u32>(random_() % 700);
    u32 chunk = 0;
    u32 chunk_here = 0;
    EXPECT_EQ(raid::find_chunk(pool_.fs->space, *first, &chunk), Status::ok);
    for (auto next = std::next(first); next != committed_.end() && count < count_max; ++next, ++count) {
      EXPECT_EQ(raid::find_chunk(pool_.fs->space, *next, &chunk_here), Status::ok);
      if (*next != *first + count * page_size || chunk_here != chunk) break;
    }
    free_pages({*first, count, 0});
  }

  void free_pages(Extent extent) {
    free_extent(Lane{}, *pool_.fs, extent);
    for (u32 i = 0; i < extent.page_count; ++i) {
      const u64 address = extent.address + i * page_size;
      ASSERT_EQ(committed_.erase(address), 1u);
      if (stable_.count(address) == 1) {
        freed_now_.insert(address);
        seen_.insert("stable page freed");
      } else {
        free_.insert(address);
      }
    }
  }

  // One step of a checkpoint: other operations run between its steps.
  void advance_checkpoint() {
    Lane g;
    const u32 chunk_count = pool_.fs->space.chunk_count;
    if (!staged_.has_value()) {
      for (u32 i = 0; i < chunk_count; ++i) snapshot_chunk(g, *pool_.fs, i);
      staged_ = committed_;
      stable_.insert(committed_.begin(), committed_.end());
      freed_old_.swap(freed_now_);
      ASSERT_TRUE(freed_now_.empty());
      pool_.fs->space.epoch_open = epoch_ + 2;
      is_written_ = false;
    } else if (!is_written_) {
      for (u32 i = 0; i < chunk_count; ++i) ASSERT_EQ(write_chunk(g, *pool_.fs, i, epoch_ + 1), Status::ok);
      is_written_ = true;
      expect_mounted(epoch_, durable_);
      expect_mounted(epoch_ + 1, *staged_);
    } else {
      for (u32 i = 0; i < chunk_count; ++i) publish_chunk(g, *pool_.fs, i);
      for (const u64 address : freed_old_) {
        free_.insert(address);
        stable_.erase(address);
      }
      freed_old_.clear();
      durable_ = *staged_;
      staged_.reset();
      ++epoch_;
    }
  }

  void expect_mounted(u64 epoch, const std::set<u64>& pages) {
    SpaceFixture mounted = pool_.remount();
    ASSERT_EQ(mounted.load(epoch), Status::ok);
    ASSERT_EQ(check_page_used(*mounted.fs, pages.size()), Status::ok);
    for (u32 c = 0; c < mounted.fs->space.chunk_count; ++c) {
      const raid::ChunkState& chunk = mounted.fs->space.chunks[c];
      for (u64 page = 0; page < chunk.page_count; ++page) {
        const bool expected = pages.count(chunk.base_address + page * page_size) == 1;
        ASSERT_EQ(raid::page_bit(chunk.bitmaps.committed, page), expected);
        ASSERT_EQ(raid::page_bit(chunk.bitmaps.busy, page), expected);
      }
    }
    ASSERT_EQ(mounted.fs->data_counters().available, total_ - pages.size());
  }

  SpaceFixture pool_;
  std::mt19937_64 random_;
  std::vector<Command> commands_;
  std::set<u64> free_, committed_, stable_, freed_now_, freed_old_, durable_;
  std::optional<std::set<u64>> staged_;
  std::set<std::string> seen_;
  bool is_written_ = false;
  u64 epoch_ = 1;
  u64 total_ = 0;
};

// The situations that the random orders reached.
std::set<std::string> run_model(const test::SpaceOptions& options, u64 seed, u32 step_count) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  SpaceModel model(options, seed);
  for (u32 i = 0; i < step_count; ++i) {
    model.step();
    model.compare();
    if (i % 500 == 0) model.compare_pages();
    if (::testing::Test::HasFatalFailure()) {
      ADD_FAILURE() << "step " << i;
      return {};
    }
  }
  model.compare_pages();
  model.finish();
  return model.seen();
}

TEST(SpaceModel, one_chunk) {
  std::set<std::string> seen;
  for (u64 seed = 1; seed <= 3; ++seed) seen.merge(run_model({}, seed, scaled(3000)));
  if (is_short()) return;
  const std::set<std::string> all{"ok",        "no_space",          "retry_after_checkpoint",
                                  "large run", "no large run left", "stable page freed"};
  EXPECT_EQ(seen, all);
}

TEST(SpaceModel, four_chunks_on_two_devices) {
  run_model({.device_count = 2, .chunks_per_device = 2, .shard_count = 3}, 10, scaled(4000));
}

TEST(SpaceModel, chunk_of_several_granules) {
  run_model({.granules_per_chunk = 3, .shard_count = 1}, 20, scaled(3000));
}

}  // namespace
}  // namespace gpu4fs::space
