// TestPool: a pool with a CPU engine, of threads or of emulated warps. See basic_test_pool.hpp.
#pragma once

#include <memory>

#include "engine/engine_cpu.hpp"
#include "support/basic_test_pool.hpp"
#include "support/recycled_memory.hpp"
#include "support/warp_engine.hpp"

namespace gpu4fs::test {

class CpuParts {
 public:
  explicit CpuParts(const TestPoolOptions& options)
      : options_(options),
        upcalls_(static_cast<ring::UpcallRing*>(allocator_.allocate(sizeof(ring::UpcallRing), page_size))) {}
  CpuParts(const CpuParts&) = delete;
  CpuParts& operator=(const CpuParts&) = delete;

  RecyclingAllocator& allocator() { return allocator_; }
  ring::UpcallRing* upcalls() { return upcalls_; }
  engine::EngineConfig config() const {
    if (options_.warp_count != 0) return WarpEngine::kernel_config(options_.config, options_.warp_count);
    engine::EngineConfig config = options_.config;
    config.worker_count = options_.worker_count + engine::session_max;
    return config;
  }
  std::unique_ptr<engine::EngineHost> make_host(engine::Engine* engine) {
    if (options_.warp_count != 0) return std::make_unique<WarpEngine>(engine, options_.warp_count);
    return std::make_unique<engine::CpuEngine>(engine, options_.worker_count);
  }

 private:
  TestPoolOptions options_;
  RecyclingAllocator allocator_;
  ring::UpcallRing* upcalls_;
};

using TestPool = BasicTestPool<CpuParts>;

}  // namespace gpu4fs::test
