// Sockets of a server in the file system. Host only.
#pragma once

#include <sys/types.h>

#include <string>

namespace gpu4fs::session {

// A listening UNIX socket at `path`, of type SOCK_STREAM or SOCK_SEQPACKET, which those may connect to whom `mode`
// allows to write. Makes the folder if it is missing (0755), and takes over a socket that a dead server left. The
// caller closes the descriptor and removes the name. PoolError: already_mounted if a server answers there.
int open_local_listener(const std::string& folder, const std::string& path, int type, mode_t mode);

}  // namespace gpu4fs::session
