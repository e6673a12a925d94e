// The loop of a worker inside a service kernel.
//
// Workers leave when exit_requested is set. The host sets it to stop the engine or to change the memory that the kernel
// may access. Worker 0 sets it when there has been no work for some time or the kernel has run for its time slice. All
// state is in engine memory, so a kernel can end at any step boundary and the next one continues. The host looks for
// work once more after the end, so work that arrives while the workers leave is not lost.
#pragma once

#include "engine/worker.hpp"

namespace gpu4fs::engine {

enum class ServiceExit : u32 { none = 0, host = 1, idle = 2, time_slice = 3 };

struct ServiceLimits {
  u64 idle_exit_ns;
  u64 time_slice_ns;
  u32 poller_count;  // workers [0, poller_count) look at rings
  u32 sleep_max_ns;  // for workers that wait for the run queue
};

namespace detail {

// Called by worker 0 alone. Leader only.
GPU4FS_FN inline void decide_exit(Engine& engine, const ServiceLimits& limits, u64 start_ns, u64 now_ns) {
  ServiceExit reason = ServiceExit::none;
  if (now_ns - start_ns > limits.time_slice_ns) reason = ServiceExit::time_slice;
  const u64 last_ns = maximum(start_ns, load<Order::relaxed, Scope::engine>(&engine.service.last_work_ns));
  const bool quiet = now_ns > last_ns && now_ns - last_ns > limits.idle_exit_ns;
  if (quiet && load<Order::acquire, Scope::engine>(&engine.commands_active) == 0 &&
      load<Order::acquire, Scope::engine>(&engine.epochs.checkpoint_running) == 0) {
    reason = ServiceExit::idle;
  }
  if (reason == ServiceExit::none) return;
  engine.service.exit_reason = static_cast<u32>(reason);
  store<Order::release, Scope::system>(&engine.service.exit_requested, 1u);
}

}  // namespace detail

// `views`: for the worker's use, preferably in shared memory. The initial contents do not matter.
template <class Group>
GPU4FS_FN void service_loop(Group g, Engine& engine, u32 worker_index, const ServiceLimits& limits,
                            WorkerViews* views) {
  WorkerState worker = WorkerState::make(worker_index);
  worker.views = views;
  on_leader(g, [&] { *views = WorkerViews{}; });
  worker.polls_rings = worker_index < limits.poller_count ? 1 : 0;
  worker.keeps_token = 1;
  if (limits.poller_count >= session_max) worker.polls_per_token = polls_per_token_max;
  const u64 start_ns = on_leader(g, [&] { return now_monotonic_ns(); });
  u32 idle_turns = 0;
  GPU4FS_TRACE_RESET();
  for (u32 turn = 1;; ++turn) {
    // Then the turn has several looks at the ring.
    const bool is_long = has_quiet_ring(worker);
    const bool worked = kernel_step(g, engine, worker);
    if (worked && (idle_turns != 0 || turn % 16 == 0)) {
      on_leader(g, [&] { store<Order::relaxed, Scope::engine>(&engine.service.last_work_ns, now_monotonic_ns()); });
    }
    idle_turns = worked ? 0 : idle_turns + 1;
    // After tasks the checks below are not skipped: a task may take a millisecond, and workers that have left are idle
    // while the last ones continue.
    if (worked && turn % 16 != 0 && worker.ran_tasks == 0 && !is_long) continue;
    if (worker_index == 0 && (turn % 64 == 0 || is_long)) {
      worker_sweep(g, engine);
      on_leader(g, [&] { detail::decide_exit(engine, limits, start_ns, now_monotonic_ns()); });
    }
    // A poller's turn is short, and this check costs as much as a turn.
    const bool looks = worker.held_session == session_max || turn % 8 == 0 || worker.ran_tasks != 0 || is_long;
    if (looks && on_leader(g, [&] { return exit_is_requested(engine); })) break;
    if (worked) continue;
    // A poller with a ring is slowed by its look at the ring over the bus. The others back off.
    if (worker.held_session == session_max) backoff(minimum(32 + 16 * idle_turns, limits.sleep_max_ns));
  }
  worker_release(g, engine, worker);
}

}  // namespace gpu4fs::engine
