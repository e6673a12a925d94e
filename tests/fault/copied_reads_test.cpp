// Reads of pages that have copies in the second tier of the page cache, through whole engines: with and without locks,
// of devices in memory and of staged ones.
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "device/tier/page_tier_counters.hpp"
#include "fault/file_pool.hpp"

namespace gpu4fs::test::copied_reads_test {
namespace {

constexpr u32 file_pages = 64;
// A page in memory is forgotten if others with the same place in the table are read after it.
constexpr u32 least_copies = file_pages * 3 / 4;

struct Shape {
  const char* name;
  bool is_staged;
  u32 warp_count;  // 0: threads
};

class CopiedReads : public FilePool<::testing::TestWithParam<Shape>> {
 protected:
  void mount(u64 tier_bytes, bool data_checksums = true) {
    TestPoolOptions options;
    options.profile = "raid1";
    options.device_count = 2;
    options.is_staged = GetParam().is_staged;
    options.warp_count = GetParam().warp_count;
    options.tier_bytes = tier_bytes;
    options.data_checksums = data_checksums;
    make_pool(options);
    make_file();
    write(0, file_pages, 1);
    ASSERT_EQ(pool_->checkpoint(), Status::ok);
    // Brings the map into memory and settles the access time.
    ASSERT_EQ(client_->simple(wire::Opcode::read, inode_, 0, 1).result, 1u);
  }

  void write(u32 page, u32 count, u64 seed) {
    const u64 begin = u64{page} * page_size;
    const u64 length = u64{count} * page_size;
    fill_content(seed, begin, begin + length);
    write_content(inode_, begin, length);
  }
  void read(u64 offset, u64 length) {
    std::memset(client_->data(), 0xaa, length);
    const client::Reply reply = client_->simple(wire::Opcode::read, inode_, offset, length);
    ASSERT_EQ(reply.status, Status::ok);
    ASSERT_EQ(reply.result, length);
    EXPECT_EQ(std::memcmp(client_->data(), &content_[offset], length), 0) << offset;
  }
  void read_all(u32 pages_together) {
    for (u32 page = 0; page < file_pages; page += pages_together) {
      read(u64{page} * page_size, u64{pages_together} * page_size);
    }
  }
  device::PageTierCounters counters() {
    return device::page_tier_counters(pool_->engine()->fs.space.tier,
                                      [](void* to, const void* from, u64 bytes) { std::memcpy(to, from, bytes); });
  }
  // A checkpoint closes the step gate, and a worker that holds a quiet ring counts its answers before it leaves.
  u64 unlocked_count() {
    EXPECT_EQ(pool_->checkpoint(), Status::ok);
    return pool_->host().counters().commands_optimistic;
  }
};

TEST_P(CopiedReads, OfSinglePagesGoWithoutLocks) {
  mount(u64{1} << 20);
  EXPECT_EQ(counters().promotions, 0u);
  for (u32 i = 0; i < 3; ++i) read_all(1);
  EXPECT_GE(counters().promotions, least_copies);
  EXPECT_LE(counters().promotions, file_pages);
  const u64 hits = counters().hits;
  const u64 unlocked = unlocked_count();
  read_all(1);
  EXPECT_GE(counters().hits, hits + least_copies);
  EXPECT_GE(unlocked_count(), unlocked + file_pages);
  for (u32 i = 0; i < 3; ++i) read(5 * page_size + 100, 700);
  EXPECT_GT(counters().hits, hits + least_copies);
}

TEST_P(CopiedReads, OfManyPages) {
  mount(u64{1} << 20);
  for (u32 i = 0; i < 4; ++i) read_all(8);
  for (u32 i = 0; i < 2; ++i) read_all(file_pages);
  EXPECT_GE(counters().promotions, least_copies);
  EXPECT_GE(counters().hits, least_copies);
}

TEST_P(CopiedReads, SeeWhatIsWritten) {
  mount(u64{1} << 20);
  for (u32 round = 2; round < 6; ++round) {
    for (u32 i = 0; i < 3; ++i) read_all(1);
    write(round, 20, round);
    read_all(4);
    ASSERT_EQ(pool_->checkpoint(), Status::ok);
  }
  EXPECT_GT(counters().promotions, file_pages);
  EXPECT_GT(counters().invalidations, 0u);
}

// Fewer copies than pages.
TEST_P(CopiedReads, OfATierThatIsTooSmall) {
  mount(u64{32} * page_size);
  for (u32 i = 0; i < 2; ++i) {
    for (u64 page = 0; page < file_pages; ++page) {
      for (u32 k = 0; k < 3; ++k) read(page * page_size, page_size);
    }
  }
  EXPECT_GT(counters().promotions, 32u);
  EXPECT_GT(counters().evictions, 0u);
}

TEST_P(CopiedReads, AreNotPossibleWithoutChecksums) {
  mount(u64{1} << 20, false);
  EXPECT_EQ(pool_->engine()->fs.space.tier, nullptr);
  for (u32 i = 0; i < 3; ++i) read_all(1);
}

INSTANTIATE_TEST_SUITE_P(Shapes, CopiedReads,
                         ::testing::Values(Shape{"MemoryThreads", false, 0}, Shape{"MemoryWarps", false, 1},
                                           Shape{"StagedThreads", true, 0}, Shape{"StagedWarps", true, 1}),
                         [](const auto& shape) { return std::string(shape.param.name); });

}  // namespace
}  // namespace gpu4fs::test::copied_reads_test
