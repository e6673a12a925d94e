// The management process's side of a mounted pool: devices, engine, upcalls, checkpoints, sessions.
//
//   PoolServer server(options);   // recovers the pool, opens and locks the devices, builds the engine; PoolError
//   server.start();               // the pool's state is loaded, orphans are freed; PoolError
//   ... open_session() ...        // by front ends of this process
//   server.stop();                // last checkpoint, engine ends; sessions must be gone
//
// Threads of its own: one answers upcalls, one asks for checkpoints, one scrubs, and those of the control socket.
// Host only.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/engine_host.hpp"
#include "ring/engine_port.hpp"
#include "ring/ring_client.hpp"
#include "server/control_socket.hpp"
#include "server/engine_setup.hpp"
#include "server/pool_control.hpp"
#include "server/pool_inspector.hpp"
#include "server/pool_open.hpp"
#include "server/recovery/recovery.hpp"
#include "server/scrubber.hpp"
#include "server/server_options.hpp"
#include "server/server_session.hpp"

namespace gpu4fs::server {

// What a front end of this process needs of a session. `owner` keeps it open.
struct LocalSession {
  ring::RingProducer producer{};
  ring::EnginePort* port = nullptr;
  std::shared_ptr<void> owner;
};

class PoolServer {
 public:
  explicit PoolServer(ServerOptions options);
  ~PoolServer();
  PoolServer(const PoolServer&) = delete;
  PoolServer& operator=(const PoolServer&) = delete;

  void start();

  // Called once, by a thread of the server, when the engine has died; the pool is as after a crash then. Before
  // start().
  void on_death(std::function<void()> handler) { death_handler_ = std::move(handler); }

  // The clean unmount. False: the last checkpoint could not be written; the pool is as of the one
  // before, and the log says why. Called by the destructor if need be.
  bool stop();

  // A trusted session: the front end names the caller of each command and has checked permissions.
  // PoolError when there are too many. Any thread.
  LocalSession open_session(u64 data_bytes);
  // One for internal commands, to be gone before stop(). PoolError.
  std::unique_ptr<ServerSession> open_internal_session(u64 data_bytes);

  // As it was opened.
  [[nodiscard]] const format::Superblock& superblock() const { return pool_.superblock; }

  // Ends like a crash: nothing more is written.
  void abandon();

  // One line for the user: which engine runs, and why that one.
  [[nodiscard]] std::string engine_text() const;
  [[nodiscard]] bool uses_gpu() const { return setup_.gpu != nullptr; }
  [[nodiscard]] const std::vector<std::string>& warnings() const { return pool_.warnings; }
  [[nodiscard]] std::string statistics_json() const;
  // What was done to bring the pool to its last state before it was opened.
  [[nodiscard]] const RecoveryReport& recovery() const { return recovery_; }

  engine::EngineHost& engine() { return *setup_.host; }

  // How often changes that had been acknowledged could not be written (engine/write_errors.hpp), since the mount.
  [[nodiscard]] u64 write_errors() const;
  // Of the control socket, "" without one.
  [[nodiscard]] std::string control_path() const { return control_socket_ ? control_socket_->path() : ""; }
  // While the server is started.
  [[nodiscard]] const PoolControl& control() const { return *control_; }
  Scrubber& scrubber() { return *scrubber_; }
  [[nodiscard]] std::vector<ChunkRange> chunk_ranges() const;
  PoolInspector open_inspector() { return {*setup_.host, sessions_mutex_}; }

 private:
  void load_state();
  void open_control();
  void close_control();
  void answer_upcalls();
  void end_upcall_thread();
  Status carry_out(const ring::Upcall& upcall);
  Status flush_devices(u64 which);
  Status map_chunk(u64 chunk);
  Status map_column(u64 chunk, format::ColumnAddress column);
  void commit_regularly();
  Status command(format::Opcode opcode, u32 mask);
  void report_death();

  ServerOptions options_;
  RecoveryReport recovery_;
  OpenedPool pool_;
  EngineSetup setup_;
  std::mutex sessions_mutex_;  // opening and closing, one at a time
  std::unique_ptr<ServerSession> upcall_session_;
  std::mutex management_mutex_;  // one command at a time on the management session
  std::unique_ptr<ServerSession> management_session_;
  std::thread upcall_thread_;
  // Of the upcall thread:
  std::vector<bool> chunks_mapped_;                         // by chunk
  std::unordered_map<u64, u64> room_at_refusal_;            // by chunk: bytes its medium had left
  std::thread commit_thread_;
  std::mutex stop_mutex_;
  std::condition_variable stop_changed_;
  bool stopping_ = false;  // under stop_mutex_
  std::atomic<bool> upcalls_end_{false};    // asked for
  std::atomic<bool> upcalls_ended_{false};  // done
  std::function<void()> death_handler_;
  std::atomic<bool> death_reported_{false};
  std::array<std::atomic<u64>, device_count_max> flush_errors_{};  // by device
  std::unique_ptr<Scrubber> scrubber_;
  std::unique_ptr<PoolControl> control_;
  std::unique_ptr<ControlSocket> control_socket_;
  bool started_ = false;
  bool loaded_ = false;  // chunks and bitmaps of the pool are in the engine
};

}  // namespace gpu4fs::server
