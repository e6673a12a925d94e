// Memory that is allocated in advance: all of the ranges, nothing else, with the existing content; a medium without
// room reports it.
#include "pool/prefault.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <string>
#include <thread>

#include "base/limits.hpp"

namespace gpu4fs::pool::prefault_test {
namespace {

constexpr u64 mega = u64{1} << 20;

class MemoryAhead : public ::testing::Test {
 protected:
  MemoryAhead() {
    std::string name =
        std::filesystem::is_directory("/dev/shm") ? "/dev/shm" : std::filesystem::temp_directory_path().string();
    name += "/gpu4fs_ahead_XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  ~MemoryAhead() override {
    if (is_mounted_) ::umount2((folder_ / "small").c_str(), MNT_DETACH);
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  // A tmpfs at "small"; false if none is available.
  bool mount_small(const char* size) {
    std::filesystem::create_directory(folder_ / "small");
    is_mounted_ = ::mount("gpu4fs-test", (folder_ / "small").c_str(), "tmpfs", 0, size) == 0;
    return is_mounted_;
  }
  std::string make_file(const std::string& name, u64 bytes) {
    const std::string path = folder_ / name;
    const int file = ::open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    EXPECT_GE(file, 0);
    EXPECT_EQ(::ftruncate(file, static_cast<off_t>(bytes)), 0);
    ::close(file);
    return path;
  }
  static u64 allocated_bytes(const std::string& path) {
    struct stat status {};
    EXPECT_EQ(::stat(path.c_str(), &status), 0);
    return static_cast<u64>(status.st_blocks) * 512;
  }

  std::filesystem::path folder_;
  bool is_mounted_ = false;
};

TEST_F(MemoryAhead, IsThereAndHoldsWhatItHeld) {
  const std::vector<FileRange> ranges{{mega, 70 * mega}, {80 * mega, page_size}, {90 * mega, 0}};
  for (const bool populates : {false, true}) {
    for (const u32 threads : {1u, 3u}) {
      const std::string path = make_file("device", 96 * mega);
      const device::MappedFile file = device::MappedFile::open(path);
      file.base()[5 * mega + 3] = 7;
      prefault_ranges(file, ranges, populates, threads);
      EXPECT_EQ(allocated_bytes(path), 70 * mega + page_size);
      EXPECT_EQ(file.base()[5 * mega + 3], 7);
      EXPECT_EQ(file.base()[6 * mega], 0);
      std::filesystem::remove(path);
    }
  }
}

TEST_F(MemoryAhead, AMediumWithoutRoomSaysSo) {
  if (!mount_small("size=40m")) GTEST_SKIP() << "a tmpfs cannot be mounted here";
  const std::string path = make_file("small/device", 160 * mega);
  const device::MappedFile file = device::MappedFile::open(path);
  for (const u32 threads : {1u, 3u}) {
    try {
      prefault_ranges(file, {{0, 160 * mega}}, true, threads);
      ADD_FAILURE() << "there is no room";
    } catch (const device::DeviceError& error) {
      EXPECT_EQ(error.error_number(), ENOSPC) << error.what();
    }
  }
}

// Both files request more than half of the medium at the same time.
TEST_F(MemoryAhead, ARangeIsTakenWholeOrNotAtAll) {
  if (!mount_small("size=64m")) GTEST_SKIP() << "a tmpfs cannot be mounted here";
  for (u32 round = 0; round < 5; ++round) {
    const std::string paths[] = {make_file("small/a", 64 * mega), make_file("small/b", 64 * mega)};
    bool refused[2] = {};
    const auto take = [&](u32 i) {
      const device::MappedFile file = device::MappedFile::open(paths[i]);
      try {
        take_range(file, {mega, 40 * mega}, false, 2);
      } catch (const device::DeviceError& error) {
        EXPECT_EQ(error.error_number(), ENOSPC) << error.what();
        refused[i] = true;
      }
    };
    std::thread other([&] { take(1); });
    take(0);
    other.join();
    EXPECT_TRUE(refused[0] || refused[1]);
    for (u32 i = 0; i < 2; ++i) EXPECT_EQ(allocated_bytes(paths[i]), refused[i] ? 0 : 40 * mega) << i;
    for (const std::string& path : paths) std::filesystem::remove(path);
  }
}

TEST_F(MemoryAhead, WhatARefusedRangeHoldsStays) {
  if (!mount_small("size=40m")) GTEST_SKIP() << "a tmpfs cannot be mounted here";
  const std::string path = make_file("small/device", 160 * mega);
  const device::MappedFile file = device::MappedFile::open(path);
  file.base()[5 * mega + 3] = 7;
  EXPECT_FALSE(file.is_hole(mega, 8 * mega));
  EXPECT_TRUE(file.is_hole(6 * mega, 100 * mega));
  const u64 before = allocated_bytes(path);
  EXPECT_THROW(take_range(file, {mega, 100 * mega}, false, 2), device::DeviceError);
  EXPECT_EQ(allocated_bytes(path), before);
  EXPECT_EQ(file.base()[5 * mega + 3], 7);
  take_range(file, {mega, 20 * mega}, false, 2);
  EXPECT_EQ(file.base()[5 * mega + 3], 7);
  EXPECT_EQ(allocated_bytes(path), 20 * mega);
}

// One of its pages has a block and was not touched yet, so the system takes it for a hole. While the rest is being
// allocated, the page is written, and another user takes the room.
TEST_F(MemoryAhead, WhatIsWrittenInARangeInUseStays) {
  if (!mount_small("size=128m")) GTEST_SKIP() << "a tmpfs cannot be mounted here";
  bool was_refused = false;
  for (u32 round = 0; round < 50 && !was_refused; ++round) {
    const std::string path = make_file("small/device", 96 * mega);
    const std::string other_path = make_file("small/other", 96 * mega);
    const device::MappedFile file = device::MappedFile::open(path);
    const device::MappedFile other = device::MappedFile::open(other_path);
    const u64 written = 90 * mega;
    file.reserve_range(written, page_size);
    ASSERT_TRUE(file.is_hole(0, 96 * mega));
    std::atomic<bool> has_ended{false};
    std::thread others([&] {
      while (allocated_bytes(path) < 4 * mega && !has_ended) {
      }
      file.base()[written] = 7;
      try {
        other.reserve_range(0, 96 * mega);
      } catch (const device::DeviceError&) {
        // Next time.
      }
    });
    try {
      take_range(file, {0, 96 * mega}, true, 2);
    } catch (const device::DeviceError& error) {
      EXPECT_EQ(error.error_number(), ENOSPC) << error.what();
      was_refused = true;
    }
    has_ended = true;
    others.join();
    EXPECT_EQ(file.base()[written], 7);
    EXPECT_EQ(allocated_bytes(path), was_refused ? page_size : 96 * mega);
    std::filesystem::remove(path);
    std::filesystem::remove(other_path);
  }
  if (!was_refused) GTEST_SKIP() << "nobody was in time to take the room";
}

}  // namespace
}  // namespace gpu4fs::pool::prefault_test
