// The mapper of queues: which of a controller's virtual queues a command goes to (Djerfi, section 4.1.2).
//
// N slots name K <= N queues. A ticket modulo N is a slot, and the slot's queue gets the command. So commands spread
// evenly, and a queue with many slots gets more. Who finds a queue loaded beyond a threshold moves the slot that led it
// there to another queue. The source proposes the one with the least load, and found that then all slots gather on a
// few queues: everybody moves to the same one before its load shows. Two things prevent it here. The target is the less
// loaded one of two queues at random (the power of two choices, Mitzenmacher 2001), and a queue never loses its last
// slot nor gets more than its limit. `least_loaded` is the source's proposal, for comparison.
//
// The load of a queue is what was submitted, or waits for that, and is not finished. No lane waits here.
#pragma once

#include <type_traits>

#include "base/atomics.hpp"
#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/group.hpp"
#include "base/mutant.hpp"
#include "device/nvme/queue_types.hpp"

namespace gpu4fs::nvme {

enum class MapperPolicy : u32 {
  fixed,         // slots stay as they are: round robin
  two_choices,   // the less loaded one of two random queues
  least_loaded,  // of all queues
};

// Plain data in engine memory.
struct QueueMapper {
  VirtualQueue* queues;
  u32* slots;   // by slot: atomic, a queue's index
  u32* shares;  // by queue: atomic, how many slots name it; those that are being moved may count twice
  u32 queue_count;
  u32 slot_count;
  u32 share_max;
  u32 threshold;  // of a queue's load
  MapperPolicy policy;

  alignas(cache_line) u32 next_ticket;  // atomic
  alignas(cache_line) u32 move_count;   // atomic
};
static_assert(std::is_trivially_copyable_v<QueueMapper>);

// What a command got.
struct MappedQueue {
  u32 slot;
  u32 queue;
  u32 ticket;
};

GPU4FS_FN constexpr u64 mapper_table_bytes(u32 queue_count, u32 slot_count) {
  return (u64{queue_count} + slot_count) * sizeof(u32);
}

struct MapperOptions {
  u32 slot_count;  // at least one a queue
  u32 threshold;   // of a queue's load
  MapperPolicy policy;
};

// `table` has mapper_table_bytes(). One rank.
GPU4FS_FN inline void place_mapper(QueueMapper& mapper, VirtualQueue* queues, u32 queue_count, u32* table,
                                   const MapperOptions& options) {
  const u32 slot_count = options.slot_count;
  GPU4FS_CHECK(queue_count > 0 && slot_count >= queue_count);
  mapper = {};
  mapper.queues = queues;
  mapper.slots = table;
  mapper.shares = table + slot_count;
  mapper.queue_count = queue_count;
  mapper.slot_count = slot_count;
  mapper.share_max = 2 * static_cast<u32>(divide_up(slot_count, queue_count));
  mapper.threshold = options.threshold;
  mapper.policy = options.policy;
  for (u32 i = 0; i < queue_count; ++i) mapper.shares[i] = 0;
  for (u32 i = 0; i < slot_count; ++i) {
    mapper.slots[i] = i % queue_count;
    ++mapper.shares[i % queue_count];
  }
}

GPU4FS_FN inline u32 load_of(const VirtualQueue& queue) {
  // In this order: never less than none.
  const u32 completed = load<Order::relaxed, Scope::engine>(&queue.completed);
  return load<Order::relaxed, Scope::engine>(&queue.next_ticket) - completed;
}

namespace detail {

GPU4FS_FN constexpr u32 mix(u32 number) {
  number = (number ^ number >> 16) * 0x7feb352du;
  number = (number ^ number >> 15) * 0x846ca68bu;
  return number ^ number >> 16;
}

GPU4FS_FN inline u32 choose_target(const QueueMapper& mapper, u32 ticket) {
  if (mapper.policy == MapperPolicy::two_choices) {
    const u32 first = mix(ticket) % mapper.queue_count;
    const u32 second = mix(~ticket) % mapper.queue_count;
    return load_of(mapper.queues[second]) < load_of(mapper.queues[first]) ? second : first;
  }
  u32 best = 0;
  u32 best_load = ~0u;
  for (u32 i = 0; i < mapper.queue_count; ++i) {
    const u32 load = load_of(mapper.queues[i]);
    if (load < best_load) best = i;
    best_load = minimum(load, best_load);
  }
  return best;
}

// Adds one to a share below `limit`.
GPU4FS_FN inline bool raise_share(u32* share, u32 limit) {
  u32 found = load<Order::relaxed, Scope::engine>(share);
  while (found < limit) {
    if (compare_exchange<Order::relaxed, Scope::engine>(share, found, found + 1)) return true;
  }
  return false;
}
// Takes one from a share that keeps at least one.
GPU4FS_FN inline bool lower_share(u32* share) {
  u32 found = load<Order::relaxed, Scope::engine>(share);
  while (found > GPU4FS_MUTANT(nvme_mapper_takes_last_slot, 1u, 0u)) {
    if (compare_exchange<Order::relaxed, Scope::engine>(share, found, found - 1)) return true;
  }
  return false;
}

}  // namespace detail

// Collective: one queue for the commands of the group.
template <class Group>
GPU4FS_FN MappedQueue map_queue(Group g, QueueMapper& mapper) {
  return on_leader(g, [&]() -> MappedQueue {
    const u32 ticket = fetch_add<Order::relaxed, Scope::engine>(&mapper.next_ticket, 1);
    const u32 slot = ticket % mapper.slot_count;
    return {slot, load<Order::relaxed, Scope::engine>(&mapper.slots[slot]), ticket};
  });
}

// Collective, after the commands were submitted: moves their slot if its queue is loaded beyond the threshold, and the
// target of two_choices has less than half of that load. Who loses a race leaves everything as it is.
template <class Group>
GPU4FS_FN void rebalance(Group g, QueueMapper& mapper, const MappedQueue& mapped) {
  if (mapper.policy == MapperPolicy::fixed) return;
  on_leader(g, [&] {
    const u32 load = load_of(mapper.queues[mapped.queue]);
    if (load <= mapper.threshold) return;
    const u32 target = detail::choose_target(mapper, mapped.ticket);
    const bool is_bounded = mapper.policy == MapperPolicy::two_choices;
    if (target == mapped.queue || (is_bounded && load_of(mapper.queues[target]) >= load / 2)) return;
    const u32 limit = is_bounded ? mapper.share_max : mapper.slot_count;
    if (!detail::raise_share(&mapper.shares[target], limit)) return;
    if (is_bounded && !detail::lower_share(&mapper.shares[mapped.queue])) {
      subtract<Scope::engine>(&mapper.shares[target], 1u);
      return;
    }
    if (!is_bounded) subtract<Scope::engine>(&mapper.shares[mapped.queue], 1u);
    u32 expected = mapped.queue;
    if (compare_exchange<Order::relaxed, Scope::engine>(&mapper.slots[mapped.slot], expected, target)) {
      add<Scope::engine>(&mapper.move_count, 1u);
      return;
    }
    // Somebody else has moved the slot.
    add<Scope::engine>(&mapper.shares[mapped.queue], 1u);
    subtract<Scope::engine>(&mapper.shares[target], 1u);
  });
}

}  // namespace gpu4fs::nvme
