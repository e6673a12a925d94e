// Frozen chunks: no pages are allocated in them, so they can be emptied while the pool is in use.
//
// The state is a bit of the chunk's word of free pages (space/space_counters.hpp), in engine memory only: after a mount
// no chunk is frozen. Pages are freed there as in other chunks, but they are not in the counters of their class. So
// neither statfs nor a reservation counts on them.
//
// freeze_chunk() and unfreeze_chunk() are for the leader while no step and no task runs: then every claimed page is
// taken, and no freed page is between two counters. Code that runs outside of steps, for commands that end, changes the
// word and the counters in the order that space_counters.hpp defines.
#pragma once

#include "base/bits.hpp"
#include "base/status.hpp"
#include "raid/translate.hpp"
#include "space/reserve.hpp"
#include "space/space_types.hpp"
#include "space/stripes.hpp"

namespace gpu4fs::space {

namespace detail {

// The number of pages that count as free when all pages of the chunk are free.
GPU4FS_FN GPU4FS_NOINLINE inline u64 chunk_cost(const ChunkState& chunk) {
  const u64 whole = stripe_pages(chunk);
  const u64 regions = chunk.page_count / region_pages;
  return regions * region_cost(chunk) + chunk.page_count % region_pages / whole * whole;
}

GPU4FS_FN inline u64 occupied_cost(const ChunkState& chunk) {
  const u64 free =
      u64{load<Order::relaxed, Scope::engine>(&chunk.free_pages) & free_number_mask} + unbacked_pages_of(chunk);
  const u64 cost = chunk_cost(chunk);
  return cost - minimum(cost, free);
}

// Pages that are not in use and wait for a checkpoint.
GPU4FS_FN inline u64 count_pending(const ChunkState& chunk) {
  u64 count = 0;
  for (u64 w = 0; w < divide_up(chunk.page_count, u64{64}); ++w) {
    count += popcount(load<Order::relaxed, Scope::engine>(&chunk.bitmaps.freed_now[w]) |
                      load<Order::relaxed, Scope::engine>(&chunk.bitmaps.freed_old[w]));
  }
  return count;
}

// The pages of frozen chunks of the class that need room in the others, and how much of their own room is not counted.
struct FreezeNeed {
  u64 held;
  u64 uncounted;
};
GPU4FS_FN GPU4FS_NOINLINE inline FreezeNeed freeze_need(const SpaceState& state, u32 index) {
  const u32 page_class = state.space.chunks[index].page_class;
  FreezeNeed need{occupied_cost(state.space.chunks[index]), 0};
  for (u32 i = 0; i < raid::chunk_count_of(state.space); ++i) {
    const ChunkState& chunk = state.space.chunks[i];
    if (i == index || chunk.page_class != page_class) continue;
    if (!raid::is_loaded(chunk)) continue;
    const u32 value = load<Order::relaxed, Scope::engine>(&chunk.free_pages);
    if ((value & frozen_bit) != 0) need.held += occupied_cost(chunk);
    if ((value & ~free_number_mask) == 0) need.uncounted += value;
    if ((value & frozen_bit) == 0) need.uncounted += unbacked_pages_of(chunk);
  }
  return need;
}

// The shards continue elsewhere.
GPU4FS_FN GPU4FS_NOINLINE inline void close_open_stripes_in(SpaceState& state, u32 index) {
  ChunkState& chunk = state.space.chunks[index];
  if (!has_stripes(chunk)) return;
  for (u32 s = 0; s < state.shard_count; ++s) {
    ShardPlace& place = state.shards[s].places[chunk.page_class];
    raid::PageLocation location{};
    if (place.open_count == 0) continue;
    GPU4FS_CHECK_OK(raid::find_page(state.space, place.open_address, &location));
    if (location.chunk != index) continue;
    close_pages(state, chunk, location.page, place.open_count);
    place.open_count = 0;
  }
}

}  // namespace detail

// Status: no_space if the other chunks of its class could not hold the pages of this one and of other frozen ones,
// besides the reserve for commands that free space; out_of_range. Freezing a frozen chunk changes nothing.
GPU4FS_FN GPU4FS_NOINLINE inline Status freeze_chunk(SpaceState& state, u32 index) {
  if (state.read_only != 0) return Status::read_only;
  if (index >= raid::chunk_count_of(state.space)) return Status::out_of_range;
  raid::ChunkState& chunk = state.space.chunks[index];
  if (!raid::is_loaded(chunk)) return Status::device_failed;
  if (is_frozen(chunk)) return Status::ok;
  detail::close_open_stripes_in(state, index);
  SpaceCounters& counters = counters_of(state, chunk);
  const detail::FreezeNeed need = detail::freeze_need(state, index);
  // Chunks that can still be created may take the pages, but the reserve for commands that free space must exist.
  const u64 emergency = load<Order::relaxed, Scope::engine>(&counters.emergency);
  const u64 needed = need.held + emergency;
  const u64 room = need.uncounted + load<Order::acquire, Scope::engine>(&counters.unallocated_pages);
  const u64 kept_back = maximum(emergency - minimum(emergency, need.uncounted), needed - minimum(needed, room));
  u32 value = load<Order::relaxed, Scope::engine>(&chunk.free_pages);
  for (;;) {
    const u32 free = value & free_number_mask;
    const u32 taken = (value & counted_bit) != 0 ? free : 0;
    if (!detail::take_available(counters, taken, kept_back)) return Status::no_space;
    if (compare_exchange<Order::acq_rel, Scope::engine>(&chunk.free_pages, value, free | frozen_bit)) {
      subtract<Scope::engine>(&counters.free, u64{free} + unbacked_pages_of(chunk));
      break;
    }
    fetch_add<Order::release, Scope::engine>(&counters.available, u64{taken});
  }
  subtract<Scope::engine>(&counters.freed_pending, detail::count_pending(chunk));
  return Status::ok;
}

// Its free pages are allocated again.
GPU4FS_FN GPU4FS_NOINLINE inline Status unfreeze_chunk(SpaceState& state, u32 index) {
  if (index >= raid::chunk_count_of(state.space)) return Status::out_of_range;
  raid::ChunkState& chunk = state.space.chunks[index];
  if (!is_frozen(chunk) || raid::is_erased(chunk)) return Status::ok;
  SpaceCounters& counters = counters_of(state, chunk);
  add<Scope::engine>(&counters.freed_pending, detail::count_pending(chunk));
  const bool counts = (raid::presence_of(chunk) & raid::chunk_usable) == raid::chunk_usable;
  add<Scope::engine>(&counters.free, u64{unbacked_pages_of(chunk)});
  // Atomically: a command that ends meanwhile finds its chunk either frozen or counted.
  u32 value = load<Order::relaxed, Scope::engine>(&chunk.free_pages);
  for (;;) {
    const u32 free = value & free_number_mask;
    add<Scope::engine>(&counters.free, u64{free});
    const u32 thawed = counts ? free | counted_bit : free;
    if (compare_exchange<Order::acq_rel, Scope::engine>(&chunk.free_pages, value, thawed)) {
      if (counts) fetch_add<Order::release, Scope::engine>(&counters.available, u64{free});
      return Status::ok;
    }
    subtract<Scope::engine>(&counters.free, u64{free});
  }
}

// Whether the page lies in a frozen chunk. False for an address that no page has.
GPU4FS_FN inline bool is_in_frozen_chunk(const SpaceState& state, u64 address) {
  raid::PageLocation location{};
  if (address == raid::no_address || raid::find_page(state.space, address, &location) != Status::ok) return false;
  return is_frozen(state.space.chunks[location.chunk]);
}

}  // namespace gpu4fs::space
