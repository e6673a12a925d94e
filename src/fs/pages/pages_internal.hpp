// The table of metadata pages: frames, their hash chains, the free list. Internal to fs/pages.
//
// Lookups take no lock. A chain is changed only under its bucket's lock. A new frame is published at the head of its
// chain by a release store after its key is set. The key of an unlinked frame stays intact until no step runs
// (evict_frames drains the limbo list). So a reader can neither match a wrong page nor follow a link out of the table.
// The key of a frame on the free list names no page. So within a step a frame's key becomes a page's key only once.
// A reader that misses a frame because its chain changed during the search repeats the search under the lock before it
// inserts.
#pragma once

#include "base/atomics.hpp"
#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/config.hpp"
#include "base/group.hpp"
#include "base/limits.hpp"
#include "base/status.hpp"
#include "fs/fs_types.hpp"

namespace gpu4fs::fs::detail {

GPU4FS_FN inline u32 bucket_of(const PageRoot& table, PageKey key) {
  u64 h =
      key.inode * 0x9e3779b97f4a7c15ull ^ (key.level_and_index + (key.level_and_index >> 56)) * 0xc2b2ae3d27d4eb4full;
  h ^= h >> 29;
  h *= 0xbf58476d1ce4e5b9ull;
  h ^= h >> 32;
  return static_cast<u32>(h) & (table.bucket_count - 1);
}

GPU4FS_FN inline TicketLock& bucket_lock(PageTable& table, u32 bucket) {
  return table.bucket_locks[bucket & (table.bucket_lock_count - 1)];
}

struct FoundFrame {
  u32 frame;  // no_frame: not found
  u32 state;  // FrameState: loading or valid
};

// The frame of `key` and its state at the time of the search.
GPU4FS_FN GPU4FS_NOINLINE inline FoundFrame search_frame(const PageTable& table, PageKey key) {
  u32 frame = load<Order::acquire, Scope::engine>(&table.buckets[bucket_of(table, key)]);
  u32 steps = 0;
  while (frame != no_frame) {
    GPU4FS_CHECK_LT(frame, table.frame_count);
    const Frame& f = table.frames[frame];
    if (f.key == key) {
      const u32 state = load<Order::acquire, Scope::engine>(&f.state);
      if (state != frame_free) return {frame, state};
    }
    frame = load<Order::acquire, Scope::engine>(&f.next);
    // A chain that changes during the search may lead elsewhere; it is never longer than the table.
    if (++steps > table.frame_count) break;
  }
  return {no_frame, frame_free};
}

// The frame of `key`, or no_frame.
GPU4FS_FN inline u32 find_frame(const PageTable& table, PageKey key) {
  return search_frame(table, key).frame;
}

// Takes a frame from the free list: with `reserved`, one that reserve_frames() reserved; without, only while unreserved
// frames are left. no_frame: none.
GPU4FS_FN GPU4FS_NOINLINE inline u32 take_frame(PageTable& table, bool reserved) {
  table.free_lock.lock();
  u32 frame = no_frame;
  if (reserved || table.free_count > table.frames_reserved) {
    frame = table.free_head;
    if (frame != no_frame) {
      table.free_head = table.frames[frame].next;
      --table.free_count;
      if (reserved) --table.frames_reserved;
    }
  }
  table.free_lock.unlock();
  if (frame != no_frame) GPU4FS_CHECK_EQ(table.frames[frame].dirty, 0u);
  return frame;
}

GPU4FS_FN inline void return_frame(PageTable& table, u32 frame) {
  Frame& f = table.frames[frame];
  f.key = no_page_key;
  table.free_lock.lock();
  f.next = table.free_head;
  table.free_head = frame;
  ++table.free_count;
  table.free_lock.unlock();
}

// Publishes `frame` under `key` in state `state`. If the key was inserted meanwhile, returns that frame and leaves
// `frame` to the caller.
GPU4FS_FN GPU4FS_NOINLINE inline u32 insert_frame(PageTable& table, u32 frame, PageKey key, u64 address, u32 state) {
  const u32 bucket = bucket_of(table, key);
  TicketLock& lock = bucket_lock(table, bucket);
  lock.lock();
  const u32 existing = find_frame(table, key);
  if (existing != no_frame) {
    lock.unlock();
    return existing;
  }
  Frame& f = table.frames[frame];
  f.key = key;
  f.address = address;
  f.referenced = frame_referenced;
  store<Order::release, Scope::engine>(&f.state, state);
  store<Order::relaxed, Scope::engine>(&f.next, load<Order::relaxed, Scope::engine>(&table.buckets[bucket]));
  store<Order::release, Scope::engine>(&table.buckets[bucket], frame);
  lock.unlock();
  return frame;
}

// Removes `frame` from its chain and marks it free; its key and link stay readable.
GPU4FS_FN GPU4FS_NOINLINE inline void unlink_frame(PageTable& table, u32 frame) {
  Frame& f = table.frames[frame];
  const u32 bucket = bucket_of(table, f.key);
  TicketLock& lock = bucket_lock(table, bucket);
  lock.lock();
  u32* link = &table.buckets[bucket];
  u32 steps = 0;
  while (load<Order::relaxed, Scope::engine>(link) != frame) {
    GPU4FS_CHECK_LT(steps++, table.frame_count);
    const u32 next = load<Order::relaxed, Scope::engine>(link);
    GPU4FS_CHECK_NE(next, no_frame);
    link = &table.frames[next].next;
  }
  store<Order::release, Scope::engine>(link, load<Order::relaxed, Scope::engine>(&f.next));
  store<Order::release, Scope::engine>(&f.state, u32{frame_free});
  lock.unlock();
}

// A removed frame waits in limbo until no step runs.
GPU4FS_FN inline void send_to_limbo(PageTable& table, u32 frame) {
  table.free_lock.lock();
  table.limbo_list[table.limbo_count++] = frame;
  GPU4FS_CHECK_LE(table.limbo_count, table.frame_count);
  table.free_lock.unlock();
}

}  // namespace gpu4fs::fs::detail
