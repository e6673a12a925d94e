#include "session/local_listener.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "fmt/format.h"
#include "pool/pool_error.hpp"

namespace gpu4fs::session {
namespace {

[[noreturn]] void fail_to_listen(const std::string& what) {
  throw pool::PoolError(Status::io_error, fmt::format("{}: {}", what, std::strerror(errno)));
}

// Whether a server answers there.
bool is_served(const sockaddr_un& address, int type) {
  const int probe = ::socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
  if (probe < 0) return true;
  // EAGAIN: more clients wait there than it admits at a time.
  const bool served =
      ::connect(probe, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 || errno == EAGAIN;
  ::close(probe);
  return served;
}

}  // namespace

int open_local_listener(const std::string& folder, const std::string& path, int type, mode_t mode) {
  if (::mkdir(folder.c_str(), 0755) != 0 && errno != EEXIST) fail_to_listen(folder);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    throw pool::PoolError(Status::name_too_long, fmt::format("{}: too long for a socket's path", path));
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  if (is_served(address, type)) throw pool::PoolError(Status::already_mounted, fmt::format("{}: in use", path));
  ::unlink(path.c_str());
  const int fd = ::socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
  if (fd < 0) fail_to_listen(path);
  // The name gets its mode from the socket, so others can never connect.
  ::fchmod(fd, mode);
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      ::chmod(path.c_str(), mode) != 0 || ::listen(fd, 8) != 0) {
    const int error = errno;
    ::close(fd);
    errno = error;
    fail_to_listen(path);
  }
  return fd;
}

}  // namespace gpu4fs::session
