// Dirty frames of staged devices and their way to the medium.
//
// A flush of frames concerns several devices at once. Whoever runs it asks frames_are_written(), begins write-backs of
// dirty lines (begin_flushed_line()), and waits until some have ended. Then he asks again: a line may become dirty for
// this flush after the search has passed it, and others may be writing lines. So nobody has to wait in a lane. Many
// write-backs are in flight, of media that are reached through an I/O queue (staged/detached_io.hpp). Errors are those
// of staged/late_errors.hpp. Frames of a device that has failed are not written.
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

// Whether so many frames of devices below `device_count` are dirty that short writes should be written behind too:
// otherwise each miss would have to write a page before it has a frame. Collective.
template <class Group>
GPU4FS_FN bool has_many_dirty_frames(Group g, const StagedDevices& staged, u32 device_count) {
  constexpr u32 part_of_frames = 8;
  const u64 limit = staged.cache.line_count / (part_of_frames * maximum(device_count, 1u));
  bool has_many = false;
  for (u32 d = g.rank(); d < device_count; d += Group::size()) {
    has_many |= cache::dirty_line_count(staged.cache, d) > limit;
  }
  return g.any(has_many);
}

namespace detail {

// Of a line that the caller has begun to write back. One lane.
GPU4FS_FN GPU4FS_NOINLINE inline void write_line(const StagedDevices& staged, const cache::WriteBack& taken) {
  GPU4FS_CHECK_LT(taken.key.device, device_count_max);
  const Device& device = staged.devices[taken.key.device];
  if (has_failed(device)) return cache::finish_write_back(staged.cache, taken.line, true);
  const Status status = write_medium(device, taken.key.page, 1, cache::frame_of(staged.cache, taken.line));
  end_write_back(staged, taken.line, taken.key.device, status);
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
  if (staged.queue != nullptr) {
    if (poll_any_drives(*staged.queue) == 0) wait_for_any_completion(*staged.queue, seen, wait_ns);
    return;
  }
#endif
  (void)seen;
  if (staged.queue == nullptr || poll_any_drives(*staged.queue) == 0) backoff(1000);
}

GPU4FS_FN inline u32 completions_so_far(const StagedDevices& staged) {
#if !GPU4FS_DEVICE_CODE
  if (staged.queue != nullptr) return completion_count(*staged.queue);
#endif
  (void)staged;
  return 0;
}

}  // namespace detail

// A flush of frames. Plain data; whoever runs it keeps it. Zeroed memory is one of no device.
struct FrameFlush {
  u64 devices;                   // those whose frames may not be written yet, one bit each
  u64 numbered;                  // of them, those with a number
  u8 numbers[device_count_max];  // of their flushes in the table, the lowest bytes
};

// A flush of what was stored into frames of the devices of the mask before this call. Devices without dirty frames cost
// no search. One rank.
GPU4FS_FN GPU4FS_NOINLINE inline void begin_frame_flush(const StagedDevices& staged, u64 devices, FrameFlush* flush) {
  flush->devices = 0;
  flush->numbered = 0;
  for (u64 left = devices; left != 0; left &= left - 1) {
    const u32 d = static_cast<u32>(count_trailing_zeros(left));
    if (cache::dirty_line_count(staged.cache, d) != 0) flush->devices |= u64{1} << d;
  }
}

// Whether everything is written; what was done before is visible then. One rank.
GPU4FS_FN GPU4FS_NOINLINE inline bool frames_are_written(const StagedDevices& staged, FrameFlush* flush) {
  for (u64 left = flush->devices; left != 0; left &= left - 1) {
    const u32 d = static_cast<u32>(count_trailing_zeros(left));
    const u64 bit = u64{1} << d;
    if ((flush->numbered & bit) == 0) {
      const u64 number = cache::begin_flush(staged.cache, d);
      // The flush before has not ended.
      if (number == 0) continue;
      flush->numbers[d] = static_cast<u8>(number);
      flush->numbered |= bit;
    }
    if (cache::has_flushed_byte(staged.cache, d, flush->numbers[d])) flush->devices &= ~bit;
  }
  return flush->devices == 0;
}

// What a rank has begun.
struct BegunLines {
  u32 in_flight;
  u32 written;
};

namespace detail {

// The rank's line, which it has begun to write back, if a request has to write it. no_line: it is written, or there is
// nobody to write it to.
GPU4FS_FN inline LineTransfer transfer_of_flushed_line(const StagedDevices& staged, const cache::WriteBack& taken,
                                                       u32 owner, BegunLines* begun) {
  if (taken.line == cache::no_line) return {{}, cache::no_line, owner};
  const Device& device = staged.devices[taken.key.device];
  if (!GPU4FS_MUTANT(flushed_line_not_written, true, taken.key.page % 2 != 0)) {
    cache::finish_write_back(staged.cache, taken.line, true);
  } else if (has_failed(device) || has_mapping(device)) {
    write_line(staged, taken);
  } else {
    return {taken.key, taken.line, owner};
  }
  ++begun->written;
  return {{}, cache::no_line, owner};
}

}  // namespace detail

// Begins to write the dirty lines of the devices of the mask, except those that pause, while there is room. `owner` is
// told when each has ended.
// count(1) is called before a request can end, and count(-1) if it was not begun after all. Collective. The last line
// is written by the caller itself if he would only wait for a thread that does it.
template <class Group, class Count>
GPU4FS_FN GPU4FS_NOINLINE BegunLines begin_dirty_lines(Group g, const StagedDevices& staged, u64 devices, u32 owner,
                                                       Count&& count) {
  BegunLines begun{0, 0};
  devices &= ~on_leader(g, [&] { return paused_devices(staged, devices); });
  if (devices == 0) return begun;
  bool is_full = false;
  cache::WriteBack last{cache::no_line, {}};
  const auto begin = [&](const cache::WriteBack& taken) {
    const detail::LineTransfer transfer = detail::transfer_of_flushed_line(staged, taken, owner, &begun);
    const bool is_wanted = transfer.line != cache::no_line;
    if (is_wanted) count(1);
    if (staged.queue != nullptr && detail::detach(g, staged, transfer, IoOperation::write)) {
      ++begun.in_flight;
    } else if (is_wanted) {
      count(-1);
      cache::finish_write_back(staged.cache, transfer.line, false);
      is_full = true;
    }
  };
  const bool holds_back = Group::size() == 1 && staged.queue != nullptr && carries_out_here(*staged.queue);
  cache::take_all_dirty(
      g, staged.cache, [&](cache::LineWord word) { return !is_full && (devices >> word.key().device & 1) != 0; },
      [&](const cache::WriteBack& taken) {
        if (!holds_back) return begin(taken);
        if (last.line != cache::no_line) begin(last);
        last = taken;
      });
  if (g.any(begun.in_flight != 0)) on_leader(g, [&] { ring_detached(staged); });
  if (last.line != cache::no_line) {
    detail::write_line(staged, last);
    ++begun.written;
  }
  return begun;
}

// Writes what was stored into frames of the devices of the mask before this call, and waits. Collective.
// tell(owner): as for take_completions(), which this calls. Status: ok, or that of refusal_of(), and then not all of it
// is written.
template <class Group, class Tell>
GPU4FS_FN GPU4FS_NOINLINE Status write_back_devices(Group g, const StagedDevices& staged, u64 devices, Tell&& tell) {
  FrameFlush flush;
  on_leader(g, [&] { begin_frame_flush(staged, devices, &flush); });
  for (;;) {
    const u32 seen = on_leader(g, [&] { return detail::completions_so_far(staged); });
    if (on_leader(g, [&] { return frames_are_written(staged, &flush); })) return Status::ok;
    const u64 left = on_leader(g, [&] { return flush.devices; });
    const Status refused = on_leader(g, [&] { return refusal_of(staged, left); });
    if (refused != Status::ok) return refused;
    const BegunLines begun = begin_dirty_lines(g, staged, left, no_io_owner, [](int) {});
    if (g.any(begun.written != 0)) continue;
    if (staged.queue != nullptr && take_completions(g, staged, tell) != 0) continue;
    on_leader(g, [&] { detail::await_some(staged, seen); });
  }
}

// The same for one device, in a program without commands: no request in flight has an owner. Status: also that of the
// first write-back that failed, of any time (above).
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status write_back_all(Group g, const StagedDevices& staged, u32 device) {
  GPU4FS_TRY(
      write_back_devices(g, staged, u64{1} << device, [](u32) { GPU4FS_UNREACHABLE("nobody has an owner told"); }));
  return on_leader(g, [&] { return write_error_of(staged, device); });
}

// The next announcement of a page reads the medium, unless the page is dirty or in use. One rank.
GPU4FS_FN inline void look_at_medium(const StagedDevices& staged, u32 device, u64 page) {
  cache::drop_page(staged.cache, {device, page});
}

// Removes the frames of the device's pages [first_page, first_page + page_count), whose content nobody needs any more.
// Collective. Nobody announces accesses to these pages or begins to write them meanwhile; who waits for a flush of
// frames finds them flushed. Waits for transfers that nobody else waits for.
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
