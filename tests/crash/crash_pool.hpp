// A pool of a CrashImage with an engine without threads over it.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "crash/crash_image.hpp"
#include "crash/lone_engine.hpp"
#include "device/stack/record_layer.hpp"
#include "server/recovery/replay.hpp"
#include "support/test_pool.hpp"

namespace gpu4fs::test {

// Tells the image what changes.
class TouchLayer : public device::StackLayer {
 public:
  TouchLayer(CrashImage& image, u32 device) : image_(image), device_(device) {}
  void write(std::vector<device::StackWrite>& writes) override {
    for (const device::StackWrite& write : writes) image_.touch(device_, write.offset, write.bytes.size());
  }

 private:
  CrashImage& image_;
  u32 device_;
};

// No threads: workers, and whoever waits.
class LoneParts : public CpuParts {
 public:
  explicit LoneParts(const TestPoolOptions& options) : CpuParts(options), worker_count_(options.worker_count) {}
  engine::EngineConfig config() const {
    engine::EngineConfig config = CpuParts::config();
    config.worker_count = worker_count_;
    return config;
  }

 private:
  u32 worker_count_;
};

inline TestPoolOptions crash_pool_options() {
  TestPoolOptions options;
  options.memory = {.frame_count = 320, .staging_count = 256, .shard_count = 2};
  options.config.command_count = 256;
  options.session_bytes = u64{256} << 10;
  return options;
}

using FlushDevices = std::function<Status(u64 device)>;
using DeviceLayers = std::vector<std::unique_ptr<device::StackLayer>>;

struct CrashPoolSetup {
  // What is written and flushed goes there; without, flushes are not asked for, as the image is memory.
  std::shared_ptr<device::WriteLog> log;
  const char* where = "";      // see LoneEngine
  bool logs_recovery = false;  // also what a recovery writes
  TestPoolOptions options = crash_pool_options();
  // More layers, above the log.
  std::function<void(u32 device, DeviceLayers& layers)> add_layers = nullptr;
  // Another engine than one of a single worker.
  std::function<std::unique_ptr<LoneEngine>(engine::Engine* engine, FlushDevices flush)> make_engine = nullptr;
};

class CrashPool {
 public:
  // Mounts. PoolError, std::runtime_error.
  CrashPool(CrashImage& image, const std::shared_ptr<device::WriteLog>& log, const char* where)
      : CrashPool(image, CrashPoolSetup{.log = log, .where = where}) {}
  CrashPool(CrashImage& image, CrashPoolSetup setup)
      : image_(image), setup_(std::move(setup)), options_(setup_.options) {
    const std::shared_ptr<device::WriteLog>& log = setup_.log;
    open();
    const server::LogScan scan = server::scan_log(*pool_);
    if (scan.record_count() != 0) {
      start(setup_.logs_recovery ? log : nullptr, 0);
      CrashPool::require(command(format::Opcode::load_chunks), "loading");
      replay(scan);
      replayed_count_ = scan.record_count();
      end();
      open();
    } else {
      server::require_nothing_lost(scan, scan.end);
    }
    start(log, pool_->superblock.log_seed + 1);
    require(command(format::Opcode::load_chunks), "loading");
    require(command(format::Opcode::checkpoint, checkpoint_mask_forced), "the first checkpoint");
    require(command(format::Opcode::reclaim_orphans), "freeing orphans");
    session_ = open_session();
  }
  CrashPool(const CrashPool&) = delete;
  CrashPool& operator=(const CrashPool&) = delete;
  // The engine ends; nothing more is written.
  ~CrashPool() { host_->drain(); }

  client::Session& session() { return *session_; }
  // One more.
  std::unique_ptr<client::Session> open_session() {
    auto session = std::make_shared<server::ServerSession>(
        *host_, sessions_mutex_, server::ServerSession::Kind::trusted, 4, options_.session_bytes);
    client::Connection connection{session->producer(), &session->port(), session};
    return std::make_unique<client::Session>(std::move(connection));
  }
  // For internal commands.
  server::ServerSession& management() { return *management_; }
  LoneEngine& host() { return *host_; }
  engine::Engine* engine() { return engine_; }
  u64 replayed_count() const { return replayed_count_; }
  Status checkpoint(bool clean = false) {
    return command(format::Opcode::checkpoint, clean ? checkpoint_mask_clean : 0);
  }
  // What was begun ends.
  void drain() { host_->drain(); }

  // What opening does before anything is recorded: devices without the newest superblock get it.
  static void complete(CrashImage& image) {
    server::OpenPoolOptions open;
    open.device_paths = image.paths();
    server::OpenedPool pool = server::open_pool(open);
    for (u32 i = 0; i < image.device_count(); ++i) {
      image.touch(i, format::superblock_offset_a, page_size);
      image.touch(i, format::superblock_offset_b, page_size);
    }
    server::complete_superblocks(pool);
  }

  static void require(Status status, const char* what) {
    if (status == Status::ok) return;
    throw std::runtime_error(std::string(what) + ": " + status_name(status));
  }

 private:
  static constexpr u32 checkpoint_mask_clean = 1;
  static constexpr u32 checkpoint_mask_forced = 2;

  void open() {
    server::OpenPoolOptions open;
    open.device_paths = image_.paths();
    pool_ = std::make_unique<server::OpenedPool>(server::open_pool(open));
    for (u32 i = 0; i < image_.device_count(); ++i) {
      image_.touch(i, format::superblock_offset_a, page_size);
      image_.touch(i, format::superblock_offset_b, page_size);
    }
    server::complete_superblocks(*pool_);
  }

  // An engine with a log of this seed, or, with 0, one that replays.
  void start(const std::shared_ptr<device::WriteLog>& log, u64 log_seed) {
    parts_ = std::make_unique<LoneParts>(options_);
    map_devices(log);
    engine_ = assemble_engine(*parts_, options_, *pool_, devices_, log_seed);
    // What was recorded lies in other chunks than what is done after a crash, where there are two: so what a lost
    // checkpoint left behind is not overwritten by the next one.
    const u32 worker = log != nullptr ? 1 : 0;
    FlushDevices flushes = [this](u64 which) { return flush(which); };
    host_ = setup_.make_engine ? setup_.make_engine(engine_, flushes)
                               : std::make_unique<LoneEngine>(engine_, flushes, setup_.where, worker);
    management_ = std::make_unique<server::ServerSession>(
        *host_, sessions_mutex_, server::ServerSession::Kind::internal, 4, format::log_record_bytes_max);
  }
  void end() {
    host_->drain();
    management_.reset();
    host_.reset();
    files_.clear();
    devices_.clear();
    pool_.reset();
  }

  // As server/recovery/recovery.cpp does it.
  void replay(const server::LogScan& scan) {
    const server::VerifiedLog verified = server::verify_records(*management_, scan);
    server::require_nothing_lost(scan, verified.end);
    server::replay_records(*management_, scan, verified.record_count);
    server::set_log_end(*management_, verified.end);
    require(command(format::Opcode::checkpoint, checkpoint_mask_clean), "the checkpoint of the recovery");
  }

  Status command(format::Opcode opcode, u32 mask = 0) {
    format::Command command{};
    command.opcode = opcode;
    command.mask = mask;
    return management_->call(command).status;
  }

  void map_devices(const std::shared_ptr<device::WriteLog>& log) {
    for (u32 i = 0; i < image_.device_count(); ++i) {
      DeviceLayers layers;
      if (setup_.add_layers) setup_.add_layers(i, layers);
      layers.push_back(std::make_unique<TouchLayer>(image_, i));
      if (log != nullptr) layers.push_back(std::make_unique<device::RecordLayer>(log, std::to_string(i)));
      device::OpenOptions open;
      open.stack = std::make_shared<device::DeviceStack>(std::move(layers));
      const int descriptor = ::fcntl(pool_->devices[i].file.fd(), F_DUPFD_CLOEXEC, 3);
      if (descriptor < 0) throw std::runtime_error("no descriptor left");
      files_.push_back(device::MappedFile::adopt(descriptor, pool_->devices[i].file.path(), std::move(open)));
      devices_.push_back(files_.back().device(i));
      devices_.back().needs_flush = log != nullptr || setup_.add_layers ? 1 : 0;
    }
  }

  Status flush(u64 which) {
    try {
      for (u64 i = 0; i < files_.size(); ++i) {
        if (which == ~u64{0} || which == i) files_[i].flush();
      }
    } catch (const device::DeviceError&) {
      return Status::device_failed;
    }
    return Status::ok;
  }

  CrashImage& image_;
  CrashPoolSetup setup_;
  TestPoolOptions options_;
  u64 replayed_count_ = 0;
  std::unique_ptr<LoneParts> parts_;
  std::unique_ptr<server::OpenedPool> pool_;
  std::vector<device::MappedFile> files_;
  std::vector<device::Device> devices_;
  engine::Engine* engine_ = nullptr;
  std::unique_ptr<LoneEngine> host_;
  std::mutex sessions_mutex_;
  std::unique_ptr<server::ServerSession> management_;
  std::unique_ptr<client::Session> session_;
};

}  // namespace gpu4fs::test
