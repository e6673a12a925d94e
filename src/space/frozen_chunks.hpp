// Chunks that will be deleted: frozen ones (space/freeze.hpp) without a page that any epoch, command or reservation
// needs. Plain functions, one rank.
#pragma once

#include "raid/translate.hpp"
#include "space/freeze.hpp"
#include "space/reserve.hpp"
#include "space/space_counters.hpp"
#include "space/space_types.hpp"

namespace gpu4fs::space {

namespace detail {

// `busy` has the bits of the padding after the last page set, and all bits of unbacked regions.
GPU4FS_FN GPU4FS_NOINLINE inline bool has_no_pages(const ChunkState& chunk) {
  const raid::ChunkBitmaps& maps = chunk.bitmaps;
  for (u64 w = 0; w < divide_up(chunk.page_count, u64{64}); ++w) {
    const u64 left = chunk.page_count - w * 64;
    const u64 pages = left >= 64 ? ~u64{0} : (u64{1} << left) - 1;
    const bool is_unbacked = raid::is_unbacked(chunk, w * 64);
    u64 used = is_unbacked ? 0 : load<Order::acquire, Scope::engine>(&maps.busy[w]) & pages;
    const u64* const others[] = {maps.committed, maps.stable, maps.freed_now, maps.freed_old};
    for (const u64* const map : others) {
      used |= load<Order::acquire, Scope::engine>(&map[w]);
    }
    if (used != 0) return false;
  }
  return true;
}

// While no step runs. Removes the chunk, which is frozen and empty, from the counters of its class. It is in no other
// counters.
GPU4FS_FN GPU4FS_NOINLINE inline void forget_chunk(SpaceState& state, ChunkState& chunk) {
  SpaceCounters& counters = counters_of(state, chunk);
  const u64 total = load<Order::relaxed, Scope::engine>(&counters.total) - chunk.page_count;
  store<Order::relaxed, Scope::engine>(&counters.total, total);
  store<Order::relaxed, Scope::engine>(&counters.emergency, kept_back_pages(state, chunk.page_class, total));
  store<Order::release, Scope::engine>(&chunk.presence, raid::chunk_erased);
}

}  // namespace detail

// Pages of the chunk that are not free, or that are reserved. 0 for a deleted chunk.
GPU4FS_FN inline u64 pages_taken(const SpaceState& state, u32 index) {
  GPU4FS_CHECK_LT(index, raid::known_chunk_count(state.space));
  const raid::ChunkState& chunk = state.space.chunks[index];
  return raid::is_erased(chunk) ? 0 : detail::occupied_cost(chunk);
}

// For a frozen chunk: ok, busy (pages are in use or reserved, or the server is punching some), or
// retry_after_checkpoint (there are none, but the running checkpoint writes its header area, or the next one will).
// not_found: it was deleted.
GPU4FS_FN GPU4FS_NOINLINE inline Status check_frozen_empty(const SpaceState& state, u32 index) {
  GPU4FS_CHECK_LT(index, raid::known_chunk_count(state.space));
  const raid::ChunkState& chunk = state.space.chunks[index];
  if (raid::is_erased(chunk)) return Status::not_found;
  if (!is_frozen(chunk) || detail::occupied_cost(chunk) != 0 || !detail::has_no_pages(chunk)) return Status::busy;
  // Another chunk must not get its place on the devices meanwhile.
  if (load<Order::acquire, Scope::engine>(&chunk.trimming) != 0) return Status::busy;
  const bool is_written = load<Order::acquire, Scope::engine>(&chunk.changed) != 0 ||
                          load<Order::acquire, Scope::engine>(&chunk.staged_changed) != 0;
  return is_written ? Status::retry_after_checkpoint : Status::ok;
}

// While no step runs: freezes a chunk that is empty. A chunk that is already frozen is only checked. Status: those of
// freeze_chunk() and check_frozen_empty(). After an error the chunk is as before, except with retry_after_checkpoint.
GPU4FS_FN GPU4FS_NOINLINE inline Status freeze_empty_chunk(SpaceState& state, u32 index) {
  GPU4FS_CHECK_LT(index, raid::known_chunk_count(state.space));
  raid::ChunkState& chunk = state.space.chunks[index];
  if (raid::is_erased(chunk)) return Status::not_found;
  const bool was_frozen = is_frozen(chunk);
  GPU4FS_TRY(freeze_chunk(state, index));
  const Status status = check_frozen_empty(state, index);
  if (status == Status::busy && !was_frozen) (void)unfreeze_chunk(state, index);
  return status;
}

}  // namespace gpu4fs::space
