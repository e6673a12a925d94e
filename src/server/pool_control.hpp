// What a mounted pool's control socket answers. Requests are objects with a member "request":
//
//   status         pool, engine, epochs, devices with their errors, damaged files by path, the scrub
//   scrub-start    "rate": bytes a second, 0 or absent: as fast as it goes
//   scrub-pause, scrub-resume, scrub-cancel
//   scrub-status
//   end-engine     the engine dies as by a fault of its own; only where the mount allows it, for tests
//
// All of scrub-* answer with the scrub's progress. Host only.
#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <string>

#include "server/engine_setup.hpp"
#include "server/json_value.hpp"
#include "server/pool_open.hpp"
#include "server/scrubber.hpp"

namespace gpu4fs::server {

// Everything outlives the control.
struct ControlContext {
  const ServerOptions& options;
  const OpenedPool& pool;
  const EngineSetup& setup;
  std::mutex& open_close;
  Scrubber& scrubber;
  std::function<u64(u32 device)> flush_errors;
};

class PoolControl {
 public:
  explicit PoolControl(ControlContext context)
      : context_(std::move(context)), began_(std::chrono::steady_clock::now()) {}

  // One line of JSON without its end. Any thread.
  [[nodiscard]] std::string answer(const JsonValue& request) const;

 private:
  [[nodiscard]] std::string status() const;
  [[nodiscard]] std::string end_engine() const;
  [[nodiscard]] std::string scrub_status() const;
  [[nodiscard]] std::string scrub_start(const JsonValue& request) const;
  [[nodiscard]] std::string scrub_change(const std::string& problem) const;

  ControlContext context_;
  std::chrono::steady_clock::time_point began_;
};

}  // namespace gpu4fs::server
