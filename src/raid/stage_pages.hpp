// Pages of staged devices that begin their way to or from a frame before somebody waits for them
// (device/staged/detached_io.hpp). Everything here is a hint: what was not begun is done when it is needed.
//
// Any rank, unless something else is said.
#pragma once

#include "base/config.hpp"
#include "device/staged/detached_io.hpp"
#include "device/staged/joined_loads.hpp"
#include "device/staged/load_ahead.hpp"
#include "raid/page_access.hpp"

namespace gpu4fs::raid {

// Whether pages can be staged at all.
GPU4FS_FN inline bool stages_pages(const LogicalSpace& space) {
  return space.staged != nullptr && space.staged->queue != nullptr;
}

namespace detail {

// No page if the device is not staged.
GPU4FS_FN inline device::StagedPage staged_page(const LogicalSpace& space, const DevicePlace& place) {
  const device::Device& device = space.devices[place.device];
  if (device.kind != device::DeviceKind::staged) return {nullptr, 0};
  return {&device, place.offset / page_size};
}

// The copy of a page that is read first.
GPU4FS_FN GPU4FS_NOINLINE inline device::StagedPage page_to_load(const LogicalSpace& space, u64 address) {
  PageLocation location{};
  if (find_page(space, address, &location) != Status::ok) return {nullptr, 0};
  if (chunk_state(space, location.chunk) != Status::ok) return {nullptr, 0};
  return staged_page(space, page_place(space, location, copy_to_read(space, location)));
}

}  // namespace detail

// Begins to load the copies of the ranks' pages that are read first, or joins others who load them. Collective;
// no_address: the rank has no page. `owner`: see begin_or_join_loads(); no_io_owner: nothing is joined. begun:
// ring_staged() has to follow.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE device::PageLoad begin_page_loads(Group g, const LogicalSpace& space, u64 address,
                                                            u32 owner) {
  const device::StagedPage page =
      address != no_address ? detail::page_to_load(space, address) : device::StagedPage{nullptr, 0};
  return device::begin_or_join_loads(g, *space.staged, page, owner);
}

// The same for pages that nobody has asked for yet (device/staged/load_ahead.hpp).
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE device::BegunAhead begin_pages_ahead(Group g, const LogicalSpace& space, u64 address) {
  const device::StagedPage page =
      address != no_address ? detail::page_to_load(space, address) : device::StagedPage{nullptr, 0};
  return device::begin_ahead_loads(g, *space.staged, page);
}

GPU4FS_FN inline void ring_staged(const LogicalSpace& space) {
  device::ring_detached(*space.staged);
}

}  // namespace gpu4fs::raid
