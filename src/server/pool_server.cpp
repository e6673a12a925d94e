#include "server/pool_server.hpp"

#include <algorithm>
#include <shared_mutex>
#include <utility>

#include "base/check.hpp"
#include "base/host/log.hpp"
#include "base/mutant.hpp"
#include "base/random.hpp"
#include "base/to_text.hpp"
#include "fmt/format.h"
#include "pool/growth/chunk_maps.hpp"
#include "pool/pool_error.hpp"

namespace gpu4fs::server {
namespace {

constexpr u32 checkpoint_mask_clean = 1;  // Opcode::checkpoint: the last one, the pool is left clean

// Clients know generations of the previous mount, but after a crash the pool may not.
u32 generation_skip_after(const pool::OpenedPool& pool, const RecoveryReport& recovery) {
  constexpr u32 skip_max = 65535;
  const bool was_clean = pool.superblock.clean != 0 && recovery.records_replayed == 0;
  return was_clean || pool.read_only ? 0 : 1 + random_number<u32>() % skip_max;
}

RecoveryReport recover_before(const session::ServerOptions& options) {
  return options.purpose == session::ServerPurpose::mount ? recover_pool(options) : RecoveryReport{};
}

// Devices that lag behind are updated. Options that were left open are set from the pool.
pool::OpenedPool open_for(session::ServerOptions& options, const RecoveryReport& recovery) {
  pool::OpenPoolOptions open;
  open.device_paths = options.device_paths;
  open.read_only = options.read_only;
  open.degraded = options.degraded;
  open.patience = options.lock_patience;
  pool::OpenedPool pool = pool::open_pool(open);
  if (!pool.read_only) {
    pool::complete_superblocks(pool);
    pool::clear_lost_chunk_maps(pool);
  }
  if (options.purpose == session::ServerPurpose::mount && options.generation_skip == 0) {
    options.generation_skip = generation_skip_after(pool, recovery);
  }
  return pool;
}

}  // namespace

PoolServer::PoolServer(session::ServerOptions options)
    : options_(std::move(options)),
      recovery_(recover_before(options_)),
      mounted_(open_for(options_, recovery_), options_),
      mapper_(mounted_, options_.purpose),
      grower_(mounted_, mapper_, *this),
      trimmer_(mounted_, mapper_, *this, options_.discard),
      death_(*mounted_.setup.host),
      chunk_maker_(grower_),
      upcalls_(mounted_, mapper_, grower_, chunk_maker_, death_),
      discarder_(trimmer_),
      commit_timer_(mounted_, *this, trimmer_, discarder_, death_) {
  // Also if nobody else wants to know of it.
  on_death([] {});
}

PoolServer::~PoolServer() {
  stop();
}

// Clients in other processes learn of it at once, because their connections end.
void PoolServer::on_death(std::function<void()> handler) {
  death_.on_death([this, handler = std::move(handler)] {
    {
      const std::lock_guard guard(session_socket_mutex_);
      if (session_socket_) session_socket_->hang_up();
    }
    handler();
  });
}

void PoolServer::start() {
  GPU4FS_CHECK(!started_);
  mounted_.setup.host->start();
  auto upcall_session = open_internal_session(page_size);
  management_session_ = open_internal_session(page_size);
  upcalls_.start(std::move(upcall_session));
  started_ = true;
  load_state();
  const bool is_mount = options_.purpose == session::ServerPurpose::mount;
  if (!mounted_.pool.read_only && is_mount) {
    chunk_maker_.start(open_internal_session(page_size));
    grower_.tell_engine();
  }
  if (!mounted_.pool.read_only && options_.commit_interval_s != 0) {
    if (options_.discard != session::DiscardScope::none && is_mount) discarder_.start(options_.commit_interval_s);
    commit_timer_.start(options_.commit_interval_s);
  }
  open_control();
}

void PoolServer::open_control() {
  if (options_.purpose == session::ServerPurpose::check) return;
  jobs_ = std::make_unique<PoolJobs>(JobParts{mounted_, mapper_, grower_, *this, upcalls_}, options_.spare_paths);
  control_ =
      std::make_unique<PoolControl>(ControlContext{options_, mounted_, upcalls_, grower_, trimmer_, jobs_->control()});
  if (!options_.control_folder.empty()) open_sockets();
}

void PoolServer::open_sockets() {
  Uuid uuid{};
  std::copy_n(mounted_.pool.superblock.pool_uuid, sizeof(uuid.bytes), uuid.bytes);
  const std::string& folder = options_.control_folder;
  try {
    control_socket_ = std::make_unique<session::ControlSocket>(
        folder, to_text(uuid), [this](const JsonValue& request) { return control_->answer(request); });
  } catch (const pool::PoolError& error) {
    mounted_.pool.warnings.push_back(fmt::format("without a control socket: {}", error.what()));
  }
  if (!options_.has_process_sessions) return;
  try {
    auto socket = std::make_unique<session::SessionSocket>(*mounted_.setup.host, folder, to_text(uuid), uuid);
    const std::lock_guard guard(session_socket_mutex_);
    session_socket_ = std::move(socket);
    // Whoever reported the death of the engine before found no socket.
    if (mounted_.setup.host->has_died()) session_socket_->hang_up();
  } catch (const pool::PoolError& error) {
    mounted_.pool.warnings.push_back(fmt::format("without a session socket: {}", error.what()));
  }
}

// Returns when the commands of these sessions have ended.
void PoolServer::end_process_sessions() {
  std::unique_ptr<session::SessionSocket> socket;
  {
    const std::lock_guard guard(session_socket_mutex_);
    socket.swap(session_socket_);
  }
  socket.reset();
}

void PoolServer::device_joined(const std::string& spec) {
  options_.device_paths.push_back(spec);
}

void PoolServer::device_replaced(const std::string& path, const std::string& spec) {
  device_left(path);
  std::erase(options_.device_paths, spec);
  options_.device_paths.push_back(spec);
  has_replaced_devices_ = true;
}

void PoolServer::device_left(const std::string& path) {
  std::vector<std::string> paths;
  for (const std::string& list : options_.device_paths) {
    for (const std::string& text : pool::split_device_list(list)) {
      if (pool::parse_device(text).path != path) paths.push_back(text);
    }
  }
  options_.device_paths = std::move(paths);
}

void PoolServer::forget_errors(u32 device) {
  upcalls_.forget_errors(device);
}

std::vector<std::string> PoolServer::device_paths() {
  const std::shared_lock lock(mounted_.tables);
  return options_.device_paths;
}

bool PoolServer::has_thin_files() {
  const std::shared_lock lock(mounted_.tables);
  const std::vector<device::MappedFile>& files = mounted_.setup.files;
  return std::any_of(files.begin(), files.end(), [](const device::MappedFile& file) {
    return file.medium() == device::MediumKind::file && file.grows_with_use();
  });
}

u64 PoolServer::write_errors() const {
  return options_.write_errors_before + load<Order::acquire, Scope::system>(&mounted_.setup.upcalls->write_errors);
}

void PoolServer::load_state() {
  if (options_.purpose == session::ServerPurpose::check) return;
  const Status loaded = command(wire::Opcode::load_chunks, 0).status;
  if (loaded != Status::ok) {
    throw pool::PoolError(loaded, fmt::format("the pool's allocation state cannot be loaded: {}", status_text(loaded)));
  }
  loaded_ = true;
  if (mounted_.pool.read_only || options_.purpose == session::ServerPurpose::recovery) return;
  // From here on the medium says that the pool is in use, and has this mount's seed for its log.
  const Status begun = checkpoint();
  if (begun != Status::ok) {
    throw pool::PoolError(begun, fmt::format("the pool cannot be written: {}", status_text(begun)));
  }
  if (options_.keep_orphans) return;
  const Status freed = command(wire::Opcode::reclaim_orphans, 0).status;
  if (freed == Status::ok) return;
  mounted_.pool.warnings.push_back(
      fmt::format("space of files deleted before the last end was not freed: {}", status_text(freed)));
}

// The order of the end:
//
//   1. Discards, which a request may be waiting for. Then the sockets, so that there are no more requests and no more
//      commands of other processes, and the jobs, in their own order (PoolJobs).
//   2. The threads that send commands by themselves. These commands may wait for upcalls, so the upcall thread still
//      runs: the commit timer, then the chunk maker, which answers accepted upcalls.
//   3. The last checkpoint, for which the upcall thread flushes.
//   4. The upcall thread, for which no command waits at this time.
//   5. The sessions, which end when their commands have ended: they are closed while the engine runs.
//   6. The engine.
//
// The order is the same for a dead engine: its sessions' commands fail at once, and the upcall thread has ended by
// itself or ends when it is stopped.
bool PoolServer::stop() {
  if (!started_) return true;
  started_ = false;
  discarder_.stop();
  control_socket_.reset();
  end_process_sessions();
  control_.reset();
  jobs_.reset();
  commit_timer_.stop();
  chunk_maker_.stop();
  const bool is_written = write_last_checkpoint();
  upcalls_.stop();
  management_session_.reset();
  chunk_maker_.close_session();
  upcalls_.close_session();
  mounted_.setup.host->stop();
  return is_written;
}

// A pool whose state could not be loaded is left unchanged. False: it should have been written, and the log says why it
// was not.
bool PoolServer::write_last_checkpoint() {
  Status status = Status::ok;
  if (GPU4FS_MUTANT(last_checkpoint_skipped, !mounted_.pool.read_only, false) && loaded_) {
    status = command(wire::Opcode::checkpoint, checkpoint_mask_clean).status;
    if (status != Status::ok) {
      log(LogLevel::error, fmt::format("the last checkpoint was not written: {} The pool is as of the one before.",
                                       status_text(status)));
    }
  }
  return status == Status::ok;
}

void PoolServer::abandon() {
  loaded_ = false;
  stop();
}

std::unique_ptr<session::ServerSession> PoolServer::open_internal_session(u64 data_bytes) {
  return std::make_unique<session::ServerSession>(*mounted_.setup.host, mounted_.open_close,
                                                  session::ServerSession::Kind::internal, session_depth_log2,
                                                  data_bytes);
}

LocalSession PoolServer::open_session(u64 data_bytes, u32 depth_log2) {
  auto session = std::make_shared<session::ServerSession>(
      *mounted_.setup.host, mounted_.open_close, session::ServerSession::Kind::trusted, depth_log2, data_bytes);
  return {session->producer(), &session->port(), session};
}

std::string PoolServer::engine_text() const {
  return fmt::format("engine: {} ({}), devices: {}", mounted_.setup.host->description(), mounted_.setup.reason,
                     mounted_.setup.access_text());
}

std::string PoolServer::statistics_json() const {
  const engine::EngineCounters counters = mounted_.setup.host->counters();
  return fmt::format(
      "{{\"engine\": \"{}\", \"epoch_durable\": {}, \"commands_started\": {}, "
      "\"commands_completed\": {}, \"commands_failed\": {}, \"commands_optimistic\": {}, \"descriptors_rejected\": {}, "
      "\"deadlines_exceeded\": {}, \"upcalls_dropped\": {}, \"checkpoint_pause_last_ns\": {}, "
      "\"checkpoint_pause_max_ns\": {}}}\n",
      mounted_.setup.host->description(), mounted_.setup.host->durable_epoch(), counters.commands_started,
      counters.commands_completed, counters.commands_failed, counters.commands_optimistic,
      counters.descriptors_rejected, counters.deadlines_exceeded, counters.upcalls_dropped,
      counters.checkpoint_pause_last_ns, counters.checkpoint_pause_max_ns);
}

ring::Completion PoolServer::call(wire::Command request) {
  const std::lock_guard guard(management_mutex_);
  request.deadline_ms = session::patient_deadline_ms;
  return management_session_->call(request);
}

}  // namespace gpu4fs::server
