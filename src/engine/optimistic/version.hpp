// Reading without a lock: the version of what a lock protects, before and after.
//
// A command that changes an inode, its map or its pages holds the inode's lock exclusively. The lock's version grows
// when such a command releases it (engine/command_locks.hpp). A reader loads the version, then reads. At the end it
// checks that nobody holds the lock exclusively and that the version is the same. Then all that it read belongs
// together. Otherwise what it read means nothing, and the command goes the ordinary way, under the lock.
//
// The order is that of a sequence lock. The version is loaded before all else (acquire), and the look at the end comes
// after a fence. A change that a reader saw a part of was made by a holder that had the lock before the reader's last
// look: the holder is still there, or the version is another. For that the change must not become visible before the
// lock; acquire_command_lock() has the writer's fence.
//
// The reader is inside the step gate. Meanwhile no page leaves memory, and no chunk or device leaves the pool. So a
// place that was found and checked inside the gate stays valid. The client sees nothing of what was read before the
// check at the end: the page may belong to another file by then, and its bytes match the checksum of that file's page.
#pragma once

#include "base/access.hpp"
#include "base/command_lock.hpp"
#include "base/mutant.hpp"

namespace gpu4fs::engine {

namespace detail {

struct LockState {
  u64 version;
  u64 word;

  GPU4FS_FN bool is_held_exclusively() const { return static_cast<u32>(word) == 0xffffffffu; }
};

}  // namespace detail

// The lock before anything is read that it protects.
struct LockSeen {
  u64 version;
  bool is_quiet;  // false: somebody is changing things
};

// What is read afterwards is not older than the version. With is_quiet the lock was free of writers after that version
// had been given, so all that belongs to it is there.
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

// Whether nobody has held the lock exclusively since its version was `version`. What was read before is read. A rank of
// a group answers for what it has read itself.
GPU4FS_FN inline bool is_unchanged(const CommandLock& lock, u64 version) {
  fence<Order::acquire, Scope::engine>();
  detail::LockState state{};
#if GPU4FS_DEVICE_CODE
  const Vector16 both = load_shared_16(&lock);
  state = {both.low, both.high};
#else
  // In this order: the version of a change is there before the lock is seen to be free again.
  state.word = load<Order::acquire, Scope::engine>(&lock.word);
  state.version = load<Order::relaxed, Scope::engine>(&lock.version);
#endif
  return GPU4FS_MUTANT(version_unchecked, state.version == version && !state.is_held_exclusively(), true);
}

}  // namespace gpu4fs::engine
