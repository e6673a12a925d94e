// Transfers of staged devices (device/transfer.hpp). They pass the page cache: their pages are never in it. Whole pages
// in aligned memory are moved at once, if the controller can access this memory. A part of a page is read or written
// with the whole page, so writes of parts of one page exclude each other.
//
// One lane, unless something else is said. Status: that of the medium; the pages before it have been moved.
#pragma once

#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/config.hpp"
#include "base/copy.hpp"
#include "base/group.hpp"
#include "base/limits.hpp"
#include "base/status.hpp"
#include "cache/line_lookup.hpp"
#include "device/staged/medium_io.hpp"
#include "device/staged/staged_types.hpp"
#include "device/staged/worker.hpp"

namespace gpu4fs::device::detail {

// The worker's pages of memory that the controller accesses.
GPU4FS_FN inline u8* own_page(const StagedDevices& staged) {
  const u32 worker = this_worker();
  GPU4FS_CHECK_LT(worker, staged.worker_count);
  return staged.pages + u64{worker} * staged.own_page_count * page_size;
}

GPU4FS_FN inline void check_not_cached(const Device& device, u64 page, u64 count) {
  for (u64 i = 0; i < count; ++i) {
    const cache::FoundLine found = cache::find(Lane{}, device.staged->cache, {device.index, page + i});
    GPU4FS_CHECK_EQ(found.line, cache::no_line);
  }
}

// A part of a range that passes through the worker's pages: pages [page, page + page_count) of the medium contain it.
struct BouncedPart {
  u64 page;
  u64 page_count;
  u64 begin;  // in these pages
  u64 length;
};

GPU4FS_FN inline BouncedPart bounced_part(const StagedDevices& staged, u64 offset, u64 length) {
  const u64 begin = offset % page_size;
  const u64 page_count = minimum(divide_up(begin + length, page_size), u64{staged.own_page_count});
  return {offset / page_size, page_count, begin, minimum(length, page_count * page_size - begin)};
}

// As the two below, for memory that the controller cannot access. Uniform.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status read_bounced_range(Group g, const Device& device, u64 offset, u64 length,
                                                    u8* destination) {
  u8* const work = own_page(*device.staged);
  for (u64 done = 0; done < length;) {
    const BouncedPart part = bounced_part(*device.staged, offset + done, length - done);
    GPU4FS_TRY(on_leader(g, [&] {
      check_not_cached(device, part.page, part.page_count);
      return read_medium(device, part.page, part.page_count, work);
    }));
    copy_bytes(g, destination + done, work + part.begin, part.length);
    g.sync();
    done += part.length;
  }
  return Status::ok;
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status write_bounced_range(Group g, const Device& device, u64 offset, u64 length,
                                                     const u8* source) {
  u8* const work = own_page(*device.staged);
  for (u64 done = 0; done < length;) {
    const BouncedPart part = bounced_part(*device.staged, offset + done, length - done);
    const bool is_whole = part.begin == 0 && part.length == part.page_count * page_size;
    if (!is_whole) {
      GPU4FS_TRY(on_leader(g, [&] { return read_medium(device, part.page, part.page_count, work); }));
    }
    copy_bytes(g, work + part.begin, source + done, part.length);
    g.sync();
    GPU4FS_TRY(on_leader(g, [&] {
      check_not_cached(device, part.page, part.page_count);
      return write_medium(device, part.page, part.page_count, work);
    }));
    done += part.length;
  }
  return Status::ok;
}

// A part of a range: whole pages that are moved to or from their place in memory, or bytes of one page.
struct TransferPart {
  u64 page;
  u64 page_count;
  u64 begin;  // in the page
  u64 length;
  u64 done;  // bytes before the part
  bool is_direct;
};

// Calls visit(TransferPart) for the parts of the range. `memory`: whole pages are moved at once where this is aligned.
// Ends with the first status that is not ok.
template <class Visit>
GPU4FS_FN Status each_transfer_part(const Device& device, u64 offset, u64 length, const u8* memory, Visit&& visit) {
  GPU4FS_CHECK(device.staged != nullptr);
  for (u64 done = 0; done < length;) {
    const u64 begin = (offset + done) % page_size;
    const bool is_direct = begin == 0 && length - done >= page_size && is_aligned(memory + done, page_size);
    const u64 count = is_direct ? align_down(length - done, page_size) : minimum(page_size - begin, length - done);
    const u64 page_count = is_direct ? count / page_size : 1;
    const TransferPart part{(offset + done) / page_size, page_count, begin, count, done, is_direct};
    check_not_cached(device, part.page, part.page_count);
    GPU4FS_TRY(visit(part));
    done += count;
  }
  return Status::ok;
}

GPU4FS_FN GPU4FS_NOINLINE inline Status read_staged_range(const Device& device, u64 offset, u64 length,
                                                          u8* destination) {
  return each_transfer_part(device, offset, length, destination, [&](const TransferPart& part) {
    if (part.is_direct) {
      return read_medium(device, part.page, part.page_count, destination + part.done);
    }
    u8* const work = own_page(*device.staged);
    GPU4FS_TRY(read_medium(device, part.page, 1, work));
    copy_bytes(Lane{}, destination + part.done, work + part.begin, part.length);
    return Status::ok;
  });
}

GPU4FS_FN GPU4FS_NOINLINE inline Status write_staged_range(const Device& device, u64 offset, u64 length,
                                                           const u8* source) {
  return each_transfer_part(device, offset, length, source, [&](const TransferPart& part) {
    if (part.is_direct) {
      return write_medium(device, part.page, part.page_count, source + part.done);
    }
    u8* const work = own_page(*device.staged);
    if (GPU4FS_MUTANT(rest_of_page_not_kept, part.length < page_size, false)) {
      GPU4FS_TRY(read_medium(device, part.page, 1, work));
    }
    copy_bytes(Lane{}, work + part.begin, source + part.done, part.length);
    return write_medium(device, part.page, 1, work);
  });
}

}  // namespace gpu4fs::device::detail
