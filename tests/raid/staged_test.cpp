// Pages of the logical space on staged devices: what the medium refuses, and workers that share few frames.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "device/staged/worker.hpp"
#include "device/staged/write_back.hpp"
#include "raid/page_run_io.hpp"
#include "raid/stage_pages.hpp"
#include "support/group_runner.hpp"
#include "support/on_all_groups.hpp"
#include "support/space_fixture.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::raid::staged_test {
namespace {

using test::fill_random;
using test::on_all_groups;

class StagedSpace : public ::testing::Test {
 protected:
  explicit StagedSpace(u32 worker_count = 1)
      : pool_({.device_count = 2,
               .level = format::RaidLevel::raid1,
               .column_count = 2,
               .kind = device::DeviceKind::staged,
               .worker_count = worker_count}) {
    EXPECT_EQ(pool_.load(1), Status::ok);
    for (u64 word = 0; word < chunk().page_count / 64; ++word) {
      chunk().bitmaps.busy[word] = chunk().bitmaps.committed[word] = ~u64{0};
    }
  }

  LogicalSpace& space() { return pool_.fs->space; }
  ChunkState& chunk() { return space().chunks[0]; }
  u64 address(u64 page) { return chunk().base_address + page * page_size; }
  template <class Group>
  Status write(Group g, u64 page, u32 count, const u8* bytes) {
    return write_pages(g, space(), address(page), count, bytes, PageUse::data);
  }
  template <class Group>
  Status read(Group g, u64 page, u32 count, u8* bytes) {
    return read_pages(g, space(), address(page), count, bytes, PageUse::data);
  }

  test::SpaceFixture pool_;
};

// The write is acknowledged, the flush is not, and then the device is given up.
TEST_F(StagedSpace, AFlushThatFailsLosesTheDevice) {
  std::vector<u8> bytes(8 * page_size);
  fill_random(bytes.data(), bytes.size(), 1);
  std::vector<u8> back(bytes.size());
  const DevicePlace place = page_place(space(), {0, 0, 13}, 1);
  pool_.staged()->refused(place.device).writes = {place.offset};
  EXPECT_EQ(write(Lane{}, 10, 8, bytes.data()), Status::ok);
  const device::StagedDevices& staged = pool_.staged()->devices();
  EXPECT_EQ(device::write_back_all(Lane{}, staged, 1 - place.device), Status::ok);
  EXPECT_EQ(device::write_back_all(Lane{}, staged, place.device), Status::device_failed);
  EXPECT_TRUE(outlives_flush_error(space(), place.device));
  on_all_groups([&](auto g) {
    u8* const to = on_leader(g, [&] { return back.data(); });
    EXPECT_EQ(read(g, 10, 8, to), Status::ok);
    on_leader(g, [&] {
      EXPECT_EQ(back, bytes);
      pool_.finish_call();
    });
  });
}

// Of both devices together. Pages that are stored again do not count again.
TEST_F(StagedSpace, ManyFramesAreDirtyFromAnEighthOn) {
  const device::StagedDevices& staged = pool_.staged()->devices();
  const u64 pages_of_eighth = staged.cache.line_count / 8 / 2;
  ASSERT_LT(pages_of_eighth + 1, chunk().page_count);
  std::vector<u8> bytes(page_size, 1);
  EXPECT_FALSE(has_many_dirty_frames(space()));
  for (u64 page = 0; page < pages_of_eighth; ++page) {
    ASSERT_EQ(write(Lane{}, page, 1, bytes.data()), Status::ok);
    ASSERT_EQ(write(Lane{}, page, 1, bytes.data()), Status::ok);
  }
  EXPECT_FALSE(has_many_dirty_frames(space()));
  ASSERT_EQ(write(Lane{}, pages_of_eighth, 1, bytes.data()), Status::ok);
  EXPECT_TRUE(has_many_dirty_frames(space()));
  EXPECT_EQ(pool_.staged()->write_back(), Status::ok);
  EXPECT_FALSE(has_many_dirty_frames(space()));
}

// A page that the medium cannot read is replaced by that of another copy.
TEST_F(StagedSpace, BadPagesAreReplaced) {
  std::vector<u8> bytes(8 * page_size);
  fill_random(bytes.data(), bytes.size(), 2);
  std::vector<u8> back(bytes.size());
  on_all_groups([&](auto g) {
    u8* const to = on_leader(g, [&] { return back.data(); });
    const u8* const from = on_leader(g, [&] { return bytes.data(); });
    EXPECT_EQ(write(g, 40, 8, from), Status::ok);
    const PageLocation location{0, 0, 43};
    const DevicePlace place = page_place(space(), location, preferred_copy(chunk(), 43));
    on_leader(g, [&] {
      std::memset(pool_.page_at(place), 0xee, page_size);
      pool_.refused_reads(place.device) = {place.offset};
    });
    EXPECT_EQ(read(g, 40, 8, to), Status::ok);
    on_leader(g, [&] {
      EXPECT_EQ(back, bytes);
      pool_.refused_reads(place.device).clear();
      EXPECT_EQ(std::memcmp(pool_.page_at(place), bytes.data() + 3 * page_size, page_size), 0);
    });
  });
}

constexpr u32 worker_count = 3;

class StagedWorkers : public StagedSpace {
 protected:
  StagedWorkers() : StagedSpace(worker_count) {}
};

// Each worker writes runs of its own pages, reads them back, merges into them, and flushes at times.
TEST_F(StagedWorkers, ShareTheFrames) {
  const u32 rounds = std::max(test::scaled(200), 20u);
  const u64 own_pages = std::min<u64>(chunk().page_count / worker_count, 512);
  std::vector<u8> content(worker_count * own_pages * page_size);
  std::atomic<u32> bad{0};
  std::vector<std::thread> threads;
  for (u32 w = 0; w < worker_count; ++w) {
    threads.emplace_back([&, w] {
      const device::WorkerGuard worker(w);
      const u64 base = w * own_pages;
      u8* const own = content.data() + base * page_size;
      test::Sequence random(w + 7);
      std::vector<u8> back(40 * page_size);
      fill_random(own, own_pages * page_size, w);
      bad += write(Lane{}, base, static_cast<u32>(own_pages), own) != Status::ok ? 1 : 0;
      for (u32 round = 0; round < rounds; ++round) {
        const u32 count = 1 + static_cast<u32>(random.next() % 40);
        const u64 first = random.next() % (own_pages - count);
        if (random.next() % 2 == 0) {
          fill_random(own + first * page_size, count * page_size, random.next());
          bad += write(Lane{}, base + first, count, own + first * page_size) != Status::ok ? 1 : 0;
        }
        const u64 page = base + first;
        own[first * page_size + 5] = static_cast<u8>(round);
        const PageMerge merge{address(page), address(page), {5, 6}, own + first * page_size + 5, PageUse::data};
        bad += write_page_merged(Lane{}, space(), merge) != Status::ok ? 1 : 0;
        bad += read(Lane{}, page, count, back.data()) != Status::ok ? 1 : 0;
        bad += std::memcmp(back.data(), own + first * page_size, count * page_size) != 0 ? 1 : 0;
        if (round % 8 != 0) continue;
        bad += device::write_back_all(Lane{}, pool_.staged()->devices(), round / 8 % 2) != Status::ok ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(bad, 0u);
  pool_.finish_call();
  EXPECT_GT(pool_.staged()->statistics().misses, 0u);
  EXPECT_EQ(pool_.staged()->write_back(), Status::ok);
  for (u64 page = 0; page < worker_count * own_pages; ++page) {
    for (u32 copy = 0; copy < 2; ++copy) {
      const DevicePlace place = page_place(space(), {0, 0, page}, copy);
      ASSERT_EQ(
          std::memcmp(pool_.device_base(place.device) + place.offset, content.data() + page * page_size, page_size), 0)
          << "page " << page << " copy " << copy;
    }
  }
}

}  // namespace
}  // namespace gpu4fs::raid::staged_test
