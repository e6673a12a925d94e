// A controller for staged devices that moves pages at once: the medium is mapped memory (Device::base).
//
// The device's stack sees the accesses here, where the medium is accessed. One lane calls these functions. Nobody else
// accesses the page on the medium meanwhile: a page has one line at most, and transfers keep away from such pages.
//
// Status: the answer of the stack.
#pragma once

#include "base/check.hpp"
#include "base/config.hpp"
#include "base/copy.hpp"
#include "base/group.hpp"
#include "base/limits.hpp"
#include "base/racy_access.hpp"
#include "base/status.hpp"
#include "device/device_state.hpp"

namespace gpu4fs::device {

namespace detail {

GPU4FS_FN inline u8* medium_pages(const Device& device, u64 page, u64 count) {
  GPU4FS_CHECK_LE(count, device.size_bytes / page_size);
  GPU4FS_CHECK_LE(page, device.size_bytes / page_size - count);
  GPU4FS_CHECK(device.base != nullptr);
  return device.base + page * page_size;
}

}  // namespace detail

// `memory`: pages of engine memory.
GPU4FS_FN GPU4FS_NOINLINE inline Status read_medium(const Device& device, u64 page, u64 count, u8* memory) {
  const u8* const medium = detail::medium_pages(device, page, count);
#if !GPU4FS_DEVICE_CODE
  if (device.stack != nullptr) {
    GPU4FS_TRY(detail::begin_stacked_read(*device.stack, page * page_size, count * page_size));
  }
#endif
  copy_bytes(Lane{}, memory, medium, count * page_size);
  return Status::ok;
}

// Somebody may be storing into the pages: the holder of a frame's pin, whose page is written again later
// (cache/write_back.hpp), or whoever adds records to the log.
GPU4FS_FN GPU4FS_NOINLINE inline Status write_medium(const Device& device, u64 page, u64 count, const u8* memory) {
  u8* const medium = detail::medium_pages(device, page, count);
#if !GPU4FS_DEVICE_CODE
  if (device.stack != nullptr) {
    GPU4FS_TRY(detail::begin_stacked_write(*device.stack, page * page_size, count * page_size));
  }
#endif
  for (u64 i = 0; i < count; ++i) (void)load_racy_page(Lane{}, memory + i * page_size, medium + i * page_size);
#if !GPU4FS_DEVICE_CODE
  if (device.stack != nullptr) detail::end_stacked_write(*device.stack, page * page_size, count * page_size);
#endif
  return Status::ok;
}

}  // namespace gpu4fs::device
