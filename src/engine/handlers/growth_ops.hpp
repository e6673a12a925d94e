// grow: the server's commands for a pool that changes its size. The checkpoint does the rest (space/growth.hpp).
#pragma once

#include "base/mutant.hpp"
#include "device/staged/write_back.hpp"
#include "engine/engine.hpp"
#include "engine/frame_flush.hpp"
#include "space/backing.hpp"
#include "space/growth.hpp"
#include "space/space.hpp"

namespace gpu4fs::engine {
namespace detail {

// Deleted chunks and devices that leave the pool have no content any more. Others use their places later, and do so
// past the frames. Collective, while no step runs.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void forget_frames_of_plan(Group g, const fs::FileSystem& fs) {
  const raid::LogicalSpace& space = fs.space;
  if (space.staged == nullptr) return;
  const space::PoolGrowth& plan = *fs.growth;
  for (u32 i = 0; i < plan.erased_count; ++i) {
    const raid::ChunkState& chunk = space.chunks[plan.erased_slots[i]];
    for (u32 column = 0; column < chunk.column_count; ++column) {
      const raid::ColumnState& place = chunk.columns[column];
      device::forget_pages(g, *space.staged, place.device, place.header_offset / page_size,
                           raid::pages_of_column(chunk, place));
    }
  }
  for (u64 left = plan.leaving; left != 0; left &= left - 1) {
    const u32 d = count_trailing_zeros(left);
    device::forget_pages(g, *space.staged, d, 0, device::device_page_max);
    on_leader(g, [&] { device::forget_write_error(*space.staged, d); });
  }
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step admit_growth(Group g, Engine& engine, CommandState& c) {
  fs::FileSystem& fs = engine.fs;
  if (on_leader(g, [&] { return c.stage != 0; })) {
    GPU4FS_STEP_TRY(task_result(g, c));
    return Step::complete();
  }
  GPU4FS_STEP_TRY(stop_steps(g, engine, c));
  struct Admitted {
    Status status;
    u32 added_count;
  };
  if (on_leader(g, [&] { return space::growth_is_durable(fs); })) forget_frames_of_plan(g, fs);
  const Admitted admitted = on_leader(g, [&] {
    const Status status = space::admit_chunks(fs);
    c.stage = 1;
    return Admitted{status, status == Status::ok ? fs.growth->added_count : 0};
  });
  resume_steps(g, engine, c);
  if (admitted.status != Status::ok) return Step::end(admitted.status);
  return admitted.added_count == 0 ? Step::complete() : Step::fan_out(admitted.added_count);
}

// Leader, while no step runs.
GPU4FS_FN GPU4FS_NOINLINE inline Status change_stopped(fs::FileSystem& fs, const wire::Command& command, u64* result) {
  GPU4FS_CHECK(result != nullptr);
  *result = 0;
  if (fs.read_only != 0) return Status::read_only;
  if (command.inode >= raid::chunk_count_of(fs.space)) return Status::out_of_range;
  const u32 index = static_cast<u32>(command.inode);
  const bool is_change = command.mask == wire::grow_freeze || command.mask == wire::grow_thaw;
  if (is_change && space::is_being_deleted(fs, index)) return Status::busy;
  if (command.mask == wire::grow_freeze) return space::freeze_empty_chunk(fs, index);
  if (command.mask == wire::grow_thaw) return space::unfreeze_chunk(fs, index);
  if (command.mask == wire::grow_trimmed) {
    GPU4FS_TRY(space::end_trim(fs, index));
    if ((command.mode & wire::trimmed_has_memory) != 0) space::restore_backing(fs, index);
    return Status::ok;
  }
  *result = space::pages_taken(fs, index);
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
  const Changed changed = on_leader(g, [&] {
    u64 result = 0;
    const Status status = change_stopped(engine.fs, c.command, &result);
    return Changed{status, 0, result};
  });
  resume_steps(g, engine, c);
  return changed.status == Status::ok ? Step::complete(changed.result) : Step::end(changed.status);
}

inline constexpr u32 trim_run_max = 64;  // limit of a run, which is punched in one call

// Frames of regions that lose their memory must not be written afterwards.
template <class Group>
GPU4FS_FN Status write_frames_of_run(Group g, Engine& engine) {
  return GPU4FS_MUTANT(trimmed_frames_stay_dirty, write_frames_back(g, engine), Status::ok);
}

// Assigns a run of free regions to the server. If others took the run meanwhile, the result has no regions.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Step begin_trim(Group g, Engine& engine, CommandState& c) {
  fs::FileSystem& fs = engine.fs;
  if (fs.read_only != 0) return Step::end(Status::read_only);
  space::TrimRun& run = *reinterpret_cast<space::TrimRun*>(c.scratch);
  static_assert(sizeof(run) <= command_scratch_size);
  const bool is_found = on_leader(g, [&] {
    // The search marks a chunk as examined, so it runs only once.
    if (c.stage == 0) {
      const auto chunk = static_cast<u32>(minimum(c.command.inode, u64{raid::no_chunk}));
      const auto region = static_cast<u32>(minimum(c.command.offset, u64{raid::no_chunk}));
      const u32 now = (c.command.mode & wire::trim_now) != 0 ? 1 : 0;
      run = space::find_trim_run(fs, {chunk, region, now, trim_run_max});
      c.stage = 1;
    }
    return run.count != 0;
  });
  if (!is_found) return Step::complete(0);
  // Most are written before others have to wait.
  GPU4FS_STEP_TRY(write_frames_of_run(g, engine));
  GPU4FS_STEP_TRY(stop_steps(g, engine, c));
  const Status written = write_frames_of_run(g, engine);
  if (written != Status::ok) {
    resume_steps(g, engine, c);
    return Step::end(written);
  }
  struct Begun {
    Status status;
    u32 next;
    u32 count;
  };
  const Begun begun = on_leader(g, [&] {
    const u32 counted = run.count;
    const Status status = space::begin_trim(fs, &run, c.command.aux);
    const u32 behind = run.first + (run.count != 0 ? run.count : counted);
    return Begun{status, status == Status::no_space ? wire::trim_chunk_end : behind, run.count};
  });
  resume_steps(g, engine, c);
  const bool goes_on = begun.status == Status::ok || begun.status == Status::busy || begun.status == Status::no_space;
  if (!goes_on) return Step::end(begun.status);
  const u32 chunk = on_leader(g, [&] { return run.chunk; });
  return Step::complete(wire::pack_trim({chunk, begun.next, begun.count}));
}

}  // namespace detail

// Internal. mask:
// - grow_stage: the plan in fs.growth becomes a part of the next checkpoint.
// - grow_admit: the plan's chunks get their places and are loaded. The chunks that it deletes are removed.
// - grow_withdraw: no checkpoint includes the plan.
// - grow_room: chunks with `offset` pages can still be created for class `mode`. Commands that find no space there may
//   request one (UpcallKind::make_chunk).
// - grow_freeze, grow_thaw, grow_usage: for chunk `inode`.
// - grow_trim, grow_trimmed: wire::TrimResult, before and after the server's punching.
// Status: those of space::stage_growth(), space::admit_chunks(), space::withdraw_growth(), space::freeze_empty_chunk()
// and of loading. busy: the chunk is being deleted. device_failed: a trim is refused while a device is lost.
template <class Group>
GPU4FS_FN Step step_grow(Group g, Engine& engine, CommandState& c) {
  fs::FileSystem& fs = engine.fs;
  switch (c.command.mask) {
    case wire::grow_stage:
      return Step::end(on_leader(g, [&] { return space::stage_growth(fs); }));
    case wire::grow_withdraw:
      return Step::end(on_leader(g, [&] { return space::withdraw_growth(fs); }));
    case wire::grow_admit:
      return detail::admit_growth(g, engine, c);
    case wire::grow_room:
      if (c.command.mode >= format::profile_max) return Step::end(Status::invalid_argument);
      on_leader(g, [&] {
        store<Order::release, Scope::engine>(&fs.counters[c.command.mode].unallocated_pages, c.command.offset);
      });
      return Step::complete();
    case wire::grow_freeze:
    case wire::grow_thaw:
    case wire::grow_usage:
    case wire::grow_trimmed:
      return detail::change_chunk(g, engine, c);
    case wire::grow_trim:
      return detail::begin_trim(g, engine, c);
    default:
      return Step::end(Status::invalid_argument);
  }
}

template <class Group>
GPU4FS_FN void task_grow(Group g, Engine& engine, CommandState& c, u32 task) {
  const u32 chunk = on_leader(g, [&] { return engine.fs.growth->added_slots[task]; });
  const Status status = space::load_chunk(g, engine.fs, chunk, on_leader(g, [&] { return engine.fs.epoch_durable; }));
  if (status != Status::ok) fail_task(g, c, status);
}

}  // namespace gpu4fs::engine
