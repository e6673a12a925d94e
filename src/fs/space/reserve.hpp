// Reserving space: where running out of it becomes an answer (design section 6, "Allocator").
//
// A command promises itself pages while it prepares; from then on allocate_run() always has one for
// it. Plain functions, called by one rank.
#pragma once

#include "base/status.hpp"
#include "fs/fs_types.hpp"
#include "fs/space/space_counters.hpp"

namespace gpu4fs::fs {

// Pages kept back for commands that free space: 1 %, between 128 and 1024. Removing a file may dirty about
// 75 metadata pages, so less would leave a full small pool that cannot be emptied.
GPU4FS_FN constexpr u64 emergency_pages(u64 total) {
  return maximum<u64>(minimum<u64>(total / 100, 1024), 128);
}

namespace detail {

GPU4FS_FN inline bool take_available(FileSystem& fs, u64 page_count, u64 kept_back) {
  u64 available = load<Order::acquire, Scope::engine>(&fs.counters.available);
  for (;;) {
    if (available < kept_back || available - kept_back < page_count) return false;
    if (compare_exchange<Order::acq_rel, Scope::engine>(&fs.counters.available, available,
                                                        available - page_count)) {
      return true;
    }
  }
}

GPU4FS_FN inline bool count_accessible_chunks(FileSystem& fs) {
  bool counted = false;
  for (u32 i = 0; i < fs.space.chunk_count; ++i) counted |= count_chunk(fs, fs.space.chunks[i]);
  return counted;
}

GPU4FS_FN inline u64 devices_of(const ChunkState& chunk) {
  static_assert(device_count_max <= 64);
  u64 devices = 0;
  for (u32 i = 0; i < chunk.column_count; ++i) devices |= u64{1} << chunk.columns[i].device;
  return devices;
}

// Why `needed` pages are not available, and what would help.
GPU4FS_FN inline Status explain_shortage(FileSystem& fs, Operation& op, u64 needed) {
  u64 in_reach = load<Order::relaxed, Scope::engine>(&fs.counters.available);
  u32 wanted_chunk = raid::no_chunk;
  u32 wanted_pages = 0;
  for (u32 i = 0; i < fs.space.chunk_count; ++i) {
    const ChunkState& chunk = fs.space.chunks[i];
    if (load<Order::acquire, Scope::engine>(&chunk.loaded) == 0) continue;
    const u32 value = load<Order::relaxed, Scope::engine>(&chunk.free_pages);
    if ((value & counted_bit) != 0 || (devices_of(chunk) & op.refused_devices) != 0) continue;
    in_reach += value;
    if (value > wanted_pages) {
      wanted_pages = value;
      wanted_chunk = i;
    }
  }
  if (wanted_chunk != raid::no_chunk && in_reach >= needed) {
    op.wanted_chunk = wanted_chunk;
    return Status::chunk_not_mapped;
  }
  const u64 pending = load<Order::relaxed, Scope::engine>(&fs.counters.freed_pending);
  return in_reach + pending >= needed ? Status::retry_after_checkpoint : Status::no_space;
}

}  // namespace detail

// Promises `page_count` more pages to the command. Status:
//   no_space                what is free, less what is kept back for commands that free space, does
//   not suffice retry_after_checkpoint  with the pages that the next checkpoint gives back it would
//   chunk_not_mapped        with those of chunk op.wanted_chunk, which the engine cannot reach yet,
//   it may read_only
GPU4FS_FN GPU4FS_NOINLINE inline Status reserve_pages(FileSystem& fs, Operation& op,
                                                      u64 page_count) {
  if (page_count == 0) return Status::ok;
  if (fs.read_only != 0) return Status::read_only;
  const u64 kept_back =
      op.may_use_emergency != 0 ? 0 : load<Order::relaxed, Scope::engine>(&fs.counters.emergency);
  if (page_count > load<Order::relaxed, Scope::engine>(&fs.counters.total)) return Status::no_space;
  while (!detail::take_available(fs, page_count, kept_back)) {
    if (!detail::count_accessible_chunks(fs))
      return detail::explain_shortage(fs, op, page_count + kept_back);
  }
  fetch_add<Order::relaxed, Scope::engine>(&fs.counters.reserved, page_count);
  op.pages_reserved += page_count;
  return Status::ok;
}

// The server has no room for the memory of chunk op.wanted_chunk. True: the command asks again, and takes its
// space elsewhere if it was space that it wanted. False: it had been told before.
GPU4FS_FN inline bool refuse_wanted_chunk(const FileSystem& fs, Operation& op) {
  GPU4FS_CHECK_LT(op.wanted_chunk, fs.space.chunk_count);
  const u64 devices = detail::devices_of(fs.space.chunks[op.wanted_chunk]);
  const bool is_new = (devices & ~op.refused_devices) != 0;
  op.refused_devices |= devices;
  return is_new;
}

// Gives back promised pages that the command did not allocate.
GPU4FS_FN GPU4FS_NOINLINE inline void unreserve_pages(FileSystem& fs, Operation& op,
                                                      u64 page_count) {
  GPU4FS_CHECK_GE(op.pages_reserved, page_count);
  op.pages_reserved -= page_count;
  const u64 old = fetch_sub<Order::relaxed, Scope::engine>(&fs.counters.reserved, page_count);
  GPU4FS_CHECK_GE(old, page_count);
  fetch_add<Order::release, Scope::engine>(&fs.counters.available, page_count);
}

}  // namespace gpu4fs::fs
