// The service kernel as seen by the host code that runs it. Host only, for nvcc.
#pragma once

#include <cuda_runtime.h>

#include "base/check.hpp"
#include "engine/service_loop.hpp"

namespace gpu4fs::engine {

// A number that differs if host and kernel disagree about the layout of the engine's memory.
constexpr u64 engine_memory_layout() {
  return (u64{sizeof(Engine)} << 40) ^ (u64{sizeof(WorkerMemory)} << 30) ^ (u64{sizeof(CommandState)} << 20) ^
         sizeof(fs::FileSystem);
}
u64 service_memory_layout();

u32 service_workers_per_block();

// Once for a device, before the first launch.
cudaError_t prepare_service();

// Asynchronous. The grid is small enough to be resident as a whole. The workers rely on this.
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
