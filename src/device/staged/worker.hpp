// The number of the worker that runs this code: a thread of the CPU engine, with all ranks of an emulated warp that it
// runs, or a warp of the service kernel.
#pragma once

#include "base/atomics.hpp"
#include "base/config.hpp"
#include "base/futex.hpp"
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
// A step of the calling thread, which is this worker. Sleeps while as many others are in a step as there is room for
// pins, until gives_up() is true; then there is no step. Without staged devices it always begins at once.
class StagedStep {
 public:
  template <class GivesUp>
  StagedStep(StagedDevices* staged, u32 worker, GivesUp&& gives_up) : staged_(staged), guard_(worker) {
    has_begun_ = staged_ == nullptr || try_begin() || wait_for_room(gives_up);
  }
  StagedStep(const StagedStep&) = delete;
  StagedStep& operator=(const StagedStep&) = delete;
  ~StagedStep() {
    if (staged_ == nullptr || !has_begun_) return;
    fetch_sub<Order::seq_cst, Scope::engine>(&staged_->holders, 1u);
    // Either this sees who waits, or he sees that there is room.
    if (load<Order::seq_cst, Scope::engine>(&staged_->holders_waiting) != 0) futex_wake(&staged_->holders, 1);
  }

  bool has_begun() const { return has_begun_; }

 private:
  // Who waits for something else as well looks at it at least this often.
  static constexpr u64 longest_sleep_ns = 1000000;

  bool try_begin() {
    u32 seen = load<Order::relaxed, Scope::engine>(&staged_->holders);
    while (seen < staged_->holder_max) {
      if (compare_exchange<Order::acquire, Scope::engine>(&staged_->holders, seen, seen + 1)) return true;
    }
    return false;
  }
  template <class GivesUp>
  bool wait_for_room(GivesUp&& gives_up) {
    fetch_add<Order::seq_cst, Scope::engine>(&staged_->holders_waiting, 1u);
    bool has_room = false;
    while (!gives_up() && !(has_room = try_begin())) {
      futex_wait(&staged_->holders, staged_->holder_max, longest_sleep_ns);
    }
    fetch_sub<Order::relaxed, Scope::engine>(&staged_->holders_waiting, 1u);
    return has_room;
  }

  StagedDevices* staged_;
  WorkerGuard guard_;
  bool has_begun_;
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
