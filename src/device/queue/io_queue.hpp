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
  return io_slots(queue.shared, queue.slot_count)[slot];
}

}  // namespace detail

// The answer of poll().
struct IoProgress {
  bool is_pending;
  Status status;  // if it is not pending
};

// A slot whose request is not published yet: it is pending. no_io_slot: there is none. Never waits.
GPU4FS_FN inline u32 take_slot(IoQueue& queue) {
  u32 slot = 0;
  if (!queue.free_slots.pop(&slot)) return no_io_slot;
  store<Order::relaxed, Scope::system>(&detail::io_slot(queue, slot).status, io_pending);
  return slot;
}

// The request of a slot from take_slot(). Whoever publishes requests calls ring() before it waits for them.
GPU4FS_FN inline void publish(IoQueue& queue, u32 slot, const IoRequest& request) {
  detail::check_request(request);
  detail::io_slot(queue, slot).request = request;
  const u64 position = fetch_add<Order::relaxed, Scope::engine>(&queue.tail, u64{1});
  detail::io_cells(queue.shared, queue.slot_count).put(position, slot);
}

// Both together. Returns the slot, or no_io_slot if there is none; never waits.
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
  queue.free_slots.push(slot);
}

// Slots whose requests have completed and report it: one for each rank below the answer, which has it afterwards.
// Collective.
template <class Group>
GPU4FS_FN u32 take_reports(Group g, IoQueue& queue, u32* slot) {
  const detail::IoCells cells = detail::report_cells(queue.shared, queue.slot_count);
  const u64 first = on_leader(g, [&] { return load<Order::relaxed, Scope::engine>(&queue.report_head); });
  const u32 reports = g.ballot(cells.look(first + g.rank(), slot));
  // Those before the first that is missing.
  const u32 count = count_trailing_zeros(~u64{reports});
  if (count == 0) return 0;
  return on_leader(g, [&] { return cells.advance(&queue.report_head, first, count); }) ? count : 0;
}

}  // namespace gpu4fs::device
