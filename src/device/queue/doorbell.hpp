// How a producer on the host wakes a consumer of an I/O queue. Host only.
//
// A consumer that will sleep sets its bit in `sleeping`, and looks for requests and for `must_poll` once more. Then it
// waits for its eventfd. A producer publishes its requests and looks at the bits afterwards. A fence lies between the
// two steps on either side. So in the single order of the fences one of the two comes first, and the other one sees
// what was stored before it: the consumer the request, or the producer the bit. No wake-up is lost.
//
// Whoever clears the bit owns the wake-up: a producer writes to the eventfd, the consumer itself goes on without. An
// eventfd keeps what was written, so a producer that is slow between the two steps delays only its own request. A
// consumer that has gone on in the meantime finds its next sleep short. So there is at most one call of the system for
// each time that a consumer sleeps, and none while all are awake.
#pragma once

#include <unistd.h>

#include "base/atomics.hpp"
#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/mutant.hpp"
#include "base/types.hpp"
#include "device/queue/io_queue_types.hpp"

namespace gpu4fs::device {

// Writes to the eventfd of a consumer, whether it sleeps or not. Any thread.
inline void write_doorbell(const IoQueueShared& shared, u32 consumer) {
  GPU4FS_CHECK_LT(consumer, io_consumer_max);
  const u64 one = 1;
  // It fails only if the counter is nearly full, and then the consumer does not sleep.
  (void)!::write(shared.doorbells[consumer], &one, sizeof(one));
}

namespace detail {

// True: the bit was set and is not any more.
inline bool clear_sleeping(IoQueueShared& shared, u32 consumer) {
  const u64 bit = u64{1} << consumer;
  return (fetch_and<Order::acq_rel, Scope::system>(&shared.sleeping, ~bit) & bit) != 0;
}

// The consumer that the caller has to wake; io_consumer_max: none sleeps.
inline u32 claim_sleeper(IoQueueShared& shared) {
  if (GPU4FS_MUTANT(doorbell_without_fence, true, false)) fence<Order::seq_cst, Scope::system>();
  for (;;) {
    const u64 sleeping = load<Order::relaxed, Scope::system>(&shared.sleeping);
    if (sleeping == 0) return io_consumer_max;
    const u32 consumer = count_trailing_zeros(sleeping);
    if (clear_sleeping(shared, consumer)) return consumer;
  }
}

}  // namespace detail

// The caller has made work available. Any thread.
inline void wake_consumer(IoQueueShared& shared) {
  const u32 consumer = detail::claim_sleeper(shared);
  if (consumer != io_consumer_max) write_doorbell(shared, consumer);
}

// The same for work of this consumer alone. Nothing is kept for one that is awake: it looks for work before it sleeps.
inline void wake_consumer(IoQueueShared& shared, u32 consumer) {
  GPU4FS_CHECK_LT(consumer, io_consumer_max);
  fence<Order::seq_cst, Scope::system>();
  if (GPU4FS_MUTANT(doorbell_of_awake_kept, detail::clear_sleeping(shared, consumer), true)) {
    write_doorbell(shared, consumer);
  }
}

}  // namespace gpu4fs::device
