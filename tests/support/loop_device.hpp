// A block device for tests: a loop device over a file in memory that has no name. It ends with the object, also if the
// process is killed.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/loop.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "base/types.hpp"

namespace gpu4fs::test {

class LoopDevice {
 public:
  explicit LoopDevice(u64 size_bytes) : medium_(::memfd_create("gpu4fs loop", MFD_CLOEXEC)) {
    if (::ftruncate(medium_, static_cast<off_t>(size_bytes)) != 0) problem_ = std::strerror(errno);
    const int control = ::open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    if (control < 0) problem_ = std::string("/dev/loop-control: ") + std::strerror(errno);
    // Others may be faster.
    for (int attempt = 0; attempt < 100 && problem_.empty() && descriptor_ < 0; ++attempt) take_free(control);
    if (problem_.empty() && descriptor_ < 0) problem_ = "no loop device is free";
    if (control >= 0) ::close(control);
  }
  ~LoopDevice() {
    if (descriptor_ >= 0) ::close(descriptor_);
    ::close(medium_);
  }
  LoopDevice(const LoopDevice&) = delete;
  LoopDevice& operator=(const LoopDevice&) = delete;

  // Why there is none, "" if there is one.
  const std::string& problem() const { return problem_; }
  const std::string& path() const { return path_; }

  // Of the file below, without the cache of the device.
  std::vector<u8> read_medium(u64 offset, u64 length) const {
    std::vector<u8> bytes(length);
    if (::pread(medium_, bytes.data(), length, static_cast<off_t>(offset)) != static_cast<ssize_t>(length)) return {};
    return bytes;
  }
  // Bytes of memory that the file below takes.
  u64 allocated_bytes() const {
    struct stat status {};
    return ::fstat(medium_, &status) == 0 ? static_cast<u64>(status.st_blocks) * 512 : 0;
  }
  bool write(u64 offset, const void* data, u64 length) const {
    return ::pwrite(descriptor_, data, length, static_cast<off_t>(offset)) == static_cast<ssize_t>(length);
  }

 private:
  void take_free(int control) {
    const int number = ::ioctl(control, LOOP_CTL_GET_FREE);
    if (number < 0) {
      problem_ = std::string("no loop device is free: ") + std::strerror(errno);
      return;
    }
    path_ = "/dev/loop" + std::to_string(number);
    const int descriptor = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
    if (descriptor < 0) {
      problem_ = path_ + ": " + std::strerror(errno);
      return;
    }
    loop_config config{};
    config.fd = static_cast<u32>(medium_);
    config.info.lo_flags = LO_FLAGS_AUTOCLEAR;
    if (::ioctl(descriptor, LOOP_CONFIGURE, &config) == 0) {
      descriptor_ = descriptor;
      return;
    }
    if (errno != EBUSY) problem_ = path_ + ": " + std::strerror(errno);
    ::close(descriptor);
  }

  int medium_;
  int descriptor_ = -1;
  std::string path_;
  std::string problem_;
};

}  // namespace gpu4fs::test

// Ends the test as skipped where the loop device cannot be had: containers and users other than root have none.
#define GPU4FS_REQUIRE_LOOP(device)                                                            \
  do {                                                                                         \
    if (!(device).problem().empty()) GTEST_SKIP() << "no loop device: " << (device).problem(); \
  } while (false)
