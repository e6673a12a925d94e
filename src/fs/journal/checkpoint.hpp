// Checkpoints: how the changes of an epoch reach the medium (design section 6).
//
// A checkpoint is a command of the engine that goes through these steps; what is named "task" runs on
// many workers at once.
//
//   1  the commit gate closes: operations that commit wait at it, all others go on
//   2  relocate_frames (task): every dirty frame gets a new place; the pointer to it is put into its
//      parent's page (dirty as well, by the invariant of fs/pages), its old place is freed
//   3  copy_frames (task), snapshot_chunk (task): the dirty pages and the changed allocation bitmaps are
//      copied aside
//   4  begin_epoch; the gate opens: operations go on in the next epoch. The pause ends here
//   5  write_staged (task): the copies are written to their new, free places
//   6  write_chunk (task): page descriptors and the older bitmap slot of every changed chunk
//   7  flush of every device, then the superblocks of the epoch, then flush again
//   8  publish_chunk (task): what the epoch freed becomes reusable; whoever waits for the epoch goes on
//
// A crash before a superblock of step 7 is durable leaves the epoch before, whose pages are untouched; a
// crash after it leaves this one.
#pragma once

#include "device/device_access.hpp"
#include "device/memory/memory_device.hpp"
#include "fs/pages/change.hpp"

namespace gpu4fs::fs {

inline constexpr u32 frames_per_checkpoint_task = 64;

// True when the open epoch has something to write.
GPU4FS_FN inline bool has_changes(const FileSystem& fs) {
  return load<Order::acquire, Scope::engine>(&fs.pages.dirty_count) != 0;
}

// The epoch that has to be durable for everything that has committed so far. Dirty pages and epoch are read
// together: between them the next epoch could begin.
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
GPU4FS_FN inline void relocate_frame(FileSystem& fs, u32 frame, u64 address) {
  Frame& f = fs.pages.frames[frame];
  const u32 level = f.key.level();
  const InodeRef file = resident_inode(fs, f.key.inode);
  format::BlockPointer* slot = slot_of_page(fs, file, level, f.key.index());
  GPU4FS_CHECK(slot != nullptr);
  const format::BlockPointer old = load_slot(slot);
  GPU4FS_CHECK(old.is_valid());
  GPU4FS_CHECK_EQ(old.address(), f.address);
  const bool is_map_page = level != attribute_level && level > 0;
  store_slot(slot, is_map_page ? format::BlockPointer::indirect(address)
                               : format::BlockPointer::data(address, format::BlockSize::page_4k));
  if (f.address != 0) free_extent(fs, raid::Extent{f.address, 1, 0});
  f.address = address;
}

}  // namespace detail

// Task of step 2: entries [first, first + count) of the dirty list. `shard` spreads the allocation.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void relocate_frames(Group g, FileSystem& fs, u32 shard, u32 first, u32 count) {
  serial(g, [&] {
    Operation op{};
    op.shard = shard % fs.shard_count;
    op.pages_reserved = count;  // one page was promised to each dirty frame
    op.may_use_emergency = 1;
    raid::Extent run{};
    u32 used = 0;
    for (u32 i = first; i < first + count; ++i) {
      const u32 frame = fs.pages.dirty_list[i];
      Frame& f = fs.pages.frames[frame];
      if (load<Order::relaxed, Scope::engine>(&f.state) != frame_valid) continue;  // removed since
      if (used == run.page_count) {
        run = allocate_run(fs, op, first + count - i, 1);
        GPU4FS_CHECK_GT(run.page_count, 0u);
        used = 0;
      }
      const u64 address = run.address + u64{used} * page_size;
      ++used;
      commit_extent(Lane{}, fs, raid::Extent{address, 1, 0});
      detail::relocate_frame(fs, frame, address);
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
    const u32 frame = serial(g, [&] {
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

// Step 4, gate closed: the next epoch begins. Answers the number of staged pages.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u32 begin_epoch(Group g, FileSystem& fs) {
  return serial(g, [&] {
    PageTable& table = fs.pages;
    fs.inode_file_staged = fs.inode_file;
    fs.inode_used_staged = load<Order::relaxed, Scope::engine>(&fs.inode_used);
    fs.page_used_staged = load<Order::relaxed, Scope::engine>(&fs.counters.used);
    // No record is half written: whoever appends one is inside the gate.
    fs.log.start_staged = load<Order::relaxed, Scope::engine>(&fs.log.tail);
    store<Order::relaxed, Scope::engine>(&fs.log.named_pages, u64{0});
    table.staged_count = table.dirty_count;
    table.free_lock.lock();
    store<Order::release, Scope::engine>(&table.dirty_count, 0u);
    store<Order::release, Scope::engine>(&fs.epoch_open, fs.epoch_open + 1);
    table.free_lock.unlock();
    store<Order::relaxed, Scope::engine>(&fs.space.epoch_open, fs.epoch_open);
    return table.staged_count;
  });
}

// Task of step 5.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status write_staged(Group g, FileSystem& fs, u32 first, u32 count) {
  PageTable& table = fs.pages;
  for (u32 i = first; i < first + count; ++i) {
    const u64 address = serial(g, [&] { return table.staged_addresses[i]; });
    if (address == 0) continue;
    GPU4FS_TRY(raid::write_page(g, fs.space, address, table.staging + u64{i} * page_size));
  }
  return Status::ok;
}

// Step 7: the superblock of `epoch` on every device, into the slot of its parity. The caller flushes
// before and after.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status write_superblocks(Group g, FileSystem& fs, u64 epoch, u64 now, bool clean) {
  for (u32 d = 0; d < fs.space.device_count; ++d) {
    format::Superblock& superblock = fs.superblocks[d];
    const u64 offset = (epoch & 1) == 0 ? format::superblock_offset_a : format::superblock_offset_b;
    serial(g, [&] {
      GPU4FS_CHECK_EQ(superblock.magic, format::superblock_magic);
      GPU4FS_CHECK_EQ(superblock.epoch + 1, epoch);
      superblock.epoch = epoch;
      superblock.slot = static_cast<u32>(epoch & 1);
      superblock.checkpoint_time = now;
      superblock.clean = clean ? 1 : 0;
      superblock.page_used = fs.page_used_staged;
      superblock.inode_used = fs.inode_used_staged;
      superblock.inode_file = fs.inode_file_staged;
      superblock.log_start = fs.log.start_staged;
      superblock.log_seed = fs.log.seed;
      superblock.checksum = 0;
    });
    const u64 checksum = xxh3_page(g, &superblock, offset);
    serial(g, [&] { superblock.checksum = checksum; });
    const device::Device& device = fs.space.devices[d];
    GPU4FS_TRY(serial(g, [&] { return device::begin_write(device, offset, page_size); }));
    copy_bytes(g, device::memory_at(device, offset, page_size), &superblock, page_size);
    g.sync();
    serial(g, [&] { device::end_write(device, offset, page_size); });
  }
  return Status::ok;
}

}  // namespace gpu4fs::fs
