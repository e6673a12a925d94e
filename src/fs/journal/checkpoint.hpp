// Checkpoints: how the changes of an epoch reach the medium (docs/internals/architecture.md, section 5).
//
// A checkpoint is a command of the engine with these steps. A "task" runs on many workers at once.
//
//   1  the commit gate closes: operations that commit wait at it, all others continue; the open stripes of chunks with
//      parities are closed too (space/stripes.hpp)
//   2  place_frames (task): every dirty frame gets a new place; the pointer to it is stored in its parent's page (dirty
//      as well, by the invariant of fs/pages), and its old place is freed
//   3  copy_frames (task), snapshot_chunk (task): the dirty pages and the changed allocation bitmaps are copied aside
//   4  begin_epoch; the gate opens: operations continue in the next epoch. The pause ends here
//   5  write_staged (task): the copies are written to their new, free places;
//      then the checkpoint waits for running updates of parities (raid/parity/row_write.hpp)
//   6  write_chunk (task): pages of descriptors and the older bitmap slot of every changed chunk
//   7  changes of a growing pool (space/growth.hpp); flush of every device, then the superblocks of the epoch, then
//      another flush
//   8  publish_chunk (task): pages that the epoch freed become reusable; commands that wait for the epoch continue
//
// A crash before a superblock of step 7 is durable leaves the previous epoch, whose pages are untouched; a later crash
// leaves this one.
#pragma once

#include "base/mutant.hpp"
#include "device/device_access.hpp"
#include "device/transfer.hpp"
#include "fs/pages/change.hpp"
#include "raid/device_loss.hpp"
#include "raid/page_run_io.hpp"
#include "space/growth.hpp"

namespace gpu4fs::fs {

inline constexpr u32 frames_per_checkpoint_task = 64;

// True if the open epoch has something to write, including the loss of a device.
GPU4FS_FN inline bool has_changes(const FileSystem& fs) {
  return load<Order::acquire, Scope::engine>(&fs.dirty.count) != 0 || raid::has_unrecorded_loss(fs.space);
}

// The epoch that has to be durable so that everything committed so far is. Dirty pages and epoch are read together,
// because the next epoch could begin in between.
GPU4FS_FN inline u64 epoch_of_changes(FileSystem& fs) {
  fs.pages.free_lock.lock();
  const u64 open = load<Order::acquire, Scope::engine>(&fs.epoch_open);
  const u64 epoch = has_changes(fs) ? open : open - 1;
  fs.pages.free_lock.unlock();
  return epoch;
}

namespace detail {

GPU4FS_FN inline InodeRef resident_inode(FileSystem& fs, u64 number) {
  if (number == format::inode_number_inode_file) return inode_file_ref(fs);
  const u32 frame =
      find_frame(fs.pages, PageKey::make(format::inode_number_inode_file, 0, number / format::inodes_per_page));
  GPU4FS_CHECK_NE(frame, no_frame);
  const u32 position = static_cast<u32>(number % format::inodes_per_page);
  return {number, reinterpret_cast<format::Inode*>(page_data(fs, frame)) + position, frame, 0,
          &fs.pages.inode_locks[u64{frame} * format::inodes_per_page + position]};
}

// Gives one dirty frame its new place on the medium.
GPU4FS_FN inline void place_frame(FileSystem& fs, u32 frame, u64 address) {
  Frame& f = fs.pages.frames[frame];
  const u32 level = f.key.level();
  const InodeRef file = resident_inode(fs, f.key.inode);
  format::BlockPointer* slot = slot_of_page(fs, file, {level, f.key.index()});
  GPU4FS_CHECK(slot != nullptr);
  const format::BlockPointer old = load_slot(slot);
  GPU4FS_CHECK(old.is_valid());
  GPU4FS_CHECK_EQ(old.address(), f.address);
  store_slot(slot, is_map_level(level) ? format::BlockPointer::indirect(address)
                                       : format::BlockPointer::data(address, format::BlockSize::page_4k));
  if (f.address != 0) free_extent(Lane{}, fs, raid::Extent{f.address, 1, 0});
  f.address = address;
}

}  // namespace detail

// Gate closed, before step 2: the rest of open stripes is not allocated.
GPU4FS_FN inline void close_stripes(FileSystem& fs) {
  fetch_add<Order::acq_rel, Scope::engine>(&fs.stripe_generation, 1u);
}

// After step 3, once: later updates of parities, and later repairs, see the snapshot.
GPU4FS_FN inline void count_snapshot(const FileSystem& fs) {
  if (fs.space.parity != nullptr) begin_phase(fs.space.parity->updates);
  if (fs.space.damage != nullptr) begin_phase(fs.space.damage->repairs);
}

// After that: true while an update runs that may not have seen it.
GPU4FS_FN inline bool parities_are_changing(const FileSystem& fs) {
  return fs.space.parity != nullptr && older_uses_run(fs.space.parity->updates);
}

// Task of step 2: entries [first, first + count) of the dirty list. `shard` spreads the allocation.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void place_frames(Group g, FileSystem& fs, u32 shard, u32 first, u32 count) {
  on_leader(g, [&] {
    Operation op{};
    op.shard = shard % fs.shard_count;
    op.profile = fs.space.metadata_class + 1;
    op.pages_reserved = count;  // one page is reserved for each dirty frame
    op.emergency_use = space::EmergencyUse::all;
    op.whole_stripes = 1;
    raid::Extent run{};
    u32 used = 0;
    for (u32 i = first; i < first + count; ++i) {
      const u32 frame = fs.pages.dirty_list[i];
      Frame& f = fs.pages.frames[frame];
      if (load<Order::relaxed, Scope::engine>(&f.state) != frame_valid) continue;  // removed meanwhile
      if (used == run.page_count) {
        run = allocate_run(Lane{}, fs, op, first + count - i, 1);
        GPU4FS_CHECK_GT(run.page_count, 0u);
        used = 0;
      }
      const u64 address = run.address + u64{used} * page_size;
      ++used;
      commit_extent(Lane{}, fs, raid::Extent{address, 1, 0});
      detail::place_frame(fs, frame, address);
    }
    if (used < run.page_count) {
      abandon_extent(fs, op, raid::Extent{run.address + u64{used} * page_size, run.page_count - used, 0});
    }
    if (op.pages_reserved != 0) unreserve_pages(fs, op, op.pages_reserved);
  });
}

// Task of step 3.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void copy_frames(Group g, FileSystem& fs, u32 first, u32 count) {
  PageTable& table = fs.pages;
  for (u32 i = first; i < first + count; ++i) {
    const u32 frame = on_leader(g, [&] {
      const u32 index = table.dirty_list[i];
      Frame& f = table.frames[index];
      const bool valid = load<Order::relaxed, Scope::engine>(&f.state) == frame_valid;
      table.staged_frames[i] = index;
      table.staged_addresses[i] = valid ? f.address : 0;
      store<Order::relaxed, Scope::engine>(&f.dirty, 0u);
      return valid ? index : no_frame;
    });
    if (frame == no_frame) continue;
    copy_bytes(g, table.staging + u64{i} * page_size, page_data(fs, frame), page_size);
  }
  g.sync();
}

// Step 4, gate closed: the next epoch begins. Returns the number of staged pages.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u32 begin_epoch(Group g, FileSystem& fs) {
  return on_leader(g, [&] {
    PageTable& table = fs.pages;
    raid::stage_rebuilt(fs.space);
    fs.inode_file_staged = fs.inode_file;
    fs.inode_used_staged = load<Order::relaxed, Scope::engine>(&fs.inode_used);
    fs.page_used_staged = pages_used(fs);
    // No record is incomplete: records are appended inside the gate.
    fs.log.start_staged =
        GPU4FS_MUTANT(log_start_kept, (load<Order::relaxed, Scope::engine>(&fs.log.tail)), fs.log.start);
    store<Order::relaxed, Scope::engine>(&fs.log.named_pages, u64{0});
    table.staged_count = fs.dirty.count;
    table.free_lock.lock();
    store<Order::release, Scope::engine>(&fs.dirty.count, 0u);
    store<Order::relaxed, Scope::engine>(&fs.dirty.replacing, 0u);
    store<Order::release, Scope::engine>(&fs.epoch_open, fs.epoch_open + 1);
    table.free_lock.unlock();
    store<Order::relaxed, Scope::engine>(&fs.space.epoch_open, fs.epoch_open);
    return table.staged_count;
  });
}

namespace detail {

// Staged pages from `first` on, at most `count`, that go to consecutive places.
struct StagedRun {
  u64 address;  // 0: the first one was removed
  u32 count;
  u32 reserved;
};

GPU4FS_FN inline StagedRun find_staged_run(const FileSystem& fs, u32 first, u32 count) {
  const u64* addresses = fs.pages.staged_addresses + first;
  StagedRun run{addresses[0], 1, 0};
  const u64 granule_bytes = u64{1} << fs.space.granule_shift;
  while (run.address != 0 && run.count < count) {
    const u64 next = run.address + u64{run.count} * page_size;
    if (addresses[run.count] != next || is_aligned(next, granule_bytes)) break;
    ++run.count;
  }
  return run;
}

}  // namespace detail

// Task of step 5. Writes in runs, so rows with parities are written as a whole.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status write_staged(Group g, FileSystem& fs, u32 first, u32 count) {
  PageTable& table = fs.pages;
  for (u32 i = first; i < first + count;) {
    const detail::StagedRun run = on_leader(g, [&] { return detail::find_staged_run(fs, i, first + count - i); });
    if (run.address != 0) {
      const u8* source = table.staging + u64{i} * page_size;
      GPU4FS_TRY(raid::write_pages(g, fs.space, run.address, run.count, source, raid::PageUse::metadata));
    }
    i += run.count;
  }
  return Status::ok;
}

namespace detail {

// One bit for each device: those that `superblock`, of `epoch`, declares stale, and those that it declares complete
// again.
GPU4FS_FN inline void name_stale_devices(format::Superblock& superblock, u64 devices, u64 rebuilt, u64 epoch) {
  bool any = false;
  for (u32 d = 0; d < superblock.device_count; ++d) {
    u64& since = superblock.stale_since[d];
    if (GPU4FS_MUTANT(loss_not_recorded, (devices >> d & 1) != 0, false) && since == 0) since = epoch;
    if ((rebuilt >> d & 1) != 0) since = 0;
    any = any || since != 0;
  }
  superblock.feature_incompatible &= ~u64{format::feature_stale_devices};
  if (any) superblock.feature_incompatible |= format::feature_stale_devices;
}

struct SuperblockPlan {
  u64 epoch;
  u64 now;
  u64 stale;  // one bit for each device
  u64 rebuilt;
  u64 slot_sum;
  u32 clean;
  u32 reserved;
};

// Turns the superblock of a device in engine memory into that of the epoch, without its checksum. Leader.
GPU4FS_FN GPU4FS_NOINLINE inline void compose_superblock(FileSystem& fs, u32 d, const SuperblockPlan& plan) {
  format::Superblock& superblock = fs.superblocks[d];
  if ((plan.rebuilt >> d & 1) != 0) {
    // The device took no part in earlier epochs: it gets a copy of another device's superblock.
    u32 source = 0;
    while (source < raid::device_count_of(fs.space) && !device::is_readable(fs.space.devices[source])) ++source;
    GPU4FS_CHECK_LT(source, raid::device_count_of(fs.space));
    const format::DevicePart part = superblock.device;
    superblock = fs.superblocks[source];
    superblock.device = part;
  }
  GPU4FS_CHECK_EQ(superblock.magic, format::superblock_magic);
  GPU4FS_CHECK_EQ(superblock.epoch + 1, plan.epoch);
  superblock.epoch = plan.epoch;
  superblock.slot = static_cast<u32>(plan.epoch & 1);
  superblock.checkpoint_time = plan.now;
  superblock.clean = GPU4FS_MUTANT(clean_too_early, static_cast<u8>(plan.clean), u8{1});
  superblock.page_used = fs.page_used_staged;
  superblock.inode_used = fs.inode_used_staged;
  superblock.inode_file = fs.inode_file_staged;
  superblock.log_start = fs.log.start_staged;
  superblock.log_seed = fs.log.seed;
  superblock.slot_sum = plan.slot_sum;
  name_stale_devices(superblock, plan.stale, plan.rebuilt, plan.epoch);
  superblock.checksum = 0;
}

// Status exists: the device is lost because of this; the others continue.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status write_superblock(Group g, FileSystem& fs, u32 d, const SuperblockPlan& plan) {
  const device::Device& device = fs.space.devices[d];
  const bool is_even = GPU4FS_MUTANT(superblock_slot_swapped, (plan.epoch & 1) == 0, (plan.epoch & 1) != 0);
  const u64 offset = is_even ? format::superblock_offset_a : format::superblock_offset_b;
  on_leader(g, [&] { compose_superblock(fs, d, plan); });
  format::Superblock& superblock = fs.superblocks[d];
  const u64 checksum = xxh3_page(g, &superblock, offset);
  on_leader(g, [&] { superblock.checksum = checksum; });
  const Status written = device::write_range(g, device, offset, &superblock, page_size);
  if (written == Status::ok) return Status::ok;
  return on_leader(g, [&] { return raid::tolerates_write_error(fs.space, d) ? Status::exists : written; });
}

}  // namespace detail

// Step 7: writes the superblock of `epoch`, which names the lost devices, to every remaining device of the mask, into
// the slot of its parity. If a device is lost meanwhile, it has the pages of the epoch, so the next superblock may name
// it. This does not hold for a rebuilt device, so these come first: if one of them fails, the superblocks of the others
// still name it. The caller flushes before and after. Devices that join the pool get theirs in a call of their own
// before the others, and never in a checkpoint that makes a rebuilt one readable.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status write_superblocks(Group g, FileSystem& fs, u64 epoch, u64 now, bool clean,
                                                   u64 devices = ~u64{0}) {
  detail::SuperblockPlan plan{epoch, now, 0, 0, 0, clean ? 1u : 0u, 0};
  plan.slot_sum = sum_slot_checksums(g, fs, true) + on_leader(g, [&] { return growth_slot_sum(fs); });
  // Superblocks of an epoch must be equal.
  const bool is_second = on_leader(g, [&] { return joining_devices(fs) != 0 && (devices & joining_devices(fs)) == 0; });
  for (u32 tries = 0; tries <= device_count_max; ++tries) {
    plan.stale = on_leader(g, [&] { return is_second ? raid::staged_losses(fs.space) : raid::stage_losses(fs.space); });
    plan.rebuilt = on_leader(g, [&] { return raid::rebuilt_devices(fs.space); });
    GPU4FS_CHECK(plan.rebuilt == 0 || devices == ~u64{0});
    Status status = Status::ok;
    for (u64 left = plan.rebuilt; left != 0 && status == Status::ok; left &= left - 1) {
      status = detail::write_superblock(g, fs, static_cast<u32>(count_trailing_zeros(left)), plan);
    }
    if (status == Status::exists) continue;
    GPU4FS_TRY(status);
    break;
  }
  const u32 device_count = on_leader(g, [&] { return raid::device_count_of(fs.space); });
  for (u32 d = 0; d < device_count; ++d) {
    const bool is_left = on_leader(g, [&] { return device::is_readable(fs.space.devices[d]); });
    if (!is_left || (devices >> d & 1) == 0) continue;
    const Status status = detail::write_superblock(g, fs, d, plan);
    if (status != Status::exists) GPU4FS_TRY(status);
  }
  return Status::ok;
}

}  // namespace gpu4fs::fs
