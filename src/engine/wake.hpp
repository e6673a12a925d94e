// Wakes sleepers on the CPU (parking.hpp). In a kernel nobody sleeps, and these functions do nothing.
#pragma once

#include "base/atomics.hpp"
#include "base/config.hpp"
#include "base/futex.hpp"
#include "engine/engine_types.hpp"

namespace gpu4fs::engine {

// `count` items were made available.
GPU4FS_FN inline void wake_workers(Engine& engine, u32 count) {
#if !GPU4FS_DEVICE_CODE
  fence<Order::seq_cst, Scope::engine>();
  const u32 claimed = claim_sleepers(engine.parking, count);
  if (claimed != 0) futex_wake(futex_word(engine.parking), claimed);
#else
  (void)engine;
  (void)count;
#endif
}

// A completion of this session was written.
GPU4FS_FN inline void wake_client(Session& session) {
#if !GPU4FS_DEVICE_CODE
  ring::RingControl* control = session.control;
  if (control == nullptr) return;
  fence<Order::seq_cst, Scope::system>();
  if (load<Order::relaxed, Scope::system>(&control->client_sleeping) == 0) return;
  fetch_add<Order::acq_rel, Scope::system>(&control->wake_sequence, 1u);
  futex_wake(&control->wake_sequence, UINT_MAX);
#else
  (void)session;
#endif
}

// An upcall was written.
GPU4FS_FN inline void wake_server(ring::UpcallRing& upcalls) {
#if !GPU4FS_DEVICE_CODE
  fence<Order::seq_cst, Scope::system>();
  if (load<Order::relaxed, Scope::system>(&upcalls.server_sleeping) == 0) return;
  fetch_add<Order::acq_rel, Scope::system>(&upcalls.wake_sequence, 1u);
  futex_wake(&upcalls.wake_sequence, 1);
#else
  (void)upcalls;
#endif
}

}  // namespace gpu4fs::engine
