// Announcing accesses to a device's memory, for devices with a stack
// (device/stack/device_stack.hpp).
//
// Memory devices are read and written by loads and stores, which nobody could see, delay or fail.
// So whoever touches a device's bytes says so: begin_read() before the first load, begin_write()
// before the first store of a range and end_write() behind the last one, whatever became of the
// access in between. One rank calls them, inside serial(), and hands a failure up. Without a stack
// each is one branch; in a kernel they are nothing, because the GPU engine refuses devices with a
// stack.
//
// Status: what the stack answers, EIO for a client: medium_error for a range that cannot be read,
// device_failed for one that cannot be written and for a device that is gone. After a failure the
// range must not be touched and end_write() not be called.
#pragma once

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
}  // namespace detail

GPU4FS_FN inline Status begin_read(const Device& device, u64 offset, u64 length) {
#if !GPU4FS_DEVICE_CODE
  if (device.stack != nullptr) return detail::begin_stacked_read(*device.stack, offset, length);
#endif
  (void)device, (void)offset, (void)length;
  return Status::ok;
}

GPU4FS_FN inline Status begin_write(const Device& device, u64 offset, u64 length) {
#if !GPU4FS_DEVICE_CODE
  if (device.stack != nullptr) return detail::begin_stacked_write(*device.stack, offset, length);
#endif
  (void)device, (void)offset, (void)length;
  return Status::ok;
}

GPU4FS_FN inline void end_write(const Device& device, u64 offset, u64 length) {
#if !GPU4FS_DEVICE_CODE
  if (device.stack != nullptr) detail::end_stacked_write(*device.stack, offset, length);
#endif
  (void)device, (void)offset, (void)length;
}

}  // namespace gpu4fs::device
