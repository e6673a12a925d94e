// Devices whose pages lie in memory in another order than on the device: DeviceKind::scattered.
//
// No pool has such a device. It stands for all devices of which each page has to be looked up: tests run the code that
// reads and writes pages on it. Code that computes the address of a page from that of its neighbour then finds a wrong
// page, and a range that crosses the end of a page fails a check. The pages of each block of 64 lie in reverse order.
//
// On the host the device's stack is told of every look-up, so a test can compare look-ups with announcements
// (device/device_access.hpp).
#pragma once

#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/config.hpp"
#include "base/limits.hpp"
#include "base/types.hpp"
#include "device/device_types.hpp"

namespace gpu4fs::device {

inline constexpr u64 scattered_block_pages = 64;

// The place in memory of page `page` of a device of `page_count` pages. The last block may be shorter.
GPU4FS_FN constexpr u64 scattered_page(u64 page, u64 page_count) {
  const u64 first = page - page % scattered_block_pages;
  const u64 length = minimum(scattered_block_pages, page_count - first);
  return first + length - 1 - (page - first);
}

namespace detail {

// Host code, in device/stack/device_stack.cpp.
void note_look_up(DeviceStack& stack, u64 offset);

GPU4FS_FN inline u8* scattered_memory_at(const Device& device, u64 offset, u64 length) {
  GPU4FS_CHECK_EQ(static_cast<u32>(device.kind), static_cast<u32>(DeviceKind::scattered));
  const u64 page = offset / page_size;
  const u64 page_count = device.size_bytes / page_size;
  GPU4FS_CHECK_LT(page, page_count);
  GPU4FS_CHECK_LE(length, page_size - offset % page_size);
  GPU4FS_CHECK(device.base != nullptr);
#if !GPU4FS_DEVICE_CODE
  if (device.stack != nullptr) note_look_up(*device.stack, offset);
#endif
  return device.base + scattered_page(page, page_count) * page_size + offset % page_size;
}

}  // namespace detail
}  // namespace gpu4fs::device
