// Reads without locks of pages that are in no frame of the page cache. Workers as a kernel has them load the pages and
// wait for them. Threads leave the commands waiting in their slots. Loads that fail or give other bytes are left to the
// ordinary way, and so are those that take long, in a kernel.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "device/staged/page_cache_counters.hpp"
#include "fault/file_pool.hpp"

namespace gpu4fs::test::absent_reads_test {
namespace {

constexpr u32 file_pages = 3000;  // more than there are frames
constexpr u32 write_pages = 200;
constexpr u32 read_pages = 400;
constexpr u32 warp_count = 3;  // they take each other's completions
constexpr u32 depth = 24;      // reads in flight

// The parameter: emulated warps; 0: threads.
class AbsentReads : public FilePool<::testing::TestWithParam<u32>> {
 protected:
  AbsentReads() { fill_content(5, 0, file_pages * page_size); }

  void mount(const std::string& profile) {
    TestPoolOptions options;
    options.profile = profile;
    options.is_staged = true;
    options.has_queue = true;
    options.warp_count = GetParam();
    options.memory = {.frame_count = 320, .staging_count = 256, .shard_count = 2};
    options.config.read_ahead_pages = 0;  // each read finds its page absent
    make_pool(options);
    wake_on_reports();
    ASSERT_LT(pool_->engine()->fs.space.staged->cache.line_count, file_pages);
    make_file();
    for (u32 page = 0; page < file_pages; page += write_pages) {
      ASSERT_NO_FATAL_FAILURE(write_content(inode_, u64{page} * page_size, u64{write_pages} * page_size));
    }
    ASSERT_EQ(pool_->checkpoint(), Status::ok);
    // Brings the map into memory and settles the access time.
    ASSERT_EQ(client_->simple(wire::Opcode::read, inode_, 0, page_size).result, page_size);
  }
  // Threads that sleep look for reports when they are told of some.
  void wake_on_reports() {
    pool_->media().on_report = [engine = pool_->engine()] { engine::wake_workers(*engine, 1); };
  }

  Status read_page(u32 page) {
    std::memset(client_->data(), 0xaa, page_size);
    const client::Reply reply = client_->simple(wire::Opcode::read, inode_, u64{page} * page_size, page_size);
    if (reply.status != Status::ok) return reply.status;
    EXPECT_EQ(reply.result, page_size) << page;
    EXPECT_EQ(std::memcmp(client_->data(), &content_[u64{page} * page_size], page_size), 0) << page;
    return Status::ok;
  }
  // Reads pages with several commands in flight. Returns how many failed; `may_fail`: with medium_error.
  u32 read_together(const std::vector<u32>& pages, bool may_fail = false) {
    u32 failed = 0;
    std::vector<u64> positions;
    const auto place = [&](u64 i) { return client_->data() + i % depth * page_size; };
    for (u64 i = 0; i < pages.size() + depth; ++i) {
      if (i >= depth) {
        const u64 before = i - depth;
        const client::Reply reply = session_->finish(positions[before]);
        failed += reply.status != Status::ok ? 1 : 0;
        EXPECT_TRUE(reply.status == Status::ok || (may_fail && reply.status == Status::medium_error)) << before;
        const u8* const expected = &content_[u64{pages[before]} * page_size];
        if (reply.status == Status::ok) EXPECT_EQ(std::memcmp(place(before), expected, page_size), 0) << before;
      }
      if (i >= pages.size()) continue;
      std::memset(place(i), 0xaa, page_size);
      wire::Command command{};
      command.opcode = wire::Opcode::read;
      command.inode = inode_;
      command.offset = u64{pages[i]} * page_size;
      command.length = page_size;
      command.data = session_->address_of(place(i));
      u64 position = 0;
      EXPECT_EQ(session_->submit(command, &position), Status::ok);
      positions.push_back(position);
    }
    return failed;
  }
  // Reads the first pages, which have left their frames. Returns how many reads went without locks.
  u64 read_first(u32 count) {
    const u64 before = unlocked_count();
    for (u32 page = 0; page < count; ++page) EXPECT_EQ(read_page(page), Status::ok) << page;
    return unlocked_count() - before;
  }
  // Of a busy machine some loads may take too long.
  void expect_unlocked_misses() {
    const u64 before = miss_count();
    const u64 unlocked = read_first(read_pages);
    const u64 misses = miss_count() - before;
    EXPECT_GT(misses, read_pages / 4);
    EXPECT_GT(unlocked + misses, read_pages) << unlocked << " reads without locks, " << misses << " misses";
  }
  std::vector<u8> content_of(u64 offset) const {
    const auto begin = content_.begin() + static_cast<std::ptrdiff_t>(offset);
    return {begin, begin + static_cast<std::ptrdiff_t>(page_size)};
  }
  u64 unlocked_count() { return pool_->host().counters().commands_optimistic; }
  u64 miss_count() {
    return device::page_cache_counters(*pool_->engine()->fs.space.staged,
                                       [](void* to, const void* from, u64 bytes) { std::memcpy(to, from, bytes); })
        .misses;
  }

  static bool is_read(const device::IoRequest& request) { return request.operation == device::IoOperation::read; }
};

TEST_P(AbsentReads, LoadTheirPages) {
  ASSERT_NO_FATAL_FAILURE(mount("single"));
  expect_unlocked_misses();
}

TEST_P(AbsentReads, LoadOneOfTheCopies) {
  ASSERT_NO_FATAL_FAILURE(mount("raid1"));
  expect_unlocked_misses();
}

TEST_P(AbsentReads, FollowARecovery) {
  ASSERT_NO_FATAL_FAILURE(mount("single"));
  disconnect();
  pool_->media().on_report = {};
  pool_->crash();
  pool_->mount();
  wake_on_reports();
  connect();
  expect_unlocked_misses();
}

TEST_P(AbsentReads, ThatAreSlowGoTheOrdinaryWay) {
  if (GetParam() == 0) GTEST_SKIP() << "no thread waits for a page";
  ASSERT_NO_FATAL_FAILURE(mount("single"));
  const u64 misses = miss_count();
  pool_->media().before = [](const device::IoRequest& request) {
    if (is_read(request)) std::this_thread::sleep_for(std::chrono::nanoseconds(4 * engine::detail::absent_wait_ns));
    return Status::ok;
  };
  const u64 unlocked = read_first(read_pages);
  pool_->media().before = {};
  EXPECT_GT(miss_count(), misses + read_pages / 4);
  EXPECT_LT(unlocked, read_pages);
}

TEST_P(AbsentReads, ThatFailAreErrors) {
  ASSERT_NO_FATAL_FAILURE(mount("single"));
  std::atomic<u32> failed_count{0};
  pool_->media().before = [&](const device::IoRequest& request) {
    if (!is_read(request)) return Status::ok;
    ++failed_count;
    return Status::medium_error;
  };
  u32 error_count = 0;
  for (u32 page = 0; page < read_pages; ++page) error_count += read_page(page) == Status::ok ? 0 : 1;
  pool_->media().before = {};
  EXPECT_GT(error_count, read_pages / 4);
  EXPECT_GE(failed_count, error_count);
  expect_unlocked_misses();
}

TEST_P(AbsentReads, GiveNoBytesThatDoNotMatchTheirChecksum) {
  ASSERT_NO_FATAL_FAILURE(mount("single"));
  pool_->media().after = [](const device::IoRequest& request) {
    if (is_read(request)) std::memset(request.memory, 0x33, request.length);
  };
  u32 error_count = 0;
  for (u32 page = 0; page < read_pages; ++page) {
    if (read_page(page) == Status::ok) continue;
    ++error_count;
    EXPECT_NE(client_->data()[0], 0x33) << page;
  }
  pool_->media().after = {};
  EXPECT_GT(error_count, read_pages / 4);
}

// Also pages that are read twice at the same time, and reads that are over before later ones.
TEST_P(AbsentReads, AreInFlightTogether) {
  ASSERT_NO_FATAL_FAILURE(mount("single"));
  const u64 unlocked = unlocked_count();
  Sequence sequence(7);
  std::vector<u32> pages;
  for (u32 i = 0; i < read_pages; ++i) {
    pages.push_back(i % 8 == 7 ? pages.back() : static_cast<u32>(sequence.next() % file_pages));
  }
  read_together(pages);
  // On a busy machine a warp may wait for too long.
  if (GetParam() == 0) EXPECT_GT(unlocked_count() - unlocked, read_pages / 2);
}

TEST_P(AbsentReads, ThatFailTogetherAreErrorsEach) {
  ASSERT_NO_FATAL_FAILURE(mount("single"));
  pool_->media().before = [](const device::IoRequest& request) {
    return is_read(request) && request.offset / page_size % 2 == 0 ? Status::medium_error : Status::ok;
  };
  std::vector<u32> pages;
  for (u32 i = 0; i < read_pages; ++i) pages.push_back(i);
  const u32 failed = read_together(pages, true);
  pool_->media().before = {};
  EXPECT_GT(failed, read_pages / 4);
  EXPECT_LT(failed, read_pages);
  read_together(pages);
}

// Pages get other places, and the gate closes, while reads wait.
TEST_P(AbsentReads, FollowTheirPagesElsewhere) {
  ASSERT_NO_FATAL_FAILURE(mount("single"));
  std::atomic<bool> is_over{false};
  std::thread writer([&] {
    const auto session = pool_->open_session();
    FileClient client(*session);
    Sequence sequence(11);
    for (u32 i = 0; !is_over; ++i) {
      FileOperation op;
      op.opcode = wire::Opcode::write;
      op.inode = inode_;
      op.offset = sequence.next() % file_pages * page_size;
      op.length = page_size;
      EXPECT_EQ(client.call(op, content_of(op.offset)).result, page_size);
      if (i % 8 == 0) EXPECT_EQ(pool_->checkpoint(), Status::ok);
    }
  });
  Sequence sequence(13);
  for (u32 round = 0; round < 8; ++round) {
    std::vector<u32> pages;
    for (u32 i = 0; i < read_pages; ++i) pages.push_back(static_cast<u32>(sequence.next() % file_pages));
    read_together(pages);
  }
  is_over = true;
  writer.join();
}

INSTANTIATE_TEST_SUITE_P(Engines, AbsentReads, ::testing::Values(0u, warp_count),
                         [](const auto& info) { return std::string(info.param == 0 ? "threads" : "warps"); });

}  // namespace
}  // namespace gpu4fs::test::absent_reads_test
