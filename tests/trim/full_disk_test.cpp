// Pools on thin files whose file system has been filled by others: they can be mounted, read and recovered, and lose
// nothing.
#include <fcntl.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "growth/growing_pool.hpp"
#include "pool/pool_error.hpp"
#include "support/small_disk.hpp"

namespace gpu4fs::test::full_disk_test {
namespace {

using session::DiscardScope;

constexpr u64 mega = u64{1} << 20;
constexpr u64 device_bytes = 96 * mega;

struct FullDiskShape {
  const char* profile;
  u32 device_count;
  friend std::ostream& operator<<(std::ostream& out, const FullDiskShape& shape) { return out << shape.profile; }
};

class FullDisk : public ::testing::TestWithParam<FullDiskShape> {
 protected:
  void SetUp() override {
    const char* const access = std::getenv("GPU4FS_DEVICE_ACCESS");
    if (access != nullptr && std::string(access) != "direct") GTEST_SKIP() << "devices are not accessed directly";
    disk_ = std::make_unique<SmallDisk>(GetParam().device_count * device_bytes + 32 * mega);
    if (!disk_->problem().empty()) GTEST_SKIP() << "no disk to fill: " << disk_->problem();
    pool::MakePoolOptions options;
    for (u32 i = 0; i < GetParam().device_count; ++i) paths_.push_back(*disk_ / fmt::format("device{}", i));
    options.device_paths = paths_;
    options.size_bytes = device_bytes;
    options.chunk_size_bytes = 16 * mega;
    options.data_profile = options.metadata_profile = GetParam().profile;
    pool::make_pool(options);
  }

  static Status sync(GrowthMount& mount, u64 inode) { return mount.files().simple(wire::Opcode::fsync, inode).status; }
  // A thin pool with `kept`, and with holes in chunks that are in use.
  void make_thin_content() {
    GrowthMount mount(paths_, DiscardScope::all);
    const u64 kept = make_file(mount.files(), "kept");
    const u64 removed = make_file(mount.files(), "removed");
    for (u64 block = 0; block < 20; ++block) {
      for (u64 i = 0; i < 16; ++i) ASSERT_EQ(write_block(mount.files(), removed, 16 * block + i, block), Status::ok);
      ASSERT_EQ(write_block(mount.files(), kept, block, block), Status::ok);
    }
    empty_file(mount, removed);
    ASSERT_GT(mount.server().trimmer().trim_all().byte_count, 0u);
    ASSERT_TRUE(mount.stop());
    ASSERT_LT(allocated_bytes(paths_), GetParam().device_count * device_bytes - 8 * mega);
  }

  std::unique_ptr<SmallDisk> disk_;
  std::vector<std::string> paths_;
};

TEST_P(FullDisk, AThinPoolIsMountedAndRead) {
  ASSERT_NO_FATAL_FAILURE(make_thin_content());
  disk_->fill();
  const u64 allocated = allocated_bytes(paths_);
  for (u32 round = 0; round < 2; ++round) {
    GrowthMount mount(paths_, DiscardScope::all);
    EXPECT_TRUE(has_blocks(mount.files(), find_file(mount.files(), "kept"), 20, 0)) << round;
    EXPECT_EQ(mount.server().trimmer().trim_all().status, Status::ok);
    EXPECT_TRUE(mount.stop());
  }
  EXPECT_LE(allocated_bytes(paths_), allocated);
  session::ServerOptions options = GrowthMount::options(paths_);
  options.read_only = true;
  {
    GrowthMount mount(options);
    EXPECT_TRUE(has_blocks(mount.files(), find_file(mount.files(), "kept"), 20, 0));
  }
  EXPECT_EQ(find_problems(paths_), "");
}

// What does not fit is refused, and what was acknowledged stays. With room again, the pool takes as much as before.
TEST_P(FullDisk, WritesEndWithNoSpaceAndLoseNothing) {
  ASSERT_NO_FATAL_FAILURE(make_thin_content());
  disk_->fill();
  u64 written = 0;
  {
    GrowthMount mount(paths_, DiscardScope::all);
    const u64 more = make_file(mount.files(), "more");
    written = fill_file(mount.files(), more, 0, 1000);
    EXPECT_EQ(sync(mount, more), Status::ok);
    EXPECT_FALSE(mount.server().has_lost_devices());
    EXPECT_TRUE(mount.stop());
  }
  ASSERT_EQ(find_problems(paths_), "");
  GrowthMount mount(paths_, DiscardScope::all);
  const u64 more = find_file(mount.files(), "more");
  EXPECT_TRUE(has_blocks(mount.files(), find_file(mount.files(), "kept"), 20, 0));
  EXPECT_TRUE(has_blocks(mount.files(), more, written, 1000));
  disk_->make_room();
  EXPECT_GT(fill_file(mount.files(), more, written, 1000), 100u);
  EXPECT_EQ(sync(mount, more), Status::ok);
}

TEST_P(FullDisk, ALogIsRecovered) {
  ASSERT_NO_FATAL_FAILURE(make_thin_content());
  u64 synced = 0;
  {
    GrowthMount mount(paths_, DiscardScope::all);
    const u64 more = make_file(mount.files(), "more");
    // The chunks have all their blocks, and then holes again.
    for (u64 block = 0; block < 40; ++block) ASSERT_EQ(write_block(mount.files(), more, block, 1000), Status::ok);
    empty_file(mount, more);
    ASSERT_EQ(mount.server().trimmer().trim_all().status, Status::ok);
    disk_->fill();
    while (synced < 30 && write_block(mount.files(), more, synced, 2000 + synced) == Status::ok) ++synced;
    for (u64 i = 0; i < 50; ++i) make_file(mount.files(), fmt::format("name{}", i));
    ASSERT_EQ(sync(mount, more), Status::ok);
    mount.crash();
  }
  ASSERT_GT(synced, 0u);
  {
    GrowthMount mount(paths_, DiscardScope::all);
    EXPECT_GT(mount.server().recovery().records_replayed, 50u);
    EXPECT_TRUE(has_blocks(mount.files(), find_file(mount.files(), "kept"), 20, 0));
    EXPECT_TRUE(has_blocks(mount.files(), find_file(mount.files(), "more"), synced, 2000));
    find_file(mount.files(), "name49");
    EXPECT_TRUE(mount.stop());
  }
  EXPECT_EQ(find_problems(paths_), "");
}

// A mount that wants all blocks says what to do, and takes nothing of the little that is left.
TEST_P(FullDisk, AMountWithoutTheOptionIsToldWhatItLacks) {
  ASSERT_NO_FATAL_FAILURE(make_thin_content());
  disk_->fill();
  disk_->make_room();
  const std::string last = *disk_ / "last";
  {
    const int file = ::open(last.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ASSERT_EQ(::fallocate(file, 0, 0, static_cast<off_t>(disk_->room_bytes() - 4 * mega)), 0);
    ::close(file);
  }
  const u64 room = disk_->room_bytes();
  ASSERT_GT(room, 0u);
  try {
    GrowthMount mount(paths_);
    FAIL() << "mounted";
  } catch (const pool::PoolError& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.status(), Status::no_space);
    EXPECT_NE(text.find(paths_[0]), std::string::npos) << text;
    EXPECT_NE(text.find("'-o discard'"), std::string::npos) << text;
    EXPECT_NE(text.find(fmt::format("{} bytes left", room)), std::string::npos) << text;
  }
  EXPECT_EQ(disk_->room_bytes(), room);
  GrowthMount mount(paths_, DiscardScope::all);
  EXPECT_TRUE(has_blocks(mount.files(), find_file(mount.files(), "kept"), 20, 0));
}

// Somebody else takes the blocks away that a mount has reserved and not written.
void punch_what_was_not_written(const std::string& path, u64 from) {
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(file, 0);
  const off_t end = ::lseek(file, 0, SEEK_END);
  for (off_t at = static_cast<off_t>(from); at < end;) {
    const off_t hole = ::lseek(file, at, SEEK_HOLE);
    const off_t data = hole < end ? ::lseek(file, hole, SEEK_DATA) : end;
    at = data < 0 ? end : data;
    if (hole >= end) break;
    ASSERT_EQ(::fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, hole, at - hole), 0);
  }
  ::close(file);
}

// A sync says that there is no room, and no device is given up.
TEST_P(FullDisk, AHoleThatCannotBeFilledIsNoLostDevice) {
  {
    GrowthMount mount(paths_, DiscardScope::all);
    const u64 kept = make_file(mount.files(), "kept");
    for (u64 block = 0; block < 20; ++block) ASSERT_EQ(write_block(mount.files(), kept, block, block), Status::ok);
    ASSERT_EQ(sync(mount, kept), Status::ok);
    const u64 begin = mount.server().superblock().device.chunk_area_offset;
    for (const std::string& path : paths_) ASSERT_NO_FATAL_FAILURE(punch_what_was_not_written(path, begin));
    disk_->fill();
    const u64 lost = make_file(mount.files(), "lost");
    for (u64 block = 0; block < 4; ++block) (void)write_block(mount.files(), lost, block, 500 + block);
    EXPECT_EQ(sync(mount, lost), Status::no_space);
    EXPECT_FALSE(mount.server().has_lost_devices());
    EXPECT_TRUE(has_blocks(mount.files(), kept, 20, 0));
    mount.crash();
  }
  disk_->make_room();
  GrowthMount mount(paths_, DiscardScope::all);
  EXPECT_TRUE(has_blocks(mount.files(), find_file(mount.files(), "kept"), 20, 0));
  EXPECT_TRUE(mount.stop());
  EXPECT_EQ(find_problems(paths_), "");
}

// A mount whose files are thin since a trim says so, because its engine may die on a full disk.
TEST_P(FullDisk, AMountKnowsThatItsFilesAreThin) {
  GrowthMount mount(paths_);
  EXPECT_FALSE(mount.server().has_thin_files());
  const u64 removed = make_file(mount.files(), "removed");
  for (u64 block = 0; block < 100; ++block) ASSERT_EQ(write_block(mount.files(), removed, block, block), Status::ok);
  empty_file(mount, removed);
  ASSERT_GT(mount.server().trimmer().trim_all().byte_count, 0u);
  EXPECT_TRUE(mount.server().has_thin_files());
}

INSTANTIATE_TEST_SUITE_P(Shapes, FullDisk,
                         ::testing::Values(FullDiskShape{"single", 1}, FullDiskShape{"raid1", 2},
                                           FullDiskShape{"raid5", 3}));

}  // namespace
}  // namespace gpu4fs::test::full_disk_test
