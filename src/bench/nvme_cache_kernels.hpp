// Kernels of the part `cache` of `gpu4fs bench nvme`. Private to the machine of a GPU.
#pragma once

#include <cuda_runtime.h>

#include "bench/nvme_cache.hpp"

namespace gpu4fs::bench {

// A kernel's code is loaded at its first use, which may wait for kernels that run.
cudaError_t load_cache_kernels();
// run_cache() of all lanes, whose number is a multiple of a warp's.
cudaError_t launch_cache(const CacheLoad& load, cudaStream_t stream);
// check_cache() of a warp.
cudaError_t launch_cache_check(const CacheLoad& load, cudaStream_t stream);

}  // namespace gpu4fs::bench
