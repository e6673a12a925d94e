// A file on a disk for tests, which ends with the object. GPU4FS_TEST_DISK names another folder than /var/tmp.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "base/types.hpp"

namespace gpu4fs::test {

class DiskFile {
 public:
  explicit DiskFile(u64 size_bytes) {
    const char* const folder = std::getenv("GPU4FS_TEST_DISK");
    path_ = std::string(folder == nullptr ? "/var/tmp" : folder) + "/gpu4fs_block_XXXXXX";
    descriptor_ = ::mkostemp(path_.data(), O_CLOEXEC);
    EXPECT_GE(descriptor_, 0) << path_;
    resize(size_bytes);
  }
  ~DiskFile() {
    ::close(descriptor_);
    ::unlink(path_.c_str());
  }
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;

  const std::string& path() const { return path_; }
  void resize(u64 size_bytes) { EXPECT_EQ(::ftruncate(descriptor_, static_cast<off_t>(size_bytes)), 0); }
  void write(u64 offset, const std::vector<u8>& bytes) {
    EXPECT_EQ(::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset)),
              static_cast<ssize_t>(bytes.size()));
  }
  std::vector<u8> read(u64 offset, u64 length) const {
    std::vector<u8> bytes(length);
    EXPECT_EQ(::pread(descriptor_, bytes.data(), length, static_cast<off_t>(offset)), static_cast<ssize_t>(length));
    return bytes;
  }

 private:
  std::string path_;
  int descriptor_ = -1;
};

}  // namespace gpu4fs::test
