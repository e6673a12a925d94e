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
#pragma once

#include "base/atomics.hpp"
#include "base/config.hpp"
#include "base/status.hpp"
#include "base/types.hpp"
#include "device/device_types.hpp"

namespace gpu4fs::device {

namespace detail {
// Host code, in device/stack/device_stack.cpp.
Status begin_stacked_read(DeviceStack& stack, u64 offset, u64 length);
Status begin_stacked_write(DeviceStack& stack, u64 offset, u64 length);
void end_stacked_write(DeviceStack& stack, u64 offset, u64 length);
void cancel_stacked_write(DeviceStack& stack, u64 offset);
}  // namespace detail

// The device is not written either.
GPU4FS_FN inline bool has_failed(const Device& device) {
  return load<Order::relaxed, Scope::engine>(&device.failed) == device_failed_for_good;
}

// False also for a device that is being rebuilt.
GPU4FS_FN inline bool is_readable(const Device& device) {
  return load<Order::relaxed, Scope::engine>(&device.failed) == device_in_use;
}

// Independent of the device's state: for data that is known to be valid on a device that is being rebuilt.
GPU4FS_FN inline Status begin_known_read(const Device& device, u64 offset, u64 length) {
  if (has_failed(device)) return Status::device_failed;
#if !GPU4FS_DEVICE_CODE
  if (device.stack != nullptr) return detail::begin_stacked_read(*device.stack, offset, length);
#endif
  (void)device, (void)offset, (void)length;
  return Status::ok;
}

GPU4FS_FN inline Status begin_read(const Device& device, u64 offset, u64 length) {
  if (!is_readable(device)) return Status::device_failed;
#if !GPU4FS_DEVICE_CODE
  if (device.stack != nullptr) return detail::begin_stacked_read(*device.stack, offset, length);
#endif
  (void)device, (void)offset, (void)length;
  return Status::ok;
}

GPU4FS_FN inline Status begin_write(const Device& device, u64 offset, u64 length) {
  if (has_failed(device)) return Status::device_failed;
#if !GPU4FS_DEVICE_CODE
  if (device.stack != nullptr) return detail::begin_stacked_write(*device.stack, offset, length);
#endif
  (void)device, (void)offset, (void)length;
  return Status::ok;
}

GPU4FS_FN inline void end_write(const Device& device, u64 offset, u64 length) {
#if !GPU4FS_DEVICE_CODE
  if (device.stack != nullptr && has_failed(device)) {
    detail::cancel_stacked_write(*device.stack, offset);
  } else if (device.stack != nullptr) {
    detail::end_stacked_write(*device.stack, offset, length);
  }
#endif
  (void)device, (void)offset, (void)length;
}

}  // namespace gpu4fs::device
