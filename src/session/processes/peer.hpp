// Who is at the other end of a connection. Host only.
#pragma once

#include <optional>
#include <vector>

#include "base/types.hpp"

namespace gpu4fs::session {

// As of the moment at which the peer called connect(2).
struct Peer {
  u32 uid = 0;
  u32 gid = 0;
  std::vector<u32> groups;  // all supplementary groups, however many
};

// Of a connected UNIX socket (SO_PEERCRED and SO_PEERGROUPS, Linux 4.13). Nothing if the system does not tell: then the
// peer has no rights.
std::optional<Peer> peer_of(int fd);

}  // namespace gpu4fs::session
