// Dirty frames of staged devices and their way to the medium.
//
// A flush has many write-backs in flight, of media that are reached through an I/O queue (staged/detached_io.hpp).
// Errors are those of staged/late_errors.hpp. Frames of a device that has failed are not written.
#pragma once

#include "base/access.hpp"
#include "base/atomics.hpp"
#include "base/group.hpp"
#include "base/mutant.hpp"
#include "base/status.hpp"
#include "cache/eviction.hpp"
#include "cache/write_back.hpp"
#include "device/device_state.hpp"
#include "device/queue/io_wait.hpp"
#include "device/staged/detached_io.hpp"
#include "device/staged/late_errors.hpp"
#include "device/staged/medium_io.hpp"
#include "device/staged/staged_types.hpp"

namespace gpu4fs::device {

// Whether a frame of some device is dirty, or was a moment ago.
GPU4FS_FN inline bool has_dirty_frames(const StagedDevices& staged) {
  for (u32 d = 0; d < device_count_max; ++d) {
    if (cache::dirty_line_count(staged.cache, d) != 0) return true;
  }
  return false;
}

namespace detail {

// Of a line that the caller has begun to write back. One lane.
GPU4FS_FN GPU4FS_NOINLINE inline void write_line(const StagedDevices& staged, const cache::WriteBack& taken) {
  GPU4FS_CHECK_LT(taken.key.device, device_count_max);
  const Device& device = staged.devices[taken.key.device];
  if (!has_failed(device)) {
    const Status status = write_medium(device, taken.key.page, 1, cache::frame_of(staged.cache, taken.line));
    // Before the flush that waits for the line can end.
    if (status != Status::ok) note_write_error(staged, taken.key.device, status);
  }
  cache::finish_write_back(staged.cache, taken.line, true);
}

// The same, without waiting for the medium if there is room.
GPU4FS_FN GPU4FS_NOINLINE inline void begin_line(const StagedDevices& staged, const cache::WriteBack& taken) {
  const Device& device = staged.devices[taken.key.device];
  if (!has_failed(device) && !has_mapping(device) &&
      detach(staged, device, taken.key, taken.line, IoOperation::write, no_io_owner)) {
    return;
  }
  write_line(staged, taken);
}

// Ends transfers of the device's pages [first_page, first_page + page_count) whose requests have completed. True: none
// is in flight, except those that began meanwhile. Collective.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE bool end_transfers(Group g, const StagedDevices& staged, u32 device, u64 first_page,
                                             u64 page_count) {
  bool is_in_flight = false;
  for (u32 line = g.rank(); line < staged.cache.line_count; line += Group::size()) {
    const auto is_moving = [&] {
      const cache::LineWord word = cache::peek(staged.cache.lines[line]);
      return (word.is_writing() || word.is_loading()) && word.key().device == device &&
             word.key().page - first_page < page_count;
    };
    if (!is_moving()) continue;
    help_line(staged, line);
    is_in_flight |= is_moving();
  }
  return !g.any(is_in_flight);
}

// Waits until some request has completed since `seen`, or for a while: lines may be written by others.
GPU4FS_FN inline void await_some(const StagedDevices& staged, u32 seen) {
#if !GPU4FS_DEVICE_CODE
  constexpr u64 wait_ns = 1000000;
  if (staged.queue != nullptr) return wait_for_any_completion(*staged.queue, seen, wait_ns);
#endif
  (void)staged, (void)seen;
  backoff(1000);
}

GPU4FS_FN inline u32 completions_so_far(const StagedDevices& staged) {
#if !GPU4FS_DEVICE_CODE
  if (staged.queue != nullptr) return completion_count(*staged.queue);
#endif
  (void)staged;
  return 0;
}

// Begins to write the lines of the device that are dirty at this time.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void write_dirty_lines(Group g, const StagedDevices& staged, u32 device) {
  cache::take_all_dirty(
      g, staged.cache, [device](cache::LineWord word) { return word.key().device == device; },
      [&](const cache::WriteBack& taken) {
        if (GPU4FS_MUTANT(flushed_line_not_written, true, taken.key.page % 2 != 0)) {
          begin_line(staged, taken);
        } else {
          cache::finish_write_back(staged.cache, taken.line, true);
        }
      });
  if (staged.queue != nullptr) on_leader(g, [&] { ring_detached(staged); });
}

}  // namespace detail

// Writes what was stored into frames of the device before this call. Collective. Status: that of the first write-back
// that failed, of any time (above).
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status write_back_all(Group g, const StagedDevices& staged, u32 device) {
  const auto write_until = [&](auto&& is_done) {
    for (;;) {
      const u32 seen = on_leader(g, [&] { return detail::completions_so_far(staged); });
      if (on_leader(g, is_done)) return;
      detail::write_dirty_lines(g, staged, device);
      if (detail::end_transfers(g, staged, device, 0, device_page_max)) continue;
      on_leader(g, [&] { detail::await_some(staged, seen); });
    }
  };
  // A device without dirty frames costs no search.
  if (on_leader(g, [&] { return cache::dirty_line_count(staged.cache, device) == 0; })) {
    return on_leader(g, [&] { return write_error_of(staged, device); });
  }
  // A flush waits for the end of the one before, and then for its own lines.
  u64 number = 0;
  write_until([&] {
    number = cache::begin_flush(staged.cache, device);
    return number != 0;
  });
  write_until([&] { return cache::has_flushed(staged.cache, device, number); });
  return on_leader(g, [&] { return write_error_of(staged, device); });
}

// The next announcement of a page reads the medium, unless the page is dirty or in use. One rank.
GPU4FS_FN inline void look_at_medium(const StagedDevices& staged, u32 device, u64 page) {
  cache::drop_page(staged.cache, {device, page});
}

// Removes the frames of the device's pages [first_page, first_page + page_count), whose content nobody needs any more.
// Collective. Nobody announces accesses to these pages meanwhile, and no flush runs. Waits for transfers that nobody
// else waits for.
template <class Group>
GPU4FS_FN void forget_pages(Group g, const StagedDevices& staged, u32 device, u64 first_page, u64 page_count) {
  for (;;) {
    const u32 seen = on_leader(g, [&] { return detail::completions_so_far(staged); });
    if (detail::end_transfers(g, staged, device, first_page, page_count)) break;
    on_leader(g, [&] { detail::await_some(staged, seen); });
  }
  cache::forget(g, staged.cache, device, first_page, page_count);
}

// Removes the frames of the device's pages [first_page, first_page + page_count): they were changed on the medium by
// somebody else. Returns how many are left because they are in use or dirty. Collective. The caller knows that nobody
// announces accesses to these pages meanwhile.
template <class Group>
GPU4FS_FN u64 discard(Group g, const StagedDevices& staged, u32 device, u64 first_page, u64 page_count) {
  return cache::drop(g, staged.cache, device, first_page, page_count);
}

}  // namespace gpu4fs::device
