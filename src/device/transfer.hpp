// Transfers between engine memory and devices, for what has a home in engine memory: superblocks, the log, and header
// areas with their bitmaps, tables and descriptors. Pages of data, metadata and parities are accessed where a device
// has them (raid/translate.hpp).
//
// A transfer announces its range (device/device_access.hpp), carries it out, and synchronises the group. What any rank
// stored before a write is written; all ranks see what was read. A range may begin and end at any byte. Whoever reads
// verifies the bytes that arrived in engine memory: the medium may change at any time.
//
// Uniform. Status: that of the announcement; of a staged device that of the first page that could not be moved
// (device/staged/staged_transfer.hpp). After a failed read the destination has no meaning.
#pragma once

#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/config.hpp"
#include "base/copy.hpp"
#include "base/group.hpp"
#include "base/limits.hpp"
#include "base/mutant.hpp"
#include "base/racy_access.hpp"
#include "base/status.hpp"
#include "base/types.hpp"
#include "device/device_access.hpp"
#include "device/device_types.hpp"
#include "device/memory/memory_device.hpp"
#include "device/staged/staged_transfer.hpp"

namespace gpu4fs::device {

namespace detail {

// Calls body(offset, length, done) for the part of the range in each page; `done`: bytes before the part.
template <class Body>
GPU4FS_FN void each_page_part(u64 offset, u64 length, Body&& body) {
  for (u64 done = 0; done < length;) {
    const u64 part = minimum(page_size - (offset + done) % page_size, length - done);
    body(offset + done, part, done);
    done += part;
  }
}

// A staged device tells its stack of each page when it moves it.
GPU4FS_FN inline Status begin_transfer_read(const Device& device, u64 offset, u64 length) {
  if (device.kind != DeviceKind::staged) return begin_read(device, offset, length);
  return is_readable(device) ? Status::ok : Status::device_failed;
}

GPU4FS_FN inline Status begin_transfer_write(const Device& device, u64 offset, u64 length) {
  if (device.kind != DeviceKind::staged) return begin_write(device, offset, length);
  return has_failed(device) ? Status::device_failed : Status::ok;
}

GPU4FS_FN inline void end_transfer_write(const Device& device, u64 offset, u64 length) {
  if (device.kind != DeviceKind::staged) end_write(device, offset, length);
}

template <class Group>
GPU4FS_FN Status fetch_range(Group g, const Device& device, u64 offset, u64 length, void* destination) {
  switch (device.kind) {
    case DeviceKind::memory:
      copy_bytes(g, destination, memory_at(device, offset, length), length);
      return Status::ok;
    case DeviceKind::scattered:
      each_page_part(offset, length, [&](u64 at, u64 part, u64 done) {
        copy_bytes(g, static_cast<u8*>(destination) + done, memory_at(device, at, part), part);
      });
      return Status::ok;
    case DeviceKind::staged:
      if (device.staged->is_bounced != 0) {
        return read_bounced_range(g, device, offset, length, static_cast<u8*>(destination));
      }
      return on_leader(g, [&] { return read_staged_range(device, offset, length, static_cast<u8*>(destination)); });
  }
  GPU4FS_UNREACHABLE("a kind of device without transfers");
}

template <class Group>
GPU4FS_FN Status store_range(Group g, const Device& device, u64 offset, const void* source, u64 length) {
  switch (device.kind) {
    case DeviceKind::memory:
      copy_bytes(g, memory_at(device, offset, length), source, length);
      return Status::ok;
    case DeviceKind::scattered:
      each_page_part(offset, length, [&](u64 at, u64 part, u64 done) {
        copy_bytes(g, memory_at(device, at, part), static_cast<const u8*>(source) + done, part);
      });
      return Status::ok;
    case DeviceKind::staged:
      if (device.staged->is_bounced != 0) {
        return write_bounced_range(g, device, offset, length, static_cast<const u8*>(source));
      }
      return on_leader(g, [&] { return write_staged_range(device, offset, length, static_cast<const u8*>(source)); });
  }
  GPU4FS_UNREACHABLE("a kind of device without transfers");
}

}  // namespace detail

// Reads [offset, offset + length) into engine memory.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status read_range(Group g, const Device& device, u64 offset, u64 length, void* destination) {
  const Status begun = on_leader(g, [&] { return detail::begin_transfer_read(device, offset, length); });
  GPU4FS_TRY(GPU4FS_MUTANT(refused_read_goes_on, begun, Status::ok));
  const Status status = detail::fetch_range(g, device, offset, length, destination);
  g.sync();
  return status;
}

// Writes [offset, offset + length) from engine memory, which nobody changes meanwhile.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status write_range(Group g, const Device& device, u64 offset, const void* source,
                                             u64 length) {
  const Status begun = on_leader(g, [&] { return detail::begin_transfer_write(device, offset, length); });
  GPU4FS_TRY(GPU4FS_MUTANT(refused_write_goes_on, begun, Status::ok));
  const Status status = detail::store_range(g, device, offset, source, length);
  on_leader(g, [&] { detail::end_transfer_write(device, offset, length); });
  return status;
}

// The same for whole pages, into the last of which others may store meanwhile, after the bytes that matter. The medium
// gets a copy of that page: some media compute a checksum of what they are given, and bytes that change while they are
// transferred would make the page unreadable.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status write_growing_range(Group g, const Device& device, u64 offset, const u8* source,
                                                     u64 length) {
  // The others copy it anyway.
  if (device.kind != DeviceKind::staged || device.staged->is_bounced != 0) {
    return write_range(g, device, offset, source, length);
  }
  GPU4FS_CHECK(is_aligned(offset, page_size) && is_aligned(length, page_size));
  GPU4FS_CHECK_GE(length, page_size);
  const u64 stable = length - page_size;
  if (stable != 0) GPU4FS_TRY(write_range(g, device, offset, source, stable));
  const u8* const last = on_leader(g, [&] {
    u8* const copy = detail::own_page(*device.staged);
    copy_changing_page(copy, source + stable);
    return GPU4FS_MUTANT(growing_page_not_copied, static_cast<const u8*>(copy), source + stable);
  });
  return write_range(g, device, offset + stable, last, page_size);
}

}  // namespace gpu4fs::device
