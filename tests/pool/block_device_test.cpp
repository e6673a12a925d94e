// Pools on block devices (loop devices): claims, foreign content at both ends, and the search for members.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/limits.hpp"
#include "fmt/format.h"
#include "pool/block_devices.hpp"
#include "pool/lock_wait.hpp"
#include "pool/pool_device_file.hpp"
#include "pool/pool_foreign.hpp"
#include "pool/pool_open.hpp"
#include "support/loop_device.hpp"
#include "support/pool_test_support.hpp"

namespace gpu4fs::pool {
namespace {

using test::contains;
using test::error_of;
using test::LoopDevice;
using test::mib;

constexpr u64 sector_bytes = 512;
using Access = DeviceFile::Access;
using Locking = DeviceFile::Locking;

TEST(BlockDevice, sizes_are_whole_pages) {
  const LoopDevice disk(mib + 3 * sector_bytes);
  GPU4FS_REQUIRE_LOOP(disk);
  const DeviceFile file = DeviceFile::open(disk.path(), Access::read_write, Locking::lock_at_once);
  EXPECT_FALSE(file.is_regular());
  EXPECT_EQ(file.size_bytes(), mib);
  EXPECT_EQ(file.medium_bytes(), mib + 3 * sector_bytes);
}

TEST(BlockDevice, writer_claims_it_and_says_so) {
  const LoopDevice disk(mib);
  GPU4FS_REQUIRE_LOOP(disk);
  const auto open = [&](Access access, Locking locking) -> std::string {
    try {
      DeviceFile::open(disk.path(), access, locking);
      return "";
    } catch (const PoolError& error) {
      return error.what();
    }
  };
  {
    const DeviceFile writer = DeviceFile::open(disk.path(), Access::read_write, Locking::lock_at_once);
    EXPECT_EQ(::open(disk.path().c_str(), O_RDWR | O_EXCL | O_CLOEXEC), -1);
    EXPECT_EQ(open(Access::read_write, Locking::lock),
              disk.path() + ": in use: mounted or being made by another process");
    EXPECT_TRUE(contains(open(Access::read_only, Locking::lock_at_once), "in use"));
    EXPECT_EQ(open(Access::read_only, Locking::none), "");
    EXPECT_EQ(open(Access::read_write, Locking::none), "");
  }
  const int other = ::open(disk.path().c_str(), O_RDWR | O_EXCL | O_CLOEXEC);
  ASSERT_GE(other, 0);
  EXPECT_EQ(open(Access::read_write, Locking::lock_at_once), disk.path() + ": in use: claimed by another program");
  EXPECT_EQ(open(Access::read_only, Locking::lock_at_once), "");
  ::close(other);
  EXPECT_EQ(open(Access::read_write, Locking::lock_at_once), "");
}

TEST(BlockDevice, claim_without_a_lock_is_waited_for) {
  const LoopDevice disk(mib);
  GPU4FS_REQUIRE_LOOP(disk);
  const int other = ::open(disk.path().c_str(), O_RDWR | O_EXCL | O_CLOEXEC);
  ASSERT_GE(other, 0);
  int pauses = 0;
  const LockPatience patience{.holder_lets_go = {}, .pause = [&] {
                                if (++pauses == 3) ::close(other);
                                return true;
                              }};
  EXPECT_NO_THROW(wait_for_locks(
      patience, [&] { return DeviceFile::open(disk.path(), Access::read_write, Locking::lock_at_once); }));
  EXPECT_EQ(pauses, 3);
}

TEST(BlockDevice, signatures_at_the_end_are_content_and_mkfs_clears_them) {
  const LoopDevice disk(32 * mib + sector_bytes);
  GPU4FS_REQUIRE_LOOP(disk);
  const u64 end = 32 * mib + sector_bytes;
  const auto content = [&] {
    return describe_content(DeviceFile::open(disk.path(), Access::read_only, Locking::none));
  };
  EXPECT_EQ(content(), "");
  const struct {
    u64 offset;
    std::string bytes;
    const char* name;
  } signatures[] = {
      {end - sector_bytes, "EFI PART", "a GPT partition table"},
      {32 * mib - 8192, "\xfc\x4e\x2b\xa9", "a member of a disk array (md)"},
      {32 * mib - 65536, "\xfc\x4e\x2b\xa9", "a member of a disk array (md)"},
      {512, "LABELONE", "an LVM volume"},
      {1080, "\x53\xef", "an ext2/3/4 file system"},
  };
  for (const auto& signature : signatures) {
    ASSERT_TRUE(disk.write(signature.offset, signature.bytes.data(), signature.bytes.size()));
    EXPECT_EQ(content(), signature.name);
    const std::string zeros(signature.bytes.size(), '\0');
    ASSERT_TRUE(disk.write(signature.offset, zeros.data(), zeros.size()));
  }
  for (const auto& signature : signatures) {
    ASSERT_TRUE(disk.write(signature.offset, signature.bytes.data(), signature.bytes.size()));
  }
  MakePoolOptions options = test::pool_options({disk.path()}, 0);
  EXPECT_TRUE(contains(error_of([&] { make_pool(options); }), "it is overwritten only by force"));
  options.force = true;
  make_pool(options);
  EXPECT_EQ(content(), "a gpu4fs pool");
  for (const auto& signature : signatures) {
    EXPECT_EQ(disk.read_medium(signature.offset, signature.bytes.size()), std::vector<u8>(signature.bytes.size()))
        << signature.name;
  }
}

TEST(BlockDevice, no_file_is_made_in_dev) {
  const std::string error = error_of([] { make_pool(test::pool_options({"/dev/gpu4fs-no-such-disk"}, 32 * mib)); });
  EXPECT_EQ(error, "/dev/gpu4fs-no-such-disk: there is no such block device");
}

TEST(BlockDevice, one_member_finds_the_others) {
  const LoopDevice a(32 * mib), b(32 * mib), alone(32 * mib);
  GPU4FS_REQUIRE_LOOP(a);
  GPU4FS_REQUIRE_LOOP(b);
  GPU4FS_REQUIRE_LOOP(alone);
  const std::vector<std::string> paths = {b.path(), a.path()};
  make_pool(test::pool_options(paths, 0));
  make_pool(test::pool_options({alone.path()}, 0));
  EXPECT_EQ(find_members(a.path()), paths);
  OpenPoolOptions options;
  options.device_paths = {a.path()};
  const OpenedPool pool = open_pool(options);
  ASSERT_EQ(pool.devices.size(), 2u);
  for (u32 i = 0; i < 2; ++i) EXPECT_EQ(pool.devices[i].file.path(), paths[i]);
}

// Another name of the same device, as udev makes them, is not a second member.
TEST(BlockDevice, second_name_is_the_same_device) {
  const LoopDevice a(32 * mib), b(32 * mib);
  GPU4FS_REQUIRE_LOOP(a);
  GPU4FS_REQUIRE_LOOP(b);
  const test::TemporaryFolder folder;
  const std::string link = folder / "link";
  std::filesystem::create_symlink(a.path(), link);
  make_pool(test::pool_options({a.path(), b.path()}, 0));
  OpenPoolOptions options;
  options.device_paths = {link};
  const OpenedPool pool = open_pool(options);
  EXPECT_EQ(pool.devices[0].file.path(), link);
  EXPECT_EQ(pool.devices[1].file.path(), b.path());
  EXPECT_EQ(find_members(link), (std::vector<std::string>{link, b.path()}));
}

// A sysfs whose devices all have the number of one loop device.
TEST(BlockDevice, list_leaves_out_what_cannot_be_a_member) {
  const LoopDevice disk(mib);
  GPU4FS_REQUIRE_LOOP(disk);
  const test::TemporaryFolder folder;
  const u64 number = block_device_number(disk.path());
  ASSERT_NE(number, 0u);
  const auto add = [&](const std::string& name, const std::string& size, const std::string& removable) {
    const std::filesystem::path entry = folder / ("class/block/" + name);
    std::filesystem::create_directories(entry / "holders");
    std::ofstream(entry / "size") << size << '\n';
    std::ofstream(entry / "removable") << removable << '\n';
    std::ofstream(entry / "dev") << fmt::format("{}:{}\n", major(number), minor(number));
    std::string node = folder / ("dev/" + name);
    std::replace(node.begin(), node.end(), '!', '/');
    std::filesystem::create_directories(std::filesystem::path(node).parent_path());
    std::filesystem::create_symlink(disk.path(), node);
    return entry;
  };
  add("sdb", "2048", "0");
  add("sda", "2048", "0");
  add("array!d0", "2048", "0");
  add("empty", "0", "0");
  add("floppy", "2048", "1");
  std::filesystem::create_directories(add("lower", "2048", "0") / "holders/dm-0");
  std::ofstream(add("hidden", "2048", "0") / "hidden") << "1\n";
  std::ofstream(add("renumbered", "2048", "0") / "dev") << "1:1\n";
  std::filesystem::remove((add("nodeless", "2048", "0"), folder / "dev/nodeless"));
  const std::string dev = folder / "dev";
  EXPECT_EQ(list_block_devices(folder / "", dev),
            (std::vector<std::string>{dev + "/array/d0", dev + "/sda", dev + "/sdb"}));
  EXPECT_EQ(list_block_devices(folder / "nowhere", dev), std::vector<std::string>{});
}

}  // namespace
}  // namespace gpu4fs::pool
