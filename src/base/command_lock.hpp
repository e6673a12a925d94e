// Storage of a reader-writer lock owned by commands (the functions are in engine/command_locks.hpp). A command that
// does not get the lock is queued by its index. When the lock is handed to it, in FIFO order, it is restarted. The
// order is fair: a queued writer stops later readers. So no worker ever waits for such a lock.
//
// The version counts how often the lock was held exclusively and let go. Readers that hold nothing compare it before
// and after (engine/optimistic/version.hpp). It stands beside the word, so that one access of 16 bytes reads both.
//
// Zeroed memory is a free lock.
#pragma once

#include "base/atomics.hpp"
#include "base/config.hpp"
#include "base/locks.hpp"
#include "base/types.hpp"

namespace gpu4fs {

inline constexpr u16 no_command = 0xffff;

// CommandLock::word: bits 0-30 readers, 31 a writer, 32-47 and 48-63 queue head and tail + 1.
inline constexpr u64 lock_exclusive = u64{1} << 31;

struct alignas(32) CommandLock {
  u64 version;       // atomic, changed by who holds the lock exclusively
  u64 word;          // atomic, changed only by read-modify-writes
  TicketLock guard;  // short: protects the links of the queue

  // Only meaningful while no step runs.
  GPU4FS_FN bool is_idle() const { return load<Order::relaxed, Scope::engine>(&word) == 0; }
};
static_assert(sizeof(CommandLock) == 32);

}  // namespace gpu4fs
