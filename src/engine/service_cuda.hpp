// The service kernel as seen by the host code that runs it. Host only, for nvcc.
#pragma once

#include <cuda_runtime.h>

#include "base/check.hpp"
#include "engine/service_loop.hpp"

namespace gpu4fs::engine {

u32 service_workers_per_block();

// Asynchronous. The grid is small enough to be resident as a whole, which the workers rely on.
cudaError_t launch_service(Engine* engine, const ServiceLimits& limits, u32 block_count, cudaStream_t stream);

// Where failed checks of the service kernel are recorded; pinned host memory.
cudaError_t arm_fault_record(FaultRecord* record);

// %globaltimer now. Blocking, with a kernel of its own.
u64 read_device_clock_ns();

struct ServiceResources {
  u32 registers;
  u64 stack_bytes;
};
ServiceResources service_resources();

}  // namespace gpu4fs::engine
