#include "server/pool_server.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.hpp"
#include "base/host/log.hpp"
#include "base/mutant.hpp"
#include "base/random.hpp"
#include "base/to_text.hpp"
#include "engine/wake.hpp"
#include "fmt/format.h"
#include "pool/growth/chunk_maps.hpp"
#include "pool/pool_error.hpp"

namespace gpu4fs::server {
namespace {

constexpr u32 session_depth_log2 = 6;
constexpr u32 checkpoint_mask_clean = 1;     // Opcode::checkpoint: the last one, the pool is left clean
constexpr u32 trim_passes = 3;               // behind a change: what is free has to be so for two
constexpr u64 trim_runs_at_once = 16;        // of up to 128 MiB, or a chunk
constexpr u64 upcall_wait_ns = 250'000'000;  // also how long stop() may have to wait

// `path` empty: another device has its place by now.
std::string loss_text(u64 device, const std::string& path) {
  if (path.empty()) {
    return fmt::format("device {} failed and is not used any more; another has taken its place since", device);
  }
  return fmt::format("device {} failed and is not used any more: {}; the pool goes on without it, with less redundancy",
                     device, path);
}

// Generations of the mount before are known to clients, but after a crash not to the pool.
u32 generation_skip_after(const pool::OpenedPool& pool, const RecoveryReport& recovery) {
  constexpr u32 skip_max = 65535;
  const bool was_clean = pool.superblock.clean != 0 && recovery.records_replayed == 0;
  return was_clean || pool.read_only ? 0 : 1 + random_number<u32>() % skip_max;
}

RecoveryReport recover_before(const session::ServerOptions& options) {
  return options.purpose == session::ServerPurpose::mount ? recover_pool(options) : RecoveryReport{};
}

// Devices that lag behind are brought up to date. What the options leave open and the pool says is filled in.
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
      trimmer_(mounted_, mapper_, *this) {}

PoolServer::~PoolServer() {
  stop();
}

void PoolServer::start() {
  GPU4FS_CHECK(!started_);
  mounted_.setup.host->start();
  upcall_session_ = std::make_unique<session::ServerSession>(
      *mounted_.setup.host, mounted_.open_close, session::ServerSession::Kind::internal, session_depth_log2, page_size);
  management_session_ = std::make_unique<session::ServerSession>(
      *mounted_.setup.host, mounted_.open_close, session::ServerSession::Kind::internal, session_depth_log2, page_size);
  upcall_thread_ = std::thread([this] { answer_upcalls(); });
  started_ = true;
  load_state();
  if (!mounted_.pool.read_only && options_.purpose == session::ServerPurpose::mount) {
    growth_session_ =
        std::make_unique<session::ServerSession>(*mounted_.setup.host, mounted_.open_close,
                                                 session::ServerSession::Kind::internal, session_depth_log2, page_size);
    growth_thread_ = std::thread([this] { make_wanted_chunks(); });
    grower_.tell_engine();
  }
  if (!mounted_.pool.read_only && options_.commit_interval_s != 0) {
    commit_thread_ = std::thread([this] { commit_regularly(); });
  }
  open_control();
}

void PoolServer::open_control() {
  if (options_.purpose == session::ServerPurpose::check) return;
  const bool has_checksums = (mounted_.pool.superblock.feature_incompatible & format::feature_data_checksums) != 0;
  scrubber_ = std::make_unique<maintenance::Scrubber>(maintenance::ScrubSetup{
      *mounted_.setup.host, mounted_.open_close, mounted_.chunk_ranges(), has_checksums, !mounted_.pool.read_only});
  open_exchange();
  const JobControl jobs{
      *scrubber_, *rebuilder_, *exchange_, *relocator_, *reshaper_, *spares_, mounted_.pool.read_only};
  control_ = std::make_unique<PoolControl>(ControlContext{options_, mounted_.pool, mounted_.setup, mounted_.open_close,
                                                          [this](u32 device) { return flush_errors_[device].load(); },
                                                          grower_, mounted_.tables, jobs, trimmer_});
  if (options_.control_folder.empty()) return;
  Uuid uuid{};
  std::copy_n(mounted_.pool.superblock.pool_uuid, sizeof(uuid.bytes), uuid.bytes);
  try {
    control_socket_ = std::make_unique<session::ControlSocket>(
        options_.control_folder, to_text(uuid), [this](const JsonValue& request) { return control_->answer(request); });
  } catch (const pool::PoolError& error) {
    mounted_.pool.warnings.push_back(fmt::format("without a control socket: {}", error.what()));
  }
}

void PoolServer::open_exchange() {
  maintenance::PoolHost& host = *this;
  rebuilder_ = std::make_unique<maintenance::Rebuilder>(mounted_, grower_, host);
  exchange_ = std::make_unique<maintenance::DeviceExchange>(mounted_, mapper_, grower_, *rebuilder_, host);
  relocator_ = std::make_unique<maintenance::Relocator>(mounted_, host);
  reshaper_ = std::make_unique<maintenance::Reshaper>(mounted_, grower_, *relocator_);
  open_spares();
}

// Spares that will not do are no reason not to mount.
void PoolServer::open_spares() {
  auto spares = std::make_unique<maintenance::SpareDevices>(mounted_, *exchange_, *rebuilder_);
  if (mounted_.pool.read_only) return spares_.swap(spares);
  for (const std::string& path : options_.spare_paths) {
    const std::string problem = spares->add(path, false);
    if (!problem.empty()) mounted_.pool.warnings.push_back("spare " + problem);
  }
  const std::lock_guard guard(spares_mutex_);
  spares_ = std::move(spares);
  spares_->device_lost();  // one may have been, while nobody could be told
}

void PoolServer::device_joined(const std::string& spec) {
  options_.device_paths.push_back(spec);
}

void PoolServer::device_replaced(const std::string& path, const std::string& spec) {
  device_left(path);
  std::erase(options_.device_paths, spec);
  options_.device_paths.push_back(spec);
  has_lost_devices_ = true;
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
  flush_errors_[device] = 0;
}

std::vector<std::string> PoolServer::device_paths() {
  const std::shared_lock lock(mounted_.tables);
  return options_.device_paths;
}

void PoolServer::close_control() {
  control_socket_.reset();
  control_.reset();
  if (reshaper_) reshaper_->job().stop();
  if (relocator_) relocator_->job().stop();
  std::unique_ptr<maintenance::SpareDevices> spares;
  {
    const std::lock_guard guard(spares_mutex_);
    spares = std::move(spares_);
  }
  spares.reset();
  if (rebuilder_) rebuilder_->job().stop();
  reshaper_.reset();
  relocator_.reset();
  exchange_.reset();
  rebuilder_.reset();
  scrubber_.reset();
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

bool PoolServer::stop() {
  if (!started_) return true;
  started_ = false;
  close_control();
  {
    const std::lock_guard guard(stop_mutex_);
    stopping_ = true;
    stop_changed_.notify_all();
  }
  if (commit_thread_.joinable()) commit_thread_.join();
  end_growth_thread();
  Status status = Status::ok;
  // A pool whose state could not be loaded is left as it was found.
  if (GPU4FS_MUTANT(last_checkpoint_skipped, !mounted_.pool.read_only, false) && loaded_) {
    status = command(wire::Opcode::checkpoint, checkpoint_mask_clean).status;
    if (status != Status::ok) {
      log(LogLevel::error, fmt::format("the last checkpoint was not written: {} The pool is as of the one before.",
                                       status_text(status)));
    }
  }
  end_upcall_thread();
  management_session_.reset();
  growth_session_.reset();
  upcall_session_.reset();
  mounted_.setup.host->stop();
  return status == Status::ok;
}

// The thread may look for the end just before it goes to sleep, so it is woken until it has seen it.
void PoolServer::end_upcall_thread() {
  upcalls_end_ = true;
  while (!upcalls_ended_) {
    engine::wake_server(*mounted_.setup.upcalls);
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  upcall_thread_.join();
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

LocalSession PoolServer::open_session(u64 data_bytes) {
  auto session = std::make_shared<session::ServerSession>(
      *mounted_.setup.host, mounted_.open_close, session::ServerSession::Kind::trusted, session_depth_log2, data_bytes);
  return {session->producer(), &session->port(), session};
}

std::string PoolServer::engine_text() const {
  return fmt::format("engine: {} ({})", mounted_.setup.host->description(), mounted_.setup.reason);
}

std::string PoolServer::statistics_json() const {
  const engine::EngineCounters counters = mounted_.setup.host->counters();
  return fmt::format(
      "{{\"engine\": \"{}\", \"epoch_durable\": {}, \"commands_started\": {}, "
      "\"commands_completed\": {}, \"commands_failed\": {}, \"descriptors_rejected\": {}, "
      "\"deadlines_exceeded\": {}, \"upcalls_dropped\": {}, \"checkpoint_pause_last_ns\": {}, "
      "\"checkpoint_pause_max_ns\": {}}}\n",
      mounted_.setup.host->description(), mounted_.setup.host->durable_epoch(), counters.commands_started,
      counters.commands_completed, counters.commands_failed, counters.descriptors_rejected, counters.deadlines_exceeded,
      counters.upcalls_dropped, counters.checkpoint_pause_last_ns, counters.checkpoint_pause_max_ns);
}

ring::Completion PoolServer::call(wire::Command request) {
  const std::lock_guard guard(management_mutex_);
  request.deadline_ms = session::patient_deadline_ms;
  return management_session_->call(request);
}

void PoolServer::answer_upcalls() {
  while (!upcalls_end_) {
    ring::Upcall upcall{};
    const bool was_dead =
        mounted_.setup.host->has_died();  // before: what it still asked for is read, and the death reported
    if (!mounted_.setup.host->wait_upcall(&upcall, upcall_wait_ns)) {
      report_death();
      if (was_dead) break;
      continue;
    }
    if (upcall.kind == ring::UpcallKind::make_chunk && defer_to_growth(upcall)) continue;
    u64 failed_devices = 0;
    const Status result = carry_out(upcall, &failed_devices);
    if (!ring::wants_answer(upcall.kind)) continue;
    // not_found: the command gave up waiting.
    (void)upcall_session_->call(engine::answer_upcall_command(upcall, result, failed_devices));
  }
  upcalls_ended_ = true;
}

Status PoolServer::carry_out(const ring::Upcall& upcall, u64* failed_devices) {
  switch (upcall.kind) {
    case ring::UpcallKind::flush_device:
      return flush_devices(upcall.argument, failed_devices);
    case ring::UpcallKind::device_lost:
      tell_of_loss(upcall.argument, upcall.detail);
      return Status::ok;
    case ring::UpcallKind::map_chunk:
      return mapper_.map_chunk(upcall.argument, *upcall_session_);
    case ring::UpcallKind::make_chunk:
      return Status::no_space;
    case ring::UpcallKind::write_growth:
      return grower_.write(upcall.argument, upcall.detail);
    case ring::UpcallKind::log:
      log(LogLevel::warning, fmt::format("the engine reports {} {:#x}", upcall.detail, upcall.argument));
      return Status::ok;
    case ring::UpcallKind::wake_client:
    case ring::UpcallKind::none:
      return Status::ok;
  }
  return Status::not_supported;
}

// Another file may have taken the place of the one that failed meanwhile, and be good.
void PoolServer::tell_of_loss(u64 device, u32 file_number) {
  has_lost_devices_ = true;
  {
    const std::shared_lock lock(mounted_.tables);
    if (device >= mounted_.setup.files.size()) return;
    const bool is_the_same = mounted_.setup.file_numbers[device] == file_number;
    log(LogLevel::error, loss_text(device, is_the_same ? mounted_.setup.files[device].path() : ""));
  }
  const std::lock_guard guard(spares_mutex_);
  if (spares_) spares_->device_lost();
}

// The failing ones are marked in *failed_devices; whether the pool can do without them, the engine says.
Status PoolServer::flush_devices(u64 which, u64* failed_devices) {
  Status status = Status::ok;
  const std::shared_lock lock(mounted_.tables);
  for (u64 i = 0; i < mounted_.setup.files.size(); ++i) {
    if (which != ~u64{0} && which != i) continue;
    // The kernel tells of a lost write once; what it lost stays lost.
    if (flush_errors_[i].load() != 0) {
      *failed_devices |= u64{1} << i;
      status = Status::device_failed;
      continue;
    }
    try {
      if (GPU4FS_MUTANT(server_flushes_nothing, mounted_.setup.files[i].needs_flush(), false))
        mounted_.setup.files[i].flush();
    } catch (const device::DeviceError& error) {
      log(LogLevel::error, error.what());
      flush_errors_[i].fetch_add(1);
      *failed_devices |= u64{1} << i;
      status = Status::device_failed;
    }
  }
  return status;
}

// False: nobody will make a chunk any more.
bool PoolServer::defer_to_growth(const ring::Upcall& upcall) {
  const std::lock_guard guard(growth_mutex_);
  if (growth_ends_ || !growth_thread_.joinable()) return false;
  chunks_wanted_.push_back(upcall);
  growth_changed_.notify_all();
  return true;
}

// One chunk of a class for all that ask for it meanwhile. A chunk takes a checkpoint, which the upcall thread flushes
// for.
void PoolServer::make_wanted_chunks() {
  std::unique_lock lock(growth_mutex_);
  for (;;) {
    growth_changed_.wait(lock, [this] { return growth_ends_ || !chunks_wanted_.empty(); });
    if (chunks_wanted_.empty()) return;
    const u64 page_class = chunks_wanted_.front().argument;
    const auto others =
        std::stable_partition(chunks_wanted_.begin(), chunks_wanted_.end(),
                              [page_class](const ring::Upcall& upcall) { return upcall.argument == page_class; });
    const std::vector<ring::Upcall> asking(chunks_wanted_.begin(), others);
    chunks_wanted_.erase(chunks_wanted_.begin(), others);
    const bool ends = growth_ends_;
    lock.unlock();
    Status result = Status::no_space;
    try {
      if (!ends && grower_.add_chunks(1, static_cast<u32>(page_class)) != 0) result = Status::ok;
    } catch (const pool::PoolError& error) {
      log(LogLevel::error, error.what());
      const bool is_refused = error.status() == Status::no_space || error.status() == Status::busy;
      result = is_refused ? Status::no_space : Status::io_error;
      grower_.tell_engine();
    } catch (const std::exception& error) {
      // No memory for the chunk's state, in the engine's place for it or here.
      log(LogLevel::error, fmt::format("no chunk could be made: {}", error.what()));
    }
    for (const ring::Upcall& upcall : asking) {
      (void)growth_session_->call(engine::answer_upcall_command(upcall, result));
    }
    lock.lock();
  }
}

void PoolServer::end_growth_thread() {
  if (!growth_thread_.joinable()) return;
  {
    const std::lock_guard guard(growth_mutex_);
    growth_ends_ = true;
    growth_changed_.notify_all();
  }
  growth_thread_.join();
}

// Idle pools are left alone: without a command since the last look nothing can have changed. What a checkpoint made
// free goes back to the system, and what a former mount left, a little each time.
void PoolServer::commit_regularly() {
  u64 commands_seen = ~u64{0};
  const bool discards = options_.discard && options_.purpose == session::ServerPurpose::mount;
  u32 passes = discards ? 1 : 0;
  const auto interval = std::chrono::seconds(options_.commit_interval_s);
  std::unique_lock lock(stop_mutex_);
  while (!stop_changed_.wait_for(lock, interval, [this] { return stopping_; })) {
    lock.unlock();
    report_death();
    const u64 commands = mounted_.setup.host->counters().commands_completed;
    if (commands != commands_seen) {
      const Status status = command(wire::Opcode::checkpoint, 0).status;
      commands_seen = mounted_.setup.host->counters().commands_completed;
      if (status != Status::ok && !death_reported_) {
        log(LogLevel::error, fmt::format("a checkpoint was not written: {}", status_text(status)));
      }
      passes = discards ? trim_passes : 0;
    }
    if (passes != 0) {
      const maintenance::TrimReport report = trimmer_.trim(trim_runs_at_once);
      commands_seen += report.command_count;  // which change nothing
      passes -= report.is_complete ? 1 : 0;
    }
    lock.lock();
  }
}

void PoolServer::report_death() {
  if (!mounted_.setup.host->has_died() || death_reported_.exchange(true)) return;
  log(LogLevel::error,
      fmt::format("the engine died, its pending operations fail: {}", mounted_.setup.host->fault_text()));
  if (death_handler_) death_handler_();
}

}  // namespace gpu4fs::server
