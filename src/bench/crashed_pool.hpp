// A pool as a crash leaves it, with much to recover in its log. Private to the tools.
#pragma once

#include <string>

#include "base/types.hpp"
#include "bench/mounts.hpp"
#include "server/pool_server.hpp"
#include "session/server_options.hpp"

namespace gpu4fs::bench {

// Its device is a file in a folder of its own, removed at the end.
class CrashedPool {
 public:
  // `server`: engine and access of the server that writes the log and is abandoned.
  CrashedPool(const std::string& folder, u64 log_bytes, session::ServerOptions server);
  CrashedPool(const CrashedPool&) = delete;
  CrashedPool& operator=(const CrashedPool&) = delete;

  // To open it in the same way.
  const session::ServerOptions& options() const { return options_; }
  // Throws std::runtime_error if a served pool does not have what was durable before the crash.
  void check(server::PoolServer& server) const;

 private:
  void fill();

  TemporaryFolder folder_;
  u64 log_bytes_;
  session::ServerOptions options_;
};

}  // namespace gpu4fs::bench
