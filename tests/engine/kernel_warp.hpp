// Emulated warps that work as a service kernel's do.
#pragma once

#include <chrono>
#include <thread>

#include "base/emulated_warp.hpp"
#include "support/warp_worker.hpp"

namespace gpu4fs::test {

// Warps that keep the token of a quiet ring and remember places. They work as long as this object lives. Sessions are
// closed after its end, as those of a kernel are. They are workers [0, count), so the engine must not have started its
// own.
class KernelWarp {
 public:
  explicit KernelWarp(engine::Engine& engine, u32 count = 1)
      : thread_([this, &engine, count] {
          run_emulated_warps(count, [&](EmulatedWarp g, u32 warp) {
            engine::WorkerState worker = engine::WorkerState::make(warp);
            worker.keeps_token = 1;
            while (!on_leader(g, [&] { return load<Order::acquire, Scope::engine>(&stopping_) != 0; })) {
              if (engine::kernel_step(g, engine, worker)) continue;
              // Leaves the processor to the clients.
              on_leader(g, [] { std::this_thread::sleep_for(std::chrono::microseconds(20)); });
            }
            engine::worker_release(g, engine, worker);
          });
        }) {}
  ~KernelWarp() {
    store<Order::release, Scope::engine>(&stopping_, 1u);
    thread_.join();
  }

 private:
  u32 stopping_ = 0;
  std::thread thread_;
};

}  // namespace gpu4fs::test
