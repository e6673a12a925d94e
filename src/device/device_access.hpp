// Announces accesses to a device's memory, for devices with a stack (device/stack/device_stack.hpp).
//
// Memory devices are read and written by loads and stores, which a stack can neither see nor delay nor fail. So all
// code that accesses a device's bytes announces it: begin_read() before the first load, begin_write() before the first
// store of a range, and end_write() after the last one, whatever the result of the access. One rank calls them, inside
// on_leader(), and passes a failure on. Without a stack each is one branch. In a kernel they do nothing, because the
// GPU engine refuses devices with a stack.
//
// Status: the answer of the stack, which is EIO for a client: medium_error for a range that cannot be read,
// device_failed for one that cannot be written and for a device that is gone. After a failure the range must not be
// accessed and end_write() must not be called. A device that is marked as failed answers device_failed on every engine.
// If it is marked during a write, it has either the old or the new bytes. A device that is being rebuilt refuses reads
// and accepts writes.
//
// Whoever announces a write stores all of the range, or calls cancel_write() instead of end_write() and has stored
// nothing.
//
// An announcement to a staged device is of one page. It brings the page into a frame and pins it there
// (device/staged/bring_in.hpp); any rank may call these functions. A frame that is written has no content before. The
// device's stack sees the accesses of the medium instead, which are made now or later. So an error of a write is the
// answer of a flush (device/staged/write_back.hpp).
//
// A page may have a copy in faster memory (device/tier/page_tier.hpp). begin_write() and end_write() drop it.
#pragma once

#include "base/config.hpp"
#include "base/mutant.hpp"
#include "base/status.hpp"
#include "base/types.hpp"
#include "device/device_state.hpp"
#include "device/device_types.hpp"
#include "device/staged/bring_in.hpp"
#include "device/tier/page_tier.hpp"

namespace gpu4fs::device {

// Independent of the device's state: for data that is known to be valid on a device that is being rebuilt.
GPU4FS_FN inline Status begin_known_read(const Device& device, u64 offset, u64 length) {
  if (has_failed(device)) return Status::device_failed;
  if (device.kind == DeviceKind::staged) return detail::bring_in(device, offset, length, cache::PinMode::read);
#if !GPU4FS_DEVICE_CODE
  if (device.stack != nullptr) return detail::begin_stacked_read(*device.stack, offset, length);
#endif
  (void)device, (void)offset, (void)length;
  return Status::ok;
}

GPU4FS_FN inline Status begin_read(const Device& device, u64 offset, u64 length) {
  if (!is_readable(device)) return Status::device_failed;
  if (device.kind == DeviceKind::staged) return detail::bring_in(device, offset, length, cache::PinMode::read);
#if !GPU4FS_DEVICE_CODE
  if (device.stack != nullptr) return detail::begin_stacked_read(*device.stack, offset, length);
#endif
  (void)device, (void)offset, (void)length;
  return Status::ok;
}

GPU4FS_FN inline Status begin_write(const Device& device, u64 offset, u64 length) {
  if (has_failed(device)) return Status::device_failed;
  drop_copies(device, offset, length);
  if (device.kind == DeviceKind::staged) return detail::bring_in(device, offset, length, cache::PinMode::overwrite);
#if !GPU4FS_DEVICE_CODE
  if (device.stack != nullptr) return detail::begin_stacked_write(*device.stack, offset, length);
#endif
  (void)device, (void)offset, (void)length;
  return Status::ok;
}

GPU4FS_FN inline void end_write(const Device& device, u64 offset, u64 length) {
  // Also if the device has failed: something may have been stored.
  GPU4FS_MUTANT(copies_not_dropped_after_write, drop_copies(device, offset, length), static_cast<void>(0));
  if (device.kind == DeviceKind::staged) return detail::end_staged_write(device, offset, length);
#if !GPU4FS_DEVICE_CODE
  if (device.stack != nullptr && has_failed(device)) {
    detail::cancel_stacked_write(*device.stack, offset);
  } else if (device.stack != nullptr) {
    detail::end_stacked_write(*device.stack, offset, length);
  }
#endif
  (void)device, (void)offset, (void)length;
}

// Instead of end_write(): nothing was stored.
GPU4FS_FN inline void cancel_write(const Device& device, u64 offset, u64 length) {
  if (device.kind == DeviceKind::staged) return detail::cancel_staged_write(device, offset, length);
#if !GPU4FS_DEVICE_CODE
  if (device.stack != nullptr) detail::cancel_stacked_write(*device.stack, offset);
#endif
}

}  // namespace gpu4fs::device
