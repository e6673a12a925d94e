// The tail of a submission queue: one doorbell writer at a time, for all entries that are marked.
#pragma once

#include "base/check.hpp"
#include "base/group.hpp"
#include "base/mutant.hpp"
#include "device/nvme/doorbell.hpp"
#include "device/nvme/queue_types.hpp"

namespace gpu4fs::nvme::detail {

// A holder of the tail begins again this often, for lanes that have marked an entry and found the tail taken. What is
// left then is for the next lane that submits or polls, so nobody works for the others without a bound.
inline constexpr u32 tail_rounds_max = 2;

// With the order `relaxed` it is a look, and nothing that the mark covers may be used.
template <Order order = Order::acquire>
GPU4FS_FN inline bool is_marked(const VirtualQueue& queue, u32 ticket) {
  const u32 mark = load<order, Scope::engine>(&queue.marks[place_of(queue, ticket)]);
  return GPU4FS_MUTANT(nvme_tail_passes_unmarked, mark == ticket + 1,
                       ticket != (load<Order::relaxed, Scope::engine>(&queue.next_ticket)));
}

// What a group has found at the tail.
struct HeldTail {
  bool is_mine;  // the tail belongs to this group until it is left
  u32 tail;
};

// One rank.
GPU4FS_FN inline HeldTail hold_tail(VirtualQueue& queue) {
  if (exchange<Order::acq_rel, Scope::engine>(&queue.tail_lock, 1) != 0) return {false, 0};
  return {true, load<Order::relaxed, Scope::engine>(&queue.tail)};
}
// As above, for a group that has marked nothing yet and comes back with hold_tail() behind its marks.
GPU4FS_FN inline HeldTail try_hold_tail(VirtualQueue& queue) {
  if (load<Order::relaxed, Scope::engine>(&queue.tail_lock) != 0) return {false, 0};
  if (exchange<Order::acquire, Scope::engine>(&queue.tail_lock, 1) != 0) return {false, 0};
  return {true, load<Order::relaxed, Scope::engine>(&queue.tail)};
}

// Collective. Shows the controller the entries from the held tail to `tail` and all marked ones behind them, and leaves
// the tail. True: nobody has marked an entry meanwhile.
template <class Group>
GPU4FS_FN bool advance_tail(Group g, VirtualQueue& queue, const HeldTail& held, u32 tail) {
  for (u32 passed = Group::size(); passed == Group::size(); tail += passed) {
    passed = leading_ranks(g, is_marked(queue, tail + g.rank()));
  }
  GPU4FS_CHECK_LE(tail - held.tail, capacity_of(queue));
  return on_leader(g, [&] {
    if (tail != held.tail) {
      // Before the doorbell: whoever sees a completion knows that its command was shown to the controller.
      store<Order::relaxed, Scope::engine>(&queue.tail, tail);
      ring_doorbell(queue.submission_doorbell, place_of(queue, tail));
    }
    exchange<Order::acq_rel, Scope::engine>(&queue.tail_lock, 0);
    return GPU4FS_MUTANT(nvme_mark_not_looked_for_again, !is_marked(queue, tail), true);
  });
}

// Collective. Moves the tail over all marked entries. Each rank looks at one mark, so a warp passes 32 entries in the
// time of one access.
//
// No mark is lost. A lane marks its entry and then exchanges the lock. If it finds the lock taken, its exchange comes
// before the holder's, which frees the lock, and the holder sees the mark when it looks again behind that. Both
// exchanges acquire and release, so no stronger order is needed. The doorbell covers the entries of all marks that the
// ranks have acquired, because on_leader() synchronises.
template <class Group>
GPU4FS_FN void move_tail(Group g, VirtualQueue& queue) {
  for (u32 round = 0; round < tail_rounds_max; ++round) {
    const HeldTail held = on_leader(g, [&] { return hold_tail(queue); });
    if (!held.is_mine || advance_tail(g, queue, held, held.tail)) return;
  }
}

}  // namespace gpu4fs::nvme::detail
