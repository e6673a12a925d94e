// Fair reader-writer locks owned by commands.
//
// The lock's word holds the number of readers, the exclusive bit and both ends of the queue. Without a queue, each
// operation is one access: a reader adds 1 and cannot fail, a writer exchanges a word of zero. The order is FIFO: a
// command that arrives while others wait is queued after them. The lock is handed to the writer at the head of the
// queue, or to all readers before the first writer.
//
// Rules for the word:
//   head and tail  change only under the guard, which also protects the links of the queue.
//   exclusive bit  is set only in a word without readers. While the queue is not empty, it is set only under the guard.
//   readers        come and go at any time. A reader that finds the bit or a queue when it has added itself is
//                  *transient*: it touches nothing, subtracts itself again and joins the queue.
//
// So a transient reader can be in the word together with a writer, and a writer may find it in the way.
//
// No waiter is lost. A word with a queue and no holder needs a hand-over under the guard. Whoever makes such a word
// does it: a writer or the last reader that leaves, or a command that joins the queue. A transient reader that leaves
// joins the queue next. hand_over() gives the lock to the head, or it finds a holder or a transient reader in the word.
// These leave later and then see the queue. A second hand-over of the same word does no harm. A command adds itself as
// a transient reader at most once before it waits in the queue. So transient readers delay a writer, but not for ever,
// and they do not overtake it.
//
// Orders. Every change of the word is a read-modify-write. So whoever acquires a word has also acquired from all
// releases before. Holders release when they leave; all others only acquire. Readers without a lock
// (engine/optimistic/version.hpp) need two things: the version grows before the bit is cleared, and the bit is visible
// before the first change. acquire_command_lock() has a fence for the second.
//
// A reader without a command (try_shared_lock) takes the lock only if it need not wait. If it is transient, it leaves
// as a holder does, because it joins no queue: if it was the last one in a word with a queue, it hands the lock over.
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
  u32 readers;
  bool is_exclusive;
  u32 head;  // no_command: nobody waits
  u32 tail;

  GPU4FS_FN static constexpr LockWord unpack(u64 word) {
    const u32 head_field = static_cast<u32>(word >> 32) & 0xffffu;
    const u32 tail_field = static_cast<u32>(word >> 48);
    return {static_cast<u32>(word & (lock_exclusive - 1)), (word & lock_exclusive) != 0,
            head_field == 0 ? u32{no_command} : head_field - 1, tail_field == 0 ? u32{no_command} : tail_field - 1};
  }
  GPU4FS_FN constexpr u64 pack() const {
    const u64 head_field = head == no_command ? 0 : head + 1;
    const u64 tail_field = tail == no_command ? 0 : tail + 1;
    return readers | (is_exclusive ? lock_exclusive : 0) | (head_field << 32) | (tail_field << 48);
  }
  GPU4FS_FN constexpr bool has_queue() const { return head != no_command; }
  GPU4FS_FN constexpr bool admits(LockMode mode) const {
    if (is_exclusive) return false;
    return mode == LockMode::shared || GPU4FS_MUTANT(writers_share, readers == 0, true);
  }
};

GPU4FS_FN inline LockMode waited_mode(const CommandState& c) {
  GPU4FS_CHECK_GT(c.lock_count, 0u);
  return c.locks[c.lock_count - 1].mode;
}

// The commands that a hand-over has taken from the queue.
struct GrantedCommands {
  u32 first = no_command;
  u32 last = no_command;

  // Moves the head of the queue here.
  GPU4FS_FN void take_head(Engine& engine, LockWord& word) {
    const u32 index = word.head;
    CommandState& c = engine.commands[index];
    word.head = c.wait_next;
    if (word.head == no_command) word.tail = no_command;
    store<Order::relaxed, Scope::engine>(&c.locks[c.lock_count - 1].granted, 1u);
    append_waiter(engine, first, last, index);
  }
};

// Under the guard: gives the lock to the commands at the head of the queue that can have it. Returns the head of their
// list, which the caller wakes without the guard.
GPU4FS_FN GPU4FS_NOINLINE inline u32 hand_over(Engine& engine, CommandLock& lock) {
  GrantedCommands granted;
  u64 seen = load<Order::acquire, Scope::engine>(&lock.word);
  for (;;) {
    const LockWord before = LockWord::unpack(seen);
    if (!before.has_queue()) break;
    const LockMode mode = waited_mode(engine.commands[before.head]);
    if (GPU4FS_MUTANT(lock_not_handed_over, !before.admits(mode), true)) break;
    LockWord after = before;
    if (mode == LockMode::shared) {
      // Nobody else sets the bit, and the fields are independent, so the difference fits whatever readers do meanwhile.
      do {
        granted.take_head(engine, after);
        ++after.readers;
      } while (after.has_queue() && waited_mode(engine.commands[after.head]) == LockMode::shared);
      fetch_add<Order::acquire, Scope::engine>(&lock.word, after.pack() - seen);
      break;
    }
    after.is_exclusive = true;
    after.head = engine.commands[before.head].wait_next;
    if (!after.has_queue()) after.tail = no_command;
    // It fails if a transient reader has come or gone.
    if (!compare_exchange<Order::acquire, Scope::engine>(&lock.word, seen, after.pack())) continue;
    LockWord taken = before;
    granted.take_head(engine, taken);
    break;
  }
  return granted.first;
}

// For whoever has left a word with a queue and perhaps without a holder. The queue may have changed since then.
GPU4FS_FN GPU4FS_NOINLINE inline void hand_over_and_wake(Engine& engine, CommandLock& lock) {
  lock.guard.lock();
  const u32 granted = hand_over(engine, lock);
  lock.guard.unlock();
  wake_list(engine, granted);
}

// Adds a reader. False: it is transient, and has to leave.
GPU4FS_FN inline bool enter_shared(CommandLock& lock) {
  const LockWord before = LockWord::unpack(fetch_add<Order::acquire, Scope::engine>(&lock.word, u64{1}));
  return before.admits(LockMode::shared) && !before.has_queue();
}

// A transient reader has read nothing. It joins the queue next, and hands the lock over there if it was the last one.
GPU4FS_FN inline void leave_transient(CommandLock& lock) {
  fetch_sub<Order::relaxed, Scope::engine>(&lock.word, u64{1});
}

// Puts the command at the end of the queue, and hands the lock over if nobody holds it.
GPU4FS_FN GPU4FS_NOINLINE inline void queue_for_lock(Engine& engine, CommandState& c, CommandLock& lock) {
  store<Order::relaxed, Scope::engine>(&c.wait_lock, &lock);
  announce_wait(c, Status::waits_for_lock);
  lock.guard.lock();
  const LockWord before = LockWord::unpack(load<Order::relaxed, Scope::engine>(&lock.word));
  LockWord after = before;
  append_waiter(engine, after.head, after.tail, c.index);
  // The holder leaves before this and leaves no queue behind, or after this and sees the queue.
  fetch_add<Order::relaxed, Scope::engine>(&lock.word, after.pack() - before.pack());
  const u32 granted = GPU4FS_MUTANT(transient_reader_forgets, hand_over(engine, lock), u32{no_command});
  lock.guard.unlock();
  wake_list(engine, granted);
}

// True: the lock is held. False: the command is, or was, in the queue, and is restarted when it holds the lock.
GPU4FS_FN inline bool acquire_or_queue(Engine& engine, CommandState& c, CommandLock& lock, LockMode mode) {
  if (mode == LockMode::shared) {
    if (enter_shared(lock)) return true;
    leave_transient(lock);
  } else {
    u64 free_word = 0;
    if (compare_exchange<Order::acquire, Scope::engine>(&lock.word, free_word, lock_exclusive)) return true;
  }
  queue_for_lock(engine, c, lock);
  return false;
}

GPU4FS_FN inline void release_lock(Engine& engine, CommandLock& lock, LockMode mode) {
  bool hands_over = false;
  if (mode == LockMode::shared) {
    const LockWord before = LockWord::unpack(fetch_sub<Order::release, Scope::engine>(&lock.word, u64{1}));
    GPU4FS_CHECK_GT(before.readers, 0u);
    hands_over = before.readers == 1 && before.has_queue();
  } else {
    // Before the word shows that the lock is free: whoever sees it free also sees the version of the changes.
    const u64 version = load<Order::relaxed, Scope::engine>(&lock.version);
    store<Order::relaxed, Scope::engine>(&lock.version, GPU4FS_MUTANT(version_kept, version + 1, version));
    const LockWord before = LockWord::unpack(fetch_sub<Order::release, Scope::engine>(&lock.word, lock_exclusive));
    GPU4FS_CHECK(before.is_exclusive);
    hands_over = before.has_queue();
  }
  if (hands_over) hand_over_and_wake(engine, lock);
}

// For readers without a command, inside the step gate. True: the lock is held shared until release_lock().
GPU4FS_FN inline bool try_shared_lock(Engine& engine, CommandLock& lock) {
  if (enter_shared(lock)) return true;
  if (GPU4FS_MUTANT(passer_by_forgets, true, false)) {
    release_lock(engine, lock, LockMode::shared);
  } else {
    leave_transient(lock);
  }
  return false;
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
  const detail::LockWord before = detail::LockWord::unpack(load<Order::relaxed, Scope::engine>(&lock.word));
  detail::LockWord after = before;
  u32 granted = no_command;
  const bool removed =
      is_past_deadline(engine.commands[index], now_ns) && remove_waiter(engine, after.head, after.tail, index);
  if (removed) {
    fetch_add<Order::relaxed, Scope::engine>(&lock.word, after.pack() - before.pack());
    granted = detail::hand_over(engine, lock);
  }
  lock.guard.unlock();
  wake_list(engine, granted);
  return removed;
}

}  // namespace gpu4fs::engine
