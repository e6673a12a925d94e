// Makes durable what was written to devices: first the frames of staged devices are written, then the devices are
// flushed.
//
// Devices whose media are reached through the I/O queue are flushed by requests, all at the same time
// (device/staged/detached_io.hpp). Others are flushed by the server, which is asked once for all. A step that flushes
// waits for neither with its worker: it ends, and is restarted.
#pragma once

#include "base/atomics.hpp"
#include "base/group.hpp"
#include "base/mutant.hpp"
#include "base/status.hpp"
#include "device/staged/detached_io.hpp"
#include "engine/engine.hpp"
#include "engine/frame_flush.hpp"
#include "raid/device_loss.hpp"

namespace gpu4fs::engine {

enum class FlushStage : u32 {
  none = 0,
  frames,  // they are being written
  media,   // requests flush the devices
  server,  // the server was asked for the others
};

// Of a command; zeroed memory is no flush.
struct DeviceFlush {
  FlushStage stage;
  u32 frames_only;  // 1: nothing is flushed
  u64 left;         // FlushStage::media: devices whose flush was not begun yet, one bit each
  device::FrameFlush frames;
};

namespace detail {

// Takes the answer to a flush. It is ok too if all devices on which the flush failed could be given up. Leader.
GPU4FS_FN inline Status take_flush_answer(Engine& engine, CommandState& c) {
  const UpcallAnswer answer = take_answer(c);
  if (answer.status == Status::ok || answer.failed_devices == 0) return answer.status;
  // A failure before the replacement of a device does not concern the new device. The new one has no data yet that had
  // to be flushed.
  for (u64 left = answer.failed_devices & ~answer.replaced_devices; left != 0; left &= left - 1) {
    const u32 device = static_cast<u32>(count_trailing_zeros(left));
    // A device that is about to join the pool: nothing depends on it before its superblock is flushed.
    if (device >= raid::device_count_of(engine.fs.space)) continue;
    if (GPU4FS_MUTANT(flush_failure_ignored, !raid::outlives_flush_error(engine.fs.space, device), false)) {
      return answer.status;
    }
  }
  return Status::ok;
}

// Devices that are flushed by requests, one bit each. Leader.
GPU4FS_FN GPU4FS_NOINLINE inline u64 devices_flushed_by_queue(const raid::LogicalSpace& space) {
  u64 devices = 0;
  for (u32 d = 0; d < raid::device_count_of(space); ++d) {
    const device::Device& device = space.devices[d];
    if (device::is_flushed_by_queue(device) && !device::has_failed(device)) devices |= u64{1} << d;
  }
  return devices;
}

// Leader.
GPU4FS_FN GPU4FS_NOINLINE inline bool server_has_to_flush(const raid::LogicalSpace& space) {
  for (u32 d = 0; d < raid::device_count_of(space); ++d) {
    const device::Device& device = space.devices[d];
    if (device.needs_flush != 0 && !device::is_flushed_by_queue(device)) return true;
  }
  return false;
}

// Whether this thread may wait for a medium in its step: another one is left for the other commands.
GPU4FS_FN inline bool may_block(const Engine& engine, const device::StagedDevices& staged) {
  if (!device::carries_out_here(*staged.queue) || staged.holder_max < 2) return false;
  // Threads of sessions work besides the engine's own.
  return engine.config.worker_count > 1 || device::this_worker() >= engine.config.worker_count;
}

// Begins the flushes that are left. Collective. ok: all have ended. waits_for_io, again: as continue_flush(). One of
// them is carried out by the caller himself if he may block: he would only wait for a thread that does it.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status flush_media(Group g, Engine& engine, CommandState& c, DeviceFlush& flush) {
  const raid::LogicalSpace& space = engine.fs.space;
  // A device may have failed, or have been exchanged, since the step was here before.
  const u64 left = on_leader(g, [&] { return flush.left != 0 ? flush.left & devices_flushed_by_queue(space) : 0; });
  if (left == 0) return Status::ok;
  const u64 own = on_leader(g, [&] { return may_block(engine, *space.staged) ? left & (~left + 1) : 0; });
  begin_io(g, c);
  u64 begun = 0;
  for (u32 d = g.rank(); d < device_count_max; d += Group::size()) {
    if (((left & ~own) >> d & 1) == 0) continue;
    count_io(c);
    if (device::begin_detached_flush(space.devices[d], c.index)) {
      begun |= u64{1} << d;
    } else {
      drop_io(c);
    }
  }
  const u64 all_begun = g.reduce(begun, [](u64 a, u64 b) { return a | b; });
  on_leader(g, [&] {
    flush.left = left & ~(all_begun | own);
    if (all_begun != 0) device::ring_detached(*space.staged);
    if (own != 0) device::flush_here(space.devices[count_trailing_zeros(own)]);
  });
  const Status status = await_io(g, engine, c, false);
  if (status != Status::ok) return status;
  return (all_begun | own) == left ? Status::ok : Status::again;
}

// After the frames are written.
GPU4FS_FN inline void begin_media_flush(const Engine& engine, DeviceFlush& flush) {
  fence<Order::acq_rel, Scope::system>();
  flush.stage = FlushStage::media;
  flush.left = flush.frames_only != 0 ? 0 : devices_flushed_by_queue(engine.fs.space);
}

}  // namespace detail

// Leader. `with_frames`: what was stored into frames before this call is written first. `frames_only`: nothing is
// flushed.
GPU4FS_FN inline void begin_flush(const Engine& engine, DeviceFlush& flush, bool with_frames,
                                  bool frames_only = false) {
  flush = {};
  flush.stage = FlushStage::frames;
  flush.frames_only = frames_only ? 1 : 0;
  if (with_frames) detail::begin_frame_flush(engine, &flush.frames);
}

// Goes on with a flush. Collective. ok: everything is durable, or the pool goes on without the devices that failed.
// waits_for_io, waits_for_answer, again: the step ends with this, and calls again after its restart. Any other status:
// the pool cannot go on without a device that failed. Except for the three, flush.stage is none afterwards.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status continue_flush(Group g, Engine& engine, CommandState& c, DeviceFlush& flush) {
  const auto end = [&](Status status) {
    on_leader(g, [&] { flush.stage = FlushStage::none; });
    return status;
  };
  const auto is_wait_or_again = [](Status status) { return is_wait(status) || status == Status::again; };
  FlushStage stage = on_leader(g, [&] { return flush.stage; });
  GPU4FS_CHECK(stage != FlushStage::none);
  if (stage == FlushStage::frames) {
    const Status status = detail::continue_frame_flush(g, engine, c, &flush.frames);
    if (is_wait_or_again(status)) return status;
    if (status != Status::ok) return end(status);
    on_leader(g, [&] { detail::begin_media_flush(engine, flush); });
    stage = FlushStage::media;
  }
  if (stage == FlushStage::media) {
    const Status status = detail::flush_media(g, engine, c, flush);
    if (is_wait_or_again(status)) return status;
    const Status judged = on_leader(g, [&] { return detail::judge_write_errors(engine.fs.space); });
    if (judged != Status::ok) return end(judged);
    const bool asks = on_leader(g, [&] {
      const bool needed = flush.frames_only == 0 && detail::server_has_to_flush(engine.fs.space);
      if (needed) flush.stage = FlushStage::server;
      return needed;
    });
    return asks ? upcall(g, engine, c, UpcallKind::flush_device, ~u64{0}) : end(Status::ok);
  }
  // The answer is taken even if the last device that needs the server was replaced meanwhile. Otherwise the next flush
  // would take it for its own.
  return end(on_leader(g, [&] { return detail::take_flush_answer(engine, c); }));
}

}  // namespace gpu4fs::engine
