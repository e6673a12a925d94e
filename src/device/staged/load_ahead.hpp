// Loads of pages that nobody has asked for yet, because somebody reads towards them.
//
// They are hints with a share of their own: half of the requests that nobody waits for, and a quarter of the frames. A
// page takes a free frame or that of a clean page that nobody uses; nothing is written for it. A load that fails is
// forgotten: whoever reads the page loads it and gets the error.
#pragma once

#include "base/bits.hpp"
#include "base/group.hpp"
#include "base/mutant.hpp"
#include "cache/ahead.hpp"
#include "device/staged/detached_io.hpp"

namespace gpu4fs::device {

inline constexpr u32 ahead_frames_share = 4;

// How many loads may begin now. Others may begin some at the same time, so the shares are exceeded by few. One rank.
GPU4FS_FN inline u32 ahead_room(const StagedDevices& staged) {
  const u32 in_flight = load<Order::relaxed, Scope::engine>(&staged.detached_state->ahead_count);
  const u64 frames = staged.cache.line_count / ahead_frames_share;
  const u64 waiting = cache::ahead_waiting(staged.cache);
  const u32 slots_left = staged.ahead_max - minimum(in_flight, staged.ahead_max);
  const u64 frames_left = GPU4FS_MUTANT(ahead_fills_cache, frames - minimum(waiting, frames), frames);
  return static_cast<u32>(minimum<u64>(slots_left, frames_left));
}

struct BegunAhead {
  u32 count;      // loads
  bool has_room;  // false: some pages were left out
};

// Begins to load the ranks' pages that are in no frame; no device: the rank has none. A drive whose queues are half
// full gets no more, so nobody waits for room in them. Collective. If some were begun, ring_detached() follows.
template <class Group>
GPU4FS_FN BegunAhead begin_ahead_loads(Group g, const StagedDevices& staged, StagedPage wanted) {
  const bool is_left_out =
      wanted.device != nullptr &&
      GPU4FS_MUTANT(hints_fill_drive, !has_room_for_hints(*staged.queue, wanted.device->index), false);
  const bool has_room = !g.any(is_left_out);
  if (is_left_out) wanted.device = nullptr;
  const u32 wanting = popcount(g.ballot(wanted.device != nullptr));
  if (wanting == 0) return {0, has_room};
  u32* const count = &staged.detached_state->ahead_count;
  // Before one of them can complete.
  on_leader(g, [&] { fetch_add<Order::relaxed, Scope::engine>(count, wanting); });
  const u32 begun = popcount(g.ballot(begin_detached_loads(g, staged, wanted, ahead_io_owner)));
  on_leader(g, [&] {
    fetch_sub<Order::relaxed, Scope::engine>(count, wanting - begun);
    if (begun != 0) cache::count_ahead(staged.cache, &cache::AheadCounts::begun, begun);
  });
  return {begun, has_room};
}

}  // namespace gpu4fs::device
