// Lists of waiting commands, linked through CommandState::wait_next, and their return to the run queue.
//
// A command that has to wait appends itself to a list while its step is still running. So it may be woken before the
// step has returned. `phase` resolves this race. If a running command is woken, it becomes `woken`, and the worker runs
// it again and does not park it. If a parked command is woken, it is queued. Whoever removes a command from a list
// (under the list's guard) has to wake it.
#pragma once

#include "base/atomics.hpp"
#include "base/check.hpp"
#include "base/mutant.hpp"
#include "engine/engine_types.hpp"
#include "engine/wake.hpp"

namespace gpu4fs::engine {

// Run queue items: the index of a command to run. With this bit set: a command whose tasks were held back.
inline constexpr u32 item_tasks = 1u << 31;

GPU4FS_FN inline CommandPhase phase_of(const CommandState& c) {
  return static_cast<CommandPhase>(load<Order::acquire, Scope::engine>(&c.phase));
}
GPU4FS_FN inline void set_phase(CommandState& c, CommandPhase phase) {
  store<Order::release, Scope::engine>(&c.phase, static_cast<u32>(phase));
}

// Appends the command, which nobody else uses, to the run queue.
GPU4FS_FN GPU4FS_NOINLINE inline void enqueue_command(Engine& engine, u32 index) {
  GPU4FS_CHECK_LT(index, engine.config.command_count);
  set_phase(engine.commands[index], CommandPhase::queued);
  engine.run_queue.push(index);
  wake_workers(engine, 1);
}

// Restarts a command that was taken off a list.
GPU4FS_FN GPU4FS_NOINLINE inline void wake_command(Engine& engine, u32 index) {
  GPU4FS_CHECK_LT(index, engine.config.command_count);
  CommandState& c = engine.commands[index];
  u32 seen = load<Order::relaxed, Scope::engine>(&c.phase);
  for (;;) {
    if (seen == static_cast<u32>(CommandPhase::parked)) {
      if (!compare_exchange<Order::acq_rel, Scope::engine>(&c.phase, seen, static_cast<u32>(CommandPhase::queued))) {
        continue;
      }
      engine.run_queue.push(index);
      wake_workers(engine, 1);
      return;
    }
    GPU4FS_CHECK_EQ(seen, static_cast<u32>(CommandPhase::running));
    if (compare_exchange<Order::acq_rel, Scope::engine>(&c.phase, seen, static_cast<u32>(CommandPhase::woken))) {
      return;
    }
  }
}

// The caller goes on with a parked command, which nobody else can wake any more, in place of wake_command(). False: its
// worker has not parked it yet.
GPU4FS_FN inline bool take_parked(CommandState& c) {
  u32 expected = static_cast<u32>(CommandPhase::parked);
  return compare_exchange<Order::acq_rel, Scope::engine>(&c.phase, expected, static_cast<u32>(CommandPhase::running));
}

// A step returned that it waits. True: parked. False: woken meanwhile, so it has to run again.
GPU4FS_FN inline bool park_command(CommandState& c) {
  u32 expected = static_cast<u32>(CommandPhase::running);
  if (compare_exchange<Order::acq_rel, Scope::engine>(&c.phase, expected, static_cast<u32>(CommandPhase::parked))) {
    return true;
  }
  GPU4FS_CHECK_EQ(expected, static_cast<u32>(CommandPhase::woken));
  set_phase(c, CommandPhase::running);
  return false;
}

// The step says for what the command waits, before it appends the command to that list. It has to end with this status.
// ok: it does not wait after all.
GPU4FS_FN inline void announce_wait(CommandState& c, Status status) {
  store<Order::relaxed, Scope::engine>(&c.waits_for, static_cast<u32>(status));
}

// The list functions are called under the list's guard. An empty list has head no_command.
GPU4FS_FN inline void append_waiter(Engine& engine, u32& head, u32& tail, u32 index) {
  engine.commands[index].wait_next = no_command;
  if (head == no_command) {
    head = index;
  } else {
    engine.commands[tail].wait_next = index;
  }
  tail = index;
}

GPU4FS_FN inline bool remove_waiter(Engine& engine, u32& head, u32& tail, u32 index) {
  u32 previous = no_command;
  u32 steps = 0;
  for (u32 at = head; at != no_command; at = engine.commands[at].wait_next) {
    GPU4FS_CHECK_LT(steps++, engine.config.command_count);
    if (at != index) {
      previous = at;
      continue;
    }
    const u32 next = engine.commands[at].wait_next;
    if (previous == no_command) {
      head = next;
    } else {
      engine.commands[previous].wait_next = next;
    }
    if (tail == at) tail = previous;
    return true;
  }
  return false;
}

// Under the list's guard, or with the right to wake the command: a slot that was reused in between has a new deadline.
GPU4FS_FN inline bool is_past_deadline(const CommandState& c, u64 now_ns) {
  const u64 deadline_ns = load<Order::relaxed, Scope::engine>(&c.deadline_ns);
  return GPU4FS_MUTANT(deadline_ignored, deadline_ns != 0, false) && now_ns > deadline_ns;
}

// Wakes a list that was detached from its queue, from `head` on.
GPU4FS_FN GPU4FS_NOINLINE inline void wake_list(Engine& engine, u32 head) {
  while (head != no_command) {
    // Read before the wake-up, because afterwards the command may wait elsewhere.
    const u32 next = engine.commands[head].wait_next;
    wake_command(engine, head);
    head = next;
  }
}

}  // namespace gpu4fs::engine
