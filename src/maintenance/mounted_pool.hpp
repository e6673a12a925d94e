// A mounted pool as all parts of its server share it: devices and chunks, the engine over them, and the locks of both.
// It outlives the parts. Host only.
#pragma once

#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "pool/pool_open.hpp"
#include "session/engine_setup.hpp"
#include "session/pool_inspector.hpp"
#include "session/server_options.hpp"

namespace gpu4fs::maintenance {

struct MountedPool {
  // Without an engine yet.
  explicit MountedPool(pool::OpenedPool opened) : pool(std::move(opened)) {}
  // With its engine, which is not started, and room in the tables for what the pool may become. PoolError.
  MountedPool(pool::OpenedPool opened, const session::ServerOptions& options);

  // Of all chunks, as they are now. Any thread.
  [[nodiscard]] std::vector<session::ChunkRange> chunk_ranges() const;
  // As the engine has it, a bit each. Any thread. PoolError.
  [[nodiscard]] u64 lost_devices();

  pool::OpenedPool pool;
  session::EngineSetup setup;
  mutable std::shared_mutex tables;  // of the devices and chunks in the two, see PoolGrower
  std::mutex open_close;             // of the engine's sessions, one at a time
};

}  // namespace gpu4fs::maintenance
