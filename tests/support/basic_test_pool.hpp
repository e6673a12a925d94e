// A pool on memory-backed files with an engine over it, for tests of whole operations. `Parts` selects the engine
// (TestPool: test_pool.hpp, GpuTestPool: gpu/gpu_test_pool.hpp).
//
//     TestPool pool({.worker_count = 3});
//     auto session = pool.open_session();
//     session->call(command) ...
//     session.reset();
//     pool.crash();      // the engine ends, nothing more is written
//     pool.mount();      // the pool as of the last checkpoint
//     pool.unmount();    // the last checkpoint, the engine ends
//     pool.check();      // fsck
//
// The engine is built from its parts and not by server::PoolServer, because tests choose sizes that a mount never has.
// Parts are built anew for each mount and destroyed last:
//     explicit Parts(const TestPoolOptions& options);
//     auto& allocator();                      // of engine memory, for engine_build.hpp
//     ring::UpcallRing* upcalls();            // zeroed, seen by engine and host
//     engine::EngineConfig config() const;
//     std::unique_ptr<engine::EngineHost> make_host(engine::Engine* engine);
#pragma once

#include <fcntl.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "client/session.hpp"
#include "device/memory/mapped_file.hpp"
#include "engine/engine_build.hpp"
#include "engine/engine_host.hpp"
#include "fmt/format.h"
#include "fsck/check/check_pool.hpp"
#include "pool/logical_space/logical_space.hpp"
#include "pool/pool_make.hpp"
#include "pool/pool_open.hpp"
#include "pool/pool_replace.hpp"
#include "server/recovery/recovery.hpp"
#include "session/server_session.hpp"
#include "support/flush_answerer.hpp"
#include "support/memory_folder.hpp"
#include "support/pool_profiles.hpp"
#include "support/staged_devices.hpp"
#include "wire/rebuild_format.hpp"

namespace gpu4fs::test {

struct TestPoolOptions {
  u32 device_count = 2;
  u64 device_bytes = u64{48} << 20;
  u64 chunk_bytes = u64{8} << 20;
  std::string profile = "single";                             // of data and metadata, or of both: "raid5+raid1"
  std::vector<std::pair<std::string, double>> more_profiles;  // for files that ask for them, with shares
  u32 worker_count = 1;
  u32 warp_count = 0;  // not 0: emulated warps instead of threads
  engine::MemorySizes memory{.frame_count = 4096, .staging_count = 2048, .shard_count = 4};
  engine::EngineConfig config{};
  fs::AccessTimeMode access_times = fs::AccessTimeMode::relative;
  u64 session_bytes = u64{4} << 20;
  bool has_log = true;         // false: every sync is a checkpoint
  bool starts_workers = true;  // false: only threads that wait for commands work
  bool degraded = false;       // mounts continue without devices that are missing or stale
  bool is_staged = wants_staged_devices();
  bool has_queue = false;  // of staged devices: they are behind an I/O queue (BasicTestPool::media())
  u64 tier_bytes = session::page_tier_bytes_of_tests();  // of the second tier of the page cache; 0: there is none
  bool data_checksums = true;
  bool flush_by_upcall = false;  // true: checkpoints request flushes, which the test may answer
  // Returns the stack over a device's memory, at each mount; the pool answers the flushes then. Making, opening and
  // checking the pool bypass it.
  std::function<std::shared_ptr<device::DeviceStack>(u32 device)> stack;
};

// A folder for device files, in memory if there is one.
class DeviceFolder {
 public:
  DeviceFolder() {
    std::string name = memory_folder() + "/gpu4fs_test_XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no folder for device files");
    path_ = name;
  }
  DeviceFolder(const DeviceFolder&) = delete;
  DeviceFolder& operator=(const DeviceFolder&) = delete;
  ~DeviceFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string device(u32 index) const { return (path_ / ("device" + std::to_string(index))).string(); }

 private:
  std::filesystem::path path_;
};

// The findings of fsck, one line each.
inline std::string findings_text(const fsck::CheckResult& result) {
  std::string text;
  for (const fsck::Finding& finding : result.findings.kept()) {
    text += fmt::format("\n  {} {}: {}", fsck::finding_kind(finding.id).id, finding.place, finding.text);
  }
  return text;
}

// For an interrupted pool: a superblock that was being written cannot be distinguished from a damaged one, which is an
// error.
inline u64 errors_of_a_crash(const fsck::CheckResult& result) {
  return result.findings.error_count() - result.findings.count(fsck::FindingId::superblock_torn);
}

// The memory of an opened device. DeviceError, std::runtime_error.
inline device::MappedFile map_opened(const pool::DeviceFile& file, device::OpenOptions open) {
  const int descriptor = ::fcntl(file.fd(), F_DUPFD_CLOEXEC, 3);
  if (descriptor < 0) throw std::runtime_error("no descriptor left");
  return device::MappedFile::adopt(descriptor, file.path(), std::move(open));
}

// An engine over the mapped devices of an opened pool, in the memory of `parts`; nothing is loaded yet. `log_seed` 0:
// it replays a log and keeps none. `media`: not null: it gets the memory of staged devices.
template <class Parts>
engine::Engine* assemble_engine(Parts& parts, const TestPoolOptions& options, const pool::OpenedPool& pool,
                                std::vector<device::Device> devices, u64 log_seed, QueuedMedia* media = nullptr) {
  const format::Superblock& superblock = pool.superblock;
  engine::EngineConfig config = parts.config();
  config.default_deadline_ms = 600'000;  // instrumented engines on busy machines are slow
  auto& memory = parts.allocator();
  engine::EngineImage image = engine::prepare_engine(memory, config, options.memory, parts.upcalls());
  fs::FileSystem& fs = image->fs;
  const u32 holders = options.warp_count != 0 ? options.warp_count : options.worker_count + 1;
  device::StagedDevices* const staged =
      options.is_staged ? stage_devices(memory, devices, engine::worker_memory_count(config), holders, media) : nullptr;
  const bool has_checksums = (superblock.feature_incompatible & format::feature_data_checksums) != 0;
  add_tier(memory, devices, options.tier_bytes, has_checksums);
  fs.space = pool::build_logical_space(memory, superblock, devices, pool.chunks, true);
  if (staged != nullptr) device::set_staged_devices(memory, staged, fs.space.devices);
  std::vector<format::Superblock> templates;
  for (const pool::OpenedDevice& device : pool.devices) {
    templates.push_back(superblock);
    templates.back().device = device.part;
  }
  const u64 bytes = templates.size() * sizeof(format::Superblock);
  fs.superblocks = static_cast<format::Superblock*>(memory.allocate(bytes, page_size));
  memory.copy_in(fs.superblocks, templates.data(), bytes);
  fs.inode_file = fs.inode_file_staged = superblock.inode_file;
  fs.inode_scan = 1;
  fs.inode_used = fs.inode_used_staged = superblock.inode_used;
  fs.page_used_staged = superblock.page_used;
  fs.epoch_open = superblock.epoch + 1;
  fs.epoch_durable = superblock.epoch;
  fs.name_hash_seed = superblock.name_hash_seed;
  fs.access_time_mode = options.access_times;
  std::vector<format::DevicePart> device_parts;
  for (const pool::OpenedDevice& device : pool.devices) device_parts.push_back(device.part);
  const bool replays = log_seed == 0;
  engine::build_log(memory, fs, superblock, device_parts, replays ? superblock.log_seed : log_seed,
                    !replays && options.has_log);
  return engine::place_engine(memory, image);
}

template <class Parts>
class BasicTestPool {
 public:
  // Makes a pool and mounts it. PoolError.
  explicit BasicTestPool(const TestPoolOptions& options = {}) : options_(options) {
    if (options_.has_queue && !options_.is_staged) throw std::logic_error("only staged devices have a queue");
    pool::MakePoolOptions make;
    make.device_paths = device_paths();
    make.size_bytes = options_.device_bytes;
    make.chunk_size_bytes = options_.chunk_bytes;
    set_profiles(make, options_.profile);
    make.more_profiles = options_.more_profiles;
    make.data_checksums = options_.data_checksums;
    make.root_uid = 0;
    make.root_gid = 0;
    pool::make_pool(make);
    mount();
  }
  BasicTestPool(const BasicTestPool&) = delete;
  BasicTestPool& operator=(const BasicTestPool&) = delete;
  ~BasicTestPool() { crash(); }

  std::vector<std::string> device_paths() const {
    std::vector<std::string> paths;
    for (u32 i = 0; i < options_.device_count; ++i) paths.push_back(folder_.device(i));
    return paths;
  }
  TestPoolOptions& options() { return options_; }
  QueuedMedia& media() { return media_; }

  // Opens the pool, starts an engine, loads the allocation state and frees orphans.
  void mount() {
    if (mounted_) throw std::logic_error("the pool is mounted");
    mounted_ = std::make_unique<Mounted>();
    recover();
    pool::OpenPoolOptions open;
    open.device_paths = device_paths();
    open.degraded = options_.degraded;
    mounted_->pool = std::make_unique<pool::OpenedPool>(pool::open_pool(open));
    pool::complete_superblocks(*mounted_->pool);
    map_devices();
    build_engine();
    if (options_.starts_workers) mounted_->host->start();
    if (options_.stack) {
      mounted_->flushes = std::make_unique<FlushAnswerer>(*mounted_->host, *mounted_->parts->upcalls(), sessions_mutex_,
                                                          mounted_->files);
    }
    mounted_->management = std::make_unique<session::ServerSession>(
        *mounted_->host, sessions_mutex_, session::ServerSession::Kind::internal, 4, page_size);
    require(call_management(wire::Opcode::load_chunks), "load_chunks");
    require(first_checkpoint(), "the first checkpoint");
    require(call_management(wire::Opcode::reclaim_orphans), "reclaim_orphans");
  }

  // The result of the replay in the last mount().
  const server::RecoveryReport& recovery() const { return recovery_; }

  // Sessions must be closed before.
  void unmount() {
    require(call_management(wire::Opcode::checkpoint, checkpoint_mask_clean), "the last checkpoint");
    crash();
  }
  // The engine ends without a checkpoint; the devices keep their content. Returns its epoch.
  u64 crash() {
    if (!mounted_) return 0;
    mounted_->management.reset();
    mounted_->flushes.reset();
    u64 epoch = 0;
    if (mounted_->host) {  // otherwise mounting failed
      mounted_->host->stop();
      if (mounted_->host->has_died()) {
        std::fprintf(stderr, "the engine died: %s\n", mounted_->host->fault_text().c_str());
      }
      epoch = mounted_->host->durable_epoch();
    }
    media_.stop();
    mounted_.reset();
    return epoch;
  }
  // Any time while mounted, by one thread at a time.
  Status checkpoint() { return call_management(wire::Opcode::checkpoint); }

  // A trusted session, like that of a front end. Close it before the pool ends.
  std::unique_ptr<client::Session> open_session() {
    auto server_session = std::make_shared<session::ServerSession>(
        *mounted_->host, sessions_mutex_, session::ServerSession::Kind::trusted, 6, options_.session_bytes);
    client::Connection connection{server_session->producer(), &server_session->port(), server_session};
    return std::make_unique<client::Session>(std::move(connection));
  }

  // In engine memory: the host must not read it if it is on a GPU.
  engine::Engine* engine() { return mounted_->engine; }
  engine::EngineHost& host() { return *mounted_->host; }
  u64 durable_epoch() const { return mounted_->host->durable_epoch(); }

  // A command that only the management process may send, with `data` in its session.
  ring::Completion call_internal(wire::Command command, const void* data = nullptr, u64 bytes = 0) {
    ring::RingProducer& producer = mounted_->management->producer();
    if (bytes != 0) std::memcpy(producer.data, data, bytes);
    command.data = wire::ring_address(0, 0);
    return mounted_->management->call(command);
  }

  // The place of its data, before and after the command.
  const u8* internal_data() const { return mounted_->management->producer().data; }

  // The file of a lost device becomes the device again or, if `is_new`, is first replaced by an empty one.
  Status begin_rebuild(u32 index, bool is_new) {
    pool::OpenedPool& pool = *mounted_->pool;
    if (is_new) std::filesystem::remove(device_paths()[index]);
    const std::string path = device_paths()[index];
    const bool is_open = !is_new && pool.devices[index].is_here();
    if (!is_open) {
      mounted_->retired_devices.push_back(std::move(pool.devices[index].file));
      pool.devices[index].file =
          is_new ? pool::DeviceFile::create(path, options_.device_bytes)
                 : pool::DeviceFile::open(path, pool::DeviceFile::Access::read_write, pool::DeviceFile::Locking::lock);
      u8 uuid[16] = {0x77, static_cast<u8>(index), ++replacement_count_};
      pool.devices[index].part = is_new ? pool::plan_replacement(pool, index, options_.device_bytes, uuid)
                                        : pool::stale_part(pool, index, pool.devices[index].file);
    }
    pool::OpenedDevice& opened = pool.devices[index];
    pool::prepare_replacement(pool, opened.file, opened.part, is_new);
    if (!is_open) map_again(index);
    wire::RebuildTarget target{};
    const device::Device device = mounted_->files[index].device(index);
    target.part = opened.part;
    target.base = reinterpret_cast<std::uintptr_t>(device.base);
    target.mapped_bytes = device.size_bytes;
    target.device_kind = static_cast<std::uint32_t>(device.kind);
    target.stack = reinterpret_cast<std::uintptr_t>(device.stack);
    target.needs_flush = mounted_->devices[index].needs_flush;
    target.file_number = replacement_count_;
    const Status begun =
        call_internal(rebuild_command(wire::RebuildStep::begin, index), &target, sizeof(target)).status;
    if (begun != Status::ok || !is_new) return begun;
    const Status named = call_management(wire::Opcode::checkpoint, checkpoint_mask_forced);
    if (named != Status::ok) return named;
    u64 since = 0;  // those of other lost devices are older
    for (u32 d = 0; d < options_.device_count; ++d) {
      if (d != index) since = std::max(since, mounted_->engine->fs.superblocks[d].stale_since[index]);
    }
    pool::write_stale_superblocks(pool, opened.file, opened.part, since);
    return Status::ok;
  }

  static wire::Command rebuild_command(wire::RebuildStep step, u64 inode = 0) {
    wire::Command command{};
    command.opcode = wire::Opcode::rebuild;
    command.mode = static_cast<u32>(step);
    command.inode = inode;
    return command;
  }

  struct RebuildRound {
    Status status;
    u64 looked_at;
    u64 written;
    u64 unverified;
    u64 unreadable;
    u64 left;  // pages, at the attempt to finish
  };
  // A checkpoint, all pieces of all chunks and, if that succeeds, the end.
  RebuildRound rebuild_round(bool is_fresh) {
    RebuildRound round{call_management(wire::Opcode::checkpoint, checkpoint_mask_forced), 0, 0, 0, 0, 0};
    for (u32 chunk = 0; chunk < mounted_->pool->chunks.size() && round.status == Status::ok; ++chunk) {
      const u64 pages = mounted_->pool->chunks[chunk].descriptor.size_bytes / page_size;
      for (u64 first = 0; first < pages && round.status == Status::ok; first += wire::rebuild_pages_max) {
        wire::Command command = rebuild_command(wire::RebuildStep::pages, chunk);
        command.offset = first;
        command.length = std::min(wire::rebuild_pages_max, pages - first);
        command.mask = is_fresh ? u32{wire::rebuild_mask_fresh} : 0;
        const ring::Completion done = call_internal(command);
        round.status = done.status;
        round.looked_at += wire::rebuild_count(done.result, wire::RebuildCount::looked_at);
        round.written += wire::rebuild_count(done.result, wire::RebuildCount::written);
        round.unverified += wire::rebuild_count(done.result, wire::RebuildCount::unverified);
        round.unreadable += wire::rebuild_count(done.result, wire::RebuildCount::unreadable);
      }
    }
    if (round.status != Status::ok) return round;
    const ring::Completion ended = call_internal(rebuild_command(wire::RebuildStep::finish));
    round.status = ended.status;
    round.left = ended.result;
    if (ended.status == Status::ok && ended.result == 0) {
      round.status = call_management(wire::Opcode::checkpoint, checkpoint_mask_forced);
    }
    return round;
  }

  // fsck of the unmounted pool.
  fsck::CheckResult check() const {
    fsck::CheckOptions options;
    options.device_paths = device_paths();
    return fsck::check_pool(options);
  }

 private:
  static constexpr u32 checkpoint_mask_clean = 1;
  static constexpr u32 checkpoint_mask_forced = 2;

  struct Mounted {
    std::unique_ptr<pool::OpenedPool> pool;
    std::vector<device::MappedFile> files;
    std::vector<pool::DeviceFile> retired_devices;  // of devices that were replaced
    std::vector<device::MappedFile> retired_files;
    std::vector<device::Device> devices;
    std::unique_ptr<Parts> parts;
    engine::Engine* engine = nullptr;
    std::unique_ptr<engine::EngineHost> host;
    std::unique_ptr<FlushAnswerer> flushes;
    std::unique_ptr<session::ServerSession> management;
  };

  static void require(Status status, const char* what) {
    if (status == Status::ok) return;
    throw std::runtime_error(std::string(what) + ": " + status_name(status));
  }

  Status call_management(wire::Opcode opcode, u32 mask = 0) {
    wire::Command command{};
    command.opcode = opcode;
    command.mask = mask;
    return mounted_->management->call(command).status;
  }

  void recover() {
    session::ServerOptions options;
    options.device_paths = device_paths();
    options.degraded = options_.degraded;
    options.cache_bytes = u64{options_.memory.frame_count} * page_size;
    recovery_ = server::recover_pool(options);
  }

  // Its flushes are answered here, later ones by the test.
  Status first_checkpoint() {
    if (!options_.flush_by_upcall || options_.stack)
      return call_management(wire::Opcode::checkpoint, checkpoint_mask_forced);
    std::atomic<bool> done{false};
    std::thread answers([&] {
      session::ServerSession session(*mounted_->host, sessions_mutex_, session::ServerSession::Kind::internal, 4,
                                     page_size);
      ring::Upcall upcall{};
      while (!done) {
        if (!mounted_->host->wait_upcall(&upcall, 1'000'000) || !ring::wants_answer(upcall.kind)) continue;
        (void)session.call(engine::answer_upcall_command(upcall, Status::ok));
      }
    });
    const Status status = call_management(wire::Opcode::checkpoint, checkpoint_mask_forced);
    done = true;
    answers.join();
    return status;
  }

  void map_again(u32 index) {
    pool::OpenedDevice& opened = mounted_->pool->devices[index];
    device::OpenOptions open;
    if (options_.stack) open.stack = options_.stack(index);
    mounted_->retired_files.push_back(std::move(mounted_->files[index]));
    mounted_->files[index] = map_opened(opened.file, std::move(open));
    mounted_->devices[index] = mounted_->files[index].device(index);
    mounted_->devices[index].needs_flush = options_.flush_by_upcall || options_.stack ? 1 : 0;
    opened.state = pool::MemberState::here;
    require(mounted_->host->map_memory(mounted_->files[index].base(), mounted_->files[index].size_bytes()),
            "map_memory");
  }

  void map_devices() {
    for (const pool::OpenedDevice& opened : mounted_->pool->devices) {
      if (!opened.is_here()) {
        mounted_->files.push_back(device::MappedFile::absent(opened.file.path(), false));
        mounted_->devices.push_back(mounted_->files.back().device(static_cast<u32>(mounted_->devices.size())));
        continue;
      }
      const u32 index = static_cast<u32>(mounted_->devices.size());
      device::OpenOptions open;
      if (options_.stack) open.stack = options_.stack(index);
      mounted_->files.push_back(map_opened(opened.file, std::move(open)));
      mounted_->devices.push_back(mounted_->files.back().device(index));
      // The process does not die, so the mapping is the medium.
      mounted_->devices.back().needs_flush = options_.flush_by_upcall || options_.stack ? 1 : 0;
    }
  }

  void build_engine() {
    mounted_->parts = std::make_unique<Parts>(options_);
    Parts& parts = *mounted_->parts;
    mounted_->engine = assemble_engine(parts, options_, *mounted_->pool, mounted_->devices, ++log_seed_,
                                       options_.has_queue ? &media_ : nullptr);
    mounted_->host = parts.make_host(mounted_->engine);
    for (const device::MappedFile& file : mounted_->files) {
      if (file.is_absent()) continue;
      require(mounted_->host->map_memory(file.base(), file.size_bytes()), "map_memory");
    }
  }

  TestPoolOptions options_;
  DeviceFolder folder_;
  std::mutex sessions_mutex_;
  u64 log_seed_ = 0x6c6f67;
  u8 replacement_count_ = 0;
  server::RecoveryReport recovery_;
  QueuedMedia media_;  // of all mounts
  std::unique_ptr<Mounted> mounted_;
};

}  // namespace gpu4fs::test
