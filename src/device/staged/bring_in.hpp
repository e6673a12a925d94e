// Announced accesses to staged devices, and look-ups of the pages that were announced.
//
// An announced page is brought into a frame and pinned until the end of the scope (staged/pins.hpp). The lane that
// announces it moves the bytes itself, and writes another page back first if its set has only dirty lines. A page that
// will be written is not read: its frame has no content, and nobody else gets it before end_write(). Whoever announces
// a write as well as a read of a page announces the read first.
//
// Waits depend on transfers, which wait for nobody, and on holders of pages that will be written. Those store, and wait
// for no page that a reader holds.
#pragma once

#include "base/access.hpp"
#include "base/check.hpp"
#include "base/config.hpp"
#include "base/group.hpp"
#include "base/limits.hpp"
#include "base/mutant.hpp"
#include "base/status.hpp"
#include "cache/pin.hpp"
#include "cache/write_back.hpp"
#include "device/device_state.hpp"
#include "device/queue/io_wait.hpp"
#include "device/staged/detached_io.hpp"
#include "device/staged/medium_io.hpp"
#include "device/staged/pins.hpp"
#include "device/staged/staged_types.hpp"
#include "device/staged/write_back.hpp"

namespace gpu4fs::device::detail {

// Looks for a line of a full set before this counts as a mistake: the pins of all workers do not fit.
inline constexpr u32 full_set_attempts_max = 1u << 24;

// The only page of a range.
GPU4FS_FN inline cache::PageKey key_of(const Device& device, u64 offset, u64 length) {
  GPU4FS_CHECK_LE(length, page_size - offset % page_size);
  GPU4FS_CHECK(device.staged != nullptr);
  return {device.index, offset / page_size};
}

// Fills the frame of a line that was taken for this page.
GPU4FS_FN inline Status fill_frame(const Device& device, cache::PageKey key, u32 line) {
  const cache::Cache& cache = device.staged->cache;
  u8* const frame = cache::frame_of(cache, line);
  Status status = read_medium(device, key.page, 1, frame);
  if (may_be_outdated(device)) {
    status = GPU4FS_MUTANT(outdated_page_brought_in, Status::device_failed, status);
  }
  cache::finish_load(cache, line, status == Status::ok);
  return status;
}

// All lines of a set are in use or in flight.
GPU4FS_FN GPU4FS_NOINLINE inline void help_set(const StagedDevices& staged, cache::PageKey key) {
  const u32 first = cache::set_of(staged.cache, key) * staged.cache.set_size;
  if (staged.queue != nullptr) (void)poll_any_drives(*staged.queue);
  for (u32 i = 0; i < staged.cache.set_size; ++i) help_line(staged, first + i);
}

// The line is loading. Waits a while, or until some request has completed. `attempts`: how often the caller has waited
// for it already.
GPU4FS_FN GPU4FS_NOINLINE inline void await_line(const StagedDevices& staged, u32 line, u32 attempts) {
#if !GPU4FS_DEVICE_CODE
  constexpr u32 short_waits = 16;
  constexpr u64 long_wait_ns = 200000;  // somebody may store into the page, and completes no request
  if (staged.queue != nullptr && attempts >= short_waits) {
    const u32 seen = completion_count(*staged.queue);
    (void)poll_any_drives(*staged.queue);
    help_line(staged, line);
    if (cache::peek(cache::line_at(staged.cache, line)).is_loading()) {
      wait_for_any_completion(*staged.queue, seen, long_wait_ns);
    }
    return;
  }
#endif
  (void)attempts;
  if (staged.queue == nullptr || poll_any_drives(*staged.queue) == 0) backoff(1000);
  help_line(staged, line);
}

// All lines of a set are dirty, this one too. Status: io_error if the system has refused for long to write its device.
// One lane.
GPU4FS_FN GPU4FS_NOINLINE inline Status make_room(const StagedDevices& staged, u32 line) {
  const cache::LineWord word = cache::peek(cache::line_at(staged.cache, line));
  const u64 device = word.is_dirty() ? u64{1} << word.key().device : 0;
  if (paused_devices(staged, device) != 0) {
    if (refusal_of(staged, device) != Status::ok) return Status::io_error;
    help_set(staged, word.key());
    backoff(100000);
    return Status::ok;
  }
  const cache::WriteBack taken = cache::begin_write_back(staged.cache, line);
  if (taken.line != cache::no_line) write_line(staged, taken);
  return Status::ok;
}

// One lane. Status: that of the medium; then nothing is pinned. A read of a page that the worker itself will write is
// answered medium_error: there is no content.
GPU4FS_FN GPU4FS_NOINLINE inline Status bring_in(const Device& device, u64 offset, u64 length, cache::PinMode mode) {
  const cache::PageKey key = key_of(device, offset, length);
  const StagedDevices& staged = *device.staged;
  u32 loading_attempts = 0;
  for (u32 full_set_attempts = 0;;) {
    const cache::PinResult pinned = cache::pin(Lane{}, staged.cache, key, mode);
    switch (pinned.outcome) {
      case cache::PinOutcome::must_load:
        GPU4FS_TRY(fill_frame(device, key, pinned.line));
        note_pin(staged, pinned.line);
        return Status::ok;
      case cache::PinOutcome::hit:
      case cache::PinOutcome::fills:
        note_pin(staged, pinned.line);
        return Status::ok;
      case cache::PinOutcome::must_write_back:
        GPU4FS_TRY(make_room(staged, pinned.line));
        break;
      case cache::PinOutcome::no_room:
        GPU4FS_CHECK_LT(full_set_attempts, full_set_attempts_max);
        ++full_set_attempts;
        help_set(staged, key);
        backoff(1000);
        break;
      case cache::PinOutcome::loading:
        if (has_pin(staged, pinned.line)) {
          return mode == cache::PinMode::overwrite ? Status::ok : Status::medium_error;
        }
        await_line(staged, pinned.line, loading_attempts);
        ++loading_attempts;
        break;
    }
  }
}

// The line of a page that is pinned.
GPU4FS_FN inline cache::FoundLine pinned_line(const StagedDevices& staged, cache::PageKey key) {
  const cache::FoundLine found = cache::find(Lane{}, staged.cache, key);
  GPU4FS_CHECK_NE(found.line, cache::no_line);
  GPU4FS_CHECK_GT(found.word.pins(), 0u);
  return found;
}

// One lane. The page need not have been announced: the device may have failed.
GPU4FS_FN GPU4FS_NOINLINE inline void cancel_staged_write(const Device& device, u64 offset, u64 length) {
  const StagedDevices& staged = *device.staged;
  const cache::FoundLine found = cache::find(Lane{}, staged.cache, key_of(device, offset, length));
  // If it has content, that is still the page's; the pin ends with the scope.
  if (found.line == cache::no_line || !found.word.is_loading() || !give_up_pin(staged, found.line)) return;
  cache::finish_load(staged.cache, found.line, GPU4FS_MUTANT(cancelled_write_kept, false, true));
}

// After the stores into a page whose write was announced. One lane.
GPU4FS_FN GPU4FS_NOINLINE inline void end_staged_write(const Device& device, u64 offset, u64 length) {
  const cache::Cache& cache = device.staged->cache;
  const cache::PageKey key = key_of(device, offset, length);
  if (has_failed(device)) return cancel_staged_write(device, offset, length);
  const cache::FoundLine found = pinned_line(*device.staged, key);
  if (found.word.is_loading()) cache::finish_load(cache, found.line, true);
  GPU4FS_MUTANT(staged_store_not_marked, cache::mark_dirty(cache, found.line), static_cast<void>(0));
}

// One lane. The page was announced in this scope or in one around it.
GPU4FS_FN GPU4FS_NOINLINE inline u8* staged_memory_at(const Device& device, u64 offset, u64 length) {
  const cache::FoundLine found = pinned_line(*device.staged, key_of(device, offset, length));
  return cache::frame_of(device.staged->cache, found.line) + offset % page_size;
}

}  // namespace gpu4fs::device::detail

namespace gpu4fs::device {

// Where a page is.
struct FrameLook {
  const u8* memory;  // nullptr: it is in no frame, or not yet
  bool is_loading;
};

// Nothing is pinned, so the frame may get another page at any time. The caller loads it as memory that others change
// (base/racy_access.hpp), and believes no byte before a checksum of this page matches. One lane.
GPU4FS_FN GPU4FS_NOINLINE inline FrameLook look_at_frame(const Device& device, u64 page) {
  GPU4FS_CHECK(device.staged != nullptr);
  const cache::Cache& cache = device.staged->cache;
  const cache::PageKey key{device.index, page};
  const cache::FoundLine found = cache::find(Lane{}, cache, key);
  if (found.line == cache::no_line) return {nullptr, false};
  if (!found.word.is_usable()) return {nullptr, found.word.is_loading()};
  cache::note_use(cache, found);
  return {cache::frame_of(cache, found.line), false};
}

}  // namespace gpu4fs::device
