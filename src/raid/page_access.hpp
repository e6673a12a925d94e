// Announces accesses to pages of the space to the stacks of their devices (device/device_access.hpp).
//
// Plain functions: one rank calls them, inside on_leader(). If pages are apart, ranks also announce pages of their own
// at the same time (raid/run_pages.hpp). In a space without stacks and lost devices a call costs four tests, and there
// is one call for a run of pages. If pages are apart, each page is announced, before its address is looked up: the
// look-up finds only pages that have been announced.
//
// Lost devices (raid/device_loss.hpp) answer device_failed. A write of all copies skips them. A device that cannot be
// written becomes a lost one if the pool can work without it.
#pragma once

#include "base/mutant.hpp"
#include "device/device_access.hpp"
#include "raid/device_loss.hpp"
#include "raid/translate.hpp"

namespace gpu4fs::raid {

GPU4FS_FN inline bool is_stacked(const LogicalSpace& space) {
#if GPU4FS_DEVICE_CODE
  (void)space;
  return false;
#else
  return space.stacked != 0;
#endif
}

// Whether every access is announced, even while no device is lost. Who writes a page drops its copies
// (device/tier/page_tier.hpp).
GPU4FS_FN inline bool is_announced(const LogicalSpace& space) {
  return is_stacked(space) || pages_are_apart(space) ||
         GPU4FS_MUTANT(write_of_copied_page_unannounced, space.tier != nullptr, false);
}

// True if accesses need no announcement.
GPU4FS_FN inline bool is_plain(const LogicalSpace& space) {
  return !is_announced(space) && failed_devices(space) == 0;
}

struct PeekedPage {
  const u8* memory;  // nullptr: it is in no frame
  // Where it is if only frames have it: see device::look_at_frame() for what the caller may do with them. No device: it
  // is memory.
  device::StagedPage staged;
};

// A copy of a page without an announcement, in a space without stacks and lost devices.
GPU4FS_FN inline PeekedPage peek_page(const LogicalSpace& space, const PageLocation& location, u32 copy) {
  if (!pages_are_apart(space)) return {page_memory(space, location, copy), {}};
  const DevicePlace place = page_place(space, location, copy);
  const device::Device& device = space.devices[place.device];
  if (device.kind != device::DeviceKind::staged) return {device::memory_at(device, place.offset, page_size), {}};
  const device::StagedPage staged{&device, place.offset / page_size};
  return {device::look_at_frame(device, staged.page).memory, staged};
}

// For `page_count` pages that are contiguous in memory, in one of their copies.
GPU4FS_FN inline Status begin_copy_read(const LogicalSpace& space, const PageLocation& location, u64 page_count,
                                        u32 copy) {
  if (is_plain(space)) return Status::ok;
  const DevicePlace place = page_place(space, location, copy);
  return begin_noted_read(space, place.device, place.offset, page_count * page_size);
}

GPU4FS_FN inline Status begin_copy_write(const LogicalSpace& space, const PageLocation& location, u64 page_count,
                                         u32 copy) {
  if (is_plain(space)) return Status::ok;
  const DevicePlace place = page_place(space, location, copy);
  return device::begin_write(space.devices[place.device], place.offset, page_count * page_size);
}

GPU4FS_FN inline void end_copy_write(const LogicalSpace& space, const PageLocation& location, u64 page_count,
                                     u32 copy) {
  if (is_plain(space)) return;
  const DevicePlace place = page_place(space, location, copy);
  device::end_write(space.devices[place.device], place.offset, page_count * page_size);
}

// Instead of end_copy_write(): nothing was stored.
GPU4FS_FN inline void cancel_copy_write(const LogicalSpace& space, const PageLocation& location, u64 page_count,
                                        u32 copy) {
  if (is_plain(space)) return;
  const DevicePlace place = page_place(space, location, copy);
  device::cancel_write(space.devices[place.device], place.offset, page_count * page_size);
}

// For any `page_count` pages of one chunk, in all remaining copies. Pages that are apart are announced where they are
// read.
GPU4FS_FN inline Status begin_copies_read(const LogicalSpace& space, const PageLocation& location, u64 page_count) {
  if (is_plain(space) || pages_are_apart(space)) return Status::ok;
  const ChunkState& chunk = space.chunks[location.chunk];
  for (u64 done = 0; done < page_count;) {
    const PageLocation here{location.chunk, 0, location.page + done};
    const u64 count = minimum(page_count - done, contiguous_pages(chunk, here.page));
    for (u32 copy = 0; copy < chunk.copy_count; ++copy) {
      if (!copy_is_readable(space, here, copy)) continue;
      GPU4FS_TRY(begin_copy_read(space, here, count, copy));
    }
    done += count;
  }
  return Status::ok;
}

// For pages that are contiguous in memory, in all remaining copies, at least one.
GPU4FS_FN inline Status begin_page_write(const LogicalSpace& space, const PageLocation& location, u64 page_count) {
  if (is_plain(space)) return Status::ok;
  u32 begun = 0;
  for (u32 copy = 0; copy < space.chunks[location.chunk].copy_count; ++copy) {
    const Status status = begin_copy_write(space, location, page_count, copy);
    if (status == Status::ok) {
      begun |= 1u << copy;
      continue;
    }
    if (tolerates_write_error(space, page_place(space, location, copy).device)) continue;
    for (u32 other = 0; other < copy; ++other) {
      if ((begun >> other & 1) != 0) cancel_copy_write(space, location, page_count, other);
    }
    return status;
  }
  return begun != 0 ? Status::ok : Status::device_failed;
}

GPU4FS_FN inline void end_page_write(const LogicalSpace& space, const PageLocation& location, u64 page_count) {
  if (is_plain(space)) return;
  for (u32 copy = 0; copy < space.chunks[location.chunk].copy_count; ++copy) {
    end_copy_write(space, location, page_count, copy);
  }
}

GPU4FS_FN inline void cancel_page_write(const LogicalSpace& space, const PageLocation& location, u64 page_count) {
  if (is_plain(space)) return;
  for (u32 copy = 0; copy < space.chunks[location.chunk].copy_count; ++copy) {
    cancel_copy_write(space, location, page_count, copy);
  }
}

}  // namespace gpu4fs::raid
