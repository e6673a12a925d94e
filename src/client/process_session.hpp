// A session with an engine in another process (docs/wire.md, section 8). Host only.
//
// A command needs no system call while the engine is awake: the client writes it into shared memory and looks at the
// completion. A client that waits for long sleeps until the engine wakes it.
#pragma once

#include <stdexcept>
#include <string>

#include "base/types.hpp"
#include "base/uuid.hpp"
#include "client/session.hpp"

namespace gpu4fs::client {

// The session was not opened: why, as text and as a positive errno. ECONNREFUSED or ENOENT: no server is there.
class ConnectError : public std::runtime_error {
 public:
  ConnectError(int error, const std::string& message) : std::runtime_error(message), error_(error) {}
  [[nodiscard]] int error() const { return error_; }

 private:
  int error_;
};

struct ProcessSessionOptions {
  u32 depth_log2 = 4;               // commands in flight at a time, 1 to 10
  u64 data_bytes = u64{1} << 20;    // of the data area; the server has a limit
  u64 answer_time_max_ms = 10'000;  // of the server, for opening the session
};

struct OpenedSession {
  Session session;
  Uuid pool;
};

// Opens a session through the socket at `path`. Its commands have the rights of this process at this moment. Used by
// one thread at a time, and only by the process that opened it: a child of fork(2) has no access to its memory. The
// session lives as long as a process has its connection, which a child closes with exec(2). When the server ends or its
// engine dies, pending and later commands answer engine_died. Throws ConnectError.
OpenedSession open_process_session(const std::string& path, const ProcessSessionOptions& options = {});

}  // namespace gpu4fs::client
