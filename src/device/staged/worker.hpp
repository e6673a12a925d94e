// The number of the worker that runs this code: a thread of the CPU engine, with all ranks of an emulated warp that it
// runs, or a warp of the service kernel.
#pragma once

#include "base/atomics.hpp"
#include "base/config.hpp"
#include "base/limits.hpp"
#include "base/types.hpp"
#include "device/staged/staged_types.hpp"

namespace gpu4fs::device {

#if !GPU4FS_DEVICE_CODE
namespace detail {
inline constexpr u32 no_worker = ~u32{0};
inline thread_local u32 worker_of_thread = no_worker;
}  // namespace detail

// The calling thread is this worker while the guard exists. A thread without a guard must not use staged devices.
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

#if !GPU4FS_DEVICE_CODE
// A step of the calling thread, which is this worker. Waits while as many others are in a step as there is room for
// pins. Without staged devices it does nothing.
class StagedStep {
 public:
  StagedStep(StagedDevices* staged, u32 worker) : staged_(staged), guard_(worker) {
    if (staged_ == nullptr) return;
    u32 seen = load<Order::relaxed, Scope::engine>(&staged_->holders);
    for (;;) {
      if (seen < staged_->holder_max) {
        if (compare_exchange<Order::acquire, Scope::engine>(&staged_->holders, seen, seen + 1)) return;
      } else {
        backoff(1000);
        seen = load<Order::relaxed, Scope::engine>(&staged_->holders);
      }
    }
  }
  StagedStep(const StagedStep&) = delete;
  StagedStep& operator=(const StagedStep&) = delete;
  ~StagedStep() {
    if (staged_ != nullptr) fetch_sub<Order::release, Scope::engine>(&staged_->holders, 1u);
  }

 private:
  StagedDevices* staged_;
  WorkerGuard guard_;
};
#endif

namespace detail {
inline u32 worker_without_guard = ~u32{0};
}  // namespace detail

// Threads without a guard of their own are worker 0 while this exists: for programs in which one of them works at a
// time.
class SingleWorkerGuard {
 public:
  SingleWorkerGuard() : before_(detail::worker_without_guard) { detail::worker_without_guard = 0; }
  SingleWorkerGuard(const SingleWorkerGuard&) = delete;
  SingleWorkerGuard& operator=(const SingleWorkerGuard&) = delete;
  ~SingleWorkerGuard() { detail::worker_without_guard = before_; }

 private:
  u32 before_;
};

GPU4FS_FN inline u32 this_worker() {
#if GPU4FS_DEVICE_CODE
  // As in engine/service_cuda.cu.
  return threadIdx.x / warp_size * gridDim.x + blockIdx.x;
#else
  return detail::worker_of_thread != detail::no_worker ? detail::worker_of_thread : detail::worker_without_guard;
#endif
}

}  // namespace gpu4fs::device
