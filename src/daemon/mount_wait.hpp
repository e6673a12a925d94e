// Waits for devices that are being released: umount(8) returns before the server has written its last checkpoint. Host
// only.
#pragma once

#include <signal.h>

#include <memory>

#include "server/pool_server.hpp"

namespace gpu4fs::daemon {

enum class Holder {
  ends,    // nobody else can have the devices: an earlier image of this process
  unknown  // in use if the pool is mounted somewhere, otherwise waited for
};

// Opens the pool. PoolError as PoolServer: already_mounted if the devices stay in use, or if one of `signals` (blocked)
// arrives meanwhile.
std::unique_ptr<server::PoolServer> open_when_free(session::ServerOptions options, Holder holder,
                                                   const sigset_t& signals);

}  // namespace gpu4fs::daemon
