// Devices that are just being let go of: umount(8) returns before the server has written its last checkpoint. Host
// only.
#pragma once

#include <signal.h>

#include <memory>

#include "server/pool_server.hpp"

namespace gpu4fs::daemon {

enum class Holder {
  ends,    // nobody else can have the devices: this process's former image
  unknown  // in use at once if the pool is mounted somewhere, else waited for
};

// Opens the pool. PoolError as PoolServer: already_mounted when the devices stay in use, or one of `signals` (blocked)
// arrives meanwhile.
std::unique_ptr<server::PoolServer> open_when_free(session::ServerOptions options, Holder holder,
                                                   const sigset_t& signals);

}  // namespace gpu4fs::daemon
