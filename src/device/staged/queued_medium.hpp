// Media that threads of a controller read and write (block/controller.hpp), through an I/O queue. Such a device has no
// mapping (Device::base).
//
// Requests of one lane may be in flight together: it submits them, and then waits for each. A lane that waits for a
// free slot of the queue has none itself, so the owners of all slots get on. Slots that nobody waits for are limited
// (StagedDevices::detached_max), so there are always some for those who wait.
//
// Requests of devices that are drives become commands (drives/drive_requests.hpp). Whoever waits for them polls.
//
// The controller accesses the memory of a request until it completes: frames, and pages of engine memory with a stable
// place. Never memory of a client.
#pragma once

#include "base/access.hpp"
#include "base/check.hpp"
#include "base/config.hpp"
#include "base/limits.hpp"
#include "base/status.hpp"
#include "device/device_types.hpp"
#include "device/drives/drive_requests.hpp"
#include "device/queue/io_direct.hpp"
#include "device/queue/io_queue.hpp"
#include "device/queue/io_wait.hpp"
#include "device/staged/staged_types.hpp"

namespace gpu4fs::device::detail {

// Pages that one request moves at most.
inline constexpr u64 request_page_max = (u64{1} << 30) / page_size;

GPU4FS_FN inline bool has_mapping(const Device& device) {
  return device.base != nullptr;
}

GPU4FS_FN inline IoQueue& queue_of(const Device& device) {
  GPU4FS_CHECK(device.staged != nullptr);
  GPU4FS_CHECK(device.staged->queue != nullptr);
  return *device.staged->queue;
}

GPU4FS_FN inline IoRequest page_request(const Device& device, IoOperation operation, u64 page, u64 count, u8* memory) {
  GPU4FS_CHECK_LE(count, request_page_max);
  GPU4FS_CHECK_LE(count, device.size_bytes / page_size);
  GPU4FS_CHECK_LE(page, device.size_bytes / page_size - count);
  return {operation, device.index, page * page_size, static_cast<u32>(count * page_size), 0, memory};
}

#if !GPU4FS_DEVICE_CODE
// As wait_for(). The thread polls; it sleeps after a while until whoever serves the drive wakes it.
inline Status wait_for_drive(IoQueue& queue, u32 slot) {
  constexpr u32 short_looks = 16;
  constexpr u64 sleep_ns_max = 1000000;
  for (u32 looks = 0;; ++looks) {
    const u32 seen = completion_count(queue);
    (void)poll_any_drives(queue);
    const IoProgress progress = poll(queue, slot);
    if (!progress.is_pending) {
      release(queue, slot);
      return progress.status;
    }
    if (looks < short_looks) {
      backoff(1000);
    } else {
      wait_for_any_completion(queue, seen, sleep_ns_max);
    }
  }
}
#endif

// Waits until the request has completed, and releases its slot.
GPU4FS_FN GPU4FS_NOINLINE inline Status await_request(IoQueue& queue, u32 slot) {
#if GPU4FS_DEVICE_CODE
  for (;;) {
    const IoProgress progress = poll(queue, slot);
    if (!progress.is_pending) {
      release(queue, slot);
      return progress.status;
    }
    if (poll_any_drives(queue) == 0) backoff(1000);
  }
#else
  return queue.drives != nullptr ? wait_for_drive(queue, slot) : wait_for(queue, slot);
#endif
}

// Carries out one request, once.
GPU4FS_FN GPU4FS_NOINLINE inline Status carry_out_once(IoQueue& queue, const IoRequest& request) {
  for (;;) {
    const u32 slot = take_slot(queue);
    if (slot != no_io_slot) {
      set_request(queue, slot, request);
      (void)publish_requests(Lane{}, queue, slot);
      ring(queue);
      return await_request(queue, slot);
    }
    if (poll_any_drives(queue) == 0) backoff(2000);
  }
}

// How long a request is repeated that a drive has not answered, because it was aborted or the drive was reset.
inline constexpr u64 repeat_ns_max = 2 * drive_timeout_ns;

// Carries out one request. The caller has no other slot.
GPU4FS_FN GPU4FS_NOINLINE inline Status carry_out(IoQueue& queue, const IoRequest& request) {
  if (carries_out_here(queue)) return carry_out_here(queue, request);
  u64 end_ns = 0;
  for (;;) {
    const Status status = carry_out_once(queue, request);
    if (status != Status::again) return status;
    const u64 now_ns = now_monotonic_ns();
    if (end_ns == 0) end_ns = now_ns + repeat_ns_max;
    if (now_ns > end_ns) return Status::device_failed;
    backoff(1000000);
  }
}

// Moves pages between the medium and engine memory.
GPU4FS_FN GPU4FS_NOINLINE inline Status move_pages(const Device& device, IoOperation operation, u64 page, u64 count,
                                                   u8* memory) {
  const u64 part_max = transfer_pages_max(queue_of(device), device.index, request_page_max);
  for (u64 done = 0; done < count;) {
    const u64 part = minimum(count - done, part_max);
    GPU4FS_TRY(
        carry_out(queue_of(device), page_request(device, operation, page + done, part, memory + done * page_size)));
    done += part;
  }
  return Status::ok;
}

}  // namespace gpu4fs::device::detail
