// The service kernel and its launch. This is the only translation unit that compiles the engine for the GPU.
#include <chrono>

#include "base/group.hpp"
#include "engine/cuda_support.cuh"
#include "engine/service_cuda.cuh"

namespace gpu4fs::engine {

namespace {

constexpr u32 threads_per_block = 512;
constexpr u32 warps_per_block = threads_per_block / warp_size;

// The views of the block's workers. Statically declared memory may have at most 48 KiB.
constexpr u32 views_bytes = warps_per_block * sizeof(WorkerViews);
extern __shared__ __align__(16) u8 shared_views[];

__global__ void __launch_bounds__(threads_per_block, 1) service_kernel(Engine* engine, ServiceLimits limits) {
  // Consecutive worker numbers are in different blocks. So the pollers, which have the first numbers, are spread over
  // the blocks.
  const u32 worker = (threadIdx.x / warp_size) * gridDim.x + blockIdx.x;
  WorkerViews* const views = reinterpret_cast<WorkerViews*>(shared_views);
  service_loop(Warp{}, *engine, worker, limits, &views[threadIdx.x / warp_size]);
}

__global__ void read_clock_kernel(u64* now_ns) {
  *now_ns = now_monotonic_ns();
}

}  // namespace

u64 service_memory_layout() {
  return engine_memory_layout();
}

u32 service_workers_per_block() {
  return warps_per_block;
}

cudaError_t prepare_service() {
  return cudaFuncSetAttribute(service_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, views_bytes);
}

cudaError_t launch_service(Engine* engine, const ServiceLimits& limits, u32 block_count, cudaStream_t stream) {
  service_kernel<<<block_count, threads_per_block, views_bytes, stream>>>(engine, limits);
  return cudaGetLastError();
}

cudaError_t arm_fault_record(FaultRecord* record) {
  return set_fault_record(record);
}

u64 read_device_clock_ns() {
  u64* clock = nullptr;
  require_cuda(cudaHostAlloc(&clock, sizeof(u64), cudaHostAllocMapped), "pinned host memory");
  read_clock_kernel<<<1, 1>>>(clock);
  const cudaError_t error = cudaDeviceSynchronize();
  const u64 now_ns = *clock;
  cudaFreeHost(clock);
  require_cuda(error, "reading the GPU's clock");
  return now_ns;
}

ServiceResources service_resources() {
  cudaFuncAttributes attributes{};
  require_cuda(cudaFuncGetAttributes(&attributes, service_kernel), "the service kernel");
  return {static_cast<u32>(attributes.numRegs), static_cast<u64>(attributes.localSizeBytes)};
}

}  // namespace gpu4fs::engine
