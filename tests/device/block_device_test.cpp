// MappedFile on block devices (loop devices): sizes, flushes, exclusive use, messages.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "base/limits.hpp"
#include "device/open_error.hpp"
#include "support/loop_device.hpp"

namespace gpu4fs::device {
namespace {

constexpr u64 page_count = 64;
constexpr u64 sector_bytes = 512;

TEST(BlockDevice, whole_pages_are_used) {
  const test::LoopDevice disk(page_count * page_size + 3 * sector_bytes);
  GPU4FS_REQUIRE_LOOP(disk);
  const MappedFile mapped = MappedFile::open(disk.path());
  EXPECT_EQ(mapped.medium(), MediumKind::block);
  EXPECT_STREQ(medium_name(mapped.medium()), "block device");
  EXPECT_EQ(mapped.size_bytes(), page_count * page_size);
  EXPECT_FALSE(mapped.grows_with_use());
}

TEST(BlockDevice, without_a_page_is_refused) {
  const test::LoopDevice disk(sector_bytes);
  GPU4FS_REQUIRE_LOOP(disk);
  EXPECT_NE(test::open_error(disk.path()).find("has no medium"), std::string::npos) << test::open_error(disk.path());
}

TEST(BlockDevice, flush_reaches_the_medium) {
  const test::LoopDevice disk(page_count * page_size);
  GPU4FS_REQUIRE_LOOP(disk);
  const MappedFile mapped = MappedFile::open(disk.path());
  EXPECT_TRUE(mapped.needs_flush());
  EXPECT_EQ(mapped.device(0).needs_flush, 1u);
  std::memset(mapped.base() + 5 * page_size, 0x5a, 2 * page_size);
  mapped.flush();
  EXPECT_EQ(disk.read_medium(5 * page_size, 2 * page_size), std::vector<u8>(2 * page_size, 0x5a));
}

TEST(BlockDevice, has_no_holes_to_fill_or_to_make) {
  const test::LoopDevice disk(page_count * page_size);
  GPU4FS_REQUIRE_LOOP(disk);
  const MappedFile mapped = MappedFile::open(disk.path());
  std::memset(mapped.base(), 0x5a, page_size);
  mapped.reserve_blocks();
  mapped.reserve_range(0, 4 * page_size);
  EXPECT_FALSE(mapped.is_hole(8 * page_size, page_size));
  EXPECT_EQ(mapped.room_bytes(), ~u64{0});
  mapped.release_range(0, page_size);
  EXPECT_EQ(mapped.base()[0], 0x5a);
}

TEST(BlockDevice, gpu_refuses_it_like_a_disk_file) {
  const test::LoopDevice disk(page_count * page_size);
  GPU4FS_REQUIRE_LOOP(disk);
  const GpuRegistration registration = MappedFile::open(disk.path()).gpu_registration();
  EXPECT_FALSE(registration.possible);
  EXPECT_NE(registration.reason.find(disk.path() + ": a writable mapping of a block device"), std::string::npos)
      << registration.reason;
}

TEST(BlockDevice, one_writer_excludes_others_and_readers_share) {
  const test::LoopDevice disk(page_count * page_size);
  GPU4FS_REQUIRE_LOOP(disk);
  {
    const MappedFile writer = MappedFile::open(disk.path());
    EXPECT_NE(test::open_error(disk.path()).find("in use"), std::string::npos);
    EXPECT_NE(test::open_error(disk.path(), {.read_only = true}).find("in use"), std::string::npos);
    EXPECT_EQ(test::open_error(disk.path(), {.read_only = true, .lock = false}), "");
    // What mount(2) and the mkfs of other file systems do.
    EXPECT_EQ(::open(disk.path().c_str(), O_RDWR | O_EXCL | O_CLOEXEC), -1);
    EXPECT_EQ(errno, EBUSY);
    // A second descriptor of the same open, as the server has it.
    EXPECT_NO_THROW(
        MappedFile::adopt(::fcntl(writer.descriptor(), F_DUPFD_CLOEXEC, 3), disk.path(), {.read_only = false}));
  }
  const MappedFile reader = MappedFile::open(disk.path(), {.read_only = true});
  EXPECT_EQ(test::open_error(disk.path(), {.read_only = true}), "");
  EXPECT_NE(test::open_error(disk.path()).find("in use"), std::string::npos);
}

TEST(BlockDevice, claim_of_others_is_respected) {
  const test::LoopDevice disk(page_count * page_size);
  GPU4FS_REQUIRE_LOOP(disk);
  const int other = ::open(disk.path().c_str(), O_RDWR | O_EXCL | O_CLOEXEC);
  ASSERT_GE(other, 0);
  const std::string error = test::open_error(disk.path());
  EXPECT_EQ(error.find(disk.path() + ": is in use by another mount"), 0u) << error;
  ::close(other);
  EXPECT_EQ(test::open_error(disk.path()), "");
}

}  // namespace
}  // namespace gpu4fs::device
