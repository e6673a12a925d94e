#include <gtest/gtest.h>

#include <random>

#include "engine/command_crew.hpp"
#include "engine/command_locks.hpp"
#include "engine/deadline.hpp"

namespace gpu4fs::test {
namespace {

using engine::CommandPhase;
using engine::LockMode;

// Numbers of inodes that can be locked.
constexpr u64 first_inode = 100;

class CommandLockTest : public ::testing::Test {
 protected:
  CommandLockTest() : fixture_(EngineOptions{.worker_count = 1, .command_count = 64, .config = {}, .start = false}) {
    for (u32 i = 1; i < 64; ++i) engine::set_phase(command(i), CommandPhase::running);
  }

  engine::Engine& engine() { return fixture_.engine(); }
  engine::CommandState& command(u32 index) { return engine().commands[index]; }

  Status acquire(u32 index, LockMode mode) {
    const Status status = engine::acquire_command_lock(engine(), command(index), &lock_, first_inode, mode);
    if (status == Status::waits_for_lock) {
      EXPECT_TRUE(engine::park_command(command(index)));
    }
    return status;
  }
  void release(u32 index) { engine::release_command_lock(engine(), command(index), first_inode); }

  // The two halves of the acquisition of a reader that has to queue: between them it is in the lock's word.
  void begin_as_transient(u32 index) {
    engine::HeldLock& entry = command(index).locks[command(index).lock_count++];
    entry = {&lock_, first_inode, LockMode::shared, 0, 0};
    EXPECT_FALSE(engine::detail::enter_shared(lock_));
  }
  // True: it waits. False: it got the lock.
  bool end_as_transient(u32 index) {
    engine::detail::leave_transient(lock_);
    engine::detail::queue_for_lock(engine(), command(index), lock_);
    return engine::park_command(command(index));
  }

  // The commands that were woken, in order; afterwards they are running.
  std::vector<u32> woken() {
    std::vector<u32> indices;
    u32 item = 0;
    while (engine().run_queue.pop(&item)) {
      indices.push_back(item);
      engine::set_phase(command(item), CommandPhase::running);
    }
    return indices;
  }

  EngineFixture fixture_;
  CommandLock lock_{};
};

using Indices = std::vector<u32>;

TEST_F(CommandLockTest, ReadersShareWritersDoNot) {
  EXPECT_EQ(acquire(1, LockMode::shared), Status::ok);
  EXPECT_EQ(acquire(2, LockMode::shared), Status::ok);
  EXPECT_EQ(acquire(3, LockMode::exclusive), Status::waits_for_lock);
  release(1);
  EXPECT_EQ(woken(), Indices{});
  release(2);
  EXPECT_EQ(woken(), Indices{3});
  EXPECT_EQ(command(3).locks[0].granted, 1u);
  EXPECT_EQ(acquire(3, LockMode::exclusive), Status::ok) << "asking again for what one holds";
  EXPECT_EQ(acquire(3, LockMode::shared), Status::ok) << "exclusive satisfies shared";
  EXPECT_EQ(command(3).lock_count, 1u);
  release(3);
  EXPECT_TRUE(lock_.is_idle());
}

TEST_F(CommandLockTest, HandOverIsFirstInFirstOut) {
  EXPECT_EQ(acquire(1, LockMode::exclusive), Status::ok);
  EXPECT_EQ(acquire(2, LockMode::shared), Status::waits_for_lock);
  EXPECT_EQ(acquire(3, LockMode::shared), Status::waits_for_lock);
  EXPECT_EQ(acquire(4, LockMode::exclusive), Status::waits_for_lock);
  EXPECT_EQ(acquire(5, LockMode::shared), Status::waits_for_lock) << "readers do not overtake a queued writer";
  release(1);
  EXPECT_EQ(woken(), (Indices{2, 3}));
  EXPECT_EQ(acquire(6, LockMode::shared), Status::waits_for_lock);
  release(2);
  EXPECT_EQ(woken(), Indices{});
  release(3);
  EXPECT_EQ(woken(), Indices{4});
  release(4);
  EXPECT_EQ(woken(), (Indices{5, 6}));
  release(5);
  release(6);
  EXPECT_TRUE(lock_.is_idle());
}

TEST_F(CommandLockTest, CancelledWaiterLetsOthersPass) {
  const u64 deadline_ns = 1000;
  EXPECT_EQ(acquire(1, LockMode::shared), Status::ok);
  EXPECT_EQ(acquire(2, LockMode::exclusive), Status::waits_for_lock);
  EXPECT_EQ(acquire(3, LockMode::shared), Status::waits_for_lock);
  EXPECT_EQ(acquire(4, LockMode::exclusive), Status::waits_for_lock);
  command(2).deadline_ns = deadline_ns;
  EXPECT_FALSE(engine::cancel_lock_wait(engine(), lock_, 2, deadline_ns)) << "not past it";
  EXPECT_FALSE(engine::cancel_lock_wait(engine(), lock_, 9, deadline_ns + 1)) << "not queued";
  EXPECT_TRUE(engine::cancel_lock_wait(engine(), lock_, 2, deadline_ns + 1));
  EXPECT_FALSE(engine::cancel_lock_wait(engine(), lock_, 2, deadline_ns + 1)) << "only once";
  EXPECT_EQ(woken(), Indices{3}) << "the reader behind the cancelled writer";
  engine::release_all_locks(engine(), command(2));
  release(1);
  EXPECT_EQ(woken(), Indices{});
  command(4).deadline_ns = deadline_ns;
  EXPECT_TRUE(engine::cancel_lock_wait(engine(), lock_, 4, deadline_ns + 1));
  engine::release_all_locks(engine(), command(4));
  EXPECT_EQ(acquire(5, LockMode::shared), Status::ok) << "the queue is empty again";
  release(3);
  release(5);
  EXPECT_TRUE(lock_.is_idle());
}

TEST_F(CommandLockTest, ATransientReaderBetweenReleaseAndHandOver) {
  EXPECT_EQ(acquire(1, LockMode::exclusive), Status::ok);
  begin_as_transient(2);
  EXPECT_EQ(acquire(3, LockMode::exclusive), Status::waits_for_lock);
  release(1);
  EXPECT_EQ(woken(), Indices{}) << "it is in the way";
  EXPECT_EQ(acquire(4, LockMode::exclusive), Status::waits_for_lock);
  EXPECT_TRUE(end_as_transient(2));
  EXPECT_EQ(woken(), Indices{3}) << "it hands over";
  release(3);
  EXPECT_EQ(woken(), Indices{4});
  begin_as_transient(5);
  release(4);
  EXPECT_EQ(woken(), Indices{2}) << "it is not in the way of readers";
  EXPECT_FALSE(end_as_transient(5));
  release(2);
  release(5);
  EXPECT_TRUE(lock_.is_idle());
}

TEST_F(CommandLockTest, ATransientReaderWhileAWriterQueues) {
  EXPECT_EQ(acquire(1, LockMode::exclusive), Status::ok);
  begin_as_transient(2);
  begin_as_transient(3);
  release(1);
  EXPECT_EQ(acquire(4, LockMode::exclusive), Status::waits_for_lock)
      << "they are in the way, although nobody holds the lock";
  EXPECT_TRUE(end_as_transient(2));
  EXPECT_EQ(woken(), Indices{}) << "the other one is still there";
  EXPECT_TRUE(end_as_transient(3));
  EXPECT_EQ(woken(), Indices{4});
  release(4);
  EXPECT_EQ(woken(), (Indices{2, 3}));
  release(2);
  release(3);
  EXPECT_TRUE(lock_.is_idle());
}

TEST_F(CommandLockTest, AWaiterIsCancelledWhileATransientReaderIsThere) {
  const u64 deadline_ns = 1000;
  const auto cancel = [&](u32 index) {
    command(index).deadline_ns = deadline_ns;
    EXPECT_TRUE(engine::cancel_lock_wait(engine(), lock_, index, deadline_ns + 1));
    engine::release_all_locks(engine(), command(index));
  };
  EXPECT_EQ(acquire(1, LockMode::exclusive), Status::ok);
  begin_as_transient(2);
  EXPECT_EQ(acquire(3, LockMode::exclusive), Status::waits_for_lock);
  EXPECT_EQ(acquire(4, LockMode::exclusive), Status::waits_for_lock);
  release(1);
  cancel(3);
  EXPECT_EQ(woken(), Indices{}) << "the next writer has the reader in its way as well";
  EXPECT_TRUE(end_as_transient(2));
  EXPECT_EQ(woken(), Indices{4});
  begin_as_transient(5);
  cancel(2);
  release(4);
  EXPECT_EQ(woken(), Indices{}) << "the queue is empty";
  EXPECT_FALSE(end_as_transient(5));
  release(5);
  EXPECT_TRUE(lock_.is_idle());
}

TEST_F(CommandLockTest, FixedFilesNeedNoLock) {
  for (const u64 number : {u64{0}, u64{2}, u64{3}}) {
    EXPECT_EQ(engine::acquire_command_lock(engine(), command(1), nullptr, number, LockMode::exclusive), Status::ok);
  }
  EXPECT_EQ(command(1).lock_count, 0u);
}

// Data under a lock: only writers write it, readers read it.
struct Protected {
  u64 first = 0;
  u64 second = 0;
  std::atomic<u32> readers{0};
};

TEST_F(CommandLockTest, ManyCommandsOnManyThreadsLoseNothing) {
  constexpr u32 command_count = 40;
  constexpr u32 lock_count = 4;
  constexpr u32 rounds = 500;
  std::vector<CommandLock> locks(lock_count);
  std::vector<Protected> data(lock_count);
  std::vector<u32> done(64, 0);
  std::atomic<u32> violations{0};
  CommandCrew crew(engine());
  crew.run(1, command_count, 3, [&](engine::CommandState& c) {
    // Two locks in order; the round's number determines the modes.
    const u32 round = done[c.index];
    std::mt19937 random(c.index * 1000 + round);
    const u32 low = random() % (lock_count - 1);
    const u32 high = low + 1 + random() % (lock_count - 1 - low);
    const bool writes = random() % 3 == 0;
    const LockMode mode = writes ? LockMode::exclusive : LockMode::shared;
    for (const u32 which : {low, high}) {
      const Status status = engine::acquire_command_lock(engine(), c, &locks[which], first_inode + which, mode);
      if (status != Status::ok) return status;
    }
    for (const u32 which : {low, high}) {
      Protected& item = data[which];
      if (writes) {
        ++item.first;
        if (item.readers.load() != 0) ++violations;
        ++item.second;
      } else {
        ++item.readers;
        if (item.first != item.second) ++violations;
        --item.readers;
      }
    }
    engine::release_all_locks(engine(), c);
    return ++done[c.index] == rounds ? Status::ok : Status::again;
  });
  EXPECT_EQ(violations.load(), 0u);
  for (u32 i = 1; i <= command_count; ++i) EXPECT_EQ(done[i], rounds);
  for (const CommandLock& lock : locks) EXPECT_TRUE(lock.is_idle());
}

// One lock, many readers, some writers, and waits that are cancelled. A writer keeps the lock from one step to the
// next, so others have to wait. run() returns when every command has had its rounds.
TEST_F(CommandLockTest, NobodyWaitsForEverAtABusyLock) {
  constexpr u32 command_count = 48;
  constexpr u32 thread_count = 6;
  constexpr u32 rounds = 150;
  constexpr u64 overdue_ns = 1;
  Protected data;
  std::atomic<u32> writers{0};
  std::atomic<u32> violations{0};
  std::atomic<u64> written{0};
  std::atomic<u32> cancelled{0};
  std::vector<u32> done(64, 0);
  std::vector<u8> writes(64, 0);
  const auto begin_write = [&] {
    if (++writers != 1 || data.readers.load() != 0) ++violations;
    ++data.first;
  };
  const auto end_write = [&] {
    ++data.second;
    ++written;
    --writers;
  };
  const auto read = [&] {
    ++data.readers;
    if (writers.load() != 0 || data.first != data.second) ++violations;
    --data.readers;
  };
  CommandCrew crew(engine());
  crew.run(1, command_count, thread_count, [&](engine::CommandState& c) {
    std::mt19937 random(c.index * 1000 + done[c.index]);
    const LockMode mode = random() % 8 == 0 ? LockMode::exclusive : LockMode::shared;
    store<Order::relaxed, Scope::engine>(&c.deadline_ns, random() % 4 == 0 ? overdue_ns : 0);
    if (random() % 16 == 0) engine::sweep_deadlines(Lane{}, engine(), overdue_ns + 1);
    if (writes[c.index] != 0) {
      end_write();
      writes[c.index] = 0;
    } else if (exchange<Order::acq_rel, Scope::engine>(&c.cancel_status, 0u) != 0) {
      ++cancelled;
    } else {
      const Status status = engine::acquire_command_lock(engine(), c, &lock_, first_inode, mode);
      if (status != Status::ok) return status;
      if (mode == LockMode::exclusive) {
        begin_write();
        writes[c.index] = 1;
        return Status::again;
      }
      read();
    }
    engine::release_all_locks(engine(), c);
    return ++done[c.index] == rounds ? Status::ok : Status::again;
  });
  EXPECT_EQ(violations.load(), 0u);
  EXPECT_EQ(data.first, written.load());
  EXPECT_EQ(data.second, written.load());
  EXPECT_GT(cancelled.load(), 0u);
  for (u32 i = 1; i <= command_count; ++i) EXPECT_EQ(done[i], rounds);
  EXPECT_TRUE(lock_.is_idle());
}

}  // namespace
}  // namespace gpu4fs::test
