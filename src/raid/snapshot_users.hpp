// Users that work with pages according to the bitmaps while checkpoints take snapshots of these.
//
// Users count themselves in one of two counters, selected by the parity of the number of snapshots. A checkpoint that
// has taken its snapshot waits for users that began before it, but not for later ones, which see the snapshot. So it
// waits no longer than a single user works, however many there are. Two counters suffice because a checkpoint waits
// before the next one takes its snapshot; after a failed one the pool accepts no changes.
//
// Plain functions: one rank calls them, inside on_leader().
#pragma once

#include "base/atomics.hpp"
#include "base/check.hpp"
#include "base/config.hpp"
#include "base/mutant.hpp"
#include "base/types.hpp"

namespace gpu4fs::raid {

struct SnapshotUsers {
  u64 running[2];      // atomic
  u64 snapshot_count;  // atomic
};

// Returns the counter, for end_use(). The bitmaps are read after this call.
GPU4FS_FN GPU4FS_NOINLINE inline u32 begin_use(SnapshotUsers& users) {
  for (;;) {
    const u64 before = load<Order::acquire, Scope::engine>(&users.snapshot_count);
    const u32 counter = static_cast<u32>(before % 2);
    fetch_add<Order::acq_rel, Scope::engine>(&users.running[counter], u64{1});
    // Either the snapshot's checkpoint sees the count, or this load sees the snapshot.
    if (fetch_add<Order::acq_rel, Scope::engine>(&users.snapshot_count, u64{0}) == before) return counter;
    fetch_sub<Order::acq_rel, Scope::engine>(&users.running[counter], u64{1});
  }
}

GPU4FS_FN inline void end_use(SnapshotUsers& users, u32 counter) {
  GPU4FS_CHECK_LT(counter, 2u);
  const u64 before = fetch_sub<Order::acq_rel, Scope::engine>(&users.running[counter], u64{1});
  GPU4FS_CHECK_GT(before, u64{0});
}

// After a snapshot, once, before anything changes again.
GPU4FS_FN inline void note_snapshot(SnapshotUsers& users) {
  fetch_add<Order::acq_rel, Scope::engine>(&users.snapshot_count, u64{1});
}

// True while a user works that began before the last snapshot.
GPU4FS_FN inline bool older_uses_run(SnapshotUsers& users) {
  const u64 snapshots = load<Order::acquire, Scope::engine>(&users.snapshot_count);
  const u64 older = GPU4FS_MUTANT(snapshot_not_waited_for, snapshots + 1, snapshots);
  return fetch_add<Order::acq_rel, Scope::engine>(&users.running[older % 2], u64{0}) != 0;
}

}  // namespace gpu4fs::raid
