// Moves pages between engine memory and the media of staged devices.
//
// One lane calls these functions. Nobody else accesses the pages on the medium meanwhile: a page has one line at most,
// and transfers keep away from such pages. Status: that of the medium; pages before the one that failed may have been
// moved.
#pragma once

#include "base/config.hpp"
#include "base/status.hpp"
#include "device/device_types.hpp"
#include "device/staged/mapped_medium.hpp"
#include "device/staged/queued_medium.hpp"

namespace gpu4fs::device {

// `memory`: pages of engine memory.
GPU4FS_FN GPU4FS_NOINLINE inline Status read_medium(const Device& device, u64 page, u64 count, u8* memory) {
  if (detail::has_mapping(device)) return detail::read_mapping(device, page, count, memory);
  return detail::move_pages(device, IoOperation::read, page, count, memory);
}

// Somebody may be storing into the pages: the holder of a frame's pin, whose page is written again later
// (cache/write_back.hpp), or whoever adds records to the log.
GPU4FS_FN GPU4FS_NOINLINE inline Status write_medium(const Device& device, u64 page, u64 count, const u8* memory) {
  if (detail::has_mapping(device)) return detail::write_mapping(device, page, count, memory);
  return detail::move_pages(device, IoOperation::write, page, count, const_cast<u8*>(memory));
}

}  // namespace gpu4fs::device
