// Reads without a lock: the version of the data that a lock protects is compared before and after.
//
// A command that changes an inode, its map or its pages holds the inode's lock exclusively. The lock's version grows
// when such a command releases it (engine/command_locks.hpp). A reader loads the version, then reads. At the end it
// checks that nobody holds the lock exclusively and that the version is the same. Then all data that it read is
// consistent. Otherwise the data is meaningless, and the command goes the ordinary way, under the lock.
//
// The order is that of a sequence lock. The version is loaded before everything else (acquire), and the check at the
// end comes after a fence. If a reader saw a part of a change, the change's holder had the lock before the reader's
// check. So the check finds the holder or another version. This requires that the lock becomes visible before the
// change. acquire_command_lock() has the writer's fence for this.
//
// The reader is inside the step gate. Meanwhile no page leaves memory, and no chunk or device leaves the pool. So a
// place that was found and checked inside the gate stays valid. The client sees no data before the check at the end: by
// then the page may belong to another file, and its bytes match the checksum of that file's page.
#pragma once

#include "base/access.hpp"
#include "base/command_lock.hpp"
#include "base/mutant.hpp"

namespace gpu4fs::engine {

namespace detail {

struct LockState {
  u64 version;
  u64 word;

  GPU4FS_FN bool is_held_exclusively() const { return (word & lock_exclusive) != 0; }
};

}  // namespace detail

// The state of the lock, loaded before the data that it protects.
struct LockSeen {
  u64 version;
  bool is_quiet;  // false: a command is changing the data
};

// Data that is read afterwards is not older than the version. If is_quiet, the lock had no writer after that version
// was set, so all changes of that version are visible.
GPU4FS_FN inline LockSeen look_at(const CommandLock& lock) {
  detail::LockState state{};
#if GPU4FS_DEVICE_CODE
  static_assert(offsetof(CommandLock, version) == 0 && offsetof(CommandLock, word) == 8);
  asm volatile("{ .reg .b128 wide; ld.acquire.gpu.b128 wide, [%2]; mov.b128 {%0, %1}, wide; }"
               : "=l"(state.version), "=l"(state.word)
               : "l"(&lock)
               : "memory");
#else
  state.version = load<Order::acquire, Scope::engine>(&lock.version);
  state.word = load<Order::acquire, Scope::engine>(&lock.word);
#endif
  return {state.version, !state.is_held_exclusively()};
}

// Completes all earlier reads of this rank before the versions are looked at.
GPU4FS_FN inline void end_reading() {
  fence<Order::acquire, Scope::engine>();
}

// After end_reading(): the lock's state at that time. What it means is a matter of shows_version(), so the load may
// take its time meanwhile.
GPU4FS_FN inline detail::LockState look_again(const CommandLock& lock) {
  detail::LockState state{};
#if GPU4FS_DEVICE_CODE
  const Vector16 both = load_shared_16(&lock);
  state = {both.low, both.high};
#else
  // The order matters: the version of a change is stored before the lock becomes free.
  state.word = load<Order::acquire, Scope::engine>(&lock.word);
  state.version = load<Order::relaxed, Scope::engine>(&lock.version);
#endif
  return state;
}

// Whether nobody has held the lock exclusively since its version was `version`.
GPU4FS_FN inline bool shows_version(const detail::LockState& state, u64 version) {
  return GPU4FS_MUTANT(version_unchecked, state.version == version && !state.is_held_exclusively(), true);
}

GPU4FS_FN inline bool has_version(const CommandLock& lock, u64 version) {
  return shows_version(look_again(lock), version);
}

// Both steps for one lock. A rank of a group answers for its own reads.
GPU4FS_FN inline bool is_unchanged(const CommandLock& lock, u64 version) {
  end_reading();
  return has_version(lock, version);
}

}  // namespace gpu4fs::engine
