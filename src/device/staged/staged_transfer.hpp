// Transfers of staged devices (device/transfer.hpp). They pass the page cache: their pages are never in it. A part of a
// page is read or written with the whole page, so writes of parts of one page exclude each other.
//
// One lane. Status: that of the medium; the pages before it have been moved.
#pragma once

#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/config.hpp"
#include "base/copy.hpp"
#include "base/limits.hpp"
#include "base/status.hpp"
#include "cache/line_lookup.hpp"
#include "device/staged/mapped_controller.hpp"
#include "device/staged/staged_types.hpp"
#include "device/staged/worker.hpp"

namespace gpu4fs::device::detail {

// The worker's page of engine memory.
GPU4FS_FN inline u8* own_page(const StagedDevices& staged) {
  const u32 worker = this_worker();
  GPU4FS_CHECK_LT(worker, staged.worker_count);
  return staged.pages + u64{worker} * page_size;
}

GPU4FS_FN inline void check_not_cached(const Device& device, u64 page) {
  const cache::FoundLine found = cache::find(Lane{}, device.staged->cache, {device.index, page});
  GPU4FS_CHECK_EQ(found.line, cache::no_line);
}

// Calls visit(page, begin, count, done) for the part of the range in each page; `done`: bytes before the part. Ends
// with the first status that is not ok.
template <class Visit>
GPU4FS_FN Status each_transferred_page(const Device& device, u64 offset, u64 length, Visit&& visit) {
  GPU4FS_CHECK(device.staged != nullptr);
  for (u64 done = 0; done < length;) {
    const u64 page = (offset + done) / page_size;
    const u64 begin = (offset + done) % page_size;
    const u64 count = minimum(page_size - begin, length - done);
    check_not_cached(device, page);
    GPU4FS_TRY(visit(page, begin, count, done));
    done += count;
  }
  return Status::ok;
}

GPU4FS_FN GPU4FS_NOINLINE inline Status read_staged_range(const Device& device, u64 offset, u64 length,
                                                          u8* destination) {
  return each_transferred_page(device, offset, length, [&](u64 page, u64 begin, u64 count, u64 done) {
    u8* const work = own_page(*device.staged);
    GPU4FS_TRY(read_medium(device, page, work));
    copy_bytes(Lane{}, destination + done, work + begin, count);
    return Status::ok;
  });
}

GPU4FS_FN GPU4FS_NOINLINE inline Status write_staged_range(const Device& device, u64 offset, u64 length,
                                                           const u8* source) {
  return each_transferred_page(device, offset, length, [&](u64 page, u64 begin, u64 count, u64 done) {
    u8* const work = own_page(*device.staged);
    if (GPU4FS_MUTANT(rest_of_page_not_kept, count < page_size, false)) GPU4FS_TRY(read_medium(device, page, work));
    copy_bytes(Lane{}, work + begin, source + done, count);
    return write_medium(device, page, work);
  });
}

}  // namespace gpu4fs::device::detail
