// The thread that does the engine's work that only a CPU can do: flush devices, allocate memory, write new chunks,
// report losses.
//
//   UpcallServer upcalls(mounted, mapper, grower, maker, death);
//   upcalls.start(session);      // of its own, for the answers; before the first command that may request anything
//   upcalls.stop();              // after the last such command
//   upcalls.close_session();     // before the engine stops
//
// Any command may wait for this thread. So it waits only for commands in its own session, which never wait for others.
// Host only.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/limits.hpp"
#include "maintenance/chunk_mapper.hpp"
#include "maintenance/growth/pool_grower.hpp"
#include "maintenance/mounted_pool.hpp"
#include "maintenance/spare_devices.hpp"
#include "ring/upcall_ring.hpp"
#include "server/chunk_maker.hpp"
#include "server/engine_death.hpp"
#include "session/server_session.hpp"

namespace gpu4fs::server {

class UpcallServer {
 public:
  // Everything outlives it.
  UpcallServer(maintenance::MountedPool& mounted, maintenance::ChunkMapper& mapper, maintenance::PoolGrower& grower,
               ChunkMaker& maker, EngineDeath& death)
      : mounted_(mounted), mapper_(mapper), grower_(grower), maker_(maker), death_(death) {}
  UpcallServer(const UpcallServer&) = delete;
  UpcallServer& operator=(const UpcallServer&) = delete;

  void start(std::unique_ptr<session::ServerSession> session);
  // It must have been started. Works also with a dead engine.
  void stop();
  void close_session() { session_.reset(); }

  // The receiver of lost devices, null: none. The previous receiver is not called after this. Any thread.
  void set_spares(maintenance::SpareDevices* spares);

  // Since the mount. Any thread.
  [[nodiscard]] bool has_lost_devices() const { return has_lost_devices_; }
  // A device whose flush failed once counts as failed until its errors are forgotten. Any thread.
  [[nodiscard]] u64 flush_errors(u32 device) const { return flush_errors_[device]; }
  void forget_errors(u32 device) { flush_errors_[device] = 0; }

 private:
  void run();
  bool serve(const ring::Upcall& upcall);
  void try_put_off();
  Status carry_out(const ring::Upcall& upcall, u64* failed_devices);
  Status flush_devices(u64 which, u64* failed_devices);
  void tell_of_loss(u64 device, u32 file_number);

  maintenance::MountedPool& mounted_;
  maintenance::ChunkMapper& mapper_;
  maintenance::PoolGrower& grower_;
  ChunkMaker& maker_;
  EngineDeath& death_;
  std::unique_ptr<session::ServerSession> session_;
  std::vector<ring::Upcall> put_off_;                              // of the thread
  std::array<std::atomic<u64>, device_count_max> flush_errors_{};  // by device
  std::atomic<bool> has_lost_devices_{false};
  std::mutex spares_mutex_;  // while the spares are set or called
  maintenance::SpareDevices* spares_ = nullptr;
  std::atomic<bool> end_is_asked_for_{false};
  std::atomic<bool> has_ended_{false};
  std::thread thread_;
};

}  // namespace gpu4fs::server
