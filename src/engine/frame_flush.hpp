// Frames of staged devices before a flush of the devices.
#pragma once

#include "base/config.hpp"
#include "base/group.hpp"
#include "base/mutant.hpp"
#include "base/status.hpp"
#include "device/staged/write_back.hpp"
#include "engine/device_poll.hpp"
#include "engine/engine_types.hpp"
#include "raid/device_loss.hpp"

namespace gpu4fs::engine::detail {

// Leader.
GPU4FS_FN GPU4FS_NOINLINE inline u64 devices_with_frames(const raid::LogicalSpace& space) {
  u64 devices = 0;
  for (u32 d = 0; d < raid::device_count_of(space); ++d) {
    if (space.devices[d].kind == device::DeviceKind::staged) devices |= u64{1} << d;
  }
  return devices;
}

// A device that cannot be written counts as lost. Status: that of the first device without which the pool cannot go on.
// Leader.
GPU4FS_FN GPU4FS_NOINLINE inline Status judge_write_errors(const raid::LogicalSpace& space) {
  for (u64 left = devices_with_frames(space); left != 0; left &= left - 1) {
    const u32 d = static_cast<u32>(count_trailing_zeros(left));
    const Status status = device::write_error_of(*space.staged, d);
    if (status == Status::ok) continue;
    const bool can_do_without = raid::outlives_flush_error(space, d);
    // The consequences are drawn; another device that takes the number has none.
    device::end_decision(*space.staged, d);
    if (!can_do_without) return status;
  }
  return Status::ok;
}

// Leader. Begins a flush of what was stored into frames before this call, for continue_frame_flush().
GPU4FS_FN inline void begin_frame_flush(const Engine& engine, device::FrameFlush* flush) {
  const raid::LogicalSpace& space = engine.fs.space;
  *flush = {};
  if (space.staged == nullptr || GPU4FS_MUTANT(frames_not_written_back, false, true)) return;
  device::begin_frame_flush(*space.staged, devices_with_frames(space), flush);
}

// Goes on with a flush of frames. Collective. ok: the media have everything. waits_for_io, again: the step ends with
// this, and calls again after its restart. Any other status: as judge_write_errors(), or device::refusal_of().
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status continue_frame_flush(Group g, Engine& engine, CommandState& c,
                                                      device::FrameFlush* flush) {
  const raid::LogicalSpace& space = engine.fs.space;
  if (space.staged == nullptr) return Status::ok;
  const device::StagedDevices& staged = *space.staged;
  for (;;) {
    if (on_leader(g, [&] { return device::frames_are_written(staged, flush); })) {
      return on_leader(g, [&] { return judge_write_errors(space); });
    }
    const u64 devices = on_leader(g, [&] { return flush->devices; });
    const Status refused = on_leader(g, [&] { return device::refusal_of(staged, devices); });
    if (refused != Status::ok) return refused;
    begin_io(g, c);
    const device::BegunLines begun = device::begin_dirty_lines(g, staged, devices, c.index, [&](int change) {
      if (change > 0) count_io(c);
      if (change < 0) drop_io(c);
    });
    const bool goes_on = g.any(begun.in_flight != 0 || begun.written != 0);
    // What is left is being written by others.
    const bool is_told = on_leader(g, [&] { return !goes_on && await_next_report(engine, c); });
    const Status status = await_io(g, engine, c, false);
    if (status != Status::ok) return status;
    if (!goes_on && !is_told) return Status::again;
  }
}

// The same for those who cannot be restarted: the lanes wait for the media, which wait for nobody. Collective.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status write_frames_back(Group g, Engine& engine) {
  const raid::LogicalSpace& space = engine.fs.space;
  if (space.staged == nullptr) return Status::ok;
  const u64 devices = on_leader(g, [&] { return devices_with_frames(space); });
  const Status status =
      device::write_back_devices(g, *space.staged, devices, [&](u32 index) { tell_command(engine, index); });
  // It has taken completions that writes wait for, and nothing else may be in flight that would wake them.
  on_leader(g, [&] { wake_media_waiters(engine); });
  if (status != Status::ok) return status;
  return on_leader(g, [&] { return judge_write_errors(space); });
}

// Repairs and rebuilt pages are in frames too, although they are no changes.
GPU4FS_FN inline bool has_dirty_frames(const Engine& engine) {
  return engine.fs.space.staged != nullptr && device::has_dirty_frames(*engine.fs.space.staged);
}

}  // namespace gpu4fs::engine::detail
