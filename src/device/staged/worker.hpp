// The number of the worker that runs this code: a thread of the CPU engine, with all ranks of an emulated warp that it
// runs, or a warp of the service kernel.
#pragma once

#include "base/config.hpp"
#include "base/limits.hpp"
#include "base/types.hpp"

namespace gpu4fs::device {

#if !GPU4FS_DEVICE_CODE
namespace detail {
inline thread_local u32 worker_of_thread = 0;
}  // namespace detail

// The calling thread is this worker while the guard exists. Threads without a guard are worker 0.
class WorkerGuard {
 public:
  explicit WorkerGuard(u32 worker) : before_(detail::worker_of_thread) { detail::worker_of_thread = worker; }
  WorkerGuard(const WorkerGuard&) = delete;
  WorkerGuard& operator=(const WorkerGuard&) = delete;
  ~WorkerGuard() { detail::worker_of_thread = before_; }

 private:
  u32 before_;
};
#endif

GPU4FS_FN inline u32 this_worker() {
#if GPU4FS_DEVICE_CODE
  // As in engine/service_cuda.cu.
  return threadIdx.x / warp_size * gridDim.x + blockIdx.x;
#else
  return detail::worker_of_thread;
#endif
}

}  // namespace gpu4fs::device
