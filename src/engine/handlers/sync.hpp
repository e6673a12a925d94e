// The work of fsync and sync (docs/internals/architecture.md, section 5, "The operation log").
//
// The command's goal is the end of the log. If no other command writes the log, this command writes it up to the goal,
// or further if more is complete by then. It then has the devices flushed. The other commands wait for it
// (engine/log_flush.hpp). So any number of them costs one flush. If the goal is far after the end of the written log, a
// checkpoint takes over. It writes metadata in bulk and makes the records superfluous.
#pragma once

#include "base/mutant.hpp"
#include "engine/device_flush.hpp"
#include "engine/engine.hpp"
#include "engine/log_flush.hpp"
#include "engine/write_errors.hpp"
#include "fs/journal/checkpoint.hpp"
#include "fs/journal/operation_log.hpp"

namespace gpu4fs::engine {

// A larger amount is not written to the log but by a checkpoint.
inline constexpr u64 log_flush_bytes_max = u64{4} << 20;

namespace detail {

// After a checkpoint that cannot be written, the pool stays at the previous epoch and accepts no changes. The engine
// reports this to all commands that wait for the epoch.
template <class Group>
GPU4FS_FN void give_up_checkpoint(Group g, Engine& engine) {
  on_leader(g, [&] {
    store<Order::relaxed, Scope::engine>(&engine.fs.checkpoint_failed, 1u);
    store<Order::relaxed, Scope::engine>(&engine.fs.read_only, GPU4FS_MUTANT(failed_checkpoint_goes_on, 1u, 0u));
    // The log cannot guarantee data that a flush may have lost either.
    engine.log_queue.guard.lock();
    engine.log_queue.failed = 1;
    engine.log_queue.guard.unlock();
  });
}

enum class SyncStage : u32 { start = 0, log, epoch };

struct SyncScratch {
  u64 goal;       // LSN, or the epoch in SyncStage::epoch
  u64 written;    // LSN, for the writer of the log
  u32 is_writer;  // 1: of the log, for all others
  u32 reserved;
  DeviceFlush flush;  // of the writer
};

// The state is at the end of scratch memory. A write that makes its record durable has its own state at the beginning.
GPU4FS_FN inline SyncScratch& sync_scratch(CommandState& c) {
  static_assert(command_scratch_size % alignof(SyncScratch) == 0 && sizeof(SyncScratch) % alignof(SyncScratch) == 0);
  return *reinterpret_cast<SyncScratch*>(c.scratch + command_scratch_size - sizeof(SyncScratch));
}

// Leader.
GPU4FS_FN inline void choose_way_to_sync(Engine& engine, CommandState& c) {
  GPU4FS_CHECK_EQ(c.in_gate, 0u);
  fs::FileSystem& fs = engine.fs;
  SyncScratch& scratch = sync_scratch(c);
  const u64 tail = load<Order::acquire, Scope::engine>(&fs.log.tail);
  // Data that is missing on a lost device is not acknowledged before superblocks name the device
  // (raid/device_loss.hpp).
  const bool log_will_do = fs::log_is_on(fs) && !raid::has_unrecorded_loss(fs.space);
  if (log_will_do && tail - minimum(tail, durable_lsn(engine)) <= log_flush_bytes_max) {
    scratch = {tail, 0, 0, 0, {}};
    c.stage = static_cast<u32>(SyncStage::log);
    return;
  }
  scratch = {fs::epoch_of_changes(fs), 0, 0, 0, {}};
  c.stage = static_cast<u32>(SyncStage::epoch);
}

template <class Group>
GPU4FS_FN void fail_log_flush(Group g, Engine& engine, CommandState& c, Status status) {
  on_leader(g, [&] { end_log_flush(engine, c, 0, true); });
  give_up_checkpoint(g, engine);
  on_leader(g, [&] {
    engine.epochs.guard.lock();
    count_write_error(engine, status);
    engine.epochs.guard.unlock();
  });
}

// For the writer of the log: writes it from its durable end at least up to the goal. again: a command that is about to
// commit has its place in the log but not its record yet.
template <class Group>
GPU4FS_FN Status write_log_for_all(Group g, Engine& engine, CommandState& c) {
  fs::FileSystem& fs = engine.fs;
  struct Range {
    u64 from;
    u64 to;
  };
  const Range range = on_leader(g, [&] {
    return Range{durable_lsn(engine), load<Order::acquire, Scope::engine>(&fs.log.tail)};
  });
  const u64 end = fs::collect_log(g, fs, range.from, range.to);
  const bool enough = on_leader(g, [&] {
    sync_scratch(c).written = end;
    return maximum(end, durable_lsn(engine)) >= sync_scratch(c).goal;
  });
  if (!enough) return Status::again;
  return GPU4FS_MUTANT(log_not_written, fs::write_log(g, fs, range.from, end), Status::ok);
}

// For the writer of the log: writes it and flushes all devices. ok: end_log_flush() must follow. waits_for_io,
// waits_for_answer, again: the step is restarted, and calls again. Any other status: the log was given up.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status write_and_flush_log(Group g, Engine& engine, CommandState& c) {
  SyncScratch& scratch = sync_scratch(c);
  const bool is_new = on_leader(g, [&] { return scratch.flush.stage == FlushStage::none; });
  if (is_new) {
    const Status status = write_log_for_all(g, engine, c);
    if (status == Status::again) return status;
    if (status != Status::ok) {
      fail_log_flush(g, engine, c, status);
      return status;
    }
    on_leader(g, [&] { begin_flush(engine, scratch.flush, true, GPU4FS_MUTANT(log_not_flushed, false, true)); });
  }
  const Status status = continue_flush(g, engine, c, scratch.flush);
  if (status != Status::ok && !is_wait(status) && status != Status::again) fail_log_flush(g, engine, c, status);
  return status;
}

// Makes the log durable up to the goal in the command's SyncScratch, as its writer or by waiting for the writer. The
// caller sets the goal, and calls again after a restart. Status: ok; those of await_log() and write_and_flush_log();
// retry_after_checkpoint: data is missing on a device that was just lost, so the log does not suffice.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status make_log_durable(Group g, Engine& engine, CommandState& c) {
  struct Turn {
    Status status;
    u32 is_writer;
  };
  const Turn turn = on_leader(g, [&] {
    SyncScratch& scratch = sync_scratch(c);
    if (scratch.is_writer != 0) return Turn{Status::ok, 1};
    if (raid::has_unrecorded_loss(engine.fs.space)) return Turn{Status::retry_after_checkpoint, 0};
    bool is_writer = false;
    const Status status = await_log(engine, c, scratch.goal, &is_writer);
    scratch.is_writer = is_writer ? 1 : 0;
    return Turn{status, scratch.is_writer};
  });
  if (turn.is_writer == 0) return turn.status;
  GPU4FS_TRY(write_and_flush_log(g, engine, c));
  GPU4FS_TRACE_POINT(sync);
  return on_leader(g, [&] {
    SyncScratch& scratch = sync_scratch(c);
    scratch.is_writer = 0;
    const bool is_whole = !raid::has_unrecorded_loss(engine.fs.space);
    end_log_flush(engine, c, is_whole ? scratch.written : 0, false);
    return is_whole ? Status::ok : Status::retry_after_checkpoint;
  });
}

template <class Group>
GPU4FS_FN Step sync_by_epoch(Group g, Engine& engine, CommandState& c) {
  GPU4FS_CHECK_EQ(c.stage, static_cast<u32>(SyncStage::epoch));
  const u64 goal = sync_scratch(c).goal;
  // A goal that was chosen because of a lost device may be reached without an epoch of its own.
  const bool reached =
      on_leader(g, [&] { return durable_epoch(engine) >= minimum(goal, fs::epoch_of_changes(engine.fs)); });
  if (reached) return Step::complete();
  if (on_leader(g, [&] { return engine.fs.checkpoint_failed != 0; })) return Step::end(Status::io_error);
  return Step::end(await_epoch(g, engine, c, goal));
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step run_sync(Group g, Engine& engine, CommandState& c) {
  GPU4FS_CHECK_EQ(c.in_gate, 0u);
  const bool nothing_to_do = on_leader(g, [&] {
    if (engine.fs.read_only != 0 && engine.fs.checkpoint_failed == 0) return true;
    if (c.stage == static_cast<u32>(SyncStage::start)) choose_way_to_sync(engine, c);
    return false;
  });
  if (nothing_to_do) return Step::complete();
  if (c.stage == static_cast<u32>(SyncStage::epoch)) return sync_by_epoch(g, engine, c);
  const Status status = make_log_durable(g, engine, c);
  if (status != Status::retry_after_checkpoint) return Step::end(status);
  on_leader(g, [&] { choose_way_to_sync(engine, c); });
  return Step::again();
}

}  // namespace detail
}  // namespace gpu4fs::engine
