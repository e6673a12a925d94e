// Space under many threads: no page has two owners, and nothing is lost, while checkpoints run concurrently.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <random>
#include <shared_mutex>
#include <thread>
#include <vector>

#include "support/space_fixture.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::space {
namespace {

using raid::Extent;
using test::scaled;
using test::SpaceFixture;

constexpr u32 thread_count = 4;

// The owner of each page, by page number in the whole pool.
class Owners {
 public:
  explicit Owners(u64 first_address, u64 page_count) : first_(first_address), owners_(page_count) {}

  void take(Extent extent, u32 owner) {
    for (u32 i = 0; i < extent.page_count; ++i) {
      const u32 before = at(extent, i).exchange(owner);
      if (before != 0) ++conflicts_;
    }
  }
  void give(Extent extent, u32 owner) {
    for (u32 i = 0; i < extent.page_count; ++i) {
      const u32 before = at(extent, i).exchange(0);
      if (before != owner) ++conflicts_;
    }
  }
  u32 conflicts() const { return conflicts_; }

 private:
  std::atomic<u32>& at(Extent extent, u32 i) { return owners_[(extent.address - first_) / page_size + i]; }

  u64 first_;
  std::vector<std::atomic<u32>> owners_;
  std::atomic<u32> conflicts_{0};
};

struct Shared {
  SpaceFixture pool;
  Owners owners;
  std::shared_mutex gate;
  std::atomic<bool> stop{false};
  std::atomic<u64> page_count{0};
  std::atomic<u32> refusals{0};

  explicit Shared(const test::SpaceOptions& options)
      : pool(options), owners(pool.chunks[0].descriptor.base_address, pool.chunks.size() * pool.chunk_pages()) {}
};

class Worker {
 public:
  Worker(Shared& shared, u32 index, u32 shard) : shared_(shared), owner_(index + 1), random_(index) {
    op_ = shared.pool.operation(shard);
  }

  void run(u32 round_count) {
    fs::FileSystem& fs = *shared_.pool.fs;
    for (u32 round = 0; round < round_count; ++round) {
      const u64 wanted = random_() % 16 == 0 ? 512 + random_() % 1200 : 1 + random_() % 60;
      const Status status = reserve_pages(fs, op_, wanted);
      if (status != Status::ok) ++shared_.refusals;
      while (op_.pages_reserved > 0) {
        const u32 alignment = op_.pages_reserved >= 512 && random_() % 2 == 0 ? 512 : 1;
        Extent run = allocate_run(Lane{}, fs, op_, op_.pages_reserved, alignment);
        if (run.page_count == 0) run = allocate_run(Lane{}, fs, op_, op_.pages_reserved, 1);
        shared_.owners.take(run, owner_);
        shared_.page_count += run.page_count;
        use(run);
        if (random_() % 7 == 0) unreserve_pages(fs, op_, random_() % (op_.pages_reserved + 1));
      }
      while (extents_.size() > 40 || (status != Status::ok && !extents_.empty())) free_one();
    }
    while (!extents_.empty()) free_one();
  }

 private:
  void use(Extent run) {
    fs::FileSystem& fs = *shared_.pool.fs;
    if (random_() % 5 == 0) {
      shared_.owners.give(run, owner_);
      abandon_extent(fs, op_, run);
      unreserve_pages(fs, op_, run.page_count);
      return;
    }
    const std::shared_lock<std::shared_mutex> inside(shared_.gate);
    commit_extent(Lane{}, fs, run);
    extents_.push_back(run);
  }

  void free_one() {
    std::swap(extents_[random_() % extents_.size()], extents_.back());
    const std::shared_lock<std::shared_mutex> inside(shared_.gate);
    shared_.owners.give(extents_.back(), owner_);
    free_extent(Lane{}, *shared_.pool.fs, extents_.back());
    extents_.pop_back();
  }

  Shared& shared_;
  u32 owner_;
  std::mt19937_64 random_;
  fs::Operation op_;
  std::vector<Extent> extents_;
};

void checkpoint(Shared& shared, u64 epoch) {
  Lane g;
  fs::FileSystem& fs = *shared.pool.fs;
  {
    const std::unique_lock<std::shared_mutex> closed(shared.gate);
    for (u32 i = 0; i < fs.space.chunk_count; ++i) snapshot_chunk(g, fs, i);
  }
  for (u32 i = 0; i < fs.space.chunk_count; ++i) EXPECT_EQ(write_chunk(g, fs, i, epoch), Status::ok);
  for (u32 i = 0; i < fs.space.chunk_count; ++i) publish_chunk(g, fs, i);
}

// A `shard_count` below the number of threads makes them use the same regions.
void run_stress(const test::SpaceOptions& options, u32 round_count) {
  Shared shared(options);
  ASSERT_EQ(shared.pool.load(1), Status::ok);
  std::vector<std::thread> threads;
  for (u32 i = 0; i < thread_count; ++i) {
    threads.emplace_back([&shared, i, round_count] { Worker(shared, i, i).run(round_count); });
  }
  u64 epoch = 1;
  std::thread checkpoints([&] {
    while (!shared.stop.load()) {
      checkpoint(shared, ++epoch);
      std::this_thread::yield();
    }
  });
  for (std::thread& thread : threads) thread.join();
  shared.stop = true;
  checkpoints.join();
  EXPECT_EQ(shared.owners.conflicts(), 0u);
  EXPECT_GT(shared.page_count.load(), round_count);
  checkpoint(shared, ++epoch);
  const SpaceCounters& counters = shared.pool.fs->data_counters();
  EXPECT_EQ(counters.available, counters.total);
  EXPECT_EQ(counters.free, counters.total);
  EXPECT_EQ(counters.reserved, 0u);
  EXPECT_EQ(counters.used, 0u);
  EXPECT_EQ(counters.freed_pending, 0u);
  EXPECT_EQ(shared.pool.fs->had_error, 0u);
  for (u32 c = 0; c < shared.pool.fs->space.chunk_count; ++c) {
    const raid::ChunkState& chunk = shared.pool.fs->space.chunks[c];
    EXPECT_EQ(chunk.free_pages & ~counted_bit, chunk.page_count);
    for (u32 r = 0; r < region_count_of(chunk); ++r) EXPECT_EQ(region_free(chunk, r), 512u);
  }
  SpaceFixture mounted = shared.pool.remount();
  ASSERT_EQ(mounted.load(epoch), Status::ok);
  EXPECT_EQ(mounted.fs->data_counters().used, 0u);
}

TEST(SpaceStress, threads_of_one_shard_in_a_small_pool) {
  run_stress({.shard_count = 1}, scaled(2000));
}

TEST(SpaceStress, threads_of_their_own_shards_over_devices) {
  run_stress({.device_count = 2, .chunks_per_device = 2, .shard_count = 4}, scaled(2000));
}

// All threads want all pages: each allocation succeeds, none twice.
TEST(SpaceStress, last_pages_are_shared_out_exactly) {
  for (u32 round = 0; round < scaled(40); ++round) {
    Shared shared({.shard_count = 2});
    ASSERT_EQ(shared.pool.load(1), Status::ok);
    std::vector<std::thread> threads;
    for (u32 i = 0; i < thread_count; ++i) {
      threads.emplace_back([&shared, i] {
        fs::Operation op = shared.pool.operation(i);
        op.emergency_use = space::EmergencyUse::all;
        EXPECT_EQ(reserve_pages(*shared.pool.fs, op, 2048 / thread_count), Status::ok);
        while (op.pages_reserved > 0) {
          const Extent run = allocate_run(Lane{}, *shared.pool.fs, op, 1 + op.pages_reserved % 5, 1);
          shared.owners.take(run, i + 1);
          shared.page_count += run.page_count;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(shared.owners.conflicts(), 0u);
    EXPECT_EQ(shared.page_count.load(), 2048u);
    EXPECT_EQ(shared.pool.fs->data_counters().free, 0u);
  }
}

// Chunks become reachable while pages are freed in them: each page becomes available once.
TEST(SpaceStress, freeing_while_chunks_come_into_reach) {
  for (u32 round = 0; round < scaled(200); ++round) {
    SpaceFixture pool({.chunks_per_device = 2, .accessible = false});
    std::vector<u64> bitmap = pool.empty_bitmap();
    for (u32 i = 0; i < 32; ++i) bitmap[i] = ~u64{0};
    for (u32 c = 0; c < 2; ++c) pool.write_slot(c, 0, 1, bitmap);
    ASSERT_EQ(pool.load(1), Status::ok);
    // Not stable, so a free releases at once.
    for (u32 c = 0; c < 2; ++c) std::fill_n(pool.fs->space.chunks[c].bitmaps.stable, 32, 0);
    std::thread freeing([&] {
      for (u32 c = 0; c < 2; ++c) {
        for (u32 i = 0; i < 64; ++i) {
          free_extent(Lane{}, *pool.fs, {pool.chunks[c].descriptor.base_address + i * 32 * page_size, 32, 0});
        }
      }
    });
    std::thread mapping([&] {
      fs::Operation op = pool.operation();
      while (reserve_pages(*pool.fs, op, 3900) != Status::ok) {
        if (op.wanted_chunk != raid::no_chunk) make_chunk_accessible(*pool.fs, op.wanted_chunk);
        std::this_thread::yield();
      }
      unreserve_pages(*pool.fs, op, 3900);
    });
    freeing.join();
    mapping.join();
    ASSERT_EQ(pool.fs->data_counters().available, 4096u);
  }
}

}  // namespace
}  // namespace gpu4fs::space
