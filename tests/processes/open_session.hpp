// Opening sessions that others have just given up.
#pragma once

#include <cerrno>
#include <chrono>
#include <string>
#include <thread>

#include "client/process_session.hpp"

namespace gpu4fs::test {

// Sessions that were closed count until the server has seen it, so an opening may have to be repeated.
inline client::OpenedSession open_when_possible(const std::string& path,
                                                const client::ProcessSessionOptions& options = {}) {
  for (const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);;) {
    try {
      return client::open_process_session(path, options);
    } catch (const client::ConnectError& error) {
      if (error.error() != EUSERS || std::chrono::steady_clock::now() > end) throw;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace gpu4fs::test
