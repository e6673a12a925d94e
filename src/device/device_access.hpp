// Announcing accesses to a device's memory, for devices with a stack
// (device/stack/device_stack.hpp).
//
// Memory devices are read and written by loads and stores, which nobody could see, delay or fail.
// So whoever touches a device's bytes says so: begin_read() before the first load, begin_write()
// before the first store of a range and end_write() after the last one, whatever became of the
// access in between. One rank calls them, inside on_leader(), and hands a failure up. Without a stack
// each is one branch; in a kernel they are nothing, because the GPU engine refuses devices with a
// stack.
//
// Status: what the stack answers, EIO for a client: medium_error for a range that cannot be read,
// device_failed for one that cannot be written and for a device that is gone. After a failure the
// range must not be touched and end_write() not be called. A device that is marked as failed answers
// device_failed on every engine; one that is marked while a write is under way keeps what it had, or
// has the new bytes. A device that is being rebuilt answers reads so, and takes writes.
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

// Nothing is written to it.
GPU4FS_FN inline bool has_failed(const Device& device) {
  return load<Order::relaxed, Scope::engine>(&device.failed) == device_failed_for_good;
}

// False also for one that is being rebuilt.
GPU4FS_FN inline bool is_readable(const Device& device) {
  return load<Order::relaxed, Scope::engine>(&device.failed) == device_in_use;
}

// Whatever the device's state: for what is known to be good on one that is being rebuilt.
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
