// What a mounted pool's control socket answers. Requests are objects with a member "request":
//
//   status         pool, engine, epochs, devices with their errors, damaged files by path, the scrub
//   scrub-start    "rate": bytes a second, 0 or absent: as fast as it goes
//   scrub-pause, scrub-resume, scrub-cancel
//   scrub-status
//   device-add     "paths": files that become members, "force": also if they hold something; and all their space becomes
//                  chunks. Answers with the devices' numbers and how many chunks were made
//   chunks-add     "count": so many chunks at most of the space that belongs to none
//   device-replace "device": index, path or UUID; "path": of the one that comes; "force"; "rate"
//   device-rebuild "device", or "": the only one that is stale; "rate"
//   rebuild-pause, rebuild-resume, rebuild-rate ("rate"), rebuild-status
//   relocate-start "kind": convert or defragment; "inode": a file or a directory; "recursive"; "rate"
//   relocate-pause, relocate-resume, relocate-cancel, relocate-rate ("rate"), relocate-status
//   trim           memory of all free regions goes back to the system. Answers with "regions" and "bytes"
//   device-remove, balance, reshape-*, spare-*: see maintenance/growth/reshape_control.hpp
//   end-engine     the engine dies as by a fault of its own; only where the mount allows it, for tests
//
// All of scrub-* answer with the scrub's progress, those of device-* and rebuild-* with the rebuild's, those of
// relocate-* with what is being moved. Host only.
#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <shared_mutex>
#include <string>

#include "base/host/json_value.hpp"
#include "maintenance/device_exchange.hpp"
#include "maintenance/growth/pool_grower.hpp"
#include "maintenance/growth/reshape_control.hpp"
#include "maintenance/rebuilder.hpp"
#include "maintenance/relocator.hpp"
#include "maintenance/scrubber.hpp"
#include "maintenance/trim/pool_trimmer.hpp"
#include "pool/pool_open.hpp"
#include "session/engine_setup.hpp"

namespace gpu4fs::server {

// Everything outlives the control.
struct ControlContext {
  const session::ServerOptions& options;
  const pool::OpenedPool& pool;
  const session::EngineSetup& setup;
  std::mutex& open_close;
  maintenance::Scrubber& scrubber;
  std::function<u64(u32 device)> flush_errors;
  maintenance::PoolGrower& grower;
  std::shared_mutex& tables;  // of the pool's devices and chunks, while they are looked at
  maintenance::Rebuilder& rebuilder;
  maintenance::DeviceExchange& exchange;
  maintenance::Relocator& relocator;
  maintenance::Reshaper& reshaper;
  maintenance::SpareDevices& spares;
  maintenance::PoolTrimmer& trimmer;
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
  [[nodiscard]] std::string scrub_status() const;
  [[nodiscard]] std::string scrub_start(const JsonValue& request) const;
  [[nodiscard]] std::string scrub_change(const std::string& problem) const;
  [[nodiscard]] std::string relocate_request(const std::string& what, const JsonValue& request) const;
  [[nodiscard]] std::string rebuild_request(const std::string& what, const JsonValue& request) const;

  ControlContext context_;
  std::chrono::steady_clock::time_point began_;
};

}  // namespace gpu4fs::server
