// Media of staged devices that are mapped memory (Device::base). Pages are moved at once.
//
// The device's stack sees the accesses here, where the medium is accessed. Status: the answer of the stack.
#pragma once

#include "base/check.hpp"
#include "base/config.hpp"
#include "base/copy.hpp"
#include "base/group.hpp"
#include "base/limits.hpp"
#include "base/racy_access.hpp"
#include "base/status.hpp"
#include "device/device_state.hpp"

namespace gpu4fs::device::detail {

GPU4FS_FN inline u8* medium_pages(const Device& device, u64 page, u64 count) {
  GPU4FS_CHECK_LE(count, device.size_bytes / page_size);
  GPU4FS_CHECK_LE(page, device.size_bytes / page_size - count);
  GPU4FS_CHECK(device.base != nullptr);
  return device.base + page * page_size;
}

GPU4FS_FN GPU4FS_NOINLINE inline Status read_mapping(const Device& device, u64 page, u64 count, u8* memory) {
  const u8* const medium = medium_pages(device, page, count);
#if !GPU4FS_DEVICE_CODE
  if (device.stack != nullptr) {
    GPU4FS_TRY(begin_stacked_read(*device.stack, page * page_size, count * page_size));
  }
#endif
  copy_bytes(Lane{}, memory, medium, count * page_size);
  return Status::ok;
}

GPU4FS_FN GPU4FS_NOINLINE inline Status write_mapping(const Device& device, u64 page, u64 count, const u8* memory) {
  u8* const medium = medium_pages(device, page, count);
#if !GPU4FS_DEVICE_CODE
  if (device.stack != nullptr) {
    GPU4FS_TRY(begin_stacked_write(*device.stack, page * page_size, count * page_size));
  }
#endif
  for (u64 i = 0; i < count; ++i) (void)load_racy_page(Lane{}, memory + i * page_size, medium + i * page_size);
#if !GPU4FS_DEVICE_CODE
  if (device.stack != nullptr) end_stacked_write(*device.stack, page * page_size, count * page_size);
#endif
  return Status::ok;
}

}  // namespace gpu4fs::device::detail
