// Files and block devices as media: sizes, claims, messages, discards.
#include "block/block_medium.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "base/limits.hpp"
#include "block/disk_file.hpp"
#include "support/loop_device.hpp"

namespace gpu4fs::block {
namespace {

constexpr u64 page_count = 16;
constexpr u64 size_bytes = page_count * page_size;

std::string open_error(const std::string& path, MediumOptions options = {}, int* number = nullptr) {
  try {
    BlockMedium::open(path, options);
  } catch (const DeviceError& error) {
    if (number != nullptr) *number = error.error_number();
    return error.what();
  }
  return {};
}

TEST(BlockMedium, FileHasItsWholePages) {
  const test::DiskFile file(size_bytes + 100);
  const BlockMedium medium = BlockMedium::open(file.path());
  EXPECT_EQ(medium.size_bytes(), size_bytes);
  EXPECT_FALSE(medium.is_block_device());
  EXPECT_EQ(page_size % medium.logical_block_bytes(), 0u);
  EXPECT_EQ((::fcntl(medium.descriptor(), F_GETFL) & O_DIRECT) != 0, medium.is_direct());
  EXPECT_NE(::fcntl(medium.descriptor(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(BlockMedium, ErrorsNamePathAndReason) {
  int number = 0;
  EXPECT_EQ(open_error("/var/tmp/gpu4fs no such file", {}, &number),
            "/var/tmp/gpu4fs no such file: cannot be opened for writing: No such file or directory");
  EXPECT_EQ(number, ENOENT);
  EXPECT_EQ(open_error("/var/tmp", {.read_only = true}), "/var/tmp: is neither a regular file nor a block device");
  EXPECT_EQ(open_error("/dev/null"), "/dev/null: is neither a regular file nor a block device");
  const test::DiskFile file(page_size - 1);
  EXPECT_EQ(open_error(file.path()), file.path() + ": has no page of 4096 bytes");
}

TEST(BlockMedium, OneWriterExcludesOthers) {
  const test::DiskFile file(size_bytes);
  const BlockMedium writer = BlockMedium::open(file.path());
  int number = 0;
  EXPECT_EQ(open_error(file.path(), {}, &number),
            file.path() + ": is in use by another mount or tool: " + std::strerror(EBUSY));
  EXPECT_EQ(number, EBUSY);
  EXPECT_EQ(open_error(file.path(), {.read_only = true, .lock = false}), "");
}

// tmpfs knows O_DIRECT from Linux 6.6 on.
TEST(BlockMedium, SaysWhetherAccessIsDirect) {
  const int descriptor = ::memfd_create("gpu4fs", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(descriptor, size_bytes), 0);
  const bool can = ::fcntl(descriptor, F_SETFL, O_RDWR | O_DIRECT) == 0;
  ASSERT_EQ(::fcntl(descriptor, F_SETFL, O_RDWR), 0);
  const BlockMedium medium = BlockMedium::adopt(descriptor, "memory");
  EXPECT_EQ((::fcntl(descriptor, F_GETFL) & O_DIRECT) != 0, can);
  if (!can) {
    EXPECT_FALSE(medium.is_direct());
  }
}

template <int error>
ssize_t refuse(int, void*, size_t, off_t) {
  errno = error;
  return -1;
}

TEST(BlockMedium, SomeRefuseDirectAccessesAtTheFirstOne) {
  const test::DiskFile file(size_bytes);
  if (!BlockMedium::open(file.path()).is_direct()) GTEST_SKIP() << "there is no direct access";
  for (const auto read : {refuse<EINVAL>, refuse<EOPNOTSUPP>}) {
    const BlockMedium medium = BlockMedium::open(file.path(), {.read = read});
    EXPECT_FALSE(medium.is_direct());
    EXPECT_EQ(::fcntl(medium.descriptor(), F_GETFL) & O_DIRECT, 0);
  }
  const BlockMedium medium = BlockMedium::open(file.path(), {.read = refuse<EIO>});
  EXPECT_TRUE(medium.is_direct()) << "a page that cannot be read";
}

TEST(BlockMedium, DiscardedAndZeroedPagesOfAFileAreZero) {
  test::DiskFile file(size_bytes);
  file.write(0, std::vector<u8>(size_bytes, 0x5a));
  const BlockMedium medium = BlockMedium::open(file.path());
  if (medium.can_discard()) {
    EXPECT_EQ(medium.discard(2 * page_size, 3 * page_size), 0);
  } else {
    EXPECT_EQ(medium.discard(2 * page_size, 3 * page_size), EOPNOTSUPP);
  }
  EXPECT_EQ(medium.write_zeroes(8 * page_size, 2 * page_size), 0);
  EXPECT_EQ(medium.flush(), 0);
  for (u64 page = 0; page < page_count; ++page) {
    const bool is_discarded = medium.can_discard() && page >= 2 && page < 5;
    const u8 expected = is_discarded || page == 8 || page == 9 ? 0 : 0x5a;
    EXPECT_EQ(file.read(page * page_size, page_size), std::vector<u8>(page_size, expected)) << page;
  }
  struct stat status;
  ASSERT_EQ(::stat(file.path().c_str(), &status), 0);
  EXPECT_EQ(status.st_size, static_cast<off_t>(size_bytes));
}

TEST(BlockMedium, MediumThatIsReadOnlyDiscardsNothing) {
  const test::DiskFile file(size_bytes);
  const BlockMedium medium = BlockMedium::open(file.path(), {.read_only = true});
  EXPECT_FALSE(medium.can_discard());
  EXPECT_EQ(medium.discard(0, page_size), EOPNOTSUPP);
}

// A file forgets whole pages, whatever its file system does with them.
TEST(BlockMedium, RangesOfAFileAreForgottenAsAWhole) {
  const test::DiskFile file(size_bytes);
  const BlockMedium medium = BlockMedium::open(file.path());
  const ByteRange range = medium.discardable(3 * page_size, 5 * page_size);
  EXPECT_EQ(range.offset, 3 * page_size);
  EXPECT_EQ(range.length, 5 * page_size);
}

TEST(DiscardUnits, OnlyWholeOnesAreInside) {
  const auto expect = [](const DiscardUnits& units, ByteRange range, u64 offset, u64 length) {
    const ByteRange inside = units.inside(range.offset, range.length);
    EXPECT_EQ(inside.length, length) << range.offset << " " << range.length;
    if (length != 0) {
      EXPECT_EQ(inside.offset, offset) << range.offset << " " << range.length;
    }
  };
  const DiscardUnits large{64 * page_size, 0};
  expect(large, {0, 128 * page_size}, 0, 128 * page_size);
  expect(large, {page_size, 128 * page_size}, 64 * page_size, 64 * page_size);
  expect(large, {page_size, 126 * page_size}, 0, 0);
  expect(large, {65 * page_size, 20 * page_size}, 0, 0);
  // A partition that begins inside a unit.
  const DiscardUnits shifted{64 * page_size, 16 * page_size};
  expect(shifted, {0, 128 * page_size}, 16 * page_size, 64 * page_size);
  expect(shifted, {16 * page_size, 64 * page_size}, 16 * page_size, 64 * page_size);
  expect(shifted, {0, 16 * page_size}, 0, 0);
  expect(shifted, {17 * page_size, 127 * page_size}, 80 * page_size, 64 * page_size);
  // Any unit, not only a power of two.
  expect({3 * page_size, page_size}, {0, 10 * page_size}, page_size, 9 * page_size);
}

TEST(BlockMedium, BlockDeviceIsClaimed) {
  const test::LoopDevice disk(size_bytes + 512);
  GPU4FS_REQUIRE_LOOP(disk);
  const BlockMedium medium = BlockMedium::open(disk.path());
  EXPECT_TRUE(medium.is_block_device());
  EXPECT_TRUE(medium.is_direct());
  EXPECT_EQ(medium.size_bytes(), size_bytes);
  EXPECT_EQ(medium.logical_block_bytes(), 512u);
  EXPECT_EQ(open_error(disk.path()),
            disk.path() + ": is in use by another mount, file system or tool: " + std::strerror(EBUSY));
}

TEST(BlockMedium, PagesOfABlockDeviceAreDiscardedAndZeroed) {
  const test::LoopDevice disk(size_bytes);
  GPU4FS_REQUIRE_LOOP(disk);
  const std::vector<u8> pattern(size_bytes, 0x5a);
  ASSERT_TRUE(disk.write(0, pattern.data(), size_bytes));
  const BlockMedium medium = BlockMedium::open(disk.path());
  ASSERT_EQ(medium.flush(), 0);
  EXPECT_EQ(medium.write_zeroes(0, 2 * page_size), 0);
  EXPECT_EQ(disk.read_medium(0, 2 * page_size), std::vector<u8>(2 * page_size, 0));
  EXPECT_EQ(disk.read_medium(2 * page_size, page_size), std::vector<u8>(page_size, 0x5a));
  if (!medium.can_discard()) GTEST_SKIP() << "the loop device cannot discard";
  EXPECT_EQ(medium.discard(4 * page_size, page_size), 0);
  // A loop device makes a hole.
  EXPECT_EQ(disk.read_medium(4 * page_size, page_size), std::vector<u8>(page_size, 0));
}

}  // namespace
}  // namespace gpu4fs::block
