// checkpoint, fsync, sync, load_chunks: the commands that advance epochs. fs/journal/checkpoint.hpp describes the steps
// of a checkpoint and why it is safe. This file runs its steps and tasks.
#pragma once

#include "base/mutant.hpp"
#include "engine/clock.hpp"
#include "engine/engine.hpp"
#include "engine/handlers/file_write_rows.hpp"
#include "engine/handlers/sync.hpp"
#include "fs/inode/give_back.hpp"
#include "fs/journal/checkpoint.hpp"
#include "fs/pages/evict.hpp"
#include "raid/logged_pages.hpp"
#include "raid/repair_pages.hpp"

namespace gpu4fs::engine {

enum class CheckpointStage : u32 {
  close = 0,  // wait until no operation commits
  give_back,  // gate closed, and no step runs: frees unused pages of the inode file (fs/inode/give_back.hpp)
  place,      // gate closed: changed pages get new places
  copy,       // gate closed
  write,
  chunks,
  growth,  // only if the pool grows, see space/growth.hpp
  flush_pages,
  join,
  flush_join,
  superblocks,
  flush_superblocks,
  publish,
  evict,
};

inline constexpr u32 chunks_per_checkpoint_task = 8;
inline constexpr u32 checkpoint_mask_clean = 1;   // Command::mask: the last checkpoint before unmounting
inline constexpr u32 checkpoint_mask_forced = 2;  // also if nothing has changed

enum class StageWait : u32 { none, tasks, growth };

struct CheckpointScratch {
  u64 epoch;  // the epoch that is written
  // Set when this stage begins to wait. If it is already set, the wait has ended.
  StageWait waits_for;
  u32 started;
  u64 pause_begin_ns;
  u64 stamp;          // of its superblocks
  u32 growth_number;  // of the plan that the server was asked to write
  u32 reserved;
  DeviceFlush flush;
};
static_assert(sizeof(CheckpointScratch) <= command_scratch_size);

namespace detail {

GPU4FS_FN inline CheckpointScratch& checkpoint_scratch(CommandState& c) {
  return *reinterpret_cast<CheckpointScratch*>(c.scratch);
}

GPU4FS_FN inline u32 tasks_for(u64 items, u32 per_task) {
  return static_cast<u32>((items + per_task - 1) / per_task);
}

GPU4FS_FN inline u32 checkpoint_task_count(const Engine& engine, CheckpointStage stage) {
  const fs::PageTable& pages = engine.fs.pages;
  const u32 chunk_tasks = tasks_for(raid::chunk_count_of(engine.fs.space), chunks_per_checkpoint_task);
  switch (stage) {
    case CheckpointStage::give_back:
      return tasks_for(fs::emptied_count(engine.fs), fs::emptied_per_task);
    case CheckpointStage::place:
      return tasks_for(engine.fs.dirty.count, fs::frames_per_checkpoint_task);
    case CheckpointStage::copy:
      return tasks_for(engine.fs.dirty.count, fs::frames_per_checkpoint_task) + chunk_tasks;
    case CheckpointStage::write:
      return tasks_for(pages.staged_count, fs::frames_per_checkpoint_task);
    case CheckpointStage::chunks:
    case CheckpointStage::publish:
      return chunk_tasks;
    default:
      return 0;
  }
}

template <class Group>
GPU4FS_FN Status for_chunks(Group g, Engine& engine, CommandState& c, CheckpointStage stage, u32 task) {
  GPU4FS_CHECK_EQ(c.index, u32{checkpoint_command});
  const u32 first = task * chunks_per_checkpoint_task;
  // Chunks may be added meanwhile.
  const u32 end =
      on_leader(g, [&] { return minimum(first + chunks_per_checkpoint_task, raid::chunk_count_of(engine.fs.space)); });
  const u64 epoch = checkpoint_scratch(c).epoch;
  Status status = Status::ok;
  for (u32 chunk = first; chunk < end && status == Status::ok; ++chunk) {
    switch (stage) {
      case CheckpointStage::copy:
        space::snapshot_chunk(g, engine.fs, chunk);
        break;
      case CheckpointStage::chunks:
        status = space::write_chunk(g, engine.fs, chunk, epoch);
        break;
      default:
        space::publish_chunk(g, engine.fs, chunk);
        break;
    }
  }
  return status;
}

// Runs the stage's tasks here if they are few, else fans them out. Returns true after they have ended.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE bool run_checkpoint_tasks(Group g, Engine& engine, CommandState& c, CheckpointStage stage,
                                                    Step* step);

}  // namespace detail

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void task_checkpoint(Group g, Engine& engine, CommandState& c, u32 task) {
  fs::FileSystem& fs = engine.fs;
  const CheckpointStage stage = static_cast<CheckpointStage>(c.stage);
  const u32 first = task * fs::frames_per_checkpoint_task;
  Status status = Status::ok;
  if (stage == CheckpointStage::give_back) {
    const u32 begin = task * fs::emptied_per_task;
    fs::give_back_inode_pages(g, fs, task, begin, minimum(fs::emptied_count(fs) - begin, fs::emptied_per_task));
  } else if (stage == CheckpointStage::place || stage == CheckpointStage::copy) {
    const u32 dirty = fs.dirty.count;
    if (first < dirty) {
      const u32 count = minimum(dirty - first, fs::frames_per_checkpoint_task);
      if (stage == CheckpointStage::place) {
        fs::place_frames(g, fs, task, first, count);
      } else {
        fs::copy_frames(g, fs, first, count);
      }
    } else {
      const u32 frame_tasks = detail::tasks_for(dirty, fs::frames_per_checkpoint_task);
      status = detail::for_chunks(g, engine, c, stage, task - frame_tasks);
    }
  } else if (stage == CheckpointStage::write) {
    const u32 count = minimum(fs.pages.staged_count - first, fs::frames_per_checkpoint_task);
    status = fs::write_staged(g, fs, first, count);
  } else {
    status = detail::for_chunks(g, engine, c, stage, task);
  }
  if (status != Status::ok) fail_task(g, c, status);
}

namespace detail {

template <class Group>
GPU4FS_FN bool run_checkpoint_tasks(Group g, Engine& engine, CommandState& c, CheckpointStage stage, Step* step) {
  CheckpointScratch& scratch = checkpoint_scratch(c);
  const u32 count = on_leader(g, [&] {
    if (scratch.waits_for != StageWait::none) {
      scratch.waits_for = StageWait::none;
      return 0u;
    }
    const u32 tasks = checkpoint_task_count(engine, stage);
    if (tasks > 2) scratch.waits_for = StageWait::tasks;
    return tasks;
  });
  if (count > 2) {
    *step = Step::fan_out(count);
    return false;
  }
  for (u32 task = 0; task < count; ++task) task_checkpoint(g, engine, c, task);
  return true;
}

template <class Group>
GPU4FS_FN void set_stage(Group g, CommandState& c, CheckpointStage stage) {
  on_leader(g, [&] { c.stage = static_cast<u32>(stage); });
}

// The server informs users. The next checkpoint reports devices that are lost in the meantime.
GPU4FS_FN inline void report_losses(Engine& engine) {
  for (u64 left = raid::take_unreported_losses(engine.fs.space); left != 0; left &= left - 1) {
    const u32 device = static_cast<u32>(count_trailing_zeros(left));
    notify_server(engine, ring::UpcallKind::device_lost, engine.fs.space.health->file_numbers[device], u64{device});
  }
}

GPU4FS_FN inline bool eviction_is_due(Engine& engine) {
  fs::PageTable& pages = engine.fs.pages;
  pages.free_lock.lock();
  const u32 unpromised = pages.free_count - minimum(pages.free_count, pages.frames_reserved);
  pages.free_lock.unlock();
  return unpromised < pages.frame_count / 4;
}

// Leader, before the stage flushes.
GPU4FS_FN GPU4FS_NOINLINE inline void begin_stage_flush(Engine& engine, CommandState& c) {
  GPU4FS_CHECK_EQ(c.index, u32{checkpoint_command});
  const bool is_of_pages = c.stage == static_cast<u32>(CheckpointStage::flush_pages);
  [[maybe_unused]] const bool is_of_superblocks = c.stage == static_cast<u32>(CheckpointStage::flush_superblocks);
  // Only mutants leave a flush out.
  bool flushes = GPU4FS_MUTANT(pages_not_flushed, true, !is_of_pages) &&
                 GPU4FS_MUTANT(superblocks_not_flushed, true, !is_of_superblocks);
  // The other stages flush what was written by transfers.
  begin_flush(engine, checkpoint_scratch(c).flush, is_of_pages, !flushes);
}

// Flushes the devices. Returns true when this is done, else *step is the step to leave with.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE bool flush_devices(Group g, Engine& engine, CommandState& c, Step* step) {
  DeviceFlush& flush = checkpoint_scratch(c).flush;
  on_leader(g, [&] {
    if (flush.stage == FlushStage::none) begin_stage_flush(engine, c);
  });
  const Status status = continue_flush(g, engine, c, flush);
  if (status == Status::ok) return true;
  if (!is_wait(status) && status != Status::again) give_up_checkpoint(g, engine);
  *step = Step::end(status);
  return false;
}

// Leader, stage `growth`. True: the server is to be asked. The stage takes the answer in any case, so the next stage
// does not find an open request.
GPU4FS_FN GPU4FS_NOINLINE inline bool is_growth_to_ask(Engine& engine, CommandState& c) {
  GPU4FS_CHECK_EQ(c.stage, static_cast<u32>(CheckpointStage::growth));
  fs::FileSystem& fs = engine.fs;
  CheckpointScratch& scratch = checkpoint_scratch(c);
  // A new chunk must not be on a device that this epoch declares stale.
  const bool is_whole = raid::failed_devices(fs.space) == 0;
  const bool rebuilds = raid::rebuilt_devices(fs.space) != 0;
  if (scratch.waits_for != StageWait::none) {
    scratch.waits_for = StageWait::none;
    space::take_up_growth(fs, scratch.growth_number, take_answer(c).status == Status::ok && is_whole && !rebuilds);
    return false;
  }
  // If this checkpoint makes a rebuilt device readable, the next one handles the growth.
  if (!space::growth_is_staged(fs) || rebuilds) return false;
  scratch.growth_number = space::growth_number(fs);
  if (!is_whole) {
    space::take_up_growth(fs, scratch.growth_number, false);
    return false;
  }
  scratch.waits_for = StageWait::growth;
  return true;
}

// The server writes the structures that a growing pool needs before the superblocks. Returns true when this is done or
// not needed, else *step is the step to leave with.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE bool ask_for_growth(Group g, Engine& engine, CommandState& c, Step* step) {
  if (!on_leader(g, [&] { return is_growth_to_ask(engine, c); })) return true;
  *step = Step::end(on_leader(g, [&] {
    const CheckpointScratch& scratch = checkpoint_scratch(c);
    return post_upcall(engine, c, UpcallKind::write_growth, scratch.epoch, scratch.growth_number);
  }));
  return false;
}

// Writes superblocks. Stage `join`: those of devices that join the pool. Stage `superblocks`: those of the others.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status write_superblocks(Group g, Engine& engine, CommandState& c, CheckpointStage stage) {
  GPU4FS_CHECK(stage == CheckpointStage::join || stage == CheckpointStage::superblocks);
  struct Part {
    u64 stamp;
    u64 devices;
  };
  const Part part = on_leader(g, [&] {
    const u64 joining = space::joining_devices(engine.fs);
    CheckpointScratch& scratch = checkpoint_scratch(c);
    // All superblocks of an epoch must be equal.
    if (stage == CheckpointStage::join) scratch.stamp = now_stamp(engine);
    return Part{scratch.stamp, stage == CheckpointStage::join ? joining : ~joining};
  });
  if (part.devices == 0) return Status::ok;
  const u64 epoch = on_leader(g, [&] { return checkpoint_scratch(c).epoch; });
  const bool is_clean = (c.command.mask & checkpoint_mask_clean) != 0;
  return fs::write_superblocks(g, engine.fs, epoch, part.stamp, is_clean, part.devices);
}

// Gate closed, everything copied: begins the next epoch and opens the gate.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void end_pause(Group g, Engine& engine, CommandState& c) {
  GPU4FS_CHECK_EQ(c.stage, static_cast<u32>(CheckpointStage::copy));
  GPU4FS_CHECK(is_closed_by(engine.commit_gate, c));
  CheckpointScratch& scratch = checkpoint_scratch(c);
  on_leader(g, [&] {
    scratch.epoch = engine.fs.epoch_open;
    fs::count_snapshot(engine.fs);
  });
  fs::begin_epoch(g, engine.fs);
  open_gate(g, engine, c);
  on_leader(g, [&] { record_checkpoint_pause(engine, now_monotonic_ns() - scratch.pause_begin_ns); });
  set_stage(g, c, CheckpointStage::write);
}

// The stages after the pause. Returns the step to leave with.
template <class Group>
GPU4FS_FN Step write_checkpoint(Group g, Engine& engine, CommandState& c) {
  fs::FileSystem& fs = engine.fs;
  CheckpointScratch& scratch = checkpoint_scratch(c);
  Step step{};
  for (;;) {
    const CheckpointStage stage = static_cast<CheckpointStage>(c.stage);
    const Status failed = task_result(g, c);
    if (failed != Status::ok) {
      give_up_checkpoint(g, engine);
      return Step::end(failed);
    }
    switch (stage) {
      case CheckpointStage::chunks:
        if (scratch.waits_for == StageWait::none && on_leader(g, [&] { return fs::parities_are_changing(fs); })) {
          return Step::again();
        }
        if (!run_checkpoint_tasks(g, engine, c, stage, &step)) return step;
        break;
      case CheckpointStage::write:
        if (!run_checkpoint_tasks(g, engine, c, stage, &step)) return step;
        break;
      case CheckpointStage::growth:
        if (!ask_for_growth(g, engine, c, &step)) return step;
        break;
      case CheckpointStage::flush_join:
        if (on_leader(g, [&] { return space::joining_devices(fs); }) == 0) break;
        [[fallthrough]];
      case CheckpointStage::flush_pages:
      case CheckpointStage::flush_superblocks:
        if (!flush_devices(g, engine, c, &step)) return step;
        break;
      case CheckpointStage::join:
      case CheckpointStage::superblocks: {
        const Status status = write_superblocks(g, engine, c, stage);
        if (status == Status::ok) break;
        give_up_checkpoint(g, engine);
        return Step::end(status);
      }
      case CheckpointStage::publish:
        if (scratch.waits_for == StageWait::none && on_leader(g, [&] { return raid::repairs_are_running(fs.space); })) {
          return Step::again();
        }
        if (!run_checkpoint_tasks(g, engine, c, stage, &step)) return step;
        on_leader(g, [&] {
          raid::record_losses(fs.space);
          space::end_growth(fs);
        });
        publish_durable(g, engine, scratch.epoch);
        on_leader(g, [&] {
          cut_log(engine);
          report_losses(engine);
        });
        break;
      default: {
        // A restart with the steps stopped continues, even if frames have become free meanwhile.
        const bool goes_on = on_leader(g, [&] { return is_closed_by(engine.step_gate, c) || eviction_is_due(engine); });
        if (!goes_on) return Step::complete(scratch.epoch);
        const Status stopped = stop_steps(g, engine, c);
        if (stopped != Status::ok) return Step::end(stopped);
        fs::evict_frames(g, fs, fs.pages.frame_count / 2);
        resume_steps(g, engine, c);
        return Step::complete(scratch.epoch);
      }
    }
    set_stage(g, c, static_cast<CheckpointStage>(static_cast<u32>(stage) + 1));
  }
}

// The checkpoint's own command: writes the open epoch.
template <class Group>
GPU4FS_FN Step run_checkpoint(Group g, Engine& engine, CommandState& c) {
  GPU4FS_CHECK_EQ(c.index, u32{checkpoint_command});
  GPU4FS_CHECK_EQ(c.in_gate, 0u);
  fs::FileSystem& fs = engine.fs;
  Step step{};
  if (static_cast<CheckpointStage>(c.stage) == CheckpointStage::close) {
    // After it has closed the gate it continues, even if a flush of the log fails meanwhile.
    const bool goes_on = on_leader(g, [&] { return is_closed_by(engine.commit_gate, c); });
    if (!goes_on && on_leader(g, [&] { return fs.checkpoint_failed != 0; })) return Step::end(Status::io_error);
    const bool needed = goes_on || on_leader(g, [&] {
                          const bool forced = (c.command.mask & (checkpoint_mask_clean | checkpoint_mask_forced)) != 0;
                          return fs.read_only == 0 && (fs::has_changes(fs) || forced || has_dirty_frames(engine));
                        });
    if (!needed) {
      // A command may wait for free frames: only evict.
      on_leader(g, [&] { checkpoint_scratch(c).epoch = fs.epoch_durable; });
      set_stage(g, c, CheckpointStage::evict);
      return write_checkpoint(g, engine, c);
    }
    on_leader(g, [&] {
      CheckpointScratch& scratch = checkpoint_scratch(c);
      if (scratch.started == 0) {
        scratch.started = 1;
        scratch.pause_begin_ns = now_monotonic_ns();
      }
    });
    GPU4FS_STEP_TRY(close_gate(g, engine, c));
    on_leader(g, [&] { fs::close_stripes(fs); });
    set_stage(g, c, CheckpointStage::give_back);
  }
  if (static_cast<CheckpointStage>(c.stage) == CheckpointStage::give_back) {
    const bool stops =
        on_leader(g, [&] { return is_closed_by(engine.step_gate, c) || fs::emptied_count(engine.fs) != 0; });
    if (stops) {
      GPU4FS_STEP_TRY(stop_steps(g, engine, c));
      if (!run_checkpoint_tasks(g, engine, c, CheckpointStage::give_back, &step)) return step;
      fs::end_giving_back(g, fs);
    }
    set_stage(g, c, CheckpointStage::place);
    if (stops) {
      // This step is outside the gate that is opened here.
      resume_steps(g, engine, c);
      return Step::again();
    }
  }
  if (static_cast<CheckpointStage>(c.stage) == CheckpointStage::place) {
    if (!run_checkpoint_tasks(g, engine, c, CheckpointStage::place, &step)) return step;
    set_stage(g, c, CheckpointStage::copy);
  }
  if (static_cast<CheckpointStage>(c.stage) == CheckpointStage::copy) {
    if (!run_checkpoint_tasks(g, engine, c, CheckpointStage::copy, &step)) return step;
    end_pause(g, engine, c);
  }
  return write_checkpoint(g, engine, c);
}

// A command from a ring: requests a checkpoint and waits for its end.
template <class Group>
GPU4FS_FN Step request_checkpoint_step(Group g, Engine& engine, CommandState& c) {
  return on_leader(g, [&] {
    if (c.stage == 1) {
      const Status failed = static_cast<Status>(c.wait_status);
      return failed == Status::ok ? Step::complete(durable_epoch(engine)) : Step::end(failed);
    }
    c.stage = 1;
    return Step::end(wait_for_epoch(engine, c, any_epoch, c.command.mask));
  });
}

}  // namespace detail

// Internal. Result: the epoch that is durable at the end.
template <class Group>
GPU4FS_FN Step step_checkpoint(Group g, Engine& engine, CommandState& c) {
  if (c.index == checkpoint_command) return detail::run_checkpoint(g, engine, c);
  return detail::request_checkpoint_step(g, engine, c);
}

// Makes everything durable that committed before this command began. It uses the operation log. If there is no log, or
// too much of it is still unwritten, it uses a checkpoint. Result: 0.
template <class Group>
GPU4FS_FN Step step_sync(Group g, Engine& engine, CommandState& c) {
  return detail::run_sync(g, engine, c);
}

template <class Group>
GPU4FS_FN Step step_fsync(Group g, Engine& engine, CommandState& c) {
  return detail::run_sync(g, engine, c);
}

// Internal, at mount: one task for each chunk.
template <class Group>
GPU4FS_FN Step step_load_chunks(Group g, Engine& engine, CommandState& c) {
  const bool done = on_leader(g, [&] {
    const bool was_fanned = c.stage != 0;
    c.stage = 1;
    return was_fanned;
  });
  const u32 chunk_count = raid::chunk_count_of(engine.fs.space);
  if (!done && chunk_count != 0) return Step::fan_out(chunk_count);
  GPU4FS_STEP_TRY(task_result(g, c));
  GPU4FS_STEP_TRY(space::check_slot_sum(g, engine.fs, engine.fs.superblocks[0].slot_sum));
  return Step::end(on_leader(g, [&] { return space::check_page_used(engine.fs, engine.fs.page_used_staged); }));
}

// Internal, before the replay of the record at `output`: allocates the pages that the record names and creates their
// descriptors. The record of a row is replayed here. Records of rows come before all others. checksum_mismatch: the
// pages were not written before the crash, and the log ends before this record.
template <class Group>
GPU4FS_FN Step step_adopt_logged(Group g, Engine& engine, CommandState& c) {
  const format::LogRecord* record = c.operation.replay;
  if (record == nullptr) return Step::end(Status::bad_descriptor);
  if (record->opcode == format::LogOpcode::row) return Step::end(detail::carry_out_row(g, engine, c, *record));
  fs::FileSystem& fs = engine.fs;
  const format::LogExtent* extents = fs::record_extents(*record);
  for (u32 i = on_leader(g, [&] { return c.stage; }); i < record->extent_count; ++i) {
    const format::LogExtent extent = extents[i];
    GPU4FS_STEP_TRY(on_leader(g, [&] { return space::check_accessible(fs, c.operation, extent.address); }));
    GPU4FS_STEP_TRY(on_leader(g, [&] {
      c.stage = i + 1;
      if ((extent.flags & format::log_extent_in_place) != 0) {
        return space::pages_are_taken(fs, raid::Extent{extent.address, extent.page_count, 0})
                   ? Status::ok
                   : Status::corrupt_structure;
      }
      return space::adopt_extent(fs, raid::Extent{extent.address, extent.page_count, 0},
                                 (extent.flags & format::log_extent_unwritten) == 0);
    }));
    if ((extent.flags & format::log_extent_unwritten) != 0) continue;
    GPU4FS_STEP_TRY(raid::accept_logged_pages(g, fs.space, extent.address, extent.page_count, extent.digest));
  }
  return Step::complete();
}

template <class Group>
GPU4FS_FN void task_load_chunks(Group g, Engine& engine, CommandState& c, u32 task) {
  const Status status = space::load_chunk(g, engine.fs, task, engine.fs.epoch_durable);
  if (status != Status::ok) fail_task(g, c, status);
}

}  // namespace gpu4fs::engine
