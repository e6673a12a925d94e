// Sessions with a server in the same process. Host only.
#pragma once

#include <memory>
#include <string>

#include "base/types.hpp"
#include "client/session.hpp"
#include "frontend/fuse/fuse_worker.hpp"
#include "server/pool_server.hpp"

namespace gpu4fs::frontend {

// A trusted session: its commands name their callers, whose permissions have been checked. Must be closed before the
// server stops. Its ring has room for 2^`depth_log2` commands. Throws pool::PoolError if no session is left.
client::Session open_local_session(server::PoolServer& server, u64 data_bytes,
                                   u32 depth_log2 = server::PoolServer::session_depth_log2);

// The sessions of a FUSE mount's threads.
class LocalSessions final : public SessionSource {
 public:
  explicit LocalSessions(server::PoolServer& server) : server_(server) {}
  std::unique_ptr<client::Session> open_session(u64 data_bytes) override;
  std::string statistics_json() override { return server_.statistics_json(); }
  std::string control_path() override { return server_.control_path(); }
  u64 write_errors() override { return server_.write_errors(); }

 private:
  server::PoolServer& server_;
};

}  // namespace gpu4fs::frontend
