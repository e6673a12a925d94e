#include "device/medium_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace gpu4fs::device {

void fail_medium(const std::string& path, const std::string& what, int error_number) {
  std::string message = path + ": " + what;
  if (error_number != 0) message += std::string(": ") + std::strerror(error_number);
  throw DeviceError(message, error_number);
}

int open_medium(const std::string& path, bool read_only, bool lock) {
  struct stat status;
  // The flag is defined for block devices only.
  const bool is_block = ::stat(path.c_str(), &status) == 0 && S_ISBLK(status.st_mode);
  const int exclusive = is_block && lock && !read_only ? O_EXCL : 0;
  const int descriptor = ::open(path.c_str(), (read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC | O_NONBLOCK | exclusive);
  if (descriptor >= 0) return descriptor;
  if (errno == EBUSY) fail_medium(path, "is in use by another mount, file system or tool", EBUSY);
  fail_medium(path, read_only ? "cannot be opened" : "cannot be opened for writing", errno);
}

void lock_medium(int descriptor, const std::string& path, bool read_only) {
  struct flock range {};
  range.l_type = read_only ? F_RDLCK : F_WRLCK;
  range.l_whence = SEEK_SET;
  if (::fcntl(descriptor, F_OFD_SETLK, &range) == 0) return;
  if (errno == EAGAIN || errno == EACCES) fail_medium(path, "is in use by another mount or tool", EBUSY);
  fail_medium(path, "cannot be locked", errno);
}

}  // namespace gpu4fs::device
