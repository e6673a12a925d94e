// Errors of write-backs, which the commands that stored the bytes do not see, and of flushes of the medium.
//
// A write-back that fails loses its bytes: the frame counts as clean, so that it does not keep its place for ever, and
// the first error of the device is kept. Each flush of the device answers it, until whoever can do without these bytes
// calls forget_write_error(): the device was given up and filled again. So no flush answers ok for bytes that were
// lost. Frames of a device that has failed are not written. A flush that fails counts as a write-back that failed: the
// system reports lost writes once, but the bytes stay lost.
//
// If the system has no memory for a write-back or refuses it for another reason of its own (io_error), or the file
// system below has no block for a hole (no_space), the medium is not at fault: the frame stays dirty, and whoever needs
// it or flushes it tries again. Between tries is a pause that grows, in which the device's other pages wait too, but no
// worker does. Only if the same page is refused for refusal_limit_ns, flushes get an answer. For io_error the error is
// like the others. For no_space flushes answer this status and nothing is lost: the device keeps its place and the
// frames stay dirty, so their pages are written if there is room later.
//
// The medium then has older bytes than the pool. Until it is decided whether the pool can do without the device, no
// page of it is brought in (may_be_outdated()).
#pragma once

#include "base/access.hpp"
#include "base/atomics.hpp"
#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/config.hpp"
#include "base/limits.hpp"
#include "base/mutant.hpp"
#include "base/status.hpp"
#include "cache/write_back.hpp"
#include "device/device_state.hpp"
#include "device/staged/staged_types.hpp"

namespace gpu4fs::device {

// Of the first write-back or flush that failed; ok: none.
GPU4FS_FN inline Status write_error_of(const StagedDevices& staged, u32 device) {
  GPU4FS_CHECK_LT(device, device_count_max);
  return static_cast<Status>(load<Order::acquire, Scope::engine>(&staged.error_state->first[device]));
}

// Devices with write-backs or flushes that failed and whose consequences nobody has drawn, one bit each.
GPU4FS_FN inline u64 undecided_errors(const StagedDevices& staged) {
  return load<Order::acquire, Scope::engine>(&staged.error_state->undecided);
}

// The consequences are drawn: the device has failed, or the pool cannot do without it. Pages are brought in again.
GPU4FS_FN inline void end_decision(const StagedDevices& staged, u32 device) {
  GPU4FS_CHECK_LT(device, device_count_max);
  fetch_and<Order::release, Scope::engine>(&staged.error_state->undecided, ~(u64{1} << device));
}

// After a read of the medium: whether it may lack what was stored last. The device is marked as failed before a
// decision ends, so a decision during the read is seen here too.
GPU4FS_FN inline bool may_be_outdated(const Device& device) {
  return (undecided_errors(*device.staged) >> device.index & 1) != 0 || has_failed(device);
}

namespace detail {

GPU4FS_FN inline void end_refusal(WriteRefusal& refusal) {
  store<Order::relaxed, Scope::engine>(&refusal.status, static_cast<u32>(Status::ok));
  store<Order::relaxed, Scope::engine>(&refusal.retry_ns, u64{0});
  store<Order::relaxed, Scope::engine>(&refusal.since_ns, u64{0});
}

}  // namespace detail

// Devices of the mask whose write-backs pause, because the system has just refused one. One rank.
GPU4FS_FN inline u64 paused_devices(const StagedDevices& staged, u64 devices) {
  u64 paused = 0;
  for (u64 left = devices; left != 0; left &= left - 1) {
    const u32 d = static_cast<u32>(count_trailing_zeros(left));
    const u64 retry_ns = load<Order::relaxed, Scope::engine>(&staged.error_state->refusals[d].retry_ns);
    if (retry_ns != 0 && now_monotonic_ns() < retry_ns) paused |= u64{1} << d;
  }
  return GPU4FS_MUTANT(refused_at_once_again, paused, u64{0});
}

// What flushes of a device of the mask answer because the system refuses write-backs; ok: nothing, or not yet.
GPU4FS_FN inline Status refusal_of(const StagedDevices& staged, u64 devices) {
  for (u64 left = devices; left != 0; left &= left - 1) {
    const u32 d = static_cast<u32>(count_trailing_zeros(left));
    const u32 status = load<Order::relaxed, Scope::engine>(&staged.error_state->refusals[d].status);
    if (status != static_cast<u32>(Status::ok)) return static_cast<Status>(status);
  }
  return Status::ok;
}

// Another device takes the number: errors of the one before have no consequences for it. Nothing is in flight.
GPU4FS_FN inline void forget_write_error(const StagedDevices& staged, u32 device) {
  GPU4FS_CHECK_LT(device, device_count_max);
  store<Order::release, Scope::engine>(&staged.error_state->first[device], static_cast<u32>(Status::ok));
  detail::end_refusal(staged.error_state->refusals[device]);
  GPU4FS_MUTANT(error_of_predecessor_kept, end_decision(staged, device), static_cast<void>(0));
}

namespace detail {

GPU4FS_FN inline void note_write_error(const StagedDevices& staged, u32 device, Status status) {
  u32 seen = static_cast<u32>(Status::ok);
  compare_exchange<Order::release, Scope::engine>(
      &staged.error_state->first[device], seen, static_cast<u32>(GPU4FS_MUTANT(write_error_lost, status, Status::ok)));
  fetch_or<Order::release, Scope::engine>(&staged.error_state->undecided, u64{1} << device);
}

// How long the system may refuse to write a page.
inline constexpr u64 refusal_limit_ns = 5000000000;
// A pause is as long as the refusals have lasted, within these limits.
inline constexpr u64 refusal_pause_min_ns = 1000000;
inline constexpr u64 refusal_pause_max_ns = 250000000;

GPU4FS_FN constexpr bool is_refusal(Status status) {
  return status == Status::io_error || status == Status::no_space;
}

// Of the page's write-back. True: it has been refused for too long. Pages that are refused at the same time are tried
// again together, so one of them tells of all. If that one is not tried any more, another takes its place.
GPU4FS_FN GPU4FS_NOINLINE inline bool note_refusal(WriteRefusal& refusal, u64 page) {
  const u64 now_ns = now_monotonic_ns();
  u64 since_ns = load<Order::relaxed, Scope::engine>(&refusal.since_ns);
  const bool is_same = since_ns != 0 && load<Order::relaxed, Scope::engine>(&refusal.page) == page;
  const u64 last_ns = load<Order::relaxed, Scope::engine>(&refusal.last_ns);
  if (since_ns == 0 || (!is_same && now_ns - minimum(last_ns, now_ns) > refusal_limit_ns)) {
    store<Order::relaxed, Scope::engine>(&refusal.page, page);
    store<Order::relaxed, Scope::engine>(&refusal.last_ns, now_ns);
    store<Order::relaxed, Scope::engine>(&refusal.since_ns, now_ns);
    since_ns = now_ns;
  } else if (is_same) {
    store<Order::relaxed, Scope::engine>(&refusal.last_ns, now_ns);
  }
  const u64 lasts_ns = now_ns - minimum(since_ns, now_ns);
  const u64 pause_ns = minimum(maximum(lasts_ns, refusal_pause_min_ns), refusal_pause_max_ns);
  store<Order::relaxed, Scope::engine>(&refusal.retry_ns, now_ns + pause_ns);
  return is_same && lasts_ns > refusal_limit_ns;
}

// A line is not being written any more. Status: that of its write-back. Before the flush that waits for it can end.
GPU4FS_FN inline void end_write_back(const StagedDevices& staged, u32 line, u32 device, Status status) {
  GPU4FS_CHECK_LT(device, device_count_max);
  WriteRefusal& refusal = staged.error_state->refusals[device];
  const u64 page = cache::peek(cache::line_at(staged.cache, line)).key().page;
  if (status == Status::ok) {
    const bool was_refused = load<Order::relaxed, Scope::engine>(&refusal.since_ns) != 0 &&
                             load<Order::relaxed, Scope::engine>(&refusal.page) == page;
    if (was_refused) end_refusal(refusal);
  } else if (status == Status::again) {
    // A drive that is being reset refuses at once.
    store<Order::relaxed, Scope::engine>(&refusal.retry_ns, now_monotonic_ns() + refusal_pause_min_ns);
    return cache::finish_write_back(staged.cache, line, false);
  } else if (GPU4FS_MUTANT(refusal_is_error, is_refusal(status), false)) {
    const bool is_over = note_refusal(refusal, page);
    const bool stays = !is_over || GPU4FS_MUTANT(full_disk_is_dead, status == Status::no_space, false);
    if (is_over && stays) store<Order::relaxed, Scope::engine>(&refusal.status, static_cast<u32>(status));
    if (is_over && !stays) note_write_error(staged, device, status);
    return cache::finish_write_back(staged.cache, line, !stays);
  } else {
    note_write_error(staged, device, status);
  }
  cache::finish_write_back(staged.cache, line, true);
}

}  // namespace detail

}  // namespace gpu4fs::device
