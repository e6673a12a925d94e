// Deadlines. Every sweep_interval_ms, the first worker that finds the sweep due checks all commands. A command parked
// past its deadline is removed from its queue, marked and restarted, and ends with deadline_exceeded. Commands that
// wait at a closed gate are skipped, because the gate opens again without waiting for any device.
#pragma once

#include "engine/command_life.hpp"
#include "engine/device_poll.hpp"

namespace gpu4fs::engine {

namespace detail {

GPU4FS_FN inline bool is_overdue(const CommandState& c, u64 now_ns) {
  return phase_of(c) == CommandPhase::parked && is_past_deadline(c, now_ns);
}

// Removes the command from its queue. False if another worker was about to wake it.
GPU4FS_FN inline bool cancel_wait(Engine& engine, u32 index, u64 now_ns) {
  CommandState& c = engine.commands[index];
  switch (static_cast<Status>(load<Order::acquire, Scope::engine>(&c.waits_for))) {
    case Status::waits_for_lock: {
      CommandLock* lock = load<Order::relaxed, Scope::engine>(&c.wait_lock);
      return lock != nullptr && cancel_lock_wait(engine, *lock, index, now_ns);
    }
    case Status::waits_for_epoch:
      return cancel_epoch_wait(engine, index, now_ns);
    case Status::waits_for_answer:
      return cancel_upcall_wait(engine, index, now_ns);
    case Status::waits_for_log:
      return cancel_log_wait(engine, index, now_ns);
    case Status::waits_for_media:
      return cancel_media_wait(engine, index, now_ns);
    default:
      return false;
  }
}

GPU4FS_FN inline void end_overdue(Engine& engine, u32 index, u64 now_ns) {
  if (!cancel_wait(engine, index, now_ns)) return;
  CommandState& c = engine.commands[index];
  store<Order::release, Scope::engine>(&c.cancel_status, static_cast<u32>(Status::deadline_exceeded));
  add<Scope::engine>(&engine.counters.deadlines_exceeded, u64{1});
  wake_command(engine, index);
}

}  // namespace detail

// Collective. All ranks check, the leader acts.
template <class Group>
GPU4FS_FN void sweep_deadlines(Group g, Engine& engine, u64 now_ns) {
  const u32 count = engine.config.command_count;
  for (u32 base = 0; base < count; base += Group::size()) {
    const u32 index = base + g.rank();
    u32 overdue = g.ballot(index < count && detail::is_overdue(engine.commands[index], now_ns));
    while (overdue != 0) {
      const u32 bit = count_trailing_zeros(overdue);
      overdue &= overdue - 1;
      on_leader(g, [&] { detail::end_overdue(engine, base + bit, now_ns); });
    }
  }
}

// True if the caller has to sweep. Leader only.
GPU4FS_FN inline bool claim_sweep(Engine& engine, u64 now_ns) {
  u64 due_ns = load<Order::relaxed, Scope::engine>(&engine.next_sweep_ns);
  if (now_ns < due_ns) return false;
  const u64 next_ns = now_ns + u64{engine.config.sweep_interval_ms} * 1000000u;
  return compare_exchange<Order::relaxed, Scope::engine>(&engine.next_sweep_ns, due_ns, next_ns);
}

}  // namespace gpu4fs::engine
