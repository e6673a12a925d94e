// CrashPool: a pool of a CrashImage with an engine without threads; its writes pass layers.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "crash/lone_engine.hpp"
#include "crash/served_pool.hpp"
#include "device/stack/record_layer.hpp"
#include "support/test_pool.hpp"

namespace gpu4fs::test {

// Reports changes to the image.
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

// No threads, neither workers nor waiting ones.
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

using FlushDevices = std::function<Status(u64 device)>;
using DeviceLayers = std::vector<std::unique_ptr<device::StackLayer>>;

struct CrashPoolSetup {
  // Writes and flushes are recorded there; without it flushes are not requested, because the image is memory.
  std::shared_ptr<device::WriteLog> log;
  const char* where = "";      // see LoneEngine
  bool logs_recovery = false;  // also writes of a recovery
  TestPoolOptions options = crash_pool_options();
  // More layers, above the log.
  std::function<void(u32 device, DeviceLayers& layers)> add_layers = nullptr;
  // An engine other than one with a single worker.
  std::function<std::unique_ptr<LoneEngine>(engine::Engine* engine, FlushDevices flush)> make_engine = nullptr;
};

// See served_pool.hpp.
class LoneServing {
 public:
  using Setup = CrashPoolSetup;
  using Host = LoneEngine;

  LoneServing(CrashImage& image, const CrashPoolSetup& setup, pool::OpenedPool& pool, u64 log_seed)
      : parts_(setup.options) {
    const std::shared_ptr<device::WriteLog> log = log_seed != 0 || setup.logs_recovery ? setup.log : nullptr;
    map_devices(image, setup, pool, log);
    engine_ = assemble_engine(parts_, setup.options, pool, devices_, log_seed);
    // Recorded work and work after a crash use different chunks if there are two. So the next checkpoint does not
    // overwrite what a lost one left.
    const u32 worker = log != nullptr ? 1 : 0;
    FlushDevices flushes = [this](u64 which) { return flush(which); };
    host_ = setup.make_engine ? setup.make_engine(engine_, flushes)
                              : std::make_unique<LoneEngine>(engine_, flushes, setup.where, worker);
  }
  LoneServing(const LoneServing&) = delete;
  LoneServing& operator=(const LoneServing&) = delete;

  LoneEngine& host() { return *host_; }
  engine::Engine* engine() { return engine_; }
  void drain() { host_->drain(); }

 private:
  void map_devices(CrashImage& image, const CrashPoolSetup& setup, const pool::OpenedPool& pool,
                   const std::shared_ptr<device::WriteLog>& log) {
    for (u32 i = 0; i < image.device_count(); ++i) {
      DeviceLayers layers;
      if (setup.add_layers) setup.add_layers(i, layers);
      layers.push_back(std::make_unique<TouchLayer>(image, i));
      if (log != nullptr) layers.push_back(std::make_unique<device::RecordLayer>(log, std::to_string(i)));
      device::OpenOptions open;
      open.stack = std::make_shared<device::DeviceStack>(std::move(layers));
      files_.push_back(map_opened(pool.devices[i].file, std::move(open)));
      devices_.push_back(files_.back().device(i));
      devices_.back().needs_flush = log != nullptr || setup.add_layers ? 1 : 0;
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

  LoneParts parts_;
  std::vector<device::MappedFile> files_;
  std::vector<device::Device> devices_;
  engine::Engine* engine_ = nullptr;
  std::unique_ptr<LoneEngine> host_;
};

class CrashPool : public BasicCrashPool<LoneServing> {
 public:
  // Mounts. PoolError, std::runtime_error.
  CrashPool(CrashImage& image, const std::shared_ptr<device::WriteLog>& log, const char* where)
      : CrashPool(image, CrashPoolSetup{.log = log, .where = where}) {}
  CrashPool(CrashImage& image, CrashPoolSetup setup) : BasicCrashPool(image, std::move(setup)) {}
};

}  // namespace gpu4fs::test
