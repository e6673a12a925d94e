// Pages of reads without locks that are in no frame of the page cache.
//
// The ordinary way of a read that misses the page cache takes a command's slot, the file's lock and two steps, which
// last ten times as long on a GPU as a drive needs. So the worker loads the pages of all its reads at the same time and
// waits for them, as long as fast drives take. Meanwhile it looks for completions, as idle workers do. Reads whose
// pages come later, or not at all, go the ordinary way, and find the loads on their way.
#pragma once

#include "base/access.hpp"
#include "engine/device_poll.hpp"
#include "engine/engine_types.hpp"
#include "raid/stage_pages.hpp"

namespace gpu4fs::engine::detail {

// A worker waits no longer for a page, in the step gate and with the token of a quiet ring.
inline constexpr u64 absent_wait_ns = 400000;

// Loads the ranks' pages; no device: the rank has none. Returns the frame of the rank's page, or nullptr. It may get
// another page at any time. For a warp, inside the step gate. In a kernel this is a function of its own, because reads
// of pages in frames do not need its registers. Collective.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE const u8* await_frames(Group g, Engine& engine, const device::StagedPage& page) {
  const raid::LogicalSpace& space = engine.fs.space;
  if (!raid::stages_pages(space)) return nullptr;
  const u32 begun = g.ballot(device::begin_detached_loads(g, *space.staged, page, device::no_io_owner));
  if (begun != 0) on_leader(g, [&] { raid::ring_staged(space); });
  const u64 end_ns = on_leader(g, [&] { return now_monotonic_ns() + absent_wait_ns; });
  device::FrameLook look{nullptr, false};
  for (bool is_late = false; !is_late;) {
    if (page.device != nullptr && look.memory == nullptr) look = device::look_at_frame(*page.device, page.page);
    if (!g.any(look.is_loading)) break;
    if (!step_from_devices(g, engine)) backoff(200);
    is_late = on_leader(g, [&] { return now_monotonic_ns() > end_ns; });
  }
  return look.memory;
}

}  // namespace gpu4fs::engine::detail
