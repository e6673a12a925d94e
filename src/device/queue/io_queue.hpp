// The producers' side of an I/O queue (queue/io_queue_types.hpp). One lane calls these functions, any number at a time.
#pragma once

#include "base/atomics.hpp"
#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/config.hpp"
#include "base/group.hpp"
#include "base/limits.hpp"
#include "base/mutant.hpp"
#include "base/status.hpp"
#include "base/types.hpp"
#include "device/queue/doorbell.hpp"
#include "device/queue/io_queue_types.hpp"
#include "device/queue/io_request.hpp"

namespace gpu4fs::device {

namespace detail {

GPU4FS_FN inline void check_request(const IoRequest& request) {
  GPU4FS_CHECK_LT(request.device, device_count_max);
  GPU4FS_CHECK(is_aligned(request.offset, page_size));
  GPU4FS_CHECK(is_aligned(u64{request.length}, page_size));
  GPU4FS_CHECK_EQ(request.length == 0, request.operation == IoOperation::flush);
  GPU4FS_CHECK_EQ(request.memory != nullptr, moves_bytes(request.operation));
  GPU4FS_CHECK(is_aligned(request.memory, page_size));
}

GPU4FS_FN inline IoSlot& io_slot(const IoQueue& queue, u32 slot) {
  GPU4FS_CHECK_LT(slot, queue.slot_count);
  return queue.slots[slot];
}

}  // namespace detail

// The answer of poll().
struct IoProgress {
  bool is_pending;
  Status status;  // if it is not pending
};

// A slot whose request is not published yet: it is pending. no_io_slot: there is none at this moment. Never waits.
GPU4FS_FN inline u32 take_slot(IoQueue& queue) {
  u32 slot = 0;
  if (!detail::free_cells(queue).pop(&queue.free_head, &slot)) return no_io_slot;
  store<Order::relaxed, Scope::system>(&detail::io_slot(queue, slot).status, io_pending);
  return slot;
}

// The same for the ranks that want a slot, with one look for all of them. Collective. There may be slots for some.
template <class Group>
GPU4FS_FN u32 take_slots(Group g, IoQueue& queue, bool wants) {
  const u32 wanting = g.ballot(wants);
  const u32 wanted = popcount(wanting);
  u32 slot = no_io_slot;
  u32 count = 0;
  while (count == 0 && wanted != 0) {
    const detail::FreeCells cells = detail::free_cells(queue);
    const u64 first = on_leader(g, [&] { return load<Order::relaxed, Scope::engine>(&queue.free_head); });
    const u32 seen = g.ballot(g.rank() < wanted && cells.look(first + g.rank(), &slot));
    // Those before the first that is missing.
    const u32 found = count_trailing_zeros(~u64{seen});
    // Other producers have taken the slots between the two looks, or there are none.
    if (found == 0 && on_leader(g, [&] { return load<Order::relaxed, Scope::engine>(&queue.free_head) == first; })) {
      return no_io_slot;
    }
    if (found != 0 && on_leader(g, [&] { return cells.advance(&queue.free_head, first, found); })) count = found;
  }
  // The slots are with the first ranks; each goes to a rank that wants one.
  const u32 index = GPU4FS_MUTANT(io_slot_shared, popcount(wanting & static_cast<u32>(low_bits(g.rank()))), 0u);
  slot = g.shuffle(slot, minimum(index, Group::size() - 1));
  if (!wants || index >= count) return no_io_slot;
  store<Order::relaxed, Scope::system>(&detail::io_slot(queue, slot).status, io_pending);
  return slot;
}

// The request of a slot that was taken.
GPU4FS_FN inline void set_request(IoQueue& queue, u32 slot, const IoRequest& request) {
  detail::check_request(request);
  detail::io_slot(queue, slot).request = request;
}

// Publishes the requests of the ranks that have a slot, in the order of the ranks; the others pass no_io_slot.
// Collective. Whoever publishes requests calls ring() before it waits for them. Returns how many there are.
template <class Group>
GPU4FS_FN u32 publish_slots(Group g, IoQueue& queue, u32 slot) {
  const u32 having = g.ballot(slot != no_io_slot);
  if (having == 0) return 0;
  g.sync();
  const u64 first = on_leader(g, [&] {
    // Of the stores of all ranks.
    fence<Order::acq_rel, Scope::system>();
    return fetch_add<Order::relaxed, Scope::engine>(&queue.tail, u64{popcount(having)});
  });
  u64 position = first;
  for (u32 left = having; left != 0; left &= left - 1) {
    const u32 published = g.shuffle(slot, count_trailing_zeros(left));
    // By the rank that has passed the fence.
    if (g.leader()) detail::io_cells(queue.shared, queue.slot_count).put_behind_fence(position, published);
    ++position;
  }
  // A rank that waits for a request must not keep the leader from publishing it.
  g.sync();
  return popcount(having);
}

// Both for a slot of one lane.
GPU4FS_FN inline void publish(IoQueue& queue, u32 slot, const IoRequest& request) {
  set_request(queue, slot, request);
  const u64 position = fetch_add<Order::relaxed, Scope::engine>(&queue.tail, u64{1});
  detail::io_cells(queue.shared, queue.slot_count).put(position, slot);
}

// Takes a slot and publishes its request. Returns the slot, or no_io_slot if there is none; never waits.
GPU4FS_FN inline u32 submit(IoQueue& queue, const IoRequest& request) {
  const u32 slot = take_slot(queue);
  if (slot != no_io_slot) publish(queue, slot, request);
  return slot;
}

// Requests were published. Wakes a consumer if one sleeps; consumers wake each other if there is work for more. Nothing
// can be woken from a kernel; there consumers poll (queue/io_consumer.hpp).
GPU4FS_FN inline void ring(const IoQueue& queue) {
#if !GPU4FS_DEVICE_CODE
  if (queue.producer_can_wake != 0) wake_consumer(*queue.shared);
#else
  (void)queue;
#endif
}

// A look at a slot that is pending acquires nothing. On a GPU an acquire would empty the first-level cache of the whole
// multiprocessor each time. Others than the producer may look too (staged/detached_io.hpp). For them the slot may get
// another request between the two loads, and is pending again.
GPU4FS_FN inline IoProgress poll(const IoQueue& queue, u32 slot) {
  const IoSlot& looked_at = detail::io_slot(queue, slot);
  if (load<Order::relaxed, Scope::system>(&looked_at.status) == io_pending) return {true, Status::ok};
  const u32 status = load<Order::acquire, Scope::system>(&looked_at.status);
  if (status == io_pending) return {true, Status::ok};
  GPU4FS_CHECK_LT(status, status_count);
  return {false, static_cast<Status>(status)};
}

// Of a slot that has completed; it may be another request's at once.
GPU4FS_FN inline void release(IoQueue& queue, u32 slot) {
  GPU4FS_CHECK_NE((load<Order::relaxed, Scope::system>(&detail::io_slot(queue, slot).status)), io_pending);
  const u64 position = fetch_add<Order::relaxed, Scope::engine>(&queue.free_tail, u64{1});
  detail::free_cells(queue).put(position, slot);
}

// Slots whose requests have completed and report it: one for each rank below the answer, which has it afterwards.
// Collective.
template <class Group>
GPU4FS_FN u32 take_reports(Group g, IoQueue& queue, u32* slot) {
  const detail::IoCells cells = detail::IoCells{queue.report_words, queue.slot_count};
  const u64 first = on_leader(g, [&] { return load<Order::relaxed, Scope::engine>(&queue.report_head); });
  const u32 reports = g.ballot(cells.look(first + g.rank(), slot));
  // Those before the first that is missing.
  const u32 count = count_trailing_zeros(~u64{reports});
  if (count == 0) return 0;
  return on_leader(g, [&] { return cells.advance(&queue.report_head, first, count); }) ? count : 0;
}

}  // namespace gpu4fs::device
