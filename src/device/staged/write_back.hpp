// Dirty frames of staged devices and their way to the medium.
//
// A write-back that fails loses its bytes: the frame counts as clean, so that it does not keep its place for ever, and
// the first error of the device is kept. Each flush of the device answers it, until whoever can do without these bytes
// calls forget_write_error(): the device was given up and filled again. So no flush answers ok for bytes that were
// lost. Frames of a device that has failed are not written.
//
// The medium then has older bytes than the pool. Until it is decided whether the pool can do without the device, no
// page of it is brought in (undecided_errors()).
#pragma once

#include "base/access.hpp"
#include "base/atomics.hpp"
#include "base/group.hpp"
#include "base/mutant.hpp"
#include "base/status.hpp"
#include "cache/eviction.hpp"
#include "cache/write_back.hpp"
#include "device/device_state.hpp"
#include "device/staged/medium_io.hpp"
#include "device/staged/staged_types.hpp"

namespace gpu4fs::device {

// Of the first write-back that failed; ok: none.
GPU4FS_FN inline Status write_error_of(const StagedDevices& staged, u32 device) {
  GPU4FS_CHECK_LT(device, device_count_max);
  return static_cast<Status>(load<Order::acquire, Scope::engine>(&staged.error_state->first[device]));
}

GPU4FS_FN inline void forget_write_error(const StagedDevices& staged, u32 device) {
  GPU4FS_CHECK_LT(device, device_count_max);
  store<Order::release, Scope::engine>(&staged.error_state->first[device], static_cast<u32>(Status::ok));
}

// Devices with write-backs that failed and whose consequences nobody has drawn, one bit each.
GPU4FS_FN inline u64 undecided_errors(const StagedDevices& staged) {
  return load<Order::acquire, Scope::engine>(&staged.error_state->undecided);
}

// The consequences are drawn: the device has failed, or the pool cannot do without it. Pages are brought in again.
GPU4FS_FN inline void end_decision(const StagedDevices& staged, u32 device) {
  GPU4FS_CHECK_LT(device, device_count_max);
  fetch_and<Order::release, Scope::engine>(&staged.error_state->undecided, ~(u64{1} << device));
}

// Whether a frame of some device is dirty, or was a moment ago.
GPU4FS_FN inline bool has_dirty_frames(const StagedDevices& staged) {
  for (u32 d = 0; d < device_count_max; ++d) {
    if (cache::dirty_line_count(staged.cache, d) != 0) return true;
  }
  return false;
}

namespace detail {

GPU4FS_FN inline void note_write_error(const StagedDevices& staged, u32 device, Status status) {
  u32 seen = static_cast<u32>(Status::ok);
  compare_exchange<Order::release, Scope::engine>(
      &staged.error_state->first[device], seen, static_cast<u32>(GPU4FS_MUTANT(write_error_lost, status, Status::ok)));
  fetch_or<Order::release, Scope::engine>(&staged.error_state->undecided, u64{1} << device);
}

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

// Writes the lines of the device that are dirty at this time.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void write_dirty_lines(Group g, const StagedDevices& staged, u32 device) {
  for (u32 from = 0;;) {
    const cache::WriteBack taken = cache::take_dirty(g, staged.cache, device, from);
    if (taken.line == cache::no_line) return;
    on_leader(g, [&] {
      if (GPU4FS_MUTANT(flushed_line_not_written, true, taken.key.page % 2 != 0)) {
        write_line(staged, taken);
      } else {
        cache::finish_write_back(staged.cache, taken.line, true);
      }
    });
    from = taken.line + 1;
  }
}

}  // namespace detail

// Writes what was stored into frames of the device before this call. Collective. Status: that of the first write-back
// that failed, of any time (above).
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status write_back_all(Group g, const StagedDevices& staged, u32 device) {
  const auto write_until = [&](auto&& is_done) {
    while (!on_leader(g, is_done)) {
      detail::write_dirty_lines(g, staged, device);
      cpu_relax();
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
// Collective. Nobody announces accesses to these pages meanwhile, and no flush runs.
template <class Group>
GPU4FS_FN void forget_pages(Group g, const StagedDevices& staged, u32 device, u64 first_page, u64 page_count) {
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
