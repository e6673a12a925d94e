// Gates. The engine has two:
//   commit gate  a command is inside from enter_gate() to the end of its step. While it is closed, no commit is half
//                done, as a snapshot requires.
//   step gate    every step and every task runs inside. While it is closed, only the closer's own steps and tasks
//                run, as the eviction of pages requires.
// If the gate is open, entering is one fetch_add, and returns the gate's era. Nobody waits inside a gate, so a closed
// gate drains within one step of every worker. Commands that find the commit gate closed park in FIFO order. Work that
// finds the step gate closed is held back by the worker (worker.hpp). All functions run on one rank.
#pragma once

#include "base/atomics.hpp"
#include "base/check.hpp"
#include "base/mutant.hpp"
#include "engine/wait_list.hpp"

namespace gpu4fs::engine {

inline constexpr u64 gate_closed = u64{1} << 31;
inline constexpr u64 gate_era = u64{1} << 32;

// The word without the era.
GPU4FS_FN constexpr u64 gate_state(u64 word) {
  return word & (gate_era - 1);
}

// The last one to leave a closed gate restarts the closer.
GPU4FS_FN GPU4FS_NOINLINE inline void leave(Engine& engine, Gate& gate) {
  const u64 before = gate_state(fetch_sub<Order::release, Scope::engine>(&gate.word, u64{1}));
  GPU4FS_CHECK_NE(before & ~gate_closed, u64{0});
  if (before != (gate_closed | 1)) return;
  gate.guard.lock();
  u32 closer = no_command;
  // Another worker may have entered and left, or the closer may have seen the empty gate itself.
  if (gate_state(load<Order::acquire, Scope::engine>(&gate.word)) == gate_closed) {
    closer = gate.closer;
    gate.closer = no_command;
  }
  gate.guard.unlock();
  if (closer != no_command) wake_command(engine, closer);
}

struct Entered {
  bool is_inside;
  u64 era;  // valid if is_inside
};

GPU4FS_FN inline Entered try_enter_era(Engine& engine, Gate& gate) {
  const u64 before = fetch_add<Order::acquire, Scope::engine>(&gate.word, u64{1});
  if ((before & gate_closed) == 0) return {true, before / gate_era};
  leave(engine, gate);
  return {false, 0};
}

GPU4FS_FN inline bool try_enter(Engine& engine, Gate& gate) {
  return try_enter_era(engine, gate).is_inside;
}

GPU4FS_FN inline bool is_closed(const Gate& gate) {
  return (load<Order::relaxed, Scope::engine>(&gate.word) & gate_closed) != 0;
}

// ok: inside. waits_for_gate: it is closed, and the command is in its list.
GPU4FS_FN GPU4FS_NOINLINE inline Status enter_or_park(Engine& engine, Gate& gate, CommandState& c) {
  for (;;) {
    if (try_enter(engine, gate)) return Status::ok;
    gate.guard.lock();
    const bool closed = is_closed(gate);
    if (closed) {
      announce_wait(c, Status::waits_for_gate);
      append_waiter(engine, gate.queue_head, gate.queue_tail, c.index);
    }
    gate.guard.unlock();
    if (closed) return Status::waits_for_gate;
  }
}

// Closes the gate for command `c`. ok: it is closed and empty. waits_for_drain: it is closed; `c` is restarted when the
// last one has left, and calls again. again: another command has closed it.
GPU4FS_FN inline Status close_or_park(Gate& gate, CommandState& c) {
  gate.guard.lock();
  const u32 owner = load<Order::relaxed, Scope::engine>(&gate.owner);
  Status status = Status::ok;
  if (owner != no_command && owner != c.index) {
    status = Status::again;
  } else {
    store<Order::relaxed, Scope::engine>(&gate.owner, c.index);
    const u64 before = gate_state(fetch_or<Order::acq_rel, Scope::engine>(&gate.word, gate_closed));
    if (GPU4FS_MUTANT(gate_not_drained, (before & ~gate_closed) != 0, false)) {
      gate.closer = c.index;
      status = Status::waits_for_drain;
      // A worker that leaves later sees the closed gate, and takes the guard to look for the closer.
      if (gate_state(load<Order::acquire, Scope::engine>(&gate.word)) == gate_closed) {
        gate.closer = no_command;
        status = Status::ok;
      }
    }
  }
  if (status == Status::waits_for_drain) announce_wait(c, status);
  gate.guard.unlock();
  return status;
}

// Opens the gate and restarts the commands that wait for it.
GPU4FS_FN inline void open(Engine& engine, Gate& gate, CommandState& c) {
  gate.guard.lock();
  GPU4FS_CHECK_EQ((load<Order::relaxed, Scope::engine>(&gate.owner)), c.index);
  store<Order::relaxed, Scope::engine>(&gate.owner, u32{no_command});
  gate.closer = no_command;
  fetch_add<Order::acq_rel, Scope::engine>(&gate.word, gate_era - gate_closed);
  const u32 waiting = gate.queue_head;
  gate.queue_head = no_command;
  gate.queue_tail = no_command;
  gate.guard.unlock();
  wake_list(engine, waiting);
}

GPU4FS_FN inline bool is_closed_by(const Gate& gate, const CommandState& c) {
  return load<Order::relaxed, Scope::engine>(&gate.owner) == c.index;
}

// Keeps items while the step gate is closed. True: kept. False: the gate has opened meanwhile.
GPU4FS_FN inline bool hold_back(Engine& engine, u32 item) {
  engine.held_back_lock.lock();
  const bool closed = is_closed(engine.step_gate);
  if (closed) {
    GPU4FS_CHECK_LT(engine.held_back_count, engine.run_queue.capacity);
    engine.held_back[engine.held_back_count++] = item;
  }
  engine.held_back_lock.unlock();
  return closed;
}

GPU4FS_FN inline void release_held_back(Engine& engine) {
  engine.held_back_lock.lock();
  const u32 count = engine.held_back_count;
  for (u32 i = 0; i < count; ++i) engine.run_queue.push(engine.held_back[i]);
  engine.held_back_count = 0;
  engine.held_back_lock.unlock();
  // Commands on the help board need workers as well, whether held back or not.
  bool wants_help = count != 0;
  for (u32 i = 0; i < help_board_size; ++i) {
    wants_help |= load<Order::relaxed, Scope::engine>(&engine.help_board.entries[i]) != 0;
  }
  if (wants_help) wake_workers(engine, maximum(count, engine.config.worker_count));
}

}  // namespace gpu4fs::engine
