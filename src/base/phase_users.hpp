// Users that are counted by phases, so that one can wait for all users of earlier phases and for no later one.
//
// Users count themselves in one of two counters, selected by the parity of the number of phases. Who begins a phase
// then waits for users that began before it. Later users do not delay it, so the wait is no longer than a single user
// works, however many there are. Two counters suffice if nobody begins a phase while users from before the last one
// run. Checkpoints wait so for work with the bitmaps before their snapshot, flushes for pages that were changed before.
//
// Plain functions: one rank calls them, inside on_leader().
#pragma once

#include "base/atomics.hpp"
#include "base/check.hpp"
#include "base/config.hpp"
#include "base/mutant.hpp"
#include "base/types.hpp"

namespace gpu4fs {

struct PhaseUsers {
  u64 running[2];   // atomic
  u64 phase_count;  // atomic
};

// Returns the counter, for end_use(). What depends on the phase is read after this call.
GPU4FS_FN GPU4FS_NOINLINE inline u32 begin_use(PhaseUsers& users) {
  for (;;) {
    const u64 before = load<Order::acquire, Scope::engine>(&users.phase_count);
    const u32 counter = static_cast<u32>(before % 2);
    fetch_add<Order::acq_rel, Scope::engine>(&users.running[counter], u64{1});
    // Either who begins the next phase sees the count, or this load sees the phase.
    if (fetch_add<Order::acq_rel, Scope::engine>(&users.phase_count, u64{0}) == before) return counter;
    fetch_sub<Order::acq_rel, Scope::engine>(&users.running[counter], u64{1});
  }
}

GPU4FS_FN inline void end_use(PhaseUsers& users, u32 counter) {
  GPU4FS_CHECK_LT(counter, 2u);
  const u64 before = fetch_sub<Order::acq_rel, Scope::engine>(&users.running[counter], u64{1});
  GPU4FS_CHECK_GT(before, u64{0});
}

// One caller at a time, who knows that no user from before the last phase runs.
GPU4FS_FN inline void begin_phase(PhaseUsers& users) {
  fetch_add<Order::acq_rel, Scope::engine>(&users.phase_count, u64{1});
}

// True while a user runs that began before the last phase did. May be true for a moment although none runs.
GPU4FS_FN inline bool older_uses_run(PhaseUsers& users) {
  const u64 phases = load<Order::acquire, Scope::engine>(&users.phase_count);
  const u64 older = GPU4FS_MUTANT(older_uses_not_waited_for, phases + 1, phases);
  return fetch_add<Order::acq_rel, Scope::engine>(&users.running[older % 2], u64{0}) != 0;
}

// Begins a phase if no user from before the last phase runs and nobody else begins one. Returns its number, which
// counts from 1, or 0.
GPU4FS_FN inline u64 try_begin_phase(PhaseUsers& users) {
  u64 phases = load<Order::acquire, Scope::engine>(&users.phase_count);
  if (older_uses_run(users)) return 0;
  const bool has_begun = compare_exchange<Order::acq_rel, Scope::engine>(&users.phase_count, phases, phases + 1);
  return has_begun ? phases + 1 : 0;
}

}  // namespace gpu4fs
