// Threads of the host that wait for completions of an I/O queue. Host only; a kernel polls.
//
// A waiter counts the announcements of completions, looks at its slots, and sleeps while the count is the same. Before
// it sleeps it adds itself to waiter_count. A consumer raises the count and then looks for waiters. There are fences in
// between, as with doorbells (queue/doorbell.hpp), and the kernel compares the count before the thread sleeps. So
// either the consumer sees the waiter or the waiter does not sleep.
#pragma once

#include "base/atomics.hpp"
#include "base/futex.hpp"
#include "base/mutant.hpp"
#include "base/status.hpp"
#include "base/types.hpp"
#include "device/queue/io_queue.hpp"
#include "device/queue/io_queue_types.hpp"

namespace gpu4fs::device {

// Completions that were announced later change it.
inline u32 completion_count(const IoQueue& queue) {
  return load<Order::acquire, Scope::system>(&queue.shared->completion_count);
}

namespace detail {

// The caller sleeps if the count is the one that is returned, and then calls end_wait().
inline u32 begin_wait(IoQueueShared& shared, u32 seen) {
  fetch_add<Order::acq_rel, Scope::system>(&shared.waiter_count, 1u);
  fence<Order::seq_cst, Scope::system>();
  return GPU4FS_MUTANT(completion_counted_too_late, seen,
                       (load<Order::relaxed, Scope::system>(&shared.completion_count)));
}
inline void end_wait(IoQueueShared& shared) {
  fetch_sub<Order::acq_rel, Scope::system>(&shared.waiter_count, 1u);
}

}  // namespace detail

// Sleeps until a completion is announced after completion_count() was `seen`, at most `timeout_ns` (0: without limit).
// May return early. The caller has looked at its slots since.
inline void wait_for_any_completion(const IoQueue& queue, u32 seen, u64 timeout_ns = 0) {
  IoQueueShared& shared = *queue.shared;
  futex_wait(&shared.completion_count, detail::begin_wait(shared, seen), timeout_ns);
  detail::end_wait(shared);
}

// Sleeps until the slot has completed, and releases it.
inline Status wait_for(IoQueue& queue, u32 slot) {
  for (;;) {
    const u32 seen = completion_count(queue);
    const IoProgress progress = poll(queue, slot);
    if (!progress.is_pending) {
      release(queue, slot);
      return progress.status;
    }
    wait_for_any_completion(queue, seen);
  }
}

}  // namespace gpu4fs::device
