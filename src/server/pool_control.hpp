// The answers of a mounted pool's control socket. Requests are objects with a member "request":
//
//   status         pool, engine, epochs, devices with their errors, damaged files by path, the scrub
//   device-add     "paths": files that become members, "force": also if they hold something. All their space becomes
//                  chunks. Answers with the devices' numbers and the number of new chunks
//   chunks-add     "count": at most this number of chunks from the space outside of chunks
//   trim           memory of all free regions returns to the system. Answers with "regions" and "bytes"
//   jobs and spare devices: see server/job_control.hpp
//   end-engine     the engine dies as by a fault of its own; only if the mount allows it, for tests
//
// Host only.
#pragma once

#include <chrono>
#include <string>

#include "base/host/json_value.hpp"
#include "maintenance/growth/pool_grower.hpp"
#include "maintenance/mounted_pool.hpp"
#include "maintenance/trim/pool_trimmer.hpp"
#include "server/job_control.hpp"
#include "server/upcall_server.hpp"

namespace gpu4fs::server {

// Everything outlives the control.
struct ControlContext {
  const session::ServerOptions& options;
  maintenance::MountedPool& mounted;
  const UpcallServer& upcalls;
  maintenance::PoolGrower& grower;
  maintenance::PoolTrimmer& trimmer;
  JobControl jobs;
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
  [[nodiscard]] std::string trim() const;
  [[nodiscard]] std::string join_devices(const JsonValue& request) const;
  [[nodiscard]] std::string make_chunks(const JsonValue& request) const;

  ControlContext context_;
  std::chrono::steady_clock::time_point began_;
};

}  // namespace gpu4fs::server
