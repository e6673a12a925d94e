// Makes the operation log durable: group commit.
//
// One command at a time writes the log, for all commands. A command that needs a log sequence number durable has three
// cases: the number is durable, or the command becomes the writer, or it queues. When the writer ends, it restarts all
// queued commands. Those that it did not cover compete to be the next writer. That one writes everything that was
// appended meanwhile together.
//
// Ring memory that a checkpoint made superfluous is not reused while a writer may still read it. All functions run on
// one rank.
#pragma once

#include "base/atomics.hpp"
#include "base/check.hpp"
#include "engine/wait_list.hpp"

namespace gpu4fs::engine {

namespace detail {

GPU4FS_FN inline u32 detach_log_waiters(Engine& engine) {
  const u32 head = engine.log_queue.head;
  engine.log_queue.head = no_command;
  engine.log_queue.tail = no_command;
  return head;
}

// Under the guard.
GPU4FS_FN inline void raise_durable_lsn(fs::OperationLog& log, u64 lsn) {
  if (load<Order::relaxed, Scope::engine>(&log.durable) < lsn) store<Order::release, Scope::engine>(&log.durable, lsn);
}

}  // namespace detail

GPU4FS_FN inline u64 durable_lsn(const Engine& engine) {
  return load<Order::acquire, Scope::engine>(&engine.fs.log.durable);
}

// ok: everything before `lsn` is durable or, with *is_writer, the command is the writer. waits_for_log: another command
// is the writer; the command is restarted when the writer has ended, and calls again. io_error: the log cannot be
// written.
GPU4FS_FN inline Status await_log(Engine& engine, CommandState& c, u64 lsn, bool* is_writer) {
  *is_writer = false;
  LogQueue& queue = engine.log_queue;
  queue.guard.lock();
  Status status = Status::ok;
  if (durable_lsn(engine) < lsn) {
    if (queue.failed != 0) {
      status = Status::io_error;
    } else if (queue.flusher == no_command || queue.flusher == c.index) {
      store<Order::relaxed, Scope::engine>(&queue.flusher, c.index);
      *is_writer = true;
    } else {
      status = Status::waits_for_log;
      announce_wait(c, status);
      append_waiter(engine, queue.head, queue.tail, c.index);
    }
  }
  queue.guard.unlock();
  return status;
}

// The writer has ended: everything before `lsn` is durable. With `failed`, nothing more will ever be.
GPU4FS_FN inline void end_log_flush(Engine& engine, CommandState& c, u64 lsn, bool failed) {
  LogQueue& queue = engine.log_queue;
  fs::OperationLog& log = engine.fs.log;
  queue.guard.lock();
  GPU4FS_CHECK_EQ(queue.flusher, c.index);
  store<Order::relaxed, Scope::engine>(&queue.flusher, u32{no_command});
  if (failed) queue.failed = 1;
  detail::raise_durable_lsn(log, lsn);
  if (queue.room_owed != 0) fetch_add<Order::release, Scope::engine>(&log.room, queue.room_owed);
  queue.room_owed = 0;
  const u32 waiting = detail::detach_log_waiters(engine);
  queue.guard.unlock();
  wake_list(engine, waiting);
}

// If a command ends while it is the writer (its deadline), another command may become the writer.
GPU4FS_FN inline void abandon_log_flush(Engine& engine, CommandState& c) {
  if (load<Order::relaxed, Scope::engine>(&engine.log_queue.flusher) == c.index) end_log_flush(engine, c, 0, false);
}

// A checkpoint is durable that includes all records before log.start_staged.
GPU4FS_FN inline void cut_log(Engine& engine) {
  LogQueue& queue = engine.log_queue;
  fs::OperationLog& log = engine.fs.log;
  queue.guard.lock();
  GPU4FS_CHECK_GE(log.start_staged, log.start);
  const u64 room = log.start_staged - log.start;
  store<Order::relaxed, Scope::engine>(&log.start, log.start_staged);
  store<Order::relaxed, Scope::engine>(&log.checkpoint_asked, 0u);
  detail::raise_durable_lsn(log, log.start_staged);
  if (queue.flusher != no_command) {
    queue.room_owed += room;
  } else {
    fetch_add<Order::release, Scope::engine>(&log.room, room);
  }
  queue.guard.unlock();
}

GPU4FS_FN inline bool cancel_log_wait(Engine& engine, u32 index, u64 now_ns) {
  LogQueue& queue = engine.log_queue;
  queue.guard.lock();
  const bool removed =
      is_past_deadline(engine.commands[index], now_ns) && remove_waiter(engine, queue.head, queue.tail, index);
  queue.guard.unlock();
  return removed;
}

}  // namespace gpu4fs::engine
