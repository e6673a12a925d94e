// Pages of staged devices that begin their way to or from a frame before somebody waits for them
// (device/staged/detached_io.hpp). Everything here is a hint: what was not begun is done when it is needed.
//
// Any rank, unless something else is said.
#pragma once

#include "base/config.hpp"
#include "device/staged/detached_io.hpp"
#include "device/staged/write_back.hpp"
#include "raid/page_access.hpp"

namespace gpu4fs::raid {

// Whether pages can be staged at all.
GPU4FS_FN inline bool stages_pages(const LogicalSpace& space) {
  return space.staged != nullptr && space.staged->queue != nullptr;
}

namespace detail {

GPU4FS_FN inline bool begin_load_at(const LogicalSpace& space, const DevicePlace& place, u32 owner) {
  const device::Device& device = space.devices[place.device];
  if (device.kind != device::DeviceKind::staged) return false;
  return device::begin_detached_load(device, place.offset / page_size, owner);
}

}  // namespace detail

// Begins to load the copy of a page that is read first. `owner`: see begin_detached_load(). True: it was begun, and
// ring_staged() has to follow.
GPU4FS_FN GPU4FS_NOINLINE inline bool begin_page_load(const LogicalSpace& space, u64 address, u32 owner) {
  PageLocation location{};
  if (find_page(space, address, &location) != Status::ok) return false;
  if (chunk_state(space, location.chunk) != Status::ok) return false;
  return detail::begin_load_at(space, page_place(space, location, copy_to_read(space, location)), owner);
}

GPU4FS_FN inline void ring_staged(const LogicalSpace& space) {
  device::ring_detached(*space.staged);
}

namespace detail {

// All copies of the page.
GPU4FS_FN GPU4FS_NOINLINE inline void begin_page_write_behind(const LogicalSpace& space, u64 address) {
  PageLocation location{};
  if (find_page(space, address, &location) != Status::ok) return;
  for (u32 copy = 0; copy < space.chunks[location.chunk].copy_count; ++copy) {
    const DevicePlace place = page_place(space, location, copy);
    const device::Device& device = space.devices[place.device];
    if (device.kind != device::DeviceKind::staged) continue;
    (void)device::begin_detached_write(device, place.offset / page_size);
  }
}

}  // namespace detail

// Whether so many frames are dirty that few sets have clean ones. One rank.
GPU4FS_FN inline bool has_many_dirty_frames(const LogicalSpace& space) {
  return device::has_many_dirty_frames(*space.staged, device_count_of(space));
}

// Begins to write pages that were stored: those of long writes are rarely written again soon. Collective, after all
// ranks have stored.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void begin_write_behind(Group g, const LogicalSpace& space, u64 address, u32 page_count) {
  g.sync();
  for (u32 i = g.rank(); i < page_count; i += Group::size()) {
    detail::begin_page_write_behind(space, address + u64{i} * page_size);
  }
  g.sync();
  on_leader(g, [&] { ring_staged(space); });
}

}  // namespace gpu4fs::raid
