// MappedPool: a pool of a CrashImage with an engine that has workers of its own and writes directly to the devices'
// memory, like a GPU: no layers, no flushes. `Parts` selects the engine (support/basic_test_pool.hpp).
#pragma once

#include <cstdio>
#include <memory>
#include <vector>

#include "crash/served_pool.hpp"

namespace gpu4fs::test {

// See served_pool.hpp.
template <class Parts>
class MappedServing {
 public:
  struct Setup {
    TestPoolOptions options = crash_pool_options();
  };
  using Host = engine::EngineHost;

  MappedServing(CrashImage& image, const Setup& setup, pool::OpenedPool& pool, u64 log_seed)
      : image_(image), parts_(setup.options) {
    for (u32 i = 0; i < image.device_count(); ++i) {
      files_.push_back(map_opened(pool.devices[i].file, {}));
      devices_.push_back(files_.back().device(i));
      devices_.back().needs_flush = 0;  // the mapping is the medium
    }
    engine_ = assemble_engine(parts_, setup.options, pool, devices_, log_seed);
    host_ = parts_.make_host(engine_);
    for (const device::MappedFile& file : files_) {
      ServedPool::require(host_->map_memory(file.base(), file.size_bytes()), "map_memory");
    }
    host_->start();
  }
  MappedServing(const MappedServing&) = delete;
  MappedServing& operator=(const MappedServing&) = delete;
  ~MappedServing() {
    host_->stop();
    if (host_->has_died()) std::fprintf(stderr, "the engine died: %s\n", host_->fault_text().c_str());
    image_.find_changes();
  }

  engine::EngineHost& host() { return *host_; }
  engine::Engine* engine() { return engine_; }  // the host must not read it if it is on a GPU
  void drain() {}                               // the host's stop() does it

 private:
  CrashImage& image_;
  Parts parts_;
  std::vector<device::MappedFile> files_;
  std::vector<device::Device> devices_;
  engine::Engine* engine_ = nullptr;
  std::unique_ptr<engine::EngineHost> host_;
};

template <class Parts>
using MappedPool = BasicCrashPool<MappedServing<Parts>>;

}  // namespace gpu4fs::test
