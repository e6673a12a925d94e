// Reads without locks of pages that are in no frame of the page cache, by workers as a kernel has them: they load the
// pages themselves. Loads that take long, fail or give other bytes are left to the ordinary way.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <string>

#include "device/staged/page_cache_counters.hpp"
#include "fault/file_pool.hpp"

namespace gpu4fs::test::absent_reads_test {
namespace {

constexpr u32 file_pages = 3000;  // more than there are frames
constexpr u32 write_pages = 200;
constexpr u32 read_pages = 400;
constexpr u32 warp_count = 3;  // they take each other's completions

class AbsentReads : public FilePool<::testing::Test> {
 protected:
  AbsentReads() { fill_content(5, 0, file_pages * page_size); }

  void mount(const std::string& profile) {
    TestPoolOptions options;
    options.profile = profile;
    options.is_staged = true;
    options.has_queue = true;
    options.warp_count = warp_count;
    options.memory = {.frame_count = 320, .staging_count = 256, .shard_count = 2};
    options.config.read_ahead_pages = 0;  // each read finds its page absent
    make_pool(options);
    ASSERT_LT(pool_->engine()->fs.space.staged->cache.line_count, file_pages);
    make_file();
    for (u32 page = 0; page < file_pages; page += write_pages) {
      ASSERT_NO_FATAL_FAILURE(write_content(inode_, u64{page} * page_size, u64{write_pages} * page_size));
    }
    ASSERT_EQ(pool_->checkpoint(), Status::ok);
    // Brings the map into memory and settles the access time.
    ASSERT_EQ(client_->simple(wire::Opcode::read, inode_, 0, page_size).result, page_size);
  }

  Status read_page(u32 page) {
    std::memset(client_->data(), 0xaa, page_size);
    const client::Reply reply = client_->simple(wire::Opcode::read, inode_, u64{page} * page_size, page_size);
    if (reply.status != Status::ok) return reply.status;
    EXPECT_EQ(reply.result, page_size) << page;
    EXPECT_EQ(std::memcmp(client_->data(), &content_[u64{page} * page_size], page_size), 0) << page;
    return Status::ok;
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
  u64 unlocked_count() { return pool_->host().counters().commands_optimistic; }
  u64 miss_count() {
    return device::page_cache_counters(*pool_->engine()->fs.space.staged,
                                       [](void* to, const void* from, u64 bytes) { std::memcpy(to, from, bytes); })
        .misses;
  }

  static bool is_read(const device::IoRequest& request) { return request.operation == device::IoOperation::read; }
};

TEST_F(AbsentReads, LoadTheirPages) {
  ASSERT_NO_FATAL_FAILURE(mount("single"));
  expect_unlocked_misses();
}

TEST_F(AbsentReads, LoadOneOfTheCopies) {
  ASSERT_NO_FATAL_FAILURE(mount("raid1"));
  expect_unlocked_misses();
}

TEST_F(AbsentReads, FollowARecovery) {
  ASSERT_NO_FATAL_FAILURE(mount("single"));
  disconnect();
  pool_->crash();
  pool_->mount();
  connect();
  expect_unlocked_misses();
}

TEST_F(AbsentReads, ThatAreSlowGoTheOrdinaryWay) {
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

TEST_F(AbsentReads, ThatFailAreErrors) {
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

TEST_F(AbsentReads, GiveNoBytesThatDoNotMatchTheirChecksum) {
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

}  // namespace
}  // namespace gpu4fs::test::absent_reads_test
