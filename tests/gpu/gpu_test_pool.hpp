// GpuTestPool: a pool with the GPU engine. See support/basic_test_pool.hpp.
#pragma once

#include <memory>

#include "engine/engine_cuda.hpp"
#include "gpu/gpu_report.hpp"
#include "support/basic_test_pool.hpp"

namespace gpu4fs::test {

// The GPU determines the number of workers and the distribution of transfers: only memory and the pool itself are used
// of the options.
class CudaParts {
 public:
  explicit CudaParts(const TestPoolOptions&)
      : upcalls_(static_cast<ring::UpcallRing*>(allocator_.allocate_shared(sizeof(ring::UpcallRing)))) {}

  engine::CudaAllocator& allocator() { return allocator_; }
  ring::UpcallRing* upcalls() { return upcalls_; }
  engine::EngineConfig config() const { return engine::cuda_engine_config(cuda_); }
  std::unique_ptr<engine::EngineHost> make_host(engine::Engine* engine) {
    return std::make_unique<engine::CudaEngine>(engine, upcalls_, allocator_, cuda_);
  }

 private:
  engine::CudaOptions cuda_ = gpu_test_options();
  engine::CudaAllocator allocator_;
  ring::UpcallRing* upcalls_;
};

using GpuTestPool = BasicTestPool<CudaParts>;

}  // namespace gpu4fs::test
