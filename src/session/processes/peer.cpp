#include "session/processes/peer.hpp"

#include <sys/socket.h>

#include <cerrno>

namespace gpu4fs::session {
namespace {

// The length that the system asks for is in bytes, and ERANGE says that there are more groups.
bool read_groups(int fd, std::vector<u32>& groups) {
  static_assert(sizeof(gid_t) == sizeof(u32));
  groups.resize(32);
  for (;;) {
    auto length = static_cast<socklen_t>(groups.size() * sizeof(u32));
    if (::getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &length) == 0) {
      groups.resize(length / sizeof(u32));
      return true;
    }
    if (errno != ERANGE || length / sizeof(u32) <= groups.size()) return false;
    groups.resize(length / sizeof(u32));
  }
}

}  // namespace

std::optional<Peer> peer_of(int fd) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) return std::nullopt;
  Peer peer{credentials.uid, credentials.gid, {}};
  if (!read_groups(fd, peer.groups)) return std::nullopt;
  return peer;
}

}  // namespace gpu4fs::session
