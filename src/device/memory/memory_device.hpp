// Access to devices in memory: a bounded pointer into the region.
//
// Ranges come from structures that were validated when the pool was opened (raid/logical_space_build.hpp). So a range
// that leaves the device is a fault of this program and fails a check. base/copy.hpp and base/xxh3.hpp have the
// functions for bulk data behind the pointer, which bypass the GPU's L1 cache.
#pragma once

#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/config.hpp"
#include "base/limits.hpp"
#include "base/types.hpp"
#include "device/device_types.hpp"
#include "device/memory/scattered_pages.hpp"
#include "device/staged/bring_in.hpp"

namespace gpu4fs::device {

namespace detail {

GPU4FS_FN GPU4FS_NOINLINE inline u8* memory_apart_at(const Device& device, u64 offset, u64 length) {
  return device.kind == DeviceKind::staged ? staged_memory_at(device, offset, length)
                                           : scattered_memory_at(device, offset, length);
}

}  // namespace detail

// Bytes [offset, offset + length) of the device; of one page, unless it is known to be a memory device. For a staged
// device: in the frame of the page, which has been announced.
GPU4FS_FN inline u8* memory_at(const Device& device, u64 offset, u64 length) {
  if (device.kind != DeviceKind::memory) return detail::memory_apart_at(device, offset, length);
  GPU4FS_CHECK_LE(length, device.size_bytes);
  GPU4FS_CHECK_LE(offset, device.size_bytes - length);
  GPU4FS_CHECK(device.base != nullptr);
  return device.base + offset;
}

}  // namespace gpu4fs::device
