// The consumers' side of an I/O queue (queue/io_queue_types.hpp): threads of a controller. Host only.
//
// A consumer has a number and an eventfd, its doorbell. It takes requests until there are none, and then sleeps as
// queue/doorbell.hpp says:
//
//   if (may_sleep(shared, number)) {
//     wait until the doorbell can be read, or for other work
//     end_sleep(shared, number)
//   }
//
// It must not sleep while a kernel produces (set_must_poll()). A consumer that leaves requests in the queue, because it
// has enough to do, calls wake_consumer() for the others.
#pragma once

#include <climits>

#include "base/atomics.hpp"
#include "base/check.hpp"
#include "base/futex.hpp"
#include "base/mutant.hpp"
#include "base/racy_access.hpp"
#include "base/status.hpp"
#include "base/types.hpp"
#include "device/queue/doorbell.hpp"
#include "device/queue/io_queue_types.hpp"

namespace gpu4fs::device {

// The request that was published first. False: there is none.
inline bool take(IoQueueShared& shared, u32* slot) {
  return detail::io_cells(&shared, shared.slot_count).pop(&shared.head, slot);
}

// Racy.
inline bool looks_empty(const IoQueueShared& shared) {
  return detail::io_cells(const_cast<IoQueueShared*>(&shared), shared.slot_count).looks_empty(&shared.head);
}

// Of a slot that was taken and not completed.
inline const IoRequest& request_of(const IoQueueShared& shared, u32 slot) {
  GPU4FS_CHECK_LT(slot, shared.slot_count);
  return detail::io_slots(const_cast<IoQueueShared*>(&shared), shared.slot_count)[slot].request;
}

// The slot is the producer's afterwards. Whoever completes slots calls announce_completions() soon. True: it was
// reported, so somebody has to look for reports (take_reports()).
inline bool complete(IoQueueShared& shared, u32 slot, Status status) {
  GPU4FS_CHECK_LT(slot, shared.slot_count);
  IoSlot& completed = detail::io_slots(&shared, shared.slot_count)[slot];
  GPU4FS_CHECK_EQ((load<Order::relaxed, Scope::system>(&completed.status)), io_pending);
  // The slot is taken from the report, so this is still its request afterwards.
  const bool reports = completed.request.reports != 0;
  store<Order::release, Scope::system>(&completed.status, static_cast<u32>(status));
  if (!reports) return false;
  const u64 position = fetch_add<Order::relaxed, Scope::system>(&shared.report_tail, u64{1});
  detail::IoCells{detail::report_words_behind(&shared, shared.slot_count), shared.slot_count}.put(position, slot);
  return true;
}

// Whether a request for the device may be pending, published or not. No request for it begins meanwhile. A slot that
// another request takes at this moment may look like one. Any thread.
GPU4FS_UNWATCHED bool may_be_pending(const IoSlot* slots, u32 slot_count, u32 device) {
  for (u32 slot = 0; slot < slot_count; ++slot) {
    if (load<Order::acquire, Scope::system>(&slots[slot].status) != io_pending) continue;
    // A slot that was never used is not pending.
    if (__atomic_load_n(&slots[slot].request.device, __ATOMIC_RELAXED) == device) return true;
  }
  return false;
}

inline bool may_be_pending(const IoQueueShared& shared, u32 device) {
  return may_be_pending(detail::io_slots(const_cast<IoQueueShared*>(&shared), shared.slot_count), shared.slot_count,
                        device);
}
namespace detail {

// True: somebody waits for completions, and the caller wakes all of them.
inline bool count_completions(IoQueueShared& shared) {
  fetch_add<Order::release, Scope::system>(&shared.completion_count, 1u);
  fence<Order::seq_cst, Scope::system>();
  return load<Order::relaxed, Scope::system>(&shared.waiter_count) != 0;
}

}  // namespace detail

// Wakes those who wait for completions (queue/io_wait.hpp). Once for any number of completed slots.
inline void announce_completions(IoQueueShared& shared) {
  if (detail::count_completions(shared)) futex_wake(&shared.completion_count, INT_MAX);
}

// Whether kernels produce, which cannot wake anybody. Any thread; before the kernel begins, and after it has ended.
inline void set_must_poll(IoQueueShared& shared, bool must_poll) {
  store<Order::relaxed, Scope::system>(&shared.must_poll, must_poll ? 1u : 0u);
  fence<Order::seq_cst, Scope::system>();
  for (u32 consumer = 0; consumer < io_consumer_max && must_poll; ++consumer) {
    if (detail::clear_sleeping(shared, consumer)) write_doorbell(shared, consumer);
  }
}
inline bool must_poll(const IoQueueShared& shared) {
  return load<Order::relaxed, Scope::system>(&shared.must_poll) != 0;
}

// After a sleep, however it ended. The doorbell may be about to ring nevertheless.
inline void end_sleep(IoQueueShared& shared, u32 consumer) {
  GPU4FS_CHECK_LT(consumer, io_consumer_max);
  detail::clear_sleeping(shared, consumer);
}

// True: the consumer sleeps until its doorbell can be read. False: there may be work. `polls`: it stays awake while it
// must poll; one consumer that does so is enough, and it wakes the others.
inline bool may_sleep(IoQueueShared& shared, u32 consumer, bool polls = true) {
  GPU4FS_CHECK_LT(consumer, io_consumer_max);
  fetch_or<Order::acq_rel, Scope::system>(&shared.sleeping, u64{1} << consumer);
  fence<Order::seq_cst, Scope::system>();
  const bool stays_awake = polls && must_poll(shared);
  const bool has_work = stays_awake || GPU4FS_MUTANT(doorbell_without_second_look, !looks_empty(shared), false);
  if (has_work) end_sleep(shared, consumer);
  return !has_work;
}

}  // namespace gpu4fs::device
