// Copies of pages in faster memory: which pages get one, when it is dropped, and what a bad copy does.
#include "raid/page_copies.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "device/staged/worker.hpp"
#include "device/tier/page_tier_build.hpp"
#include "device/tier/page_tier_counters.hpp"
#include "raid/page_run_io.hpp"
#include "support/group_runner.hpp"
#include "support/on_all_groups.hpp"
#include "support/space_fixture.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::raid::page_copies_test {
namespace {

using test::fill_random;
using test::on_all_groups;

constexpr u32 tier_frames = 64;
constexpr u32 run_pages = 40;  // more than are looked for together

class CopiedSpace {
 public:
  explicit CopiedSpace(device::DeviceKind kind, u32 worker_count = 1)
      : pool_({.device_count = 2,
               .level = format::RaidLevel::raid1,
               .column_count = 2,
               .kind = kind,
               .worker_count = worker_count}) {
    EXPECT_EQ(pool_.load(1), Status::ok);
    for (u64 word = 0; word < chunk().page_count / 64; ++word) {
      chunk().bitmaps.busy[word] = chunk().bitmaps.committed[word] = ~u64{0};
    }
    space().tier = device::build_page_tier(allocator_, tier_frames);
    for (u32 d = 0; d < space().device_count; ++d) space().devices[d].tier = space().tier;
  }

  LogicalSpace& space() { return pool_.fs->space; }
  ChunkState& chunk() { return space().chunks[0]; }
  u64 address(u64 page) { return chunk().base_address + page * page_size; }
  const cache::Cache& table() { return space().tier->cache; }
  template <class Group>
  Status write(Group g, u64 page, u32 count, const u8* bytes) {
    return write_pages(g, space(), address(page), count, bytes, PageUse::data);
  }
  template <class Group>
  Status read(Group g, u64 page, u32 count, u8* bytes) {
    return read_pages(g, space(), address(page), count, bytes, PageUse::data);
  }
  device::PageTierCounters counters() {
    return device::page_tier_counters(space().tier,
                                      [](void* to, const void* from, u64 bytes) { std::memcpy(to, from, bytes); });
  }
  // Of staged devices: what is written is clean afterwards.
  void write_back() {
    if (pool_.staged() != nullptr) {
      EXPECT_EQ(pool_.staged()->write_back(), Status::ok);
    }
  }
  void empty_tier() {
    for (u32 d = 0; d < space().device_count; ++d) (void)cache::drop(Lane{}, table(), d, 0, device::device_page_max);
  }
  u32 copy_count() {
    u32 count = 0;
    for (u32 line = 0; line < table().line_count; ++line) count += cache::peek(table().lines[line]).is_usable() ? 1 : 0;
    return count;
  }
  DevicePlace place(u64 page) { return page_place(space(), {0, 0, page}, preferred_copy(chunk(), page)); }
  test::SpaceFixture& pool() { return pool_; }

 private:
  test::SpaceFixture pool_;
  test::HeapAllocator allocator_;
};

class PageCopies : public ::testing::TestWithParam<device::DeviceKind> {
 protected:
  PageCopies() : copied_(GetParam()), bytes_(run_pages * page_size), back_(bytes_.size()) {
    fill_random(bytes_.data(), bytes_.size(), 1);
    EXPECT_EQ(copied_.write(Lane{}, 0, run_pages, bytes_.data()), Status::ok);
    copied_.write_back();
  }

  void read_and_compare(u64 page, u32 count) {
    std::fill(back_.begin(), back_.end(), u8{0});
    EXPECT_EQ(copied_.read(Lane{}, page, count, back_.data()), Status::ok);
    EXPECT_EQ(std::memcmp(back_.data(), &bytes_[page * page_size], count * page_size), 0);
  }
  // Reads until the pages have copies.
  void promote(u64 page, u32 count) {
    for (u32 i = 0; i < 3; ++i) read_and_compare(page, count);
    EXPECT_GE(copied_.counters().promotions, count);
  }

  CopiedSpace copied_;
  std::vector<u8> bytes_;
  std::vector<u8> back_;
};

TEST_P(PageCopies, AreMadeOfPagesThatAreReadAgain) {
  read_and_compare(0, run_pages);
  EXPECT_EQ(copied_.counters().promotions, 0u) << "a scan";
  promote(0, run_pages);
  const u64 hits = copied_.counters().hits;
  // The pages that are read first are damaged, and nobody looks at them.
  for (u64 page = 0; page < run_pages; ++page) *copied_.pool().page_at(copied_.place(page)) ^= 1;
  on_all_groups([&](auto g) {
    u8* const to = back_.data();
    EXPECT_EQ(copied_.read(g, 0, run_pages, to), Status::ok);
    EXPECT_EQ(std::memcmp(to, bytes_.data(), bytes_.size()), 0);
    g.sync();
    const ByteRange part{100, 300};
    EXPECT_EQ(read_page_range(g, copied_.space(), copied_.address(3), part, to, PageUse::data), Status::ok);
    EXPECT_EQ(std::memcmp(to, &bytes_[3 * page_size + 100], 200), 0);
    g.sync();
  });
  EXPECT_EQ(copied_.counters().hits, hits + 2 * run_pages + 2);
  EXPECT_EQ(copied_.space().damage == nullptr ? 0u : copied_.space().damage->entry_count, 0u);
}

// Copies of some pages of a run, at its beginning, in the middle and at its end.
TEST_P(PageCopies, AreReadTogetherWithOtherPages) {
  for (const u64 page : {u64{0}, u64{7}, u64{8}, u64{31}, u64{32}, u64{run_pages - 1}}) promote(page, 1);
  const u64 promotions = copied_.counters().promotions;
  copied_.write_back();
  on_all_groups([&](auto g) {
    u8* const to = back_.data();
    EXPECT_EQ(copied_.read(g, 0, run_pages, to), Status::ok);
    EXPECT_EQ(std::memcmp(to, bytes_.data(), bytes_.size()), 0);
    g.sync();
  });
  EXPECT_GE(copied_.counters().promotions, promotions);
}

TEST_P(PageCopies, AreDroppedByWrites) {
  promote(0, 8);
  EXPECT_EQ(copied_.copy_count(), 8u);
  fill_random(bytes_.data(), 8 * page_size, 2);
  EXPECT_EQ(copied_.write(Lane{}, 2, 4, &bytes_[2 * page_size]), Status::ok);
  EXPECT_EQ(copied_.counters().invalidations, 4u);
  EXPECT_EQ(copied_.copy_count(), 4u);
  EXPECT_EQ(write_page(Lane{}, copied_.space(), copied_.address(0), bytes_.data(), PageUse::data), Status::ok);
  const ByteRange part{10, 20};
  EXPECT_EQ(write_page_merged(Lane{}, copied_.space(),
                              {copied_.address(1), copied_.address(1), part, &bytes_[page_size + 10], PageUse::data}),
            Status::ok);
  EXPECT_EQ(copied_.counters().invalidations, 6u);
  EXPECT_EQ(copied_.copy_count(), 2u);
  read_and_compare(2, 4);
  read_and_compare(0, 1);
}

// What is copied between the announcement of a write and its end.
TEST_P(PageCopies, DoNotOutliveAWriteThatWasOnItsWay) {
  const u64 page = 5;
  read_and_compare(page, 1);
  read_and_compare(page, 1);
  const DevicePlace place = copied_.place(page);
  const device::Device& device = copied_.space().devices[place.device];
  const PinScope pins(Lane{}, copied_.space());
  EXPECT_EQ(device::begin_write(device, place.offset, page_size), Status::ok);
  EXPECT_EQ(copied_.copy_count(), 0u);
  const u64 invalidations = copied_.counters().invalidations;
  EXPECT_NE(promote_page(Lane{}, copied_.space(), copied_.address(page)), nullptr) << "nothing is stored yet";
  EXPECT_EQ(copied_.copy_count(), 1u);
  device::end_write(device, place.offset, page_size);
  EXPECT_EQ(copied_.copy_count(), 0u);
  EXPECT_EQ(copied_.counters().invalidations, invalidations + 1);
}

TEST_P(PageCopies, ThatAreDamagedAreNotBelieved) {
  promote(0, 4);
  for (u32 line = 0; line < tier_frames; ++line) cache::frame_of(copied_.table(), line)[17] ^= 4;
  const u64 hits = copied_.counters().hits;
  read_and_compare(0, 4);
  EXPECT_GE(copied_.counters().hits, hits + 4);
  on_all_groups([&](auto g) {
    u8* const to = back_.data();
    EXPECT_EQ(copied_.read(g, 0, 4, to), Status::ok);
    EXPECT_EQ(std::memcmp(to, bytes_.data(), 4 * page_size), 0);
    g.sync();
  });
}

TEST_P(PageCopies, AreNotMadeOfDamagedPages) {
  const u64 page = 9;
  read_and_compare(page, 1);
  read_and_compare(page, 1);
  copied_.empty_tier();
  const u64 promotions = copied_.counters().promotions;
  const DevicePlace place = copied_.place(page);
  *copied_.pool().page_at(place) ^= 1;
  const PinScope pins(Lane{}, copied_.space());
  EXPECT_EQ(begin_copy_read(copied_.space(), {0, 0, page}, 1, preferred_copy(copied_.chunk(), page)), Status::ok);
  EXPECT_EQ(promote_page(Lane{}, copied_.space(), copied_.address(page)), nullptr);
  EXPECT_EQ(copied_.counters().promotions, promotions);
  EXPECT_EQ(copied_.copy_count(), 0u);
}

TEST_P(PageCopies, AreOnlyReadOfDevicesThatAreReadable) {
  promote(0, 1);
  const u32 d = copied_.place(0).device;
  EXPECT_TRUE(has_copy(copied_.space(), copied_.address(0)));
  copied_.space().devices[d].failed = device::device_rebuilding;
  EXPECT_EQ(look_for_copy(copied_.space(), {0, 0, 0}, preferred_copy(copied_.chunk(), 0)).memory, nullptr);
  copied_.space().devices[d].failed = device::device_in_use;
}

INSTANTIATE_TEST_SUITE_P(Kinds, PageCopies, ::testing::Values(device::DeviceKind::memory, device::DeviceKind::staged));

// Readers of all pages and writers of some, each page under a lock as the files of commands are.
TEST(PageCopiesOfThreads, AreNeverOlderThanTheirPages) {
  constexpr u32 thread_count = 3;
  constexpr u64 page_count = 96;  // more than there are frames of copies
  for (const device::DeviceKind kind : {device::DeviceKind::memory, device::DeviceKind::staged}) {
    CopiedSpace copied(kind, thread_count);
    std::vector<u8> first(page_count * page_size);
    EXPECT_EQ(copied.write(Lane{}, 0, page_count, first.data()), Status::ok);
    copied.write_back();
    std::vector<std::mutex> locks(page_count);
    std::vector<u64> versions(page_count);
    std::atomic<u32> fault_count{0};
    const u32 rounds = test::is_short() ? 3000 : 30000;
    const auto work = [&](u32 thread) {
      const device::WorkerGuard worker(thread);
      test::Sequence sequence(thread + 1);
      std::vector<u64> page(page_size / sizeof(u64));
      u8* const bytes = reinterpret_cast<u8*>(page.data());
      for (u32 round = 0; round < rounds; ++round) {
        const u64 index = sequence.next() % page_count * (sequence.next() % page_count) / page_count;
        const std::lock_guard<std::mutex> guard(locks[index]);
        if (sequence.next() % 8 == 0) {
          ++versions[index];
          std::fill(page.begin(), page.end(), versions[index]);
          if (copied.write(Lane{}, index, 1, bytes) != Status::ok) ++fault_count;
        } else {
          if (copied.read(Lane{}, index, 1, bytes) != Status::ok) ++fault_count;
          if (page.front() != versions[index] || page.back() != versions[index]) ++fault_count;
        }
      }
    };
    std::vector<std::thread> threads;
    for (u32 i = 0; i < thread_count; ++i) threads.emplace_back(work, i);
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(fault_count, 0u);
    const device::PageTierCounters counters = copied.counters();
    EXPECT_GT(counters.promotions, 0u);
    EXPECT_GT(counters.hits, 0u);
    EXPECT_GT(counters.invalidations, 0u);
    EXPECT_EQ(copied.space().damage == nullptr ? 0u : copied.space().damage->entry_count, 0u);
  }
}

}  // namespace
}  // namespace gpu4fs::raid::page_copies_test
