// Workers of an engine that are emulated warps: the code paths of the GPU engine without a GPU.
#pragma once

#include <chrono>
#include <thread>

#include "base/emulated_warp.hpp"
#include "support/warp_worker.hpp"

namespace gpu4fs::test {

// `count` warps that work as long as this object lives. They are workers [0, count), so the engine must not have
// started its own.
class WarpWorkers {
 public:
  WarpWorkers(engine::Engine& engine, u32 count) : WarpWorkers(engine, count, 0) {}
  ~WarpWorkers() {
    store<Order::release, Scope::engine>(&stopping_, 1u);
    thread_.join();
  }

 protected:
  WarpWorkers(engine::Engine& engine, u32 count, u32 keeps_token)
      : thread_([this, &engine, count, keeps_token] {
          run_emulated_warps(count, [&](EmulatedWarp g, u32 warp) {
            engine::WorkerState worker = engine::WorkerState::make(warp);
            worker.keeps_token = keeps_token;
            while (!on_leader(g, [&] { return load<Order::acquire, Scope::engine>(&stopping_) != 0; })) {
              if (engine::kernel_step(g, engine, worker)) continue;
              // Leaves the processor to the clients.
              on_leader(g, [] { std::this_thread::sleep_for(std::chrono::microseconds(20)); });
            }
            engine::worker_release(g, engine, worker);
          });
        }) {}

 private:
  u32 stopping_ = 0;
  std::thread thread_;
};

// Warps as a service kernel has them: they keep the token of a quiet ring and remember places. Sessions are closed
// after their end, as those of a kernel are.
class KernelWarp : public WarpWorkers {
 public:
  explicit KernelWarp(engine::Engine& engine, u32 count = 1) : WarpWorkers(engine, count, 1) {}
};

}  // namespace gpu4fs::test
