// Reads of single pages from pools of every level: without locks while all devices are there, the ordinary way after
// one is lost, and again without locks after it was rebuilt. The devices have no stack, as on a real machine. Pages in
// frames of the page cache are read without locks too, if checksums show that they are the right ones.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/bits.hpp"
#include "raid/device_loss.hpp"
#include "support/file_client.hpp"
#include "support/group_runner.hpp"
#include "support/test_pool.hpp"

namespace gpu4fs::test::optimistic_reads_test {
namespace {

constexpr u32 file_pages = 150;
constexpr u64 superblock_area = u64{1} << 20;

struct Level {
  const char* profile;
  u32 device_count;
  bool is_redundant;
  bool is_staged = wants_staged_devices();
  bool data_checksums = true;

  u32 unlocked_reads() const { return is_staged && !data_checksums ? 0 : file_pages; }
};

class OptimisticReads : public ::testing::TestWithParam<Level> {
 protected:
  OptimisticReads() : pool_(options()), content_(file_pages * page_size) {
    Sequence sequence(11);
    for (u64 i = 0; i < content_.size(); i += 8) {
      const u64 word = sequence.next();
      std::memcpy(&content_[i], &word, 8);
    }
  }

  static TestPoolOptions options() {
    TestPoolOptions options;
    options.device_count = GetParam().device_count;
    options.device_bytes = u64{24} << 20;
    options.profile = GetParam().profile;
    options.is_staged = GetParam().is_staged;
    options.data_checksums = GetParam().data_checksums;
    options.memory = {.frame_count = 320, .staging_count = 256, .shard_count = 2};
    options.starts_workers = false;
    return options;
  }
  u64 optimistic_count() { return pool_.host().counters().commands_optimistic; }

  void write_file() {
    const std::unique_ptr<client::Session> session = pool_.open_session();
    FileClient client(*session);
    FileOperation op;
    op.opcode = wire::Opcode::create;
    op.inode = PosixModel::root;
    op.name = "file";
    op.mode = 0644;
    inode_ = client.call(op).result;
    op.opcode = wire::Opcode::write;
    op.inode = inode_;
    op.length = content_.size();
    ASSERT_EQ(client.call(op, content_).result, content_.size());
  }
  // Reads the file page by page. Returns how many reads went without locks.
  u64 read_file() {
    const std::unique_ptr<client::Session> session = pool_.open_session();
    FileClient client(*session);
    // Brings the map into memory and settles the access time.
    EXPECT_EQ(client.simple(wire::Opcode::read, inode_, 0, content_.size()).result, content_.size());
    const u64 before = optimistic_count();
    for (u64 page = 0; page < file_pages; ++page) {
      std::memset(client.data(), 0xaa, page_size);
      const client::Reply reply = client.simple(wire::Opcode::read, inode_, page * page_size, page_size);
      EXPECT_EQ(reply.status, Status::ok) << page;
      EXPECT_EQ(reply.result, page_size) << page;
      EXPECT_EQ(std::memcmp(client.data(), &content_[page * page_size], page_size), 0) << page;
    }
    return optimistic_count() - before;
  }

  TestPool pool_;
  std::vector<u8> content_;
  u64 inode_ = 0;
};

TEST_P(OptimisticReads, AllDevicesOneLessAndAllAgain) {
  write_file();
  ASSERT_EQ(read_file(), GetParam().unlocked_reads());
  ASSERT_EQ(pool_.checkpoint(), Status::ok);
  ASSERT_EQ(read_file(), GetParam().unlocked_reads());
  if (!GetParam().is_redundant) return;
  for (u32 lost = 0; lost < GetParam().device_count; ++lost) {
    SCOPED_TRACE(lost);
    const raid::LogicalSpace& space = pool_.engine()->fs.space;
    ASSERT_TRUE(raid::lose_device(space, lost));
    const device::Device& device = space.devices[lost];
    std::memset(device.base + superblock_area, 0x5a, device.size_bytes - superblock_area);
    EXPECT_EQ(read_file(), 0u);
    ASSERT_EQ(pool_.checkpoint(), Status::ok);
    ASSERT_EQ(pool_.begin_rebuild(lost, true), Status::ok);
    EXPECT_EQ(read_file(), 0u) << "while it is rebuilt";
    const TestPool::RebuildRound round = pool_.rebuild_round(true);
    ASSERT_EQ(round.status, Status::ok);
    ASSERT_EQ(round.left, 0u);
    EXPECT_EQ(read_file(), file_pages) << "rebuilt";
  }
  pool_.unmount();
  EXPECT_EQ(pool_.check().findings.error_count(), 0u) << findings_text(pool_.check());
}

INSTANTIATE_TEST_SUITE_P(Levels, OptimisticReads,
                         ::testing::Values(Level{"single", 2, false}, Level{"raid0", 3, false}, Level{"raid1", 2, true},
                                           Level{"raid1c3", 3, true}, Level{"raid5", 3, true}, Level{"raid6", 4, true},
                                           Level{"raid7", 5, true}),
                         [](const auto& parameter) { return std::string(parameter.param.profile); });

INSTANTIATE_TEST_SUITE_P(Frames, OptimisticReads,
                         ::testing::Values(Level{"single", 2, false, true}, Level{"raid1", 2, true, true},
                                           Level{"raid5", 3, true, true}, Level{"raid6", 4, false, true, false}),
                         [](const auto& parameter) { return std::string(parameter.param.profile); });

}  // namespace
}  // namespace gpu4fs::test::optimistic_reads_test
