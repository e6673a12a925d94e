// What accesses to a device ask first: whether it is in use, and what its stack says (device/stack/device_stack.hpp).
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

}  // namespace gpu4fs::device
