// The functions of the engine for handlers: locks, gate, epochs, upcalls, session memory. All functions here are
// uniform: every rank calls them with equal arguments.
//
// GPU4FS_STEP_TRY ends the step with a status other than ok. If that is one of is_wait(), the command is in the list of
// what it waits for, and its step runs again from the top later.
#pragma once

#include "base/group.hpp"
#include "engine/clock.hpp"
#include "engine/command_locks.hpp"
#include "engine/engine_types.hpp"
#include "engine/epochs.hpp"
#include "engine/gate.hpp"
#include "engine/session_memory.hpp"
#include "engine/upcalls.hpp"

namespace gpu4fs::engine {

using ring::UpcallKind;

// ok or waits_for_lock. It is ok if the command already holds the lock. An exclusive lock satisfies a shared request. A
// request for exclusive while holding shared is a check failure. Ref has `number` and `lock` (fs::InodeRef). Inodes 0,
// 2 and 3 have no lock.
template <class Group, class Ref>
GPU4FS_FN GPU4FS_NOINLINE Status lock_inode(Group g, Engine& engine, CommandState& c, const Ref& ref, LockMode mode) {
  return on_leader(g, [&] { return acquire_command_lock(engine, c, ref.lock, ref.number, mode); });
}

// The lock that directory renames hold. It is taken before all other locks.
template <class Group>
GPU4FS_FN Status lock_rename(Group g, Engine& engine, CommandState& c) {
  return on_leader(
      g, [&] { return acquire_command_lock(engine, c, &engine.rename_lock, lock_inode_rename, LockMode::exclusive); });
}

// Releases a lock early. Only before enter_gate(), and never between a waiting result and the return.
template <class Group>
GPU4FS_FN void unlock_inode(Group g, Engine& engine, CommandState& c, u64 inode) {
  on_leader(g, [&] {
    GPU4FS_CHECK_EQ(c.in_gate, 0u);
    release_command_lock(engine, c, inode);
  });
}

// ok: the command is inside the commit gate until its step ends (or leave_gate). waits_for_gate: a checkpoint has
// closed the gate. When the step runs again, frames found before are not valid.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status enter_gate(Group g, Engine& engine, CommandState& c) {
  return on_leader(g, [&] {
    if (c.in_gate != 0) return Status::ok;
    const Status status = enter_or_park(engine, engine.commit_gate, c);
    if (status == Status::ok) c.in_gate = 1;
    return status;
  });
}

// Leaves the gate early, for handlers that commit in several rounds. Otherwise the engine leaves at the end of the
// step.
template <class Group>
GPU4FS_FN void leave_gate(Group g, Engine& engine, CommandState& c) {
  on_leader(g, [&] {
    GPU4FS_CHECK_EQ(c.in_gate, 1u);
    c.in_gate = 0;
    leave(engine, engine.commit_gate);
  });
}

// Checkpoint: closes the commit gate. ok: no commit is running, and none starts. Others: those of close_or_park().
template <class Group>
GPU4FS_FN Status close_gate(Group g, Engine& engine, CommandState& c) {
  return on_leader(g, [&] {
    GPU4FS_CHECK_EQ(c.in_gate, 0u);
    return close_or_park(engine.commit_gate, c);
  });
}
template <class Group>
GPU4FS_FN void open_gate(Group g, Engine& engine, CommandState& c) {
  on_leader(g, [&] { open(engine, engine.commit_gate, c); });
}

// Whether a service kernel's workers have to leave. The next kernel does the remaining work. Leader only.
GPU4FS_FN inline bool exit_is_requested(const Engine& engine) {
  const u32 requested = load<Order::relaxed, Scope::system>(&engine.service.exit_requested);
  GPU4FS_CHECK_NE(requested, service_fault_requested);
  return requested != 0;
}

// Waits until no other step or task runs and starts none. The caller's own steps and tasks still run. Status as
// for close_gate. The whole engine is stopped meanwhile, so the time must be short.
template <class Group>
GPU4FS_FN Status stop_steps(Group g, Engine& engine, CommandState& c) {
  return on_leader(g, [&] {
    const Status status = [&] {
      // The caller's step is inside. It leaves first, so an empty gate means that nobody else is inside.
      if (c.in_step_gate != 0) {
        engine.step_gate.guard.lock();
        const u32 owner = load<Order::relaxed, Scope::engine>(&engine.step_gate.owner);
        const bool free = owner == no_command || owner == c.index;
        if (free) {
          store<Order::relaxed, Scope::engine>(&engine.step_gate.owner, c.index);
          fetch_or<Order::acq_rel, Scope::engine>(&engine.step_gate.word, gate_closed);
        }
        engine.step_gate.guard.unlock();
        if (!free) return Status::again;
        c.in_step_gate = 0;
        leave(engine, engine.step_gate);
      }
      return close_or_park(engine.step_gate, c);
    }();
    return status;
  });
}
template <class Group>
GPU4FS_FN void resume_steps(Group g, Engine& engine, CommandState& c) {
  on_leader(g, [&] {
    open(engine, engine.step_gate, c);
    release_held_back(engine);
  });
}

// ok: `epoch` is durable. waits_for_epoch: the command restarts when the epoch is durable or when the next checkpoint
// has ended (then the step calls again). Other: the checkpoint failed with this status.
template <class Group>
GPU4FS_FN Status await_epoch(Group g, Engine& engine, CommandState& c, u64 epoch) {
  return on_leader(g, [&] { return wait_for_epoch(engine, c, epoch); });
}

// Checkpoint: `epoch` is durable. Restarts the commands that wait for it.
template <class Group>
GPU4FS_FN void publish_durable(Group g, Engine& engine, u64 epoch) {
  on_leader(g, [&] { publish_durable_epoch(engine, epoch); });
}

// Sends a request to the server, and returns waits_for_answer. The caller advances c.stage first. After the restart the
// step takes the answer (take_answer).
template <class Group>
GPU4FS_FN Status upcall(Group g, Engine& engine, CommandState& c, UpcallKind kind, u64 argument) {
  return on_leader(g, [&] { return post_upcall(engine, c, kind, argument); });
}

// In a task: the command fails with the first such status after all tasks have ended. Uniform.
template <class Group>
GPU4FS_FN void fail_task(Group g, CommandState& c, Status status) {
  on_leader(g, [&] {
    GPU4FS_CHECK(status != Status::ok);
    u32 expected = static_cast<u32>(Status::ok);
    compare_exchange<Order::relaxed, Scope::engine>(&c.tasks.status, expected, static_cast<u32>(status));
  });
}

// After a fan_out, in the step: the first failure of its tasks, or ok.
template <class Group>
GPU4FS_FN Status task_result(Group g, const CommandState& c) {
  return on_leader(g, [&] { return static_cast<Status>(load<Order::acquire, Scope::engine>(&c.tasks.status)); });
}

}  // namespace gpu4fs::engine
