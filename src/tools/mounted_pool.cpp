#include "tools/mounted_pool.hpp"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "pool/mount_table.hpp"

namespace gpu4fs::tools {
namespace {

constexpr std::size_t answer_bytes_max = std::size_t{64} << 20;

class Socket {
 public:
  explicit Socket(const std::string& path) : path_(path), fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof(address.sun_path)) throw ControlError(path + ": too long for a socket's path");
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    if (::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return;
    const int error = errno;
    ::close(fd_);
    throw ControlError(fmt::format("{}: {}", path, std::strerror(error)));
  }
  ~Socket() { ::close(fd_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  // The user of the listening process; ~0: the system does not say.
  [[nodiscard]] u32 user() const {
    ucred peer{};
    socklen_t length = sizeof(peer);
    return ::getsockopt(fd_, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 ? peer.uid : ~u32{0};
  }

  void send(const std::string& line) {
    for (std::size_t sent = 0; sent < line.size();) {
      const ssize_t count = ::send(fd_, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
      if (count <= 0) return;  // the answer says why
      sent += static_cast<std::size_t>(count);
    }
  }
  std::string receive_line() {
    std::string line;
    for (;;) {
      char buffer[4096];
      const ssize_t count = ::recv(fd_, buffer, sizeof(buffer), 0);
      if (count <= 0 || line.size() > answer_bytes_max) throw ControlError(path_ + ": no answer");
      line.append(buffer, static_cast<std::size_t>(count));
      const std::size_t newline = line.find('\n');
      if (newline != std::string::npos) return line.substr(0, newline);
    }
  }

 private:
  std::string path_;
  int fd_;
};

// ~0: unknown.
u32 user_of_mount(const std::string& mountpoint) {
  u32 user = ~u32{0};
  for (const pool::MountEntry& entry : pool::read_mount_table()) {
    if (entry.directory == mountpoint) user = entry.user;
  }
  return user;
}

}  // namespace

std::string find_mountpoint(const std::string& place) {
  char* resolved = ::realpath(place.c_str(), nullptr);
  const std::string path = resolved != nullptr ? resolved : place;
  std::free(resolved);
  std::string found;
  for (const pool::MountEntry& entry : pool::read_mount_table()) {
    if (entry.type != pool::mount_type) continue;
    const bool is_named = entry.source == place || pool::names_device(entry, path);
    if (entry.directory == path || (is_named && pool::is_trusted(entry))) found = entry.directory;
  }
  return found;
}

std::string server_attribute(const std::string& mountpoint, const std::string& name) {
  char value[4096];
  const ssize_t length = ::getxattr(mountpoint.c_str(), ("user.gpu4fs.server." + name).c_str(), value, sizeof(value));
  return length <= 0 ? std::string() : std::string(value, static_cast<std::size_t>(length));
}

std::string ask_server_text(const std::string& mountpoint, const std::string& request) {
  const std::string path = server_attribute(mountpoint, "socket");
  if (path.empty()) throw ControlError(mountpoint + ": its server has no control socket");
  Socket socket(path);
  // The mount says where its socket is. The socket of another user would get the caller's request.
  const u32 user = socket.user();
  if (user == ~u32{0} || user != user_of_mount(mountpoint)) {
    throw ControlError(fmt::format("{}: {} is not the socket of who mounted it", mountpoint, path));
  }
  socket.send(request + "\n");
  return socket.receive_line();
}

JsonValue ask_server(const std::string& mountpoint, const std::string& request) {
  JsonValue answer = parse_json(ask_server_text(mountpoint, request));
  if (!answer["ok"].boolean) throw ControlError(fmt::format("{}: {}", mountpoint, answer["error"].text));
  return answer;
}

}  // namespace gpu4fs::tools
