// The lanes of the part `cache` as lanes of a GPU's warps, each of them a group of its own.
#include "bench/nvme_cache_kernels.hpp"

namespace gpu4fs::bench {

namespace {

constexpr u32 threads = 128;

// The load stays where the parameters are: lanes look at its members all the time, in functions of their own.
__global__ void __launch_bounds__(threads) cache_kernel(const __grid_constant__ CacheLoad load) {
  const u32 lane = blockIdx.x * threads + threadIdx.x;
  if (lane < load.io.lane_count) run_cache(load, lane);
}
__global__ void cache_check_kernel(const __grid_constant__ CacheLoad load) {
  check_cache(Warp{}, load);
}

}  // namespace

cudaError_t load_cache_kernels() {
  cudaFuncAttributes attributes{};
  const cudaError_t error = cudaFuncGetAttributes(&attributes, cache_kernel);
  return error != cudaSuccess ? error : cudaFuncGetAttributes(&attributes, cache_check_kernel);
}

cudaError_t launch_cache(const CacheLoad& load, cudaStream_t stream) {
  cache_kernel<<<(load.io.lane_count + threads - 1) / threads, threads, 0, stream>>>(load);
  return cudaGetLastError();
}

cudaError_t launch_cache_check(const CacheLoad& load, cudaStream_t stream) {
  cache_check_kernel<<<1, warp_size, 0, stream>>>(load);
  return cudaGetLastError();
}

}  // namespace gpu4fs::bench
