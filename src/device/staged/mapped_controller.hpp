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

GPU4FS_FN inline u8* medium_page(const Device& device, u64 page) {
  GPU4FS_CHECK_LT(page, device.size_bytes / page_size);
  GPU4FS_CHECK(device.base != nullptr);
  return device.base + page * page_size;
}

}  // namespace detail

// `frame`: a page of engine memory.
GPU4FS_FN GPU4FS_NOINLINE inline Status read_medium(const Device& device, u64 page, u8* frame) {
  const u8* const medium = detail::medium_page(device, page);
#if !GPU4FS_DEVICE_CODE
  if (device.stack != nullptr) GPU4FS_TRY(detail::begin_stacked_read(*device.stack, page * page_size, page_size));
#endif
  copy_bytes(Lane{}, frame, medium, page_size);
  return Status::ok;
}

// The holder of a pin may be storing into the frame. Then it is written again later (cache/write_back.hpp).
GPU4FS_FN GPU4FS_NOINLINE inline Status write_medium(const Device& device, u64 page, const u8* frame) {
  u8* const medium = detail::medium_page(device, page);
#if !GPU4FS_DEVICE_CODE
  if (device.stack != nullptr) GPU4FS_TRY(detail::begin_stacked_write(*device.stack, page * page_size, page_size));
#endif
  (void)load_racy_page(Lane{}, frame, medium);
#if !GPU4FS_DEVICE_CODE
  if (device.stack != nullptr) detail::end_stacked_write(*device.stack, page * page_size, page_size);
#endif
  return Status::ok;
}

}  // namespace gpu4fs::device
