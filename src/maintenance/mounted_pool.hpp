// The state of a mounted pool that all parts of its server share: devices and chunks, the engine over them, and the
// locks of both. It outlives the parts. Host only.
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
  // With its engine, which is not started, and room in the tables for growth. PoolError.
  MountedPool(pool::OpenedPool opened, const session::ServerOptions& options);

  // The current ranges of all chunks. Any thread.
  [[nodiscard]] std::vector<session::ChunkRange> chunk_ranges() const;
  // The engine's view, one bit for each device. Any thread. PoolError.
  [[nodiscard]] u64 lost_devices();

  pool::OpenedPool pool;
  session::EngineSetup setup;
  mutable std::shared_mutex tables;  // of the devices and chunks, see PoolGrower
  std::mutex open_close;             // of this process's sessions, one at a time
};

}  // namespace gpu4fs::maintenance
