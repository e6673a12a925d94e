// grow: the server's part in a pool that changes its size; the rest is the checkpoint's (fs/space/growth.hpp).
#pragma once

#include "engine/engine.hpp"
#include "fs/space/growth.hpp"
#include "fs/space/space.hpp"

namespace gpu4fs::engine {
namespace detail {

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step admit_growth(Group g, Engine& engine, CommandState& c) {
  fs::FileSystem& fs = engine.fs;
  if (serial(g, [&] { return c.stage != 0; })) {
    GPU4FS_STEP_TRY(task_result(g, c));
    return Step::complete();
  }
  GPU4FS_STEP_TRY(stop_steps(g, engine, c));
  struct Admitted {
    Status status;
    u32 added_count;
  };
  const Admitted admitted = serial(g, [&] {
    const Status status = fs::admit_chunks(fs);
    c.stage = 1;
    return Admitted{status, status == Status::ok ? fs.growth->added_count : 0};
  });
  resume_steps(g, engine, c);
  if (admitted.status != Status::ok) return Step::fail(admitted.status);
  return admitted.added_count == 0 ? Step::complete() : Step::fan_out(admitted.added_count);
}

// Leader, while no step runs.
GPU4FS_FN GPU4FS_NOINLINE inline Status change_stopped(fs::FileSystem& fs, const format::Command& command, u64* result) {
  *result = 0;
  if (fs.read_only != 0) return Status::read_only;
  if (command.inode >= raid::chunk_count_of(fs.space)) return Status::out_of_range;
  const u32 index = static_cast<u32>(command.inode);
  if (command.mask != format::grow_usage && fs::is_being_deleted(fs, index)) return Status::busy;
  if (command.mask == format::grow_freeze) return fs::freeze_empty_chunk(fs, index);
  if (command.mask == format::grow_thaw) return fs::unfreeze_chunk(fs, index);
  *result = fs::pages_taken(fs, index);
  return Status::ok;
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step change_chunk(Group g, Engine& engine, CommandState& c) {
  GPU4FS_STEP_TRY(stop_steps(g, engine, c));
  struct Changed {
    Status status;
    u32 reserved;
    u64 result;
  };
  const Changed changed = serial(g, [&] {
    u64 result = 0;
    const Status status = change_stopped(engine.fs, c.command, &result);
    return Changed{status, 0, result};
  });
  resume_steps(g, engine, c);
  return changed.status == Status::ok ? Step::complete(changed.result) : Step::fail(changed.status);
}

}  // namespace detail

// Internal. mask grow_stage: the plan in fs.growth goes into the next checkpoint. grow_admit: its chunks get their places
// and are loaded, those that it deletes are gone. grow_withdraw: it is not to be staged any more. grow_room: chunks
// with `offset` pages could still be made for class `mode`; commands that find no space there may ask for one
// (UpcallKind::make_chunk). grow_freeze, grow_thaw, grow_usage: of chunk `inode`. Status: those of fs::stage_growth(),
// fs::admit_chunks(), fs::withdraw_growth(), fs::freeze_empty_chunk(), and of loading; busy for a chunk that is being deleted.
template <class Group>
GPU4FS_FN Step step_grow(Group g, Engine& engine, CommandState& c) {
  fs::FileSystem& fs = engine.fs;
  switch (c.command.mask) {
    case format::grow_stage:
      return Step::fail(serial(g, [&] { return fs::stage_growth(fs); }));
    case format::grow_withdraw:
      return Step::fail(serial(g, [&] { return fs::withdraw_growth(fs); }));
    case format::grow_admit:
      return detail::admit_growth(g, engine, c);
    case format::grow_room:
      if (c.command.mode >= format::profile_max) return Step::fail(Status::invalid_argument);
      serial(g, [&] {
        store<Order::release, Scope::engine>(&fs.counters[c.command.mode].growable, c.command.offset);
      });
      return Step::complete();
    case format::grow_freeze:
    case format::grow_thaw:
    case format::grow_usage:
      return detail::change_chunk(g, engine, c);
    default:
      return Step::fail(Status::invalid_argument);
  }
}

template <class Group>
GPU4FS_FN void task_grow(Group g, Engine& engine, CommandState& c, u32 task) {
  const u32 chunk = serial(g, [&] { return engine.fs.growth->added_slots[task]; });
  const Status status = fs::load_chunk(g, engine.fs, chunk, serial(g, [&] { return engine.fs.epoch_durable; }));
  if (status != Status::ok) fail_task(g, c, status);
}

}  // namespace gpu4fs::engine
