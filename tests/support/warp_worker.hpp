// The engine as an emulated warp executes it, compiled once for all tests (warp_worker.cpp).
#pragma once

#include "base/emulated_warp.hpp"
#include "engine/service_loop.hpp"
#include "engine/worker.hpp"

namespace gpu4fs::engine {

extern template bool worker_step(EmulatedWarp g, Engine& engine, WorkerState& worker);
extern template bool kernel_step(EmulatedWarp g, Engine& engine, WorkerState& worker);
extern template void worker_sweep(EmulatedWarp g, Engine& engine);
extern template void worker_release(EmulatedWarp g, Engine& engine, WorkerState& worker);
extern template void service_loop(EmulatedWarp g, Engine& engine, u32 worker_index, const ServiceLimits& limits,
                                  WorkerViews* views);

}  // namespace gpu4fs::engine
