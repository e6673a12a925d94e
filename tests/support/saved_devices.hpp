// The device files of an unmounted pool, which can be restored any number of times. Only written parts are kept and
// copied: tests save small pools on large files.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/types.hpp"

namespace gpu4fs::test {

class SavedDevices {
 public:
  explicit SavedDevices(std::vector<std::string> paths) : paths_(std::move(paths)) {
    for (const std::string& path : paths_) save(path);
  }

  // Restores every file, except those of the set, which are missing.
  void restore(u32 without) const {
    for (u32 d = 0; d < paths_.size(); ++d) {
      if ((without >> d & 1) != 0) {
        std::filesystem::remove(paths_[d]);
      } else {
        restore_file(paths_[d], files_[d]);
      }
    }
  }

 private:
  struct Run {
    off_t offset;
    std::vector<u8> bytes;
  };
  struct File {
    off_t size = 0;
    std::vector<Run> runs;
  };
  // So a read or write transfers it as a whole.
  static constexpr off_t run_bytes_max = off_t{1} << 24;

  void save(const std::string& path) {
    File& file = files_.emplace_back();
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_GE(descriptor, 0) << path;
    file.size = ::lseek(descriptor, 0, SEEK_END);
    for (off_t end = 0; end < file.size;) {
      const off_t begin = ::lseek(descriptor, end, SEEK_DATA);
      if (begin < 0) break;  // only a hole is left
      end = std::min(::lseek(descriptor, begin, SEEK_HOLE), begin + run_bytes_max);
      Run& run = file.runs.emplace_back(Run{begin, std::vector<u8>(static_cast<std::size_t>(end - begin))});
      EXPECT_EQ(::pread(descriptor, run.bytes.data(), run.bytes.size(), begin), end - begin) << path;
    }
    ::close(descriptor);
  }

  static void restore_file(const std::string& path, const File& file) {
    const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ASSERT_GE(descriptor, 0) << path;
    EXPECT_EQ(::ftruncate(descriptor, file.size), 0) << path;
    off_t end = 0;
    for (const Run& run : file.runs) {
      make_hole(descriptor, end, run.offset);
      end = run.offset + static_cast<off_t>(run.bytes.size());
      EXPECT_EQ(::pwrite(descriptor, run.bytes.data(), run.bytes.size(), run.offset), end - run.offset) << path;
    }
    make_hole(descriptor, end, file.size);
    ::close(descriptor);
  }

  static void make_hole(int descriptor, off_t begin, off_t end) {
    if (begin == end) return;
    EXPECT_EQ(::fallocate(descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, begin, end - begin), 0);
  }

  std::vector<std::string> paths_;
  std::vector<File> files_;
};

}  // namespace gpu4fs::test
