// The management process's side of a mounted pool. It makes the parts, connects them, and ends them in the right order.
//
//   PoolServer server(options);   // recovers the pool, opens and locks the devices, builds the engine; PoolError
//   server.start();               // loads the pool's state, frees orphans; PoolError
//   ... open_session() ...        // by front ends of this process
//   server.stop();                // last checkpoint, engine ends; sessions must be closed
//
// Its parts have threads: one answers upcalls (UpcallServer), one creates chunks (ChunkMaker), one requests checkpoints
// (CommitTimer), one gives free space back (Discarder), there is one for each job and one for the spares (PoolJobs).
// The control socket has some, too. Host only.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_host.hpp"
#include "maintenance/chunk_mapper.hpp"
#include "maintenance/growth/pool_grower.hpp"
#include "maintenance/mounted_pool.hpp"
#include "maintenance/pool_host.hpp"
#include "maintenance/trim/pool_trimmer.hpp"
#include "pool/pool_open.hpp"
#include "ring/engine_port.hpp"
#include "ring/ring_client.hpp"
#include "server/chunk_maker.hpp"
#include "server/commit_timer.hpp"
#include "server/discarder.hpp"
#include "server/engine_death.hpp"
#include "server/pool_control.hpp"
#include "server/pool_jobs.hpp"
#include "server/recovery/recovery.hpp"
#include "server/upcall_server.hpp"
#include "session/control_socket.hpp"
#include "session/engine_setup.hpp"
#include "session/pool_inspector.hpp"
#include "session/processes/session_socket.hpp"
#include "session/server_options.hpp"
#include "session/server_session.hpp"

namespace gpu4fs::server {

// The parts of a session for a front end of this process. `owner` keeps it open.
struct LocalSession {
  ring::RingProducer producer{};
  ring::EnginePort* port = nullptr;
  std::shared_ptr<void> owner;
};

class PoolServer final : private maintenance::PoolHost {
 public:
  explicit PoolServer(session::ServerOptions options);
  ~PoolServer();
  PoolServer(const PoolServer&) = delete;
  PoolServer& operator=(const PoolServer&) = delete;

  void start();

  // Called once, by a thread of the server, when the engine has died; then the pool is as after a crash. Set before
  // start().
  void on_death(std::function<void()> handler);

  // The clean unmount. False: the last checkpoint could not be written; the pool has the state of the previous one, and
  // the log says why. The destructor calls it if necessary.
  bool stop();

  static constexpr u32 session_depth_log2 = 6;

  // A trusted session: the front end names the caller of each command and has checked permissions. Its ring has room
  // for 2^`depth_log2` commands, 1 <= depth_log2 <= 10. PoolError if there are too many sessions. Any thread.
  LocalSession open_session(u64 data_bytes, u32 depth_log2 = session_depth_log2);
  // A session for internal commands, to be closed before stop(). PoolError.
  std::unique_ptr<session::ServerSession> open_internal_session(u64 data_bytes);

  // As it was when the pool was opened.
  [[nodiscard]] const format::Superblock& superblock() const { return mounted_.pool.superblock; }

  // After the engine's death: waits until none of its requests to a medium is in flight. None is carried out
  // afterwards, so whoever opens the pool next is alone with the media.
  void end_requests() {
    if (mounted_.setup.direct != nullptr) mounted_.setup.direct->stop();
  }

  // Ends as by a crash: nothing more is written.
  void abandon();

  // One line for the user: which engine runs, and why.
  [[nodiscard]] std::string engine_text() const;
  // CPU time of the threads that serve devices which are not mapped; 0 if there are none.
  [[nodiscard]] double media_cpu_seconds() const {
    return mounted_.setup.direct != nullptr ? mounted_.setup.direct->cpu_seconds() : 0;
  }
  [[nodiscard]] TraceTotals engine_trace() const { return mounted_.setup.host->trace(); }
  [[nodiscard]] bool uses_gpu() const { return mounted_.setup.gpu != nullptr; }
  [[nodiscard]] const std::vector<std::string>& warnings() const { return mounted_.pool.warnings; }
  [[nodiscard]] std::string statistics_json() const;
  // The work that brought the pool to its last state before it was opened.
  [[nodiscard]] const RecoveryReport& recovery() const { return recovery_; }

  engine::EngineHost& engine() { return *mounted_.setup.host; }
  // The number of chunks that were made reachable since the start, one by one.
  [[nodiscard]] u64 mapped_chunk_count() const { return mapper_.mapped_count(); }
  // For a check: makes memory of the chunk reachable, of regions with a page in `allocated` or, if that is empty, of
  // all. If this fails, the engine requests the memory itself.
  void reach_regions(u32 chunk, const std::vector<u64>& allocated) { mapper_.reach_regions(chunk, allocated); }

  // The devices for opening the pool again, without those that were replaced.
  [[nodiscard]] std::vector<std::string> device_paths();
  // A device was lost or replaced since the mount, so a restart may need the option `degraded`.
  [[nodiscard]] bool has_lost_devices() const { return upcalls_.has_lost_devices() || has_replaced_devices_; }

  // A file on disk has holes, so a restart needs the option `discard`: there may be no room for all its blocks.
  [[nodiscard]] bool has_thin_files();

  // The number of times, since the mount, that acknowledged changes could not be written (engine/write_errors.hpp).
  [[nodiscard]] u64 write_errors() const;
  // Of the control socket, "" without one.
  [[nodiscard]] std::string control_path() const { return control_socket_ ? control_socket_->path() : ""; }
  // Of the socket through which other processes open sessions, "" without one. For the thread that starts and stops.
  [[nodiscard]] std::string session_path() const { return session_socket_ ? session_socket_->path() : ""; }
  // While the server is started.
  [[nodiscard]] const PoolControl& control() const { return *control_; }
  maintenance::Scrubber& scrubber() { return jobs_->scrubber(); }
  // While the server is started, except for a check.
  maintenance::PoolGrower& grower() { return grower_; }
  maintenance::Rebuilder& rebuilder() { return jobs_->rebuilder(); }
  maintenance::DeviceExchange& exchange() { return jobs_->exchange(); }
  maintenance::Relocator& relocator() { return jobs_->relocator(); }
  // Freezes the chunks and moves all their pages; they stay frozen (maintenance/relocator.hpp). PoolError.
  maintenance::RelocationResult empty_chunks(const std::vector<u32>& chunks,
                                             const maintenance::RelocationGoesOn& goes_on) {
    return relocator().empty_chunks(chunks, goes_on);
  }
  maintenance::Reshaper& reshaper() { return jobs_->reshaper(); }
  maintenance::SpareDevices& spares() { return jobs_->spares(); }
  maintenance::PoolTrimmer& trimmer() { return trimmer_; }
  [[nodiscard]] std::vector<session::ChunkRange> chunk_ranges() const { return mounted_.chunk_ranges(); }
  session::PoolInspector open_inspector() { return {*mounted_.setup.host, mounted_.open_close}; }

 private:
  // Of a PoolHost:
  ring::Completion call(wire::Command request) override;
  void device_joined(const std::string& spec) override;
  void device_left(const std::string& path) override;
  void device_replaced(const std::string& path, const std::string& spec) override;
  void forget_errors(u32 device) override;

  void load_state();
  void open_control();
  void open_sockets();
  void end_process_sessions();
  bool write_last_checkpoint();

  session::ServerOptions options_;
  RecoveryReport recovery_;
  maintenance::MountedPool mounted_;
  maintenance::ChunkMapper mapper_;
  maintenance::PoolGrower grower_;
  maintenance::PoolTrimmer trimmer_;
  EngineDeath death_;
  ChunkMaker chunk_maker_;
  UpcallServer upcalls_;
  Discarder discarder_;
  CommitTimer commit_timer_;
  std::mutex management_mutex_;  // one command at a time on the management session
  std::unique_ptr<session::ServerSession> management_session_;
  std::atomic<bool> has_replaced_devices_{false};
  std::unique_ptr<PoolJobs> jobs_;
  std::unique_ptr<PoolControl> control_;
  std::unique_ptr<session::ControlSocket> control_socket_;
  std::mutex session_socket_mutex_;  // of the pointer, which the thread that sees the engine's death reads
  std::unique_ptr<session::SessionSocket> session_socket_;
  bool started_ = false;
  bool loaded_ = false;  // chunks and bitmaps of the pool are in the engine
};

}  // namespace gpu4fs::server
