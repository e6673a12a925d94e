// A worker: one group that executes work. A CPU thread or a warp calls worker_step() in a loop.
//
// Work is an item of the run queue (a command to continue), a task of a command on the help board, or a command in a
// ring. Workers look at the run queue first, because commands that have begun should end. Every fourth time they look
// at the rings first, because new commands must be seen while large transfers run.
#pragma once

#include "base/group.hpp"
#include "engine/deadline.hpp"
#include "engine/device_poll.hpp"
#include "engine/engine.hpp"
#include "engine/execute.hpp"
#include "engine/poll.hpp"

namespace gpu4fs::engine {

namespace detail {

template <class Group>
GPU4FS_FN bool step_from_rings(Group g, Engine& engine, WorkerState& worker) {
  bool found = false;
  const u32 index = poll_rings(g, engine, worker, &found);
  if (index != no_command) run_command(g, engine, worker, Decision{Next::step, Status::ok, index, 0});
  return found;
}

struct PoppedItem {
  bool found;
  u32 item;
};

template <class Group>
GPU4FS_FN bool step_from_queue(Group g, Engine& engine, WorkerState& worker) {
  const PoppedItem popped = on_leader(g, [&] {
    PoppedItem result{false, 0};
    result.found = engine.run_queue.pop(&result.item);
    return result;
  });
  if (popped.found) run_item(g, engine, worker, popped.item);
  return popped.found;
}

// Runs tasks of another command, and the rest of that command if its last task was among them.
template <class Group>
GPU4FS_FN bool step_from_board(Group g, Engine& engine, WorkerState& worker) {
  // Few commands at a time: each is a stream of host memory, and many concurrent streams cost bandwidth.
  constexpr u32 streams = 4;
  const Help help = help_somebody(g, engine, worker.index % streams * (help_board_size / streams));
  if (help.end == HelpEnd::nothing_left) return false;
  worker.ran_tasks = 1;
  if (help.end == HelpEnd::was_last) {
    run_command(g, engine, worker, Decision{Next::step, Status::ok, help.command, 0});
  }
  return true;
}

// A thread of the host takes several completions, and goes on itself with the commands whose pages it has now.
template <class Group>
GPU4FS_FN bool step_from_completions(Group g, Engine& engine, WorkerState& worker) {
  if constexpr (Group::size() == 1) {
    LoadedCommands loaded{0, {}};
    u32 taken = 0;
    while (taken < loaded_command_max && step_from_devices(g, engine, &loaded)) ++taken;
    if (loaded.count != 0) continue_loaded(g, engine, worker, loaded);
    return taken != 0;
  } else {
    return step_from_devices(g, engine);
  }
}

// For a worker of a service kernel that looks at rings. Other workers serve the run queue.
template <class Group>
GPU4FS_FN bool poller_step(Group g, Engine& engine, WorkerState& worker) {
  if (step_from_rings(g, engine, worker)) return true;
  if (worker.held_session != session_max && worker.turn % 16 != 0) return false;
  return step_from_queue(g, engine, worker) || step_from_board(g, engine, worker);
}

// After serve_quiet_ring(): takes what it has left, and looks for other work, as poller_step().
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE bool end_quiet_step(Group g, Engine& engine, WorkerState& worker, QuietEnd end,
                                              ring::FetchedDescriptors& seen) {
  bool found = end.answered != 0;
  Taken taken{no_command, 0, 0, 0};
  if (end.found != 0) {
    ring::judge_units<1>(g, end.found, seen);
    ring::stage_units(g, seen, end.found, engine.worker_memory[worker.index].staging);
    // A single command was tried already.
    if (end.found == 1) seen.unlocked = 0;
    taken = take_fetched(g, engine, worker, seen, quiet_fetch);
    found |= taken.consumed != 0;
  }
  const u32 index = end_look(g, engine, worker, taken);
  if (index != no_command) run_command(g, engine, worker, Decision{Next::step, Status::ok, index, 0});
  return step_from_queue(g, engine, worker) || step_from_board(g, engine, worker) || found;
}

}  // namespace detail

// Whether the worker has a ring that showed at most one command. Then quiet_step() can be its next step. A worker that
// does not keep tokens has no ring between its steps.
GPU4FS_FN inline bool has_quiet_ring(const WorkerState& worker) {
  return worker.keeps_token != 0 && worker.held_session != session_max && worker.ring_is_quiet != 0;
}

// Several looks at the worker's quiet ring, and one at other work, as worker_step(). For a warp. Collective.
template <class Group>
GPU4FS_FN bool quiet_step(Group g, Engine& engine, WorkerState& worker) {
  ++worker.turn;
  worker.ran_tasks = 0;
  ring::FetchedDescriptors seen;
  const detail::QuietEnd end = detail::serve_quiet_ring(g, engine, worker, &seen);
  return detail::end_quiet_step(g, engine, worker, end, seen);
}

// Looks for one piece of work and executes it. True if there was some. Collective.
template <class Group>
GPU4FS_FN bool worker_step(Group g, Engine& engine, WorkerState& worker) {
  ++worker.turn;
  worker.ran_tasks = 0;
  if (detail::step_from_completions(g, engine, worker)) return true;
  if (worker.keeps_token != 0 && worker.polls_rings != 0) return detail::poller_step(g, engine, worker);
  const bool rings_first = worker.rings_first != 0 || worker.turn % 4 == 0;
  if (rings_first && detail::step_from_rings(g, engine, worker)) return true;
  if (detail::step_from_queue(g, engine, worker)) return true;
  if (detail::step_from_board(g, engine, worker)) return true;
  if (!rings_first && detail::step_from_rings(g, engine, worker)) return true;
  return false;
}

// The step of a worker that keeps tokens: of a warp in a service kernel. True if there was some work. Collective.
template <class Group>
GPU4FS_FN bool kernel_step(Group g, Engine& engine, WorkerState& worker) {
  return has_quiet_ring(worker) ? quiet_step(g, engine, worker) : worker_step(g, engine, worker);
}

// Does the deadline sweep if it is due. Idle workers call it from time to time, and before sleeping. Collective.
template <class Group>
GPU4FS_FN void worker_sweep(Group g, Engine& engine) {
  const u64 now_ns = on_leader(g, [&] {
    const u64 now = now_monotonic_ns();
    return claim_sweep(engine, now) ? now : u64{0};
  });
  if (now_ns != 0) sweep_deadlines(g, engine, now_ns);
}

// Returns the token and the slots that this worker keeps between steps. Collective.
template <class Group>
GPU4FS_FN void worker_release(Group g, Engine& engine, WorkerState& worker) {
  on_leader(g, [&] {
    if (worker.held_session != session_max) {
      detail::pass_token(engine.sessions[worker.held_session], worker.held_position);
    }
    WorkerMemory& memory = engine.worker_memory[worker.index];
    while (memory.cached_slot_count != 0) engine.free_commands.push(memory.cached_slots[--memory.cached_slot_count]);
  });
  worker.held_session = session_max;
}

// These three functions instantiate the whole engine. A translation unit that calls them on a CPU thread uses the copy
// in engine_cpu.cpp and does not compile its own.
#if !GPU4FS_CUDA_COMPILER
extern template bool worker_step(Lane g, Engine& engine, WorkerState& worker);
extern template void worker_sweep(Lane g, Engine& engine);
extern template void worker_release(Lane g, Engine& engine, WorkerState& worker);
#endif

}  // namespace gpu4fs::engine
