// Counters that decide who may take which page. Internal to the layer.
//
// The chunks of a profile (format::Profile) are a class; each class has counters of its own, and a command reserves in
// one class for its data and in one for metadata. In a pool with one profile they are the same.
//
// Three layers of promises, each an atomic counter, ensure that a command with a reservation finds its space. Each
// class has its own:
//
//   counters.available   pages that may still be reserved (reserve_pages)
//   chunk.free_pages     pages of the chunk that may still be claimed (claim_pages)
//   zero bits of busy    pages
//
//   (1)  zero bits of a chunk >= its free_pages + what is claimed there and not yet taken. Bits are cleared before
//        free_pages grows; they are set only under a claim.
//   (2)  sum of free_pages over counted chunks >= available + reservations not turned into claims. free_pages grows
//        before available or a reservation does; it shrinks only under a reservation, and available shrinks when a
//        reservation is made.
//
// A chunk is *counted* (top bit of free_pages) from the time when the engine can reach its pages. Pages of other chunks
// are in counters.free but not available, and nobody claims them. Bit and number share a word, so a page that is freed
// while its chunk becomes counted enters `available` exactly once.
//
// A chunk may be *frozen* (the bit below; space/freeze.hpp): its free pages are in none of the counters, and nobody
// claims them. Its regions may be *unbacked* (space/backing.hpp): they are in counters.free, and nobody claims them.
//
// region_free is a hint that is never too low, so a region with count 0 is full: it grows before bits are cleared and
// shrinks after they were set. For the same reason it stays between 0 and 512.
#pragma once

#include "base/atomics.hpp"
#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/config.hpp"
#include "base/limits.hpp"
#include "base/types.hpp"
#include "space/space_types.hpp"

namespace gpu4fs::space {

using raid::ChunkState;

inline constexpr u32 region_pages = static_cast<u32>(pages_per_block_2m);
inline constexpr u32 region_words = region_pages / 64;
inline constexpr u32 counted_bit = u32{1} << 31;
inline constexpr u32 frozen_bit = u32{1} << 30;  // never together with the other
inline constexpr u32 free_number_mask = frozen_bit - 1;

GPU4FS_FN inline bool is_frozen(const ChunkState& chunk) {
  return (load<Order::relaxed, Scope::engine>(&chunk.free_pages) & frozen_bit) != 0;
}

GPU4FS_FN inline u32 unbacked_pages_of(const ChunkState& chunk) {
  return load<Order::acquire, Scope::engine>(&chunk.unbacked_pages);
}

// The counters of a chunk's class.
GPU4FS_FN inline SpaceCounters& counters_of(SpaceState& state, const ChunkState& chunk) {
  GPU4FS_CHECK_LT(chunk.page_class, format::profile_max);
  return state.counters[chunk.page_class];
}

// The class in which the command reserves and allocates pages.
GPU4FS_FN inline u32 class_of(const SpaceState& state, const SpaceRequest& request) {
  GPU4FS_CHECK_LE(request.profile, format::profile_max);
  return request.profile == 0 ? state.space.data_class : request.profile - 1;
}

GPU4FS_FN inline u32 region_count_of(const ChunkState& chunk) {
  return static_cast<u32>(divide_up(chunk.page_count, region_pages));
}

// visit(word index, mask) for every u64 word of a bitmap that holds one of the pages.
template <class Visit>
GPU4FS_FN void for_each_word(u64 first_page, u64 page_count, Visit&& visit) {
  u64 page = first_page;
  const u64 end = first_page + page_count;
  while (page < end) {
    const u32 bit = static_cast<u32>(page % 64);
    const u64 count = minimum<u64>(64 - bit, end - page);
    const u64 low = count == 64 ? ~u64{0} : (u64{1} << count) - 1;
    visit(page / 64, low << bit);
    page += count;
  }
}

GPU4FS_FN inline u32 region_free(const ChunkState& chunk, u32 region) {
  const u32 pair = load<Order::acquire, Scope::engine>(&chunk.region_free[region / 2]);
  return pair >> (16 * (region % 2)) & 0xffff;
}

GPU4FS_FN inline void add_region_free(ChunkState& chunk, u32 region, u32 page_count) {
  const u32 shift = 16 * (region % 2);
  const u32 old = fetch_add<Order::relaxed, Scope::engine>(&chunk.region_free[region / 2], page_count << shift);
  GPU4FS_CHECK_LE((old >> shift & 0xffff) + page_count, region_pages);
}

GPU4FS_FN inline void subtract_region_free(ChunkState& chunk, u32 region, u32 page_count) {
  const u32 shift = 16 * (region % 2);
  const u32 old = fetch_sub<Order::relaxed, Scope::engine>(&chunk.region_free[region / 2], page_count << shift);
  GPU4FS_CHECK_GE(old >> shift & 0xffff, page_count);
}

// Takes up to `page_count` pages, a multiple of `unit`, out of free_pages; 0: the chunk has fewer
// than `unit`, or is not counted.
GPU4FS_FN inline u32 claim_pages(ChunkState& chunk, u32 page_count, u32 unit) {
  u32 value = load<Order::acquire, Scope::engine>(&chunk.free_pages);
  for (;;) {
    if ((value & counted_bit) == 0) return 0;
    const u32 claim = minimum(value & free_number_mask, page_count) / unit * unit;
    if (claim == 0) return 0;
    if (compare_exchange<Order::acq_rel, Scope::engine>(&chunk.free_pages, value, value - claim)) return claim;
  }
}

// Returns a claim, or pages whose bits were cleared, to the chunk. The result is the state of the bits counted_bit and
// frozen_bit.
GPU4FS_FN inline u32 return_claim(ChunkState& chunk, u32 page_count) {
  const u32 old = fetch_add<Order::acq_rel, Scope::engine>(&chunk.free_pages, page_count);
  GPU4FS_CHECK_LE((old & free_number_mask) + page_count, chunk.page_count);
  return old & ~free_number_mask;
}

// Clears busy bits of one word. The caller then calls return_claim() for their sum.
GPU4FS_FN inline void clear_busy(ChunkState& chunk, u64 word, u64 mask) {
  if (mask == 0) return;
  add_region_free(chunk, static_cast<u32>(word / region_words), popcount(mask));
  const u64 old = fetch_and<Order::release, Scope::engine>(&chunk.bitmaps.busy[word], ~mask);
  GPU4FS_CHECK_EQ(old & mask, mask);
}

// Accounts for pages whose bits were cleared and for which nobody holds a reservation.
GPU4FS_FN inline void give_to_everyone(SpaceState& state, ChunkState& chunk, u32 page_count) {
  if (load<Order::relaxed, Scope::engine>(&chunk.trim_due) != raid::trim_due_later) {
    store<Order::relaxed, Scope::engine>(&chunk.trim_due, raid::trim_due_later);
  }
  if (page_count == 0) return;
  const u32 bits = return_claim(chunk, page_count);
  if ((bits & frozen_bit) != 0) return;
  SpaceCounters& counters = counters_of(state, chunk);
  add<Scope::engine>(&counters.free, page_count);
  if ((bits & counted_bit) != 0) fetch_add<Order::release, Scope::engine>(&counters.available, page_count);
}

// Makes the free pages of a loaded chunk available once the engine can reach it. True if it had not
// been counted.
GPU4FS_FN inline bool count_chunk(SpaceState& state, ChunkState& chunk) {
  if ((raid::presence_of(chunk) & raid::chunk_usable) != raid::chunk_usable) return false;
  u32 value = load<Order::relaxed, Scope::engine>(&chunk.free_pages);
  do {
    if ((value & ~free_number_mask) != 0) return false;
  } while (!compare_exchange<Order::acq_rel, Scope::engine>(&chunk.free_pages, value, value | counted_bit));
  fetch_add<Order::release, Scope::engine>(&counters_of(state, chunk).available, value);
  return true;
}

// Pages of all classes.
GPU4FS_FN inline u64 pages_total(const SpaceState& state) {
  u64 sum = 0;
  for (const SpaceCounters& counters : state.counters) sum += load<Order::relaxed, Scope::engine>(&counters.total);
  return sum;
}
GPU4FS_FN inline u64 pages_used(const SpaceState& state) {
  u64 sum = 0;
  for (const SpaceCounters& counters : state.counters) sum += load<Order::relaxed, Scope::engine>(&counters.used);
  return sum;
}

// Whether a file may ask for the profile: the number names one, and the pool has chunks of it for data.
GPU4FS_FN inline bool has_data_profile(const SpaceState& state, u32 profile) {
  return profile >= 1 && profile <= format::profile_max && (state.space.data_classes >> (profile - 1) & 1) != 0;
}
// The profile of new blocks of a file whose inode names `profile`; on a damaged medium that may be any number.
GPU4FS_FN inline u32 effective_profile(const SpaceState& state, u32 profile) {
  return has_data_profile(state, profile) ? profile : state.space.data_class + 1;
}

}  // namespace gpu4fs::space
