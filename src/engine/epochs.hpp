// The wait for epochs and checkpoints, and the times at which checkpoints run.
//
// Checkpoints are numbered rounds. A waiter names the epoch that it needs durable and the round that has to end at the
// latest. That is the next round to start, because a running checkpoint may have missed the waiter's changes. A waiter
// is restarted when the first of the two has come, and checks again. Rounds run while a command wants one. The
// checkpoint is an ordinary handler (handlers/journal_ops.hpp) on a command slot of its own. It is started from here,
// never from a ring. If it fails, all waiters get its status. All functions run on one rank.
#pragma once

#include "base/atomics.hpp"
#include "base/check.hpp"
#include "engine/clock.hpp"
#include "engine/command_reset.hpp"
#include "engine/wait_list.hpp"
#include "engine/write_errors.hpp"

namespace gpu4fs::engine {

inline constexpr u64 any_epoch = ~u64{0};

GPU4FS_FN inline u64 durable_epoch(const Engine& engine) {
  return load<Order::acquire, Scope::engine>(&engine.fs.epoch_durable);
}

namespace detail {

GPU4FS_FN inline void start_checkpoint(Engine& engine, u32 mask) {
  CommandState& c = engine.commands[checkpoint_command];
  wire::Command command{};
  command.opcode = wire::Opcode::checkpoint;
  command.mask = mask;
  reset_slot(c, command, session_max);
  c.operation.now = now_stamp(engine);
  c.operation.emergency_use = space::EmergencyUse::all;
  enqueue_command(engine, checkpoint_command);
}

struct CheckpointStart {
  bool start;
  u32 mask;
};

// Under the guard: returns whether the caller has to start a checkpoint after it has released the guard.
GPU4FS_FN inline CheckpointStart claim_checkpoint(Engine& engine) {
  EpochQueue& epochs = engine.epochs;
  if (epochs.checkpoint_running != 0 || epochs.round_wanted <= epochs.round_ended) return {false, 0};
  store<Order::release, Scope::engine>(&epochs.checkpoint_running, 1u);
  const u32 mask = epochs.mask_wanted;
  epochs.mask_wanted = 0;
  return {true, mask};
}

// Under the guard: the first round that covers the current state of memory.
GPU4FS_FN inline u64 want_round(Engine& engine) {
  EpochQueue& epochs = engine.epochs;
  const u64 round = epochs.round_ended + 1 + epochs.checkpoint_running;
  if (epochs.round_wanted < round) epochs.round_wanted = round;
  return round;
}

// Under the guard: detaches all waiters whose epoch or round has come, in order.
GPU4FS_FN inline u32 detach_waiters(Engine& engine, u64 epoch, u64 round, Status status) {
  EpochQueue& epochs = engine.epochs;
  u32 detached_head = no_command;
  u32 detached_tail = no_command;
  u32 kept_head = no_command;
  u32 kept_tail = no_command;
  for (u32 at = epochs.head; at != no_command;) {
    CommandState& c = engine.commands[at];
    const u32 next = c.wait_next;
    if (c.wait_epoch <= epoch || c.wait_round <= round) {
      c.wait_status = static_cast<u32>(status);
      append_waiter(engine, detached_head, detached_tail, at);
    } else {
      append_waiter(engine, kept_head, kept_tail, at);
    }
    at = next;
  }
  epochs.head = kept_head;
  epochs.tail = kept_tail;
  return detached_head;
}

}  // namespace detail

// Requests a checkpoint without waiting. `mask` is or-ed into its Command::mask.
GPU4FS_FN inline void request_checkpoint(Engine& engine, u32 mask) {
  EpochQueue& epochs = engine.epochs;
  epochs.guard.lock();
  detail::want_round(engine);
  epochs.mask_wanted |= mask;
  const detail::CheckpointStart claim = detail::claim_checkpoint(engine);
  epochs.guard.unlock();
  if (claim.start) detail::start_checkpoint(engine, claim.mask);
}

// ok: `epoch` is durable. waits_for_epoch: the command is restarted when the epoch is durable or when the checkpoint
// for it has ended, and calls again. Any other status: the error of the failed checkpoint, returned once.
GPU4FS_FN inline Status wait_for_epoch(Engine& engine, CommandState& c, u64 epoch, u32 mask = 0) {
  EpochQueue& epochs = engine.epochs;
  const Status failed = static_cast<Status>(c.wait_status);
  c.wait_status = static_cast<u32>(Status::ok);
  epochs.guard.lock();
  const bool durable = durable_epoch(engine) >= epoch;
  if (durable || failed != Status::ok) {
    epochs.guard.unlock();
    return durable ? Status::ok : failed;
  }
  c.wait_epoch = epoch;
  c.wait_round = detail::want_round(engine);
  epochs.mask_wanted |= mask;
  announce_wait(c, Status::waits_for_epoch);
  append_waiter(engine, epochs.head, epochs.tail, c.index);
  const detail::CheckpointStart claim = detail::claim_checkpoint(engine);
  epochs.guard.unlock();
  if (claim.start) detail::start_checkpoint(engine, claim.mask);
  return Status::waits_for_epoch;
}

// For the checkpoint's handler: `epoch` is durable.
GPU4FS_FN inline void publish_durable_epoch(Engine& engine, u64 epoch) {
  EpochQueue& epochs = engine.epochs;
  epochs.guard.lock();
  GPU4FS_CHECK_GE(epoch, durable_epoch(engine));
  store<Order::release, Scope::engine>(&engine.fs.epoch_durable, epoch);
  const u32 waiting = detail::detach_waiters(engine, epoch, 0, Status::ok);
  epochs.guard.unlock();
  wake_list(engine, waiting);
}

// The checkpoint command has ended and its slot is in phase `free` again.
GPU4FS_FN inline void checkpoint_ended(Engine& engine, Status status) {
  EpochQueue& epochs = engine.epochs;
  epochs.guard.lock();
  GPU4FS_CHECK_EQ(epochs.checkpoint_running, 1u);
  store<Order::release, Scope::engine>(&epochs.checkpoint_running, 0u);
  ++epochs.round_ended;
  count_write_error(engine, status);
  u32 waiting = no_command;
  if (status == Status::ok) {
    waiting = detail::detach_waiters(engine, 0, epochs.round_ended, Status::ok);
  } else {
    waiting = detail::detach_waiters(engine, any_epoch, any_epoch, status);
    epochs.round_wanted = epochs.round_ended;
  }
  const detail::CheckpointStart claim = detail::claim_checkpoint(engine);
  epochs.guard.unlock();
  wake_list(engine, waiting);
  if (claim.start) detail::start_checkpoint(engine, claim.mask);
}

GPU4FS_FN inline bool cancel_epoch_wait(Engine& engine, u32 index, u64 now_ns) {
  EpochQueue& epochs = engine.epochs;
  epochs.guard.lock();
  const bool removed =
      is_past_deadline(engine.commands[index], now_ns) && remove_waiter(engine, epochs.head, epochs.tail, index);
  epochs.guard.unlock();
  return removed;
}

GPU4FS_FN inline void record_checkpoint_pause(Engine& engine, u64 pause_ns) {
  store<Order::relaxed, Scope::engine>(&engine.counters.checkpoint_pause_last_ns, pause_ns);
  if (pause_ns > load<Order::relaxed, Scope::engine>(&engine.counters.checkpoint_pause_max_ns)) {
    store<Order::relaxed, Scope::engine>(&engine.counters.checkpoint_pause_max_ns, pause_ns);
  }
}

}  // namespace gpu4fs::engine
