// A CPU engine without a pool, and sessions to it: for tests of the engine itself.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/engine_build.hpp"
#include "engine/engine_cpu.hpp"
#include "support/ring_session.hpp"

namespace gpu4fs::test {

struct EngineOptions {
  u32 worker_count = 2;
  u32 command_count = 64;
  engine::EngineConfig config{};
  bool start = true;
};

class EngineFixture {
 public:
  explicit EngineFixture(EngineOptions options = {}) : upcalls_(sizeof(ring::UpcallRing)) {
    options.config.worker_count = options.worker_count;
    options.config.command_count = options.command_count;
    const engine::MemorySizes sizes{64, 16, 2};
    auto* upcall_ring = reinterpret_cast<ring::UpcallRing*>(upcalls_.data());
    engine::EngineImage image = engine::prepare_engine(allocator_, options.config, sizes, upcall_ring);
    engine_ = engine::place_engine(allocator_, image);
    host_ = std::make_unique<engine::CpuEngine>(engine_, options.worker_count);
    if (options.start) host_->start();
  }

  engine::Engine& engine() { return *engine_; }
  engine::CpuEngine& host() { return *host_; }

 private:
  SharedMemory upcalls_;
  engine::HeapAllocator allocator_;
  engine::Engine* engine_ = nullptr;
  std::unique_ptr<engine::CpuEngine> host_;
};

}  // namespace gpu4fs::test
