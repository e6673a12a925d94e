// The pins of a worker. They end with the scope in which they began, which is a call into raid or a part of one
// (raid/pin_scope.hpp). Scopes of a worker end in the reverse order.
#pragma once

#include "base/atomics.hpp"
#include "base/bits.hpp"
#include "base/group.hpp"
#include "base/mutant.hpp"
#include "cache/pin.hpp"
#include "device/staged/staged_types.hpp"
#include "device/staged/worker.hpp"

namespace gpu4fs::device {

GPU4FS_FN inline PinList& own_pins(const StagedDevices& staged) {
  const u32 worker = this_worker();
  GPU4FS_CHECK_LT(worker, staged.worker_count);
  return staged.pins[worker];
}

// Any rank: the line, which it has pinned, stays pinned until the end of the innermost scope.
GPU4FS_FN inline void note_pin(const StagedDevices& staged, u32 line) {
  PinList& list = own_pins(staged);
  GPU4FS_CHECK_GT(list.scope_count, 0u);
  const u32 index = fetch_add<Order::relaxed, Scope::engine>(&list.count, 1u);
  GPU4FS_CHECK_LT(index, pin_list_capacity);
  store<Order::relaxed, Scope::engine>(&list.entries[index], line + 1);
}

// Whether this worker has pinned the line.
GPU4FS_FN inline bool has_pin(const StagedDevices& staged, u32 line) {
  const PinList& list = own_pins(staged);
  const u32 end = load<Order::relaxed, Scope::engine>(&list.count);
  for (u32 i = 0; i < end; ++i) {
    if (load<Order::relaxed, Scope::engine>(&list.entries[i]) == line + 1) return true;
  }
  return false;
}

// Takes the line, which the caller unpins in another way, from the worker's list. False: the worker has not pinned it.
GPU4FS_FN inline bool give_up_pin(const StagedDevices& staged, u32 line) {
  PinList& list = own_pins(staged);
  const u32 end = load<Order::relaxed, Scope::engine>(&list.count);
  for (u32 i = 0; i < end; ++i) {
    if (load<Order::relaxed, Scope::engine>(&list.entries[i]) != line + 1) continue;
    store<Order::relaxed, Scope::engine>(&list.entries[i], 0u);
    return true;
  }
  return false;
}

// Collective. Returns what end_pins() needs.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u32 begin_pins(Group g, const StagedDevices& staged) {
  return on_leader(g, [&] {
    PinList& list = own_pins(staged);
    ++list.scope_count;
    return load<Order::relaxed, Scope::engine>(&list.count);
  });
}

// Collective. After the ranks' last use of frames that were pinned in the scope.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void end_pins(Group g, const StagedDevices& staged, u32 first) {
  on_leader(g, [&] {
    PinList& list = own_pins(staged);
    const u32 end = load<Order::relaxed, Scope::engine>(&list.count);
    GPU4FS_CHECK_GT(list.scope_count, 0u);
    GPU4FS_CHECK_LE(first, end);
    GPU4FS_CHECK_LE(end, pin_list_capacity);
    const u32 others = GPU4FS_MUTANT(pins_of_outer_scope_ended, first, first - (first != 0 ? 1 : 0));
    const u32 unpinned_end = GPU4FS_MUTANT(pin_outlives_scope, end, maximum(end, first + 1) - 1);
    for (u32 i = others; i < unpinned_end; ++i) {
      const u32 entry = load<Order::relaxed, Scope::engine>(&list.entries[i]);
      if (entry != 0) cache::unpin(staged.cache, entry - 1);
      // A rank that has counted its pin has yet to name it, and another one may look meanwhile.
      store<Order::relaxed, Scope::engine>(&list.entries[i], GPU4FS_MUTANT(ended_pin_kept, 0u, entry));
    }
    store<Order::relaxed, Scope::engine>(&list.count, others);
    --list.scope_count;
  });
}

}  // namespace gpu4fs::device
