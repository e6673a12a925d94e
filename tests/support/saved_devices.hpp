// The device files of an unmounted pool, which can be restored any number of times. Only written parts are kept and
// copied: tests save small pools on large files.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/types.hpp"
#include "support/file_mapping.hpp"

namespace gpu4fs::test {

class SavedDevices {
 public:
  explicit SavedDevices(std::vector<std::string> paths) : paths_(std::move(paths)), mappings_(paths_.size()) {
    for (const std::string& path : paths_) save(path);
  }

  // Restores every file, except those of the set, which are missing.
  void restore(u32 without) const {
    for (u32 d = 0; d < paths_.size(); ++d) {
      const std::filesystem::path waiting = away(paths_[d]);
      if ((without >> d & 1) == 0) {
        if (std::filesystem::exists(waiting)) std::filesystem::rename(waiting, paths_[d]);
        std::unique_ptr<FileMapping>& mapping = mappings_[d];
        if (!mapping || !mapping->is_of(paths_[d]))
          mapping = std::make_unique<FileMapping>(paths_[d], static_cast<u64>(files_[d].size));
        restore_file(*mapping, files_[d]);
      } else if (std::filesystem::exists(paths_[d])) {
        std::filesystem::create_directory(waiting.parent_path());
        std::filesystem::rename(paths_[d], waiting);
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

  static void restore_file(FileMapping& mapping, const File& file) {
    u64 end = 0;
    for (const Run& run : file.runs) {
      mapping.clear(end, static_cast<u64>(run.offset));
      mapping.put(static_cast<u64>(run.offset), run.bytes.data(), run.bytes.size());
      end = static_cast<u64>(run.offset) + run.bytes.size();
    }
    mapping.clear(end, static_cast<u64>(file.size));
  }

  // Where a file of the set waits: a new one would have to get all its pages again.
  static std::filesystem::path away(const std::filesystem::path& path) {
    return path.parent_path() / "away" / path.filename();
  }

  std::vector<std::string> paths_;
  std::vector<File> files_;
  mutable std::vector<std::unique_ptr<FileMapping>>
      mappings_;  // of files that were restored, as long as they are these
};

}  // namespace gpu4fs::test
