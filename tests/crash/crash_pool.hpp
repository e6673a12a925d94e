// A pool of a CrashImage with an engine without threads over it.
#pragma once

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

// One worker, whoever waits.
class LoneParts : public CpuParts {
 public:
  using CpuParts::CpuParts;
  engine::EngineConfig config() const {
    engine::EngineConfig config = CpuParts::config();
    config.worker_count = 1;
    return config;
  }
};

inline TestPoolOptions crash_pool_options() {
  TestPoolOptions options;
  options.memory = {.frame_count = 320, .staging_count = 256, .shard_count = 2};
  options.config.command_count = 256;
  options.session_bytes = u64{256} << 10;
  return options;
}

class CrashPool {
 public:
  // Mounts. `log`: what is written and flushed goes there; without, flushes are not asked for, as the image is
  // memory. `where`: see LoneEngine. PoolError, std::runtime_error.
  CrashPool(CrashImage& image, const std::shared_ptr<device::WriteLog>& log, const char* where) : image_(image) {
    open();
    const server::LogScan scan = server::scan_log(*pool_);
    if (scan.record_count() != 0) {
      start(log, 0, where);
      CrashPool::require(command(format::Opcode::load_chunks), "loading");
      replay(scan);
      end();
      open();
    } else {
      server::require_nothing_lost(scan, scan.end);
    }
    start(log, pool_->superblock.log_seed + 1, where);
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
  Status checkpoint(bool clean = false) {
    return command(format::Opcode::checkpoint, clean ? checkpoint_mask_clean : 0);
  }
  // What was begun ends.
  void drain() { host_->drain(); }

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
  void start(const std::shared_ptr<device::WriteLog>& log, u64 log_seed, const char* where) {
    parts_ = std::make_unique<LoneParts>(options_);
    map_devices(log);
    engine_ = assemble_engine(*parts_, options_, *pool_, devices_, log_seed);
    // What was recorded lies in other chunks than what is done after a crash, where there are two: so what a lost
    // checkpoint left behind is not overwritten by the next one.
    const u32 worker = log != nullptr ? 1 : 0;
    host_ = std::make_unique<LoneEngine>(engine_, [this](u64 which) { return flush(which); }, where, worker);
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

  std::unique_ptr<client::Session> open_session() {
    auto session = std::make_shared<server::ServerSession>(
        *host_, sessions_mutex_, server::ServerSession::Kind::trusted, 4, options_.session_bytes);
    client::Connection connection{session->producer(), &session->port(), session};
    return std::make_unique<client::Session>(std::move(connection));
  }

  void map_devices(const std::shared_ptr<device::WriteLog>& log) {
    for (u32 i = 0; i < image_.device_count(); ++i) {
      std::vector<std::unique_ptr<device::StackLayer>> layers;
      layers.push_back(std::make_unique<TouchLayer>(image_, i));
      if (log != nullptr) layers.push_back(std::make_unique<device::RecordLayer>(log, std::to_string(i)));
      device::OpenOptions open;
      open.stack = std::make_shared<device::DeviceStack>(std::move(layers));
      const int descriptor = ::fcntl(pool_->devices[i].file.fd(), F_DUPFD_CLOEXEC, 3);
      if (descriptor < 0) throw std::runtime_error("no descriptor left");
      files_.push_back(device::MappedFile::adopt(descriptor, pool_->devices[i].file.path(), std::move(open)));
      devices_.push_back(files_.back().device(i));
      devices_.back().needs_flush = log != nullptr ? 1 : 0;
    }
  }

  Status flush(u64 which) {
    for (u64 i = 0; i < files_.size(); ++i) {
      if (which == ~u64{0} || which == i) files_[i].flush();
    }
    return Status::ok;
  }

  CrashImage& image_;
  TestPoolOptions options_ = crash_pool_options();
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
