// Workers of an engine that are emulated warps: the code paths of the GPU engine without a GPU.
#pragma once

#include <thread>

#include "base/emulated_warp.hpp"
#include "support/warp_worker.hpp"

namespace gpu4fs::test {

// `count` warps that work as long as this object lives. The engine's own workers are not started.
class WarpWorkers {
 public:
  WarpWorkers(engine::Engine& engine, u32 count)
      : thread_([this, &engine, count] {
          run_emulated_warps(count, [&](EmulatedWarp g, u32 warp) {
            engine::WorkerState worker = engine::WorkerState::make(warp);
            while (!on_leader(g, [&] { return load<Order::acquire, Scope::engine>(&stopping_) != 0; })) {
              engine::worker_step(g, engine, worker);
            }
            engine::worker_release(g, engine, worker);
          });
        }) {}
  ~WarpWorkers() {
    store<Order::release, Scope::engine>(&stopping_, 1u);
    thread_.join();
  }

 private:
  u32 stopping_ = 0;
  std::thread thread_;
};

}  // namespace gpu4fs::test
