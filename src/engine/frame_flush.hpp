// Frames of staged devices before a flush of the devices.
#pragma once

#include "base/config.hpp"
#include "base/group.hpp"
#include "base/mutant.hpp"
#include "base/status.hpp"
#include "device/staged/write_back.hpp"
#include "engine/engine_types.hpp"
#include "raid/device_loss.hpp"

namespace gpu4fs::engine::detail {

// Writes what was stored into frames before this call to the media, which a flush then makes durable. A device that
// cannot be written counts as lost. Collective. Waits for the media, which wait for nobody. Status: that of the first
// device without which the pool cannot go on.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status write_frames_back(Group g, Engine& engine) {
  raid::LogicalSpace& space = engine.fs.space;
  if (space.staged == nullptr || GPU4FS_MUTANT(frames_not_written_back, false, true)) return Status::ok;
  for (u32 d = 0; d < raid::device_count_of(space); ++d) {
    if (space.devices[d].kind != device::DeviceKind::staged) continue;
    const Status status = device::write_back_all(g, *space.staged, d);
    if (status != Status::ok && !on_leader(g, [&] { return raid::outlives_flush_error(space, d); })) return status;
  }
  return Status::ok;
}

// Repairs and rebuilt pages are in frames too, although they are no changes.
GPU4FS_FN inline bool has_dirty_frames(const Engine& engine) {
  return engine.fs.space.staged != nullptr && device::has_dirty_frames(*engine.fs.space.staged);
}

}  // namespace gpu4fs::engine::detail
