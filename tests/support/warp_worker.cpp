#include "support/warp_worker.hpp"

namespace gpu4fs::engine {

template bool worker_step(EmulatedWarp g, Engine& engine, WorkerState& worker);
template bool kernel_step(EmulatedWarp g, Engine& engine, WorkerState& worker);
template void worker_sweep(EmulatedWarp g, Engine& engine);
template void worker_release(EmulatedWarp g, Engine& engine, WorkerState& worker);
template void service_loop(EmulatedWarp g, Engine& engine, u32 worker_index, const ServiceLimits& limits,
                           WorkerViews* views);

}  // namespace gpu4fs::engine
