// The underlying devices of block devices, in a folder that looks like sysfs: an own mount is found at any depth.
#include "pool/own_mounts.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "fmt/format.h"
#include "pool/mount_table.hpp"
#include "support/memory_folder.hpp"

namespace gpu4fs::pool::own_mounts_test {
namespace {

class OwnMounts : public ::testing::Test {
 protected:
  OwnMounts() {
    std::string name = gpu4fs::test::memory_folder() + "/gpu4fs_own_XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    std::ofstream(folder_ / "image") << "content";
    // A loop device in use with a partition, below two device mappers.
    add_device("loop7", "7:70");
    std::filesystem::create_directories(folder_ / "devices/loop7/loop");
    std::ofstream(folder_ / "devices/loop7/loop/backing_file") << (folder_ / "image").string() << "\n";
    add_device("loop7/loop7p1", "7:71");
    std::ofstream(folder_ / "devices/loop7/loop7p1/partition") << "1\n";
    add_device("dm-1", "900:1");
    add_device("dm-0", "900:0");
    put_below("dm-1", "loop7/loop7p1");
    put_below("dm-0", "dm-1");
  }
  ~OwnMounts() override { std::filesystem::remove_all(folder_); }

  void add_device(const std::string& name, const std::string& number) {
    std::filesystem::create_directories(folder_ / "devices" / name / "slaves");
    std::filesystem::create_directories(folder_ / "dev/block");
    std::ofstream(folder_ / "devices" / name / "dev") << number << "\n";
    std::filesystem::create_directory_symlink(folder_ / "devices" / name, folder_ / "dev/block" / number);
  }
  void put_below(const std::string& upper, const std::string& lower) {
    const std::filesystem::path device = folder_ / "devices" / lower;
    std::filesystem::create_directory_symlink(device, folder_ / "devices" / upper / "slaves" / device.filename());
  }
  std::string find(u32 major_number, u32 minor_number) {
    return find_own_mount_below(makedev(major_number, minor_number), folder_);
  }
  // As if this process served the mount of the folder.
  void own_the_folder() {
    struct stat state {};
    ASSERT_EQ(::stat(folder_.c_str(), &state), 0);
    for (const MountEntry& mount : read_mount_table()) {
      if (mount.device_number != state.st_dev) continue;
      directory_ = mount.directory;
      own_.emplace(directory_);
      if (own_->device_number() == state.st_dev) return;
    }
    GTEST_SKIP() << "the table of mounts does not have the folder's";
  }

  std::filesystem::path folder_;
  std::string directory_;
  std::optional<OwnMount> own_;
};

TEST_F(OwnMounts, AreFoundBelowEveryKindOfDevice) {
  own_the_folder();
  for (const auto& [major_number, minor_number] : {std::pair{7u, 70u}, {7u, 71u}, {900u, 1u}, {900u, 0u}}) {
    EXPECT_EQ(find(major_number, minor_number), directory_) << major_number << ":" << minor_number;
  }
  EXPECT_EQ(find_own_mount(folder_ / "image"), directory_);
  EXPECT_EQ(find_own_mount(folder_ / "to be made"), directory_);
}

TEST_F(OwnMounts, AreFoundBelowAnotherDeviceOfTheSameFileSystem) {
  own_the_folder();
  add_device("other", "8:1");
  EXPECT_EQ(find(8, 1), "");
  const std::filesystem::path members = folder_ / "fs/btrfs/0123-uuid/devices";
  std::filesystem::create_directories(members);
  for (const char* name : {"other", "dm-0"}) {
    std::filesystem::create_directory_symlink(folder_ / "devices" / name, members / name);
  }
  EXPECT_EQ(find(8, 1), directory_);
}

TEST_F(OwnMounts, AreNotFoundWhereThereAreNone) {
  EXPECT_EQ(find(900, 0), "");
  EXPECT_EQ(find_own_mount(folder_ / "image"), "");
  own_the_folder();
  EXPECT_EQ(find(900, 5), "");
  // No search loops.
  add_device("dm-5", "900:5");
  add_device("dm-6", "900:6");
  put_below("dm-5", "dm-6");
  put_below("dm-6", "dm-5");
  EXPECT_EQ(find(900, 5), "");
}

}  // namespace
}  // namespace gpu4fs::pool::own_mounts_test
