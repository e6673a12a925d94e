// Opening the files and block devices behind devices, mapped or not. Host only.
#pragma once

#include <stdexcept>
#include <string>

namespace gpu4fs::device {

// Names the device and the failed operation; `error_number` is the errno, 0 if there is none.
class DeviceError : public std::runtime_error {
 public:
  DeviceError(const std::string& message, int error_number)
      : std::runtime_error(message), error_number_(error_number) {}
  int error_number() const { return error_number_; }

 private:
  int error_number_;
};

// DeviceError "path: what", with the system's text if there is an errno.
[[noreturn]] void fail_medium(const std::string& path, const std::string& what, int error_number);

// A descriptor with O_CLOEXEC and O_NONBLOCK, so a path that turns out to be a pipe does not hang. `lock`: a block
// device that is opened for writing is claimed with O_EXCL. DeviceError: EBUSY if somebody else has it.
int open_medium(const std::string& path, bool read_only, bool lock);

// An open file description lock of the whole file: exclusive for writing, shared for reading. DeviceError: EBUSY if
// somebody else has it.
void lock_medium(int descriptor, const std::string& path, bool read_only);

}  // namespace gpu4fs::device
