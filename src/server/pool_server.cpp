#include "server/pool_server.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "base/check.hpp"
#include "base/to_text.hpp"
#include "engine/wake.hpp"
#include "fmt/format.h"
#include "raid/levels/levels.hpp"
#include "server/log.hpp"
#include "server/pool_error.hpp"

namespace gpu4fs::server {
namespace {

constexpr u32 session_depth_log2 = 6;
constexpr u32 patient_deadline_ms = 600'000;  // loading, recovery, the last checkpoint
constexpr u32 checkpoint_mask_clean = 1;      // Opcode::checkpoint: the last one, the pool is left clean
constexpr u32 checkpoint_mask_forced = 2;     // also when nothing has changed
constexpr u64 upcall_wait_ns = 250'000'000;  // also how long stop() may have to wait

OpenedPool open_for(const ServerOptions& options) {
  OpenPoolOptions open;
  open.device_paths = options.device_paths;
  open.read_only = options.read_only;
  return open_pool(open);
}

RecoveryReport recover_before(const ServerOptions& options) {
  return options.purpose == ServerPurpose::mount ? recover_pool(options) : RecoveryReport{};
}

}  // namespace

PoolServer::PoolServer(ServerOptions options)
    : options_(std::move(options)), recovery_(recover_before(options_)), pool_(open_for(options_)) {
  if (!pool_.read_only) complete_superblocks(pool_);
  setup_ = set_up_engine(options_, pool_);
}

PoolServer::~PoolServer() {
  stop();
}

void PoolServer::start() {
  GPU4FS_CHECK(!started_);
  setup_.host->start();
  upcall_session_ = std::make_unique<ServerSession>(
      *setup_.host, sessions_mutex_, ServerSession::Kind::internal, session_depth_log2, page_size);
  management_session_ = std::make_unique<ServerSession>(
      *setup_.host, sessions_mutex_, ServerSession::Kind::internal, session_depth_log2, page_size);
  upcall_thread_ = std::thread([this] { answer_upcalls(); });
  started_ = true;
  load_state();
  if (!pool_.read_only && options_.commit_interval_s != 0) {
    commit_thread_ = std::thread([this] { commit_regularly(); });
  }
  open_control();
}

std::vector<ChunkRange> PoolServer::chunk_ranges() const {
  std::vector<ChunkRange> chunks;
  for (const OpenedChunk& chunk : pool_.chunks) {
    chunks.push_back({chunk.descriptor.base_address, chunk.descriptor.size_bytes / page_size});
  }
  return chunks;
}

void PoolServer::open_control() {
  if (options_.purpose == ServerPurpose::check) return;
  const bool has_checksums = (pool_.superblock.feature_incompatible & format::feature_data_checksums) != 0;
  scrubber_ = std::make_unique<Scrubber>(
      ScrubSetup{*setup_.host, sessions_mutex_, chunk_ranges(), has_checksums, !pool_.read_only});
  control_ = std::make_unique<PoolControl>(ControlContext{
      options_, pool_, setup_, sessions_mutex_, *scrubber_, [this](u32 device) { return flush_errors_[device].load(); }});
  if (options_.control_folder.empty()) return;
  Uuid uuid{};
  std::copy_n(pool_.superblock.pool_uuid, sizeof(uuid.bytes), uuid.bytes);
  try {
    control_socket_ = std::make_unique<ControlSocket>(
        options_.control_folder, to_text(uuid), [this](const JsonValue& request) { return control_->answer(request); });
  } catch (const PoolError& error) {
    pool_.warnings.push_back(fmt::format("without a control socket: {}", error.what()));
  }
}

void PoolServer::close_control() {
  control_socket_.reset();
  control_.reset();
  scrubber_.reset();
}

u64 PoolServer::write_errors() const {
  return options_.write_errors_before + load<Order::acquire, Scope::system>(&setup_.upcalls->write_errors);
}

void PoolServer::load_state() {
  if (options_.purpose == ServerPurpose::check) return;
  const Status loaded = command(format::Opcode::load_chunks, 0);
  if (loaded != Status::ok) {
    throw PoolError(loaded, fmt::format("the pool's allocation state cannot be loaded: {}",
                                        status_text(loaded)));
  }
  loaded_ = true;
  if (pool_.read_only || options_.purpose == ServerPurpose::recovery) return;
  // From here on the medium says that the pool is in use, and has this mount's seed for its log.
  const Status begun = command(format::Opcode::checkpoint, checkpoint_mask_forced);
  if (begun != Status::ok) {
    throw PoolError(begun, fmt::format("the pool cannot be written: {}", status_text(begun)));
  }
  if (options_.keep_orphans) return;
  const Status freed = command(format::Opcode::reclaim_orphans, 0);
  if (freed == Status::ok) return;
  pool_.warnings.push_back(fmt::format(
      "space of files deleted before the last end was not freed: {}", status_text(freed)));
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
  Status status = Status::ok;
  // A pool whose state could not be loaded is left as it was found.
  if (!pool_.read_only && loaded_) {
    status = command(format::Opcode::checkpoint, checkpoint_mask_clean);
    if (status != Status::ok) {
      log(LogLevel::error,
          fmt::format("the last checkpoint was not written: {} The pool is as of the one before.",
                      status_text(status)));
    }
  }
  end_upcall_thread();
  management_session_.reset();
  upcall_session_.reset();
  setup_.host->stop();
  return status == Status::ok;
}

// The thread may look for the end just before it goes to sleep, so it is woken until it has seen it.
void PoolServer::end_upcall_thread() {
  upcalls_end_ = true;
  while (!upcalls_ended_) {
    engine::wake_server(*setup_.upcalls);
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  upcall_thread_.join();
}

void PoolServer::abandon() {
  loaded_ = false;
  stop();
}

std::unique_ptr<ServerSession> PoolServer::open_internal_session(u64 data_bytes) {
  return std::make_unique<ServerSession>(*setup_.host, sessions_mutex_, ServerSession::Kind::internal,
                                         session_depth_log2, data_bytes);
}

LocalSession PoolServer::open_session(u64 data_bytes) {
  auto session = std::make_shared<ServerSession>(
      *setup_.host, sessions_mutex_, ServerSession::Kind::trusted, session_depth_log2, data_bytes);
  return {session->producer(), &session->port(), session};
}

std::string PoolServer::engine_text() const {
  return fmt::format("engine: {} ({})", setup_.host->description(), setup_.reason);
}

std::string PoolServer::statistics_json() const {
  const engine::EngineCounters counters = setup_.host->counters();
  return fmt::format(
      "{{\"engine\": \"{}\", \"epoch_durable\": {}, \"commands_started\": {}, "
      "\"commands_completed\": {}, \"commands_failed\": {}, \"descriptors_rejected\": {}, "
      "\"deadlines_exceeded\": {}, \"upcalls_dropped\": {}}}\n",
      setup_.host->description(), setup_.host->durable_epoch(), counters.commands_started,
      counters.commands_completed, counters.commands_failed, counters.descriptors_rejected,
      counters.deadlines_exceeded, counters.upcalls_dropped);
}

Status PoolServer::command(format::Opcode opcode, u32 mask) {
  const std::lock_guard guard(management_mutex_);
  format::Command request{};
  request.opcode = opcode;
  request.mask = mask;
  request.deadline_ms = patient_deadline_ms;
  return management_session_->call(request).status;
}

void PoolServer::answer_upcalls() {
  while (!upcalls_end_) {
    ring::Upcall upcall{};
    if (!setup_.host->wait_upcall(&upcall, upcall_wait_ns)) {
      report_death();
      continue;
    }
    const Status result = carry_out(upcall);
    if (!ring::wants_answer(upcall.kind)) continue;
    // not_found: the command gave up waiting.
    (void)upcall_session_->call(engine::answer_upcall_command(upcall, result));
  }
  upcalls_ended_ = true;
}

Status PoolServer::carry_out(const ring::Upcall& upcall) {
  switch (upcall.kind) {
    case ring::UpcallKind::flush_device:
      return flush_devices(upcall.argument);
    case ring::UpcallKind::map_chunk:
      return map_chunk(upcall.argument);
    case ring::UpcallKind::log:
      log(LogLevel::warning,
          fmt::format("the engine reports {} {:#x}", upcall.detail, upcall.argument));
      return Status::ok;
    case ring::UpcallKind::wake_client:
    case ring::UpcallKind::none:
      return Status::ok;
  }
  return Status::not_supported;
}

Status PoolServer::flush_devices(u64 which) {
  Status status = Status::ok;
  for (u64 i = 0; i < setup_.files.size(); ++i) {
    if (which != ~u64{0} && which != i) continue;
    // The kernel tells of a lost write once; what it lost stays lost.
    if (flush_errors_[i].load() != 0) {
      status = Status::device_failed;
      continue;
    }
    try {
      if (setup_.files[i].needs_flush()) setup_.files[i].flush();
    } catch (const device::DeviceError& error) {
      log(LogLevel::error, error.what());
      flush_errors_[i].fetch_add(1);
      status = Status::device_failed;
    }
  }
  return status;
}

Status PoolServer::map_chunk(u64 chunk) {
  if (chunk >= pool_.chunks.size()) return Status::out_of_range;
  chunks_mapped_.resize(pool_.chunks.size());
  if (chunks_mapped_[chunk]) return Status::ok;
  for (const format::ColumnAddress column : pool_.chunks[chunk].columns) {
    GPU4FS_TRY(map_column(chunk, column));
  }
  chunks_mapped_[chunk] = true;
  return Status::ok;
}

// The column's data pages; the header area in front of them is mapped since the mount. They get their blocks
// first: without, an access would end the process on a full medium.
Status PoolServer::map_column(u64 chunk, format::ColumnAddress column) {
  const device::MappedFile& file = setup_.files[column.device_index()];
  const format::ChunkDescriptor& descriptor = pool_.chunks[chunk].descriptor;
  const u64 header_bytes = format::chunk_layout(descriptor.size_bytes / page_size).header_pages * page_size;
  const u64 begin = column.offset_bytes() + header_bytes;
  const u64 length = raid::column_length(descriptor) - header_bytes;
  if (file.grows_with_use()) {
    // Trying in vain takes time, so it waits until there is more room than at the last time.
    const u64 room = file.room_bytes();
    const auto refused = room_at_refusal_.find(chunk);
    if (refused != room_at_refusal_.end() && room <= refused->second) return Status::no_space;
    try {
      file.reserve_range(begin, length);
    } catch (const device::DeviceError& error) {
      log(LogLevel::error, fmt::format("chunk {} cannot be used: {}", chunk, error.what()));
      if (error.error_number() != ENOSPC) return Status::device_failed;
      room_at_refusal_[chunk] = room;
      return Status::no_space;
    }
    room_at_refusal_.erase(chunk);
  }
  return setup_.host->map_memory(file.base() + begin, length);
}

// Idle pools are left alone: without a command since the last look nothing can have changed.
void PoolServer::commit_regularly() {
  u64 commands_seen = ~u64{0};
  const auto interval = std::chrono::seconds(options_.commit_interval_s);
  std::unique_lock lock(stop_mutex_);
  while (!stop_changed_.wait_for(lock, interval, [this] { return stopping_; })) {
    lock.unlock();
    report_death();
    const u64 commands = setup_.host->counters().commands_completed;
    if (commands != commands_seen) {
      const Status status = command(format::Opcode::checkpoint, 0);
      commands_seen = setup_.host->counters().commands_completed;
      if (status != Status::ok && !death_reported_) {
        log(LogLevel::error, fmt::format("a checkpoint was not written: {}", status_text(status)));
      }
    }
    lock.lock();
  }
}

void PoolServer::report_death() {
  if (!setup_.host->has_died() || death_reported_.exchange(true)) return;
  log(LogLevel::error, fmt::format("the engine died, its pending operations fail: {}", setup_.host->fault_text()));
  if (death_handler_) death_handler_();
}

}  // namespace gpu4fs::server
