#include "server/pool_server.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <new>
#include <utility>

#include "base/check.hpp"
#include "base/host/log.hpp"
#include "base/mutant.hpp"
#include "base/random.hpp"
#include "base/to_text.hpp"
#include "engine/wake.hpp"
#include "fmt/format.h"
#include "maintenance/trim/region_ranges.hpp"
#include "pool/chunk_reach.hpp"
#include "pool/growth/chunk_maps.hpp"
#include "pool/pool_error.hpp"
#include "pool/pool_replace.hpp"
#include "pool/prefault.hpp"
#include "raid/levels/levels.hpp"

namespace gpu4fs::server {
namespace {

constexpr u32 session_depth_log2 = 6;
constexpr u32 checkpoint_mask_clean = 1;     // Opcode::checkpoint: the last one, the pool is left clean
constexpr u32 checkpoint_mask_forced = 2;    // also when nothing has changed
constexpr u32 memory_threads_max = 8;        // that get memory before it is used
constexpr u32 trim_passes = 3;               // behind a change: what is free has to be so for two
constexpr u64 trim_runs_at_once = 16;        // of up to 128 MiB, or a chunk
constexpr u64 upcall_wait_ns = 250'000'000;  // also how long stop() may have to wait

u32 memory_threads() {
  return std::clamp(std::thread::hardware_concurrency(), 1u, memory_threads_max);
}

pool::OpenedPool open_for(const session::ServerOptions& options) {
  pool::OpenPoolOptions open;
  open.device_paths = options.device_paths;
  open.read_only = options.read_only;
  open.degraded = options.degraded;
  open.patience = options.lock_patience;
  return pool::open_pool(open);
}

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

}  // namespace

PoolServer::PoolServer(session::ServerOptions options)
    : options_(std::move(options)), recovery_(recover_before(options_)), pool_(open_for(options_)) {
  if (!pool_.read_only) {
    pool::complete_superblocks(pool_);
    pool::clear_lost_chunk_maps(pool_);
  }
  if (options_.purpose == session::ServerPurpose::mount && options_.generation_skip == 0) {
    options_.generation_skip = generation_skip_after(pool_, recovery_);
  }
  setup_ = session::set_up_engine(options_, pool_);
  maintenance::reserve_for_growth(pool_, setup_);
  grower_ = std::make_unique<maintenance::PoolGrower>(maintenance::GrowthContext{
      pool_, setup_, tables_, [this](wire::Opcode opcode, u32 mask, u64 inode) { return call(opcode, mask, inode); },
      [this](u32 page_class, u64 page_count) { return set_unallocated(page_class, page_count); },
      [this] { return lost_devices(); }, [this](const std::string& path) { options_.device_paths.push_back(path); },
      [this](const std::string& path) { forget_device(path); }, [this](u32 device) { flush_errors_[device] = 0; },
      [this](u32 chunk) { forget_chunk_mapping(chunk); }});
  trimmer_ = std::make_unique<maintenance::PoolTrimmer>(maintenance::TrimContext{
      pool_, setup_, tables_, reach_mutex_, [this](const wire::Command& command) { return call_patiently(command); },
      [this](u64 chunk) { set_chunk_thin(chunk, true); }});
  all_accessible_ =
      setup_.gpu == nullptr && options_.purpose != session::ServerPurpose::check &&
      std::none_of(setup_.files.begin(), setup_.files.end(), [](const auto& file) { return file.grows_with_use(); });
}

PoolServer::~PoolServer() {
  stop();
}

void PoolServer::start() {
  GPU4FS_CHECK(!started_);
  setup_.host->start();
  upcall_session_ = std::make_unique<session::ServerSession>(
      *setup_.host, sessions_mutex_, session::ServerSession::Kind::internal, session_depth_log2, page_size);
  management_session_ = std::make_unique<session::ServerSession>(
      *setup_.host, sessions_mutex_, session::ServerSession::Kind::internal, session_depth_log2, page_size);
  upcall_thread_ = std::thread([this] { answer_upcalls(); });
  started_ = true;
  load_state();
  if (!pool_.read_only && options_.purpose == session::ServerPurpose::mount) {
    growth_session_ = std::make_unique<session::ServerSession>(
        *setup_.host, sessions_mutex_, session::ServerSession::Kind::internal, session_depth_log2, page_size);
    growth_thread_ = std::thread([this] { make_wanted_chunks(); });
    grower_->tell_engine();
  }
  if (!pool_.read_only && options_.commit_interval_s != 0) {
    commit_thread_ = std::thread([this] { commit_regularly(); });
  }
  open_control();
}

std::vector<session::ChunkRange> PoolServer::chunk_ranges() const {
  std::vector<session::ChunkRange> chunks;
  const std::shared_lock lock(tables_);
  for (const pool::OpenedChunk& chunk : pool_.chunks) {
    chunks.push_back({chunk.descriptor.base_address, chunk.descriptor.size_bytes / page_size});
  }
  return chunks;
}

void PoolServer::open_control() {
  if (options_.purpose == session::ServerPurpose::check) return;
  const bool has_checksums = (pool_.superblock.feature_incompatible & format::feature_data_checksums) != 0;
  scrubber_ = std::make_unique<maintenance::Scrubber>(
      maintenance::ScrubSetup{*setup_.host, sessions_mutex_, chunk_ranges(), has_checksums, !pool_.read_only});
  open_exchange();
  relocator_ = std::make_unique<maintenance::Relocator>(maintenance::RelocatorSetup{
      *setup_.host, sessions_mutex_, [this] { return command(wire::Opcode::checkpoint, checkpoint_mask_forced); }});
  const JobControl jobs{*scrubber_, *rebuilder_, *exchange_, *relocator_, *reshaper_, *spares_, pool_.read_only};
  control_ = std::make_unique<PoolControl>(ControlContext{options_, pool_, setup_, sessions_mutex_,
                                                          [this](u32 device) { return flush_errors_[device].load(); },
                                                          *grower_, tables_, jobs, *trimmer_});
  if (options_.control_folder.empty()) return;
  Uuid uuid{};
  std::copy_n(pool_.superblock.pool_uuid, sizeof(uuid.bytes), uuid.bytes);
  try {
    control_socket_ = std::make_unique<session::ControlSocket>(
        options_.control_folder, to_text(uuid), [this](const JsonValue& request) { return control_->answer(request); });
  } catch (const pool::PoolError& error) {
    pool_.warnings.push_back(fmt::format("without a control socket: {}", error.what()));
  }
}

void PoolServer::open_exchange() {
  const auto checkpoint = [this] { return command(wire::Opcode::checkpoint, checkpoint_mask_forced); };
  rebuilder_ = std::make_unique<maintenance::Rebuilder>(
      maintenance::RebuildSetup{*setup_.host, sessions_mutex_, [this] { return chunk_ranges(); }, checkpoint,
                                [this](u32 device) { exchange_->finished(device); }});
  exchange_ = std::make_unique<maintenance::DeviceExchange>(maintenance::ExchangeContext{
      pool_, setup_, tables_, sessions_mutex_, *rebuilder_, *grower_, checkpoint,
      [this](u32 device, const device::MappedFile& file, const format::DevicePart& part) {
        map_device(device, file, part);
      },
      [this](u32 device, const device::MappedFile& file) { prepare_memory(device, file); },
      [this](u32 device) { flush_errors_[device] = 0; },
      [this](const std::string& path, const std::string& spec) { rename_device(path, spec); }});
  reshaper_ = std::make_unique<maintenance::Reshaper>(
      maintenance::ReshaperSetup{*grower_,
                                 [this](const std::vector<u32>& chunks, const maintenance::RelocationGoesOn& goes_on) {
                                   return relocator_->empty_chunks(chunks, goes_on);
                                 },
                                 [this](u32 device) {
                                   const std::shared_lock lock(tables_);
                                   return pool_.devices[device].file.path();
                                 }});
  open_spares();
}

// Spares that will not do are no reason not to mount.
void PoolServer::open_spares() {
  maintenance::SpareSetup setup;
  setup.replace = [this](u32 device, const std::string& path) {
    return exchange_->replace(std::to_string(device), path, true, 0);
  };
  setup.is_busy = [this] { return rebuilder_->is_busy(); };
  setup.lost_devices = [this] { return lost_devices(); };
  setup.bytes_least = [this] {
    const std::shared_lock lock(tables_);
    u64 least = ~u64{0};
    for (u32 i = 0; i < pool_.devices.size(); ++i) {
      if (pool_.devices[i].is_here()) least = std::min(least, pool::replacement_size_min(pool_, i));
    }
    return least;
  };
  setup.is_member = [this](const pool::DeviceFile& file) {
    const std::shared_lock lock(tables_);
    return std::any_of(pool_.devices.begin(), pool_.devices.end(), [&](const pool::OpenedDevice& device) {
      return device.file.fd() >= 0 && device.file.is_same_file(file);
    });
  };
  auto spares = std::make_unique<maintenance::SpareDevices>(std::move(setup));
  if (pool_.read_only) return spares_.swap(spares);
  for (const std::string& path : options_.spare_paths) {
    const std::string problem = spares->add(path, false);
    if (!problem.empty()) pool_.warnings.push_back("spare " + problem);
  }
  const std::lock_guard guard(spares_mutex_);
  spares_ = std::move(spares);
  spares_->device_lost();  // one may have been, while nobody could be told
}

void PoolServer::rename_device(const std::string& path, const std::string& spec) {
  forget_device(path);
  std::erase(options_.device_paths, spec);
  options_.device_paths.push_back(spec);
  has_lost_devices_ = true;
}

// Under tables_: whoever opens the pool again names it no more.
void PoolServer::forget_device(const std::string& path) {
  std::vector<std::string> paths;
  for (const std::string& list : options_.device_paths) {
    for (const std::string& text : pool::split_device_list(list)) {
      if (pool::parse_device(text).path != path) paths.push_back(text);
    }
  }
  options_.device_paths = std::move(paths);
}

// Another chunk, or none, has the number.
void PoolServer::forget_chunk_mapping(u32 chunk) {
  const std::lock_guard guard(mapped_mutex_);
  if (chunk < chunks_mapped_.size()) chunks_mapped_[chunk] = false;
  if (chunk < chunks_thin_.size()) chunks_thin_[chunk] = false;
  room_at_refusal_.erase(chunk);
}

// As the engine has it, a bit each.
u64 PoolServer::lost_devices() {
  return open_inspector().lost_devices();
}

std::vector<std::string> PoolServer::device_paths() {
  const std::shared_lock lock(tables_);
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
  return options_.write_errors_before + load<Order::acquire, Scope::system>(&setup_.upcalls->write_errors);
}

void PoolServer::load_state() {
  if (options_.purpose == session::ServerPurpose::check) return;
  const Status loaded = command(wire::Opcode::load_chunks, 0);
  if (loaded != Status::ok) {
    throw pool::PoolError(loaded, fmt::format("the pool's allocation state cannot be loaded: {}", status_text(loaded)));
  }
  loaded_ = true;
  if (pool_.read_only || options_.purpose == session::ServerPurpose::recovery) return;
  // From here on the medium says that the pool is in use, and has this mount's seed for its log.
  const Status begun = command(wire::Opcode::checkpoint, checkpoint_mask_forced);
  if (begun != Status::ok) {
    throw pool::PoolError(begun, fmt::format("the pool cannot be written: {}", status_text(begun)));
  }
  if (options_.keep_orphans) return;
  const Status freed = command(wire::Opcode::reclaim_orphans, 0);
  if (freed == Status::ok) return;
  pool_.warnings.push_back(
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
  if (GPU4FS_MUTANT(last_checkpoint_skipped, !pool_.read_only, false) && loaded_) {
    status = command(wire::Opcode::checkpoint, checkpoint_mask_clean);
    if (status != Status::ok) {
      log(LogLevel::error, fmt::format("the last checkpoint was not written: {} The pool is as of the one before.",
                                       status_text(status)));
    }
  }
  end_upcall_thread();
  management_session_.reset();
  growth_session_.reset();
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

std::unique_ptr<session::ServerSession> PoolServer::open_internal_session(u64 data_bytes) {
  return std::make_unique<session::ServerSession>(*setup_.host, sessions_mutex_, session::ServerSession::Kind::internal,
                                                  session_depth_log2, data_bytes);
}

LocalSession PoolServer::open_session(u64 data_bytes) {
  auto session = std::make_shared<session::ServerSession>(
      *setup_.host, sessions_mutex_, session::ServerSession::Kind::trusted, session_depth_log2, data_bytes);
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
      "\"deadlines_exceeded\": {}, \"upcalls_dropped\": {}, \"checkpoint_pause_last_ns\": {}, "
      "\"checkpoint_pause_max_ns\": {}}}\n",
      setup_.host->description(), setup_.host->durable_epoch(), counters.commands_started, counters.commands_completed,
      counters.commands_failed, counters.descriptors_rejected, counters.deadlines_exceeded, counters.upcalls_dropped,
      counters.checkpoint_pause_last_ns, counters.checkpoint_pause_max_ns);
}

Status PoolServer::command(wire::Opcode opcode, u32 mask) {
  return call(opcode, mask, 0).status;
}

ring::Completion PoolServer::call(wire::Opcode opcode, u32 mask, u64 inode) {
  wire::Command request{};
  request.opcode = opcode;
  request.mask = mask;
  request.inode = inode;
  return call_patiently(request);
}

Status PoolServer::set_unallocated(u32 page_class, u64 page_count) {
  wire::Command request{};
  request.opcode = wire::Opcode::grow;
  request.mask = wire::grow_room;
  request.mode = page_class;
  request.offset = page_count;
  return call_patiently(request).status;
}

ring::Completion PoolServer::call_patiently(wire::Command request) {
  const std::lock_guard guard(management_mutex_);
  request.deadline_ms = session::patient_deadline_ms;
  return management_session_->call(request);
}

void PoolServer::answer_upcalls() {
  while (!upcalls_end_) {
    ring::Upcall upcall{};
    const bool was_dead = setup_.host->has_died();  // before: what it still asked for is read, and the death reported
    if (!setup_.host->wait_upcall(&upcall, upcall_wait_ns)) {
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
      return map_chunk(upcall.argument);
    case ring::UpcallKind::make_chunk:
      return Status::no_space;
    case ring::UpcallKind::write_growth:
      return grower_->write(upcall.argument, upcall.detail);
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
    const std::shared_lock lock(tables_);
    if (device >= setup_.files.size()) return;
    const bool is_the_same = setup_.file_numbers[device] == file_number;
    log(LogLevel::error, loss_text(device, is_the_same ? setup_.files[device].path() : ""));
  }
  const std::lock_guard guard(spares_mutex_);
  if (spares_) spares_->device_lost();
}

// The failing ones are marked in *failed_devices; whether the pool can do without them, the engine says.
Status PoolServer::flush_devices(u64 which, u64* failed_devices) {
  Status status = Status::ok;
  const std::shared_lock lock(tables_);
  for (u64 i = 0; i < setup_.files.size(); ++i) {
    if (which != ~u64{0} && which != i) continue;
    // The kernel tells of a lost write once; what it lost stays lost.
    if (flush_errors_[i].load() != 0) {
      *failed_devices |= u64{1} << i;
      status = Status::device_failed;
      continue;
    }
    try {
      if (GPU4FS_MUTANT(server_flushes_nothing, setup_.files[i].needs_flush(), false)) setup_.files[i].flush();
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
      if (!ends && grower_->add_chunks(1, static_cast<u32>(page_class)) != 0) result = Status::ok;
    } catch (const pool::PoolError& error) {
      log(LogLevel::error, error.what());
      const bool is_refused = error.status() == Status::no_space || error.status() == Status::busy;
      result = is_refused ? Status::no_space : Status::io_error;
      grower_->tell_engine();
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

Status PoolServer::map_chunk(u64 chunk) {
  const std::shared_lock lock(tables_);
  // The engine learns of chunks that come and go a moment before the tables do: the command looks again.
  if (chunk >= pool_.chunks.size() || pool_.chunks[chunk].is_erased()) return Status::stale;
  const std::lock_guard reaching(reach_mutex_);
  if (is_chunk_mapped(chunk) && !is_chunk_thin(chunk)) return Status::ok;
  for (const format::ColumnAddress column : pool_.chunks[chunk].columns) {
    const u32 device = column.device_index();
    if (setup_.files[device].is_absent()) continue;
    const Status status = map_column(chunk, column, setup_.files[device]);
    if (status == Status::ok) continue;
    if (pool_.devices[device].is_here()) return status;
    // A device that is being filled and has no room for it is not worth that the others stop.
    wire::Command given_up{};
    given_up.opcode = wire::Opcode::rebuild;
    given_up.mode = static_cast<u32>(wire::RebuildStep::give_up);
    given_up.inode = device;
    GPU4FS_TRY(upcall_session_->call(given_up).status);
  }
  set_chunk_mapped(chunk);
  set_chunk_thin(chunk, false);
  return Status::ok;
}

void PoolServer::set_chunk_mapped(u64 chunk) {
  const std::lock_guard guard(mapped_mutex_);
  chunks_mapped_.resize(std::max<std::size_t>(chunks_mapped_.size(), chunk + 1));
  chunks_mapped_[chunk] = true;
}

bool PoolServer::is_chunk_thin(u64 chunk) {
  const std::lock_guard guard(mapped_mutex_);
  return chunk < chunks_thin_.size() && chunks_thin_[chunk];
}

void PoolServer::set_chunk_thin(u64 chunk, bool is_thin) {
  const std::lock_guard guard(mapped_mutex_);
  chunks_thin_.resize(std::max<std::size_t>(chunks_thin_.size(), chunk + 1));
  chunks_thin_[chunk] = is_thin;
}

// Under tables_, while no device is being filled: as map_chunk(), of devices that are here. False: it has to wait for
// that.
bool PoolServer::map_members(u64 chunk) {
  const std::lock_guard reaching(reach_mutex_);
  if (all_accessible_ || is_chunk_mapped(chunk)) return true;
  for (const format::ColumnAddress column : pool_.chunks[chunk].columns) {
    const u32 device = column.device_index();
    if (!pool_.devices[device].is_here() || setup_.files[device].is_absent()) continue;
    if (map_column(chunk, column, setup_.files[device]) != Status::ok) return false;
  }
  set_chunk_mapped(chunk);
  return true;
}

// Filling a device needs its columns of chunks that hold anything, and the other columns of these.
void PoolServer::prepare_memory(u32 device, const device::MappedFile& file) {
  const std::vector<maintenance::ChunkUsage> usage = grower_->usage();
  const bool registers = setup_.gpu != nullptr;
  const std::shared_lock lock(tables_);
  std::vector<pool::FileRange> ranges;
  std::vector<u32> chunks;
  for (const maintenance::ChunkUsage& chunk : usage) {
    if (chunk.pages_taken == 0) continue;
    const pool::OpenedChunk& opened = pool_.chunks[chunk.chunk];
    for (const format::ColumnAddress column : opened.columns) {
      if (column.device_index() != device) continue;
      ranges.push_back({column.offset_bytes(), raid::column_length(opened.descriptor)});
      chunks.push_back(chunk.chunk);
    }
  }
  try {
    if (registers || file.grows_with_use()) pool::prefault_ranges(file, ranges, registers, memory_threads());
  } catch (const device::DeviceError& error) {
    throw pool::PoolError(error.error_number() == ENOSPC ? Status::no_space : Status::io_error, error.what());
  }
  for (const u32 chunk : chunks) (void)map_members(chunk);
}

void PoolServer::reach_regions(u32 chunk, const std::vector<u64>& allocated) {
  const std::shared_lock lock(tables_);
  const std::lock_guard reaching(reach_mutex_);
  const pool::OpenedChunk& opened = pool_.chunks[chunk];
  Status status = Status::ok;
  const auto reach = [&](format::ColumnAddress column, u64 offset, u64 length) {
    const device::MappedFile& file = setup_.files[column.device_index()];
    if (status == Status::ok && !file.is_absent())
      status = setup_.host->map_memory(file.base() + column.offset_bytes() + offset, length);
  };
  const u64 header = pool::header_area_bytes(opened.descriptor);
  for (const format::ColumnAddress column : opened.columns) {
    reach(column, 0, allocated.empty() ? raid::column_length(opened.descriptor) : header);
  }
  constexpr u64 region_words = pages_per_block_2m / 64;
  const auto is_used = [&](u64 region) {
    const auto end = std::min(allocated.size(), (region + 1) * region_words);
    return std::any_of(&allocated[region * region_words], allocated.data() + end, [](u64 word) { return word != 0; });
  };
  const u64 region_count = divide_up(allocated.size(), region_words);
  for (u64 first = 0; first < region_count; ++first) {
    if (!is_used(first)) continue;
    u64 count = 1;
    while (first + count < region_count && is_used(first + count)) ++count;
    for (const maintenance::ColumnRange& range : maintenance::ranges_of_regions(opened.descriptor, first, count)) {
      reach(opened.columns[range.column], header + range.offset, range.length);
    }
    first += count;
  }
  if (status == Status::ok) set_chunk_mapped(chunk);
}

u64 PoolServer::mapped_chunk_count() {
  const std::lock_guard guard(mapped_mutex_);
  return static_cast<u64>(std::count(chunks_mapped_.begin(), chunks_mapped_.end(), true));
}

bool PoolServer::is_chunk_mapped(u64 chunk) {
  const std::lock_guard guard(mapped_mutex_);
  return chunk < chunks_mapped_.size() && chunks_mapped_[chunk];
}

// What the engine may touch of a device that it did not know before. Under tables_.
void PoolServer::map_device(u32 device, const device::MappedFile& file, const format::DevicePart& part) {
  const auto reach = [&](u64 offset, u64 length) {
    if (length == 0) return;
    if (file.grows_with_use()) file.reserve_range(offset, length);
    if (setup_.host->map_memory(file.base() + offset, length) == Status::ok) return;
    throw pool::PoolError(Status::gpu_error, fmt::format("{}: {} KiB at {:#x} cannot be registered with the GPU",
                                                         file.path(), length >> 10, offset));
  };
  reach(0, format::layout_area_offset);
  if (device < pool_.superblock.tree_replica_count) reach(part.log_offset, part.log_bytes);
  for (u32 chunk = 0; chunk < pool_.chunks.size(); ++chunk) {
    for (const format::ColumnAddress column : pool_.chunks[chunk].columns) {
      if (column.device_index() != device) continue;
      reach(column.offset_bytes(), pool::mounted_bytes(pool_, pool_.chunks[chunk]));
      if (!all_accessible_ && !is_chunk_mapped(chunk)) continue;
      const Status status = map_column(chunk, column, file);
      if (status != Status::ok) throw pool::PoolError(status, fmt::format("{}: {}", file.path(), status_text(status)));
    }
  }
}

// The column's descriptors and data pages; what is in front of them is mapped since the mount, except for a check. They
// get their blocks first: without, an access would end the process on a full medium. Somebody waits, so all processors
// help.
Status PoolServer::map_column(u64 chunk, format::ColumnAddress column, const device::MappedFile& file) {
  const format::ChunkDescriptor& descriptor = pool_.chunks[chunk].descriptor;
  const u64 skipped = options_.purpose == session::ServerPurpose::check ? 0 : pool::header_front_bytes(descriptor);
  const u64 begin = column.offset_bytes() + skipped;
  const u64 length = raid::column_length(descriptor) - skipped;
  if (file.grows_with_use()) {
    // Trying in vain takes time, so it waits until there is more room than at the last time.
    {
      const u64 room = file.room_bytes();
      const std::lock_guard guard(mapped_mutex_);
      const auto refused = room_at_refusal_.find(chunk);
      if (refused != room_at_refusal_.end() && room <= refused->second) return Status::no_space;
    }
    try {
      const std::lock_guard taking(taking_mutex_);
      pool::take_range(file, {begin, length}, is_chunk_mapped(chunk), memory_threads());
    } catch (const device::DeviceError& error) {
      log(LogLevel::error, fmt::format("chunk {} cannot be used: {}", chunk, error.what()));
      if (error.error_number() != ENOSPC) return Status::device_failed;
      const u64 room_left = file.room_bytes();
      const std::lock_guard guard(mapped_mutex_);
      room_at_refusal_[chunk] = room_left;
      return Status::no_space;
    } catch (const std::bad_alloc&) {
      log(LogLevel::error, fmt::format("chunk {} cannot be used: no memory is left for the server", chunk));
      return Status::no_space;
    }
    const std::lock_guard guard(mapped_mutex_);
    room_at_refusal_.erase(chunk);
  }
  return setup_.host->map_memory(file.base() + begin, length);
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
    const u64 commands = setup_.host->counters().commands_completed;
    if (commands != commands_seen) {
      const Status status = command(wire::Opcode::checkpoint, 0);
      commands_seen = setup_.host->counters().commands_completed;
      if (status != Status::ok && !death_reported_) {
        log(LogLevel::error, fmt::format("a checkpoint was not written: {}", status_text(status)));
      }
      passes = discards ? trim_passes : 0;
    }
    if (passes != 0) {
      const maintenance::TrimReport report = trimmer_->trim(trim_runs_at_once);
      commands_seen += report.command_count;  // which change nothing
      passes -= report.is_complete ? 1 : 0;
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
