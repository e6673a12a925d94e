// Fair reader-writer locks owned by commands.
//
// The lock's word holds the holders and both ends of the queue. While nobody waits it changes by compare-exchange, so
// this common case costs one load and one compare-exchange. The guard protects the links of the queue. While the queue
// is not empty, the word changes only under the guard. The order is FIFO: a command that arrives while others wait is
// queued after them. The releaser hands the lock over to the head, or to all readers before the first writer.
//
// A command waits for at most one lock, the last one in its `locks`. The callers keep the lock order (rename,
// directories parent before child, others by number). All functions here run on one rank.
#pragma once

#include "base/atomics.hpp"
#include "base/check.hpp"
#include "base/mutant.hpp"
#include "engine/wait_list.hpp"
#include "format/inode_format.hpp"

namespace gpu4fs::engine {

namespace detail {

struct LockWord {
  i32 holders;
  u32 head;  // no_command: nobody waits
  u32 tail;

  GPU4FS_FN static constexpr LockWord unpack(u64 word) {
    const u32 head_field = static_cast<u32>(word >> 32) & 0xffffu;
    const u32 tail_field = static_cast<u32>(word >> 48);
    return {static_cast<i32>(static_cast<u32>(word)), head_field == 0 ? u32{no_command} : head_field - 1,
            tail_field == 0 ? u32{no_command} : tail_field - 1};
  }
  GPU4FS_FN constexpr u64 pack() const {
    const u64 head_field = head == no_command ? 0 : head + 1;
    const u64 tail_field = tail == no_command ? 0 : tail + 1;
    return u64{static_cast<u32>(holders)} | (head_field << 32) | (tail_field << 48);
  }
  GPU4FS_FN constexpr bool admits(LockMode mode) const {
    return mode == LockMode::exclusive ? GPU4FS_MUTANT(writers_share, holders == 0, holders >= 0) : holders >= 0;
  }
  GPU4FS_FN constexpr void add_holder(LockMode mode) { holders = mode == LockMode::exclusive ? -1 : holders + 1; }
};

GPU4FS_FN inline LockMode waited_mode(const CommandState& c) {
  GPU4FS_CHECK_GT(c.lock_count, 0u);
  return c.locks[c.lock_count - 1].mode;
}

// Under the guard: detaches all commands from the queue that can have the lock now. Returns the head of their list.
GPU4FS_FN inline u32 grant_waiters(Engine& engine, LockWord& word) {
  u32 first = no_command;
  u32 last = no_command;
  while (word.head != no_command) {
    CommandState& c = engine.commands[word.head];
    const LockMode mode = waited_mode(c);
    if (GPU4FS_MUTANT(lock_not_handed_over, !word.admits(mode), true)) break;
    word.add_holder(mode);
    const u32 index = word.head;
    word.head = c.wait_next;
    if (word.head == no_command) word.tail = no_command;
    store<Order::relaxed, Scope::engine>(&c.locks[c.lock_count - 1].granted, 1u);
    append_waiter(engine, first, last, index);
  }
  return first;
}

// True: the lock is held. False: the command is in the queue.
GPU4FS_FN GPU4FS_NOINLINE inline bool acquire_or_queue(Engine& engine, CommandState& c, CommandLock& lock,
                                                       LockMode mode) {
  u64 seen = load<Order::relaxed, Scope::engine>(&lock.word);
  for (;;) {
    LockWord word = LockWord::unpack(seen);
    if (word.head != no_command || !word.admits(mode)) break;
    word.add_holder(mode);
    if (compare_exchange<Order::acq_rel, Scope::engine>(&lock.word, seen, word.pack())) return true;
  }
  lock.guard.lock();
  seen = load<Order::relaxed, Scope::engine>(&lock.word);
  bool taken = false;
  for (;;) {
    LockWord word = LockWord::unpack(seen);
    taken = word.head == no_command && word.admits(mode);
    const u32 tail_before = word.tail;
    if (taken) {
      word.add_holder(mode);
    } else {
      c.wait_next = no_command;
      store<Order::relaxed, Scope::engine>(&c.wait_lock, &lock);
      announce_wait(c, Status::waits_for_lock);
      if (word.head == no_command) word.head = c.index;
      word.tail = c.index;
    }
    if (!compare_exchange<Order::acq_rel, Scope::engine>(&lock.word, seen, word.pack())) continue;
    if (!taken && tail_before != no_command) engine.commands[tail_before].wait_next = c.index;
    break;
  }
  if (taken) announce_wait(c, Status::ok);
  lock.guard.unlock();
  return taken;
}

GPU4FS_FN GPU4FS_NOINLINE inline void release_lock(Engine& engine, CommandLock& lock, LockMode mode) {
  // Before the word shows that the lock is free: whoever sees it free also sees the version of the changes.
  if (mode == LockMode::exclusive) {
    const u64 version = load<Order::relaxed, Scope::engine>(&lock.version);
    store<Order::relaxed, Scope::engine>(&lock.version, GPU4FS_MUTANT(version_kept, version + 1, version));
  }
  u64 seen = load<Order::relaxed, Scope::engine>(&lock.word);
  u32 granted = no_command;
  for (;;) {
    LockWord word = LockWord::unpack(seen);
    GPU4FS_CHECK(mode == LockMode::exclusive ? word.holders == -1 : word.holders > 0);
    word.holders = mode == LockMode::exclusive ? 0 : word.holders - 1;
    if (word.head == no_command) {
      if (compare_exchange<Order::acq_rel, Scope::engine>(&lock.word, seen, word.pack())) return;
      continue;
    }
    lock.guard.lock();
    // The queue may have been emptied before the guard was locked, so the word is read again.
    seen = load<Order::acquire, Scope::engine>(&lock.word);
    for (;;) {
      word = LockWord::unpack(seen);
      word.holders = mode == LockMode::exclusive ? 0 : word.holders - 1;
      if (word.head == no_command) {
        if (compare_exchange<Order::acq_rel, Scope::engine>(&lock.word, seen, word.pack())) break;
        continue;
      }
      granted = grant_waiters(engine, word);
      store<Order::release, Scope::engine>(&lock.word, word.pack());
      break;
    }
    lock.guard.unlock();
    wake_list(engine, granted);
    return;
  }
}

GPU4FS_FN inline bool is_lockable(u64 inode) {
  return inode != format::inode_number_inode_file && inode != format::inode_number_inode_bitmap &&
         inode != format::inode_number_orphan_bitmap;
}

}  // namespace detail

namespace detail {

GPU4FS_FN inline Status find_or_acquire_lock(Engine& engine, CommandState& c, CommandLock* lock, u64 inode,
                                             LockMode mode) {
  if (!is_lockable(inode)) return Status::ok;
  for (u32 i = 0; i < c.lock_count; ++i) {
    HeldLock& held = c.locks[i];
    if (held.inode != inode) continue;
    GPU4FS_CHECK_EQ((load<Order::relaxed, Scope::engine>(&held.granted)), 1u);
    GPU4FS_CHECK(held.mode == mode || held.mode == LockMode::exclusive);
    return Status::ok;
  }
  GPU4FS_CHECK(lock != nullptr);
  GPU4FS_CHECK_LT(c.lock_count, held_lock_max);
  GPU4FS_CHECK_EQ(c.in_gate, 0u);
  HeldLock& entry = c.locks[c.lock_count];
  entry.lock = lock;
  entry.inode = inode;
  entry.mode = mode;
  store<Order::relaxed, Scope::engine>(&entry.granted, 0u);
  ++c.lock_count;
  if (!acquire_or_queue(engine, c, *lock, mode)) return Status::waits_for_lock;
  store<Order::relaxed, Scope::engine>(&entry.granted, 1u);
  return Status::ok;
}

}  // namespace detail

// ok: held (or needs no lock). waits_for_lock: queued; the step returns and runs again when the lock is held. A lock
// held in exclusive mode satisfies a shared request. A request for a stronger mode than the held one is a programming
// error.
GPU4FS_FN GPU4FS_NOINLINE inline Status acquire_command_lock(Engine& engine, CommandState& c, CommandLock* lock,
                                                             u64 inode, LockMode mode) {
  const Status status = detail::find_or_acquire_lock(engine, c, lock, inode, mode);
  // If readers without a lock see a change, they must see that the lock is held. So the lock becomes visible before the
  // change, also after a hand-over.
  if (status == Status::ok && mode == LockMode::exclusive) fence<Order::release, Scope::engine>();
  return status;
}

// Whether the command has the inode's lock in this mode or in the stronger one. For checks.
GPU4FS_FN GPU4FS_NOINLINE inline bool holds_lock(const CommandState& c, u64 inode, LockMode mode) {
  if (!detail::is_lockable(inode)) return true;
  for (u32 i = 0; i < c.lock_count; ++i) {
    const HeldLock& held = c.locks[i];
    if (held.inode != inode || load<Order::relaxed, Scope::engine>(&held.granted) == 0) continue;
    return held.mode == mode || held.mode == LockMode::exclusive;
  }
  return false;
}

GPU4FS_FN GPU4FS_NOINLINE inline void release_command_lock(Engine& engine, CommandState& c, u64 inode) {
  for (u32 i = 0; i < c.lock_count; ++i) {
    if (c.locks[i].inode != inode) continue;
    const HeldLock held = c.locks[i];
    GPU4FS_CHECK_EQ(held.granted, 1u);
    // A queued request is the last entry and must stay there, so nothing is released between parking and return.
    GPU4FS_CHECK_EQ(c.locks[c.lock_count - 1].granted, 1u);
    c.locks[i] = c.locks[c.lock_count - 1];
    --c.lock_count;
    detail::release_lock(engine, *held.lock, held.mode);
    return;
  }
  GPU4FS_CHECK(!detail::is_lockable(inode));
}

// At the end of a command. A cancelled wait leaves an entry that was never granted.
GPU4FS_FN GPU4FS_NOINLINE inline void release_all_locks(Engine& engine, CommandState& c) {
  while (c.lock_count > 0) {
    const HeldLock& held = c.locks[--c.lock_count];
    if (load<Order::relaxed, Scope::engine>(&held.granted) == 0) continue;
    detail::release_lock(engine, *held.lock, held.mode);
  }
}

// Removes a parked command past its deadline from the queue. The commands after it may then get the lock. False if the
// command is not in this queue.
GPU4FS_FN inline bool cancel_lock_wait(Engine& engine, CommandLock& lock, u32 index, u64 now_ns) {
  lock.guard.lock();
  u64 seen = load<Order::acquire, Scope::engine>(&lock.word);
  detail::LockWord word = detail::LockWord::unpack(seen);
  u32 granted = no_command;
  const bool removed =
      is_past_deadline(engine.commands[index], now_ns) && remove_waiter(engine, word.head, word.tail, index);
  if (removed) {
    granted = detail::grant_waiters(engine, word);
    // The queue was not empty, so no other rank changes the word.
    const bool stored = compare_exchange<Order::acq_rel, Scope::engine>(&lock.word, seen, word.pack());
    GPU4FS_CHECK(stored);
  }
  lock.guard.unlock();
  wake_list(engine, granted);
  return removed;
}

}  // namespace gpu4fs::engine
