// Errors of write-backs, which the commands that stored the bytes do not see, and of flushes of the medium.
//
// A write-back that fails loses its bytes: the frame counts as clean, so that it does not keep its place for ever, and
// the first error of the device is kept. Each flush of the device answers it, until whoever can do without these bytes
// calls forget_write_error(): the device was given up and filled again. So no flush answers ok for bytes that were
// lost. Frames of a device that has failed are not written. A flush that fails counts as a write-back that failed: the
// system reports lost writes once, but the bytes stay lost.
//
// If the system has no memory for a write-back or refuses it for another reason of its own (io_error), the medium is
// not at fault: the frame stays dirty, and whoever needs it or flushes it tries again. Only if the system does none of
// many in a row, this is an error like the others.
//
// The medium then has older bytes than the pool. Until it is decided whether the pool can do without the device, no
// page of it is brought in (may_be_outdated()).
#pragma once

#include "base/atomics.hpp"
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

// Another device takes the number: errors of the one before have no consequences for it. Nothing is in flight.
GPU4FS_FN inline void forget_write_error(const StagedDevices& staged, u32 device) {
  GPU4FS_CHECK_LT(device, device_count_max);
  store<Order::release, Scope::engine>(&staged.error_state->first[device], static_cast<u32>(Status::ok));
  store<Order::relaxed, Scope::engine>(&staged.error_state->refusals[device], 0u);
  GPU4FS_MUTANT(error_of_predecessor_kept, end_decision(staged, device), static_cast<void>(0));
}

namespace detail {

GPU4FS_FN inline void note_write_error(const StagedDevices& staged, u32 device, Status status) {
  u32 seen = static_cast<u32>(Status::ok);
  compare_exchange<Order::release, Scope::engine>(
      &staged.error_state->first[device], seen, static_cast<u32>(GPU4FS_MUTANT(write_error_lost, status, Status::ok)));
  fetch_or<Order::release, Scope::engine>(&staged.error_state->undecided, u64{1} << device);
}

// Write-backs of a device that the system may refuse in a row.
inline constexpr u32 refusals_max = 4096;

// A line is not being written any more. Status: that of its write-back. Before the flush that waits for it can end.
GPU4FS_FN inline void end_write_back(const StagedDevices& staged, u32 line, u32 device, Status status) {
  GPU4FS_CHECK_LT(device, device_count_max);
  u32* const refusals = &staged.error_state->refusals[device];
  if (status == Status::ok) {
    if (load<Order::relaxed, Scope::engine>(refusals) != 0) store<Order::relaxed, Scope::engine>(refusals, 0u);
  } else if (GPU4FS_MUTANT(refusal_is_error, status == Status::io_error, false) &&
             fetch_add<Order::relaxed, Scope::engine>(refusals, 1u) < refusals_max) {
    return cache::finish_write_back(staged.cache, line, false);
  } else {
    note_write_error(staged, device, status);
  }
  cache::finish_write_back(staged.cache, line, true);
}

}  // namespace detail

}  // namespace gpu4fs::device
