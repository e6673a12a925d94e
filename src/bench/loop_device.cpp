#include "bench/loop_device.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/loop.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>

#include "base/types.hpp"
#include "bench/mounts.hpp"

namespace gpu4fs::bench {

namespace {

constexpr const char* control_path = "/dev/loop-control";
constexpr u32 attempts_max = 100;

bool accesses_directly(int device) {
  loop_info64 state{};
  return ::ioctl(device, LOOP_GET_STATUS64, &state) == 0 && (state.lo_flags & LO_FLAGS_DIRECT_IO) != 0;
}

}  // namespace

void check_loop_devices() {
  if (::geteuid() != 0) throw std::runtime_error("loop devices need root");
  const OpenFile control(control_path, O_RDWR);
}

LoopDevice::LoopDevice(const std::string& file, bool is_direct) {
  check_loop_devices();
  const OpenFile control(control_path, O_RDWR);
  const OpenFile medium(file, is_direct ? O_RDWR | O_DIRECT : O_RDWR);
  for (u32 attempt = 0; !take_free(control.get(), medium.get(), is_direct); ++attempt) {
    if (attempt == attempts_max) throw std::runtime_error("no loop device is free");
  }
  if (!is_direct || accesses_directly(descriptor_)) return;
  ::close(descriptor_);
  throw std::runtime_error(fmt::format("{}: a loop device cannot access it directly", file));
}

LoopDevice::~LoopDevice() {
  ::close(descriptor_);
}

bool LoopDevice::take_free(int control, int file, bool is_direct) {
  const int number = ::ioctl(control, LOOP_CTL_GET_FREE);
  if (number < 0) fail_by_errno(control_path);
  path_ = fmt::format("/dev/loop{}", number);
  descriptor_ = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor_ < 0) fail_by_errno(path_);
  loop_config config{};
  config.fd = static_cast<u32>(file);
  config.info.lo_flags = LO_FLAGS_AUTOCLEAR | (is_direct ? u32{LO_FLAGS_DIRECT_IO} : 0);
  if (::ioctl(descriptor_, LOOP_CONFIGURE, &config) == 0) return true;
  const int error = errno;
  ::close(descriptor_);
  errno = error;
  if (error != EBUSY) fail_by_errno(path_);
  return false;
}

}  // namespace gpu4fs::bench
