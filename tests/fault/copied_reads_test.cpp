// Reads of pages that have copies in the second tier of the page cache, through whole engines: with and without locks,
// of devices in memory and of staged ones.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "device/tier/page_tier_counters.hpp"
#include "support/file_client.hpp"
#include "support/group_runner.hpp"
#include "support/test_pool.hpp"

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

class CopiedReads : public ::testing::TestWithParam<Shape> {
 protected:
  void mount(u64 tier_bytes, bool data_checksums = true) {
    TestPoolOptions options;
    options.profile = "raid1";
    options.device_count = 2;
    options.is_staged = GetParam().is_staged;
    options.warp_count = GetParam().warp_count;
    options.tier_bytes = tier_bytes;
    options.data_checksums = data_checksums;
    pool_ = std::make_unique<TestPool>(options);
    session_ = pool_->open_session();
    client_ = std::make_unique<FileClient>(*session_);
    FileOperation op;
    op.opcode = wire::Opcode::create;
    op.inode = PosixModel::root;
    op.name = "file";
    op.mode = 0644;
    inode_ = client_->call(op).result;
    write(0, file_pages, 1);
    ASSERT_EQ(pool_->checkpoint(), Status::ok);
    // Brings the map into memory and settles the access time.
    ASSERT_EQ(client_->simple(wire::Opcode::read, inode_, 0, 1).result, 1u);
  }
  void TearDown() override {
    client_.reset();
    session_.reset();
    if (pool_ == nullptr) return;
    pool_->unmount();
    EXPECT_EQ(pool_->check().findings.error_count(), 0u) << findings_text(pool_->check());
  }

  void write(u32 page, u32 count, u64 seed) {
    content_.resize(file_pages * page_size);
    Sequence sequence(seed);
    for (u64 i = u64{page} * page_size; i < u64{page + count} * page_size; i += 8) {
      const u64 word = sequence.next();
      std::memcpy(&content_[i], &word, 8);
    }
    FileOperation op;
    op.opcode = wire::Opcode::write;
    op.inode = inode_;
    op.offset = u64{page} * page_size;
    op.length = u64{count} * page_size;
    const auto begin = content_.begin() + static_cast<std::ptrdiff_t>(op.offset);
    ASSERT_EQ(client_->call(op, {begin, begin + static_cast<std::ptrdiff_t>(op.length)}).result, op.length);
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

  std::unique_ptr<TestPool> pool_;
  std::unique_ptr<client::Session> session_;
  std::unique_ptr<FileClient> client_;
  std::vector<u8> content_;
  u64 inode_ = 0;
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
