// Devices that are missing or have failed, and how a pool continues without them.
//
// A device is lost for the whole mount: it is neither read nor written afterwards (Device::failed). It may be lost
// while every chunk with a column on it keeps enough of the others, and while one device with the chunk tree is left;
// otherwise its errors go to the client. A device is lost if it was absent at the mount, could not be written or
// flushed, or answered a read with device_failed.
//
// The outdated state of a lost device must never be taken for the newest one, not even after a crash. So after the loss
// nothing is acknowledged as durable until superblocks that name the device as stale are durable on the remaining
// devices (`recorded`). Until then fsync uses checkpoints (engine/handlers/sync.hpp).
//
// A lost device that superblocks name as stale can be rebuilt. From begin_rebuild() on, all writes go to it too, while
// reads continue without it; it still counts as lost. When everything that it lacks has been written (raid/rebuild/), a
// checkpoint whose superblocks do not name it makes it a device like the others. If a write fails before that, the
// device is given up again, which costs nothing.
//
// Plain functions: one rank calls them, inside on_leader().
#pragma once

#include "base/atomics.hpp"
#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/locks.hpp"
#include "base/mutant.hpp"
#include "device/device_access.hpp"
#include "raid/translate.hpp"

namespace gpu4fs::raid {

struct DeviceHealth {
  TicketLock lock;
  u64 failed;                 // atomic, one bit for each device: those that cannot be read
  u64 rebuilding;             // atomic: those of them that are written
  u64 complete;               // those of them that lack nothing
  u64 completing;             // and those that the checkpoint being written makes readable
  u64 staged;                 // those that the checkpoint being written names as stale
  u64 recorded;               // atomic: those that durable superblocks name as stale
  u64 reported;               // those that the server knows about
  const ChunkState* planned;  // chunks that superblocks being written name and the table does not have yet
  u32 planned_count;
  u32 reserved;
  u32 read_errors[device_count_max];   // atomic
  u32 write_errors[device_count_max];  // atomic
  u32 flush_errors[device_count_max];  // atomic
  u32 file_numbers[device_count_max];  // the server's number of the device's file: 0, or RebuildTarget::file_number
};

// One bit for each device. Zero costs two loads of a line that nobody writes.
GPU4FS_FN inline u64 failed_devices(const LogicalSpace& space) {
  return space.health == nullptr ? 0 : load<Order::relaxed, Scope::engine>(&space.health->failed);
}

GPU4FS_FN inline u64 rebuilding_devices(const LogicalSpace& space) {
  return space.health == nullptr ? 0 : load<Order::relaxed, Scope::engine>(&space.health->rebuilding);
}

// The device is not written either.
GPU4FS_FN inline bool device_has_failed(const LogicalSpace& space, u32 device) {
  GPU4FS_CHECK_LT(device, known_device_count(space));
  return device::has_failed(space.devices[device]);
}

GPU4FS_FN inline bool device_is_readable(const LogicalSpace& space, u32 device) {
  GPU4FS_CHECK_LT(device, known_device_count(space));
  return device::is_readable(space.devices[device]);
}

GPU4FS_FN inline bool column_has_failed(const LogicalSpace& space, const ChunkState& chunk, u32 column) {
  GPU4FS_CHECK_LT(column, chunk.column_count);
  return device_has_failed(space, chunk.columns[column].device);
}

// Of the device that holds a copy of a page.
GPU4FS_FN inline bool copy_has_failed(const LogicalSpace& space, const PageLocation& location, u32 copy) {
  return device_has_failed(space, page_place(space, location, copy).device);
}

GPU4FS_FN inline bool copy_is_readable(const LogicalSpace& space, const PageLocation& location, u32 copy) {
  return device_is_readable(space, page_place(space, location, copy).device);
}

// Columns of the chunk on devices of the mask.
GPU4FS_FN inline u32 lost_column_count(const ChunkState& chunk, u64 devices) {
  if ((load<Order::relaxed, Scope::engine>(&chunk.presence) & chunk_erased) != 0) return 0;
  u32 count = 0;
  for (u32 column = 0; column < chunk.column_count; ++column) {
    count += static_cast<u32>(devices >> chunk.columns[column].device & 1);
  }
  return count;
}

// Whether the pool can work without the devices of the mask. Under the lock.
GPU4FS_FN inline bool can_lose(const LogicalSpace& space, u64 devices) {
  for (u32 i = 0; i < chunk_count_of(space); ++i) {
    if (GPU4FS_MUTANT(device_loss_unbounded, lost_column_count(space.chunks[i], devices) > space.chunks[i].redundancy,
                      false)) {
      return false;
    }
  }
  for (u32 i = 0; i < space.health->planned_count; ++i) {
    const ChunkState& chunk = space.health->planned[i];
    if (lost_column_count(chunk, devices) > chunk.redundancy) return false;
  }
  const u64 tree_devices = space.tree_device_count >= 64 ? ~u64{0} : (u64{1} << space.tree_device_count) - 1;
  return tree_devices == 0 || (tree_devices & ~devices) != 0;
}

// The superblocks that are about to be written name these chunks, and do not name the devices of `leaving`, which hold
// nothing of the pool. False: a device is lost, and nothing has changed.
GPU4FS_FN GPU4FS_NOINLINE inline bool plan_chunks(const LogicalSpace& space, const ChunkState* chunks, u32 count,
                                                  u64 leaving) {
  if (space.health == nullptr) return leaving == 0;
  DeviceHealth& health = *space.health;
  health.lock.lock();
  const bool all_here = load<Order::relaxed, Scope::engine>(&health.failed) == 0;
  if (all_here) {
    health.planned = chunks;
    health.planned_count = count;
    for (u64 left = leaving; left != 0; left &= left - 1) {
      store<Order::relaxed, Scope::engine>(&space.devices[count_trailing_zeros(left)].failed,
                                           u32{device::device_failed_for_good});
    }
  }
  health.lock.unlock();
  return all_here;
}

// The planned chunks are in the table.
GPU4FS_FN inline void forget_planned_chunks(const LogicalSpace& space) {
  if (space.health == nullptr) return;
  space.health->lock.lock();
  space.health->planned = nullptr;
  space.health->planned_count = 0;
  space.health->lock.unlock();
}

// Gives the device up if the pool can work without it; a device that is being rebuilt can always be given up. False: it
// stays in use, and its errors count. A device that has left the pool is not a loss.
GPU4FS_FN GPU4FS_NOINLINE inline bool lose_device(const LogicalSpace& space, u32 device) {
  GPU4FS_CHECK_LT(device, known_device_count(space));
  if (space.health == nullptr) return false;
  DeviceHealth& health = *space.health;
  health.lock.lock();
  const u64 before = load<Order::relaxed, Scope::engine>(&health.failed);
  if ((before >> device & 1) == 0 && device_has_failed(space, device)) {
    health.lock.unlock();
    return true;
  }
  const u64 failed = before | u64{1} << device;
  const bool lost = failed == before || can_lose(space, failed);
  if (lost) {
    store<Order::relaxed, Scope::engine>(&space.devices[device].failed, u32{device::device_failed_for_good});
    store<Order::release, Scope::engine>(&health.failed, failed);
    const u64 others = ~(u64{1} << device);
    store<Order::relaxed, Scope::engine>(&health.rebuilding, health.rebuilding & others);
    health.complete &= others;
    health.completing &= others;
  }
  health.lock.unlock();
  return lost;
}

// A write to the device failed. True: the pool continues without the device.
GPU4FS_FN GPU4FS_NOINLINE inline bool tolerates_write_error(const LogicalSpace& space, u32 device) {
  if (device_has_failed(space, device)) return true;
  if (space.health == nullptr) return false;
  add<Scope::engine>(&space.health->write_errors[device], 1u);
  return lose_device(space, device);
}

GPU4FS_FN GPU4FS_NOINLINE inline bool outlives_flush_error(const LogicalSpace& space, u32 device) {
  if (device_has_failed(space, device)) return true;
  if (space.health == nullptr) return false;
  add<Scope::engine>(&space.health->flush_errors[device], 1u);
  return lose_device(space, device);
}

// A read failed; other copies may have the bytes. A device that is gone is not read again. A device with a bad sector
// stays in use.
GPU4FS_FN GPU4FS_NOINLINE inline void note_read_error(const LogicalSpace& space, u32 device, Status status) {
  if (space.health == nullptr || !device_is_readable(space, device)) return;
  add<Scope::engine>(&space.health->read_errors[device], 1u);
  if (status == Status::device_failed) (void)lose_device(space, device);
}

// Announces a read, and records its error. A device that was already marked is not reported: a rebuild may end in
// between, and the device is as good as any other at the time of the report.
GPU4FS_FN inline Status begin_noted_read(const LogicalSpace& space, u32 device, u64 offset, u64 length) {
  if (!device_is_readable(space, device)) return Status::device_failed;
  const Status status = device::begin_read(space.devices[device], offset, length);
  if (status != Status::ok) note_read_error(space, device, status);
  return status;
}

// True from the loss of a device until superblocks that say so are durable.
GPU4FS_FN inline bool has_unrecorded_loss(const LogicalSpace& space) {
  if (space.health == nullptr) return false;
  const u64 failed = load<Order::acquire, Scope::engine>(&space.health->failed);
  return GPU4FS_MUTANT(loss_acknowledged_early,
                       (failed & ~load<Order::acquire, Scope::engine>(&space.health->recorded)) != 0, false);
}

// Gate closed: the devices that are complete at this time become readable with the checkpoint.
GPU4FS_FN inline void stage_rebuilt(const LogicalSpace& space) {
  if (space.health == nullptr) return;
  DeviceHealth& health = *space.health;
  health.lock.lock();
  health.completing = health.complete & health.rebuilding;
  health.lock.unlock();
}

// One bit for each rebuilt device that the superblocks being written declare complete.
GPU4FS_FN inline u64 rebuilt_devices(const LogicalSpace& space) {
  if (space.health == nullptr) return 0;
  space.health->lock.lock();
  const u64 rebuilt = space.health->completing;
  space.health->lock.unlock();
  return rebuilt;
}

// A checkpoint is about to write its superblocks: the devices that they name as stale. If another device is lost after
// this, the next checkpoint has to name it.
GPU4FS_FN inline u64 stage_losses(const LogicalSpace& space) {
  if (space.health == nullptr) return 0;
  DeviceHealth& health = *space.health;
  health.lock.lock();
  health.staged = load<Order::acquire, Scope::engine>(&health.failed) & ~health.completing;
  const u64 recorded = load<Order::relaxed, Scope::engine>(&health.recorded);
  store<Order::release, Scope::engine>(&health.recorded, recorded & ~health.completing);
  health.lock.unlock();
  return health.staged;
}

// For superblocks that are written after others of their epoch: the devices that these name.
GPU4FS_FN inline u64 staged_losses(const LogicalSpace& space) {
  return space.health == nullptr ? 0 : space.health->staged;
}

// The superblocks are durable: rebuilt devices are read again.
GPU4FS_FN inline void record_losses(const LogicalSpace& space) {
  if (space.health == nullptr) return;
  DeviceHealth& health = *space.health;
  health.lock.lock();
  const u64 rebuilt = health.completing;
  for (u64 left = rebuilt; left != 0; left &= left - 1) {
    store<Order::release, Scope::engine>(&space.devices[count_trailing_zeros(left)].failed, u32{device::device_in_use});
  }
  store<Order::release, Scope::engine>(&health.recorded, health.staged);
  store<Order::relaxed, Scope::engine>(&health.rebuilding, health.rebuilding & ~rebuilt);
  store<Order::release, Scope::engine>(&health.failed, health.failed & ~rebuilt);
  health.reported &= ~rebuilt;
  health.complete &= ~rebuilt;
  health.completing = 0;
  health.lock.unlock();
}

// For a lost device, while no step runs. Its Device, and the chunks' rebuild_todo, are set before.
GPU4FS_FN inline void begin_rebuild(const LogicalSpace& space, u32 device) {
  GPU4FS_CHECK_LT(device, known_device_count(space));
  GPU4FS_CHECK(space.health != nullptr);
  DeviceHealth& health = *space.health;
  const u64 bit = u64{1} << device;
  health.lock.lock();
  GPU4FS_CHECK_NE((load<Order::relaxed, Scope::engine>(&health.failed)) & bit, u64{0});
  store<Order::relaxed, Scope::engine>(&space.devices[device].failed, u32{device::device_rebuilding});
  store<Order::release, Scope::engine>(&health.rebuilding, health.rebuilding | bit);
  health.complete = 0;  // devices that were marked complete may lack the same pages, as far as is known
  health.lock.unlock();
}

// Everything that the devices lacked has been written.
GPU4FS_FN inline void complete_rebuild(const LogicalSpace& space) {
  DeviceHealth& health = *space.health;
  health.lock.lock();
  health.complete = health.rebuilding;
  health.lock.unlock();
}

// The devices lost since the last call, to be reported to the server. By one command at a time.
GPU4FS_FN inline u64 take_unreported_losses(const LogicalSpace& space) {
  if (space.health == nullptr) return 0;
  const u64 failed = load<Order::acquire, Scope::engine>(&space.health->failed);
  const u64 fresh = failed & ~space.health->reported;
  space.health->reported = failed;
  return fresh;
}

// The copy to read: the preferred one, or another one if its device is lost.
GPU4FS_FN inline u32 copy_to_read(const LogicalSpace& space, const PageLocation& location) {
  const ChunkState& chunk = space.chunks[location.chunk];
  const u32 preferred = preferred_copy(chunk, location.page);
  if (failed_devices(space) == 0) return preferred;
  for (u32 i = 0; i < chunk.copy_count; ++i) {
    const u32 copy = (preferred + i) % chunk.copy_count;
    if (copy_is_readable(space, location, copy)) return copy;
  }
  return preferred;
}

// One bit for each copy of the page that is written, at least one.
GPU4FS_FN inline u32 copies_to_write(const LogicalSpace& space, const PageLocation& location) {
  const u32 all = (1u << space.chunks[location.chunk].copy_count) - 1;
  if (failed_devices(space) == 0) return all;
  u32 left = 0;
  for (u32 copy = 0; copy < space.chunks[location.chunk].copy_count; ++copy) {
    if (!copy_has_failed(space, location, copy)) left |= 1u << copy;
  }
  return left;
}

// Those of the chunk's pages [page, page + 64) in `wanted` whose copy `copy` cannot be read.
GPU4FS_FN inline u64 pages_out_of_reach(const LogicalSpace& space, u32 chunk, u32 copy, u64 page, u64 wanted) {
  if (failed_devices(space) == 0) return 0;
  u64 lost = 0;
  for (u64 left = wanted; left != 0; left &= left - 1) {
    const u32 at = static_cast<u32>(count_trailing_zeros(left));
    if (!copy_is_readable(space, {chunk, 0, page + at}, copy)) lost |= u64{1} << at;
  }
  return lost;
}

}  // namespace gpu4fs::raid
