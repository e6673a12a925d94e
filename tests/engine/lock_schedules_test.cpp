// A lock of commands under every schedule of a few workers with a bounded number of deviations from the plain one. In
// some a reader that has to queue is in the word while a writer releases, queues or is cancelled.
#include "support/schedule_points.hpp"
//
#include "engine/command_locks.hpp"
#include "engine/optimistic/version.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test {
namespace {

using engine::CommandPhase;
using engine::CommandState;
using engine::LockMode;

constexpr u64 locked_inode = 100;
constexpr u64 overdue_ns = 1;
constexpr u64 now_ns = 2;

enum class Role { writes, reads, reads_unlocked, passes_by, cancels };

// What a fiber does first. Then it works for all commands until they are done.
struct Part {
  Role role;
  u32 rounds = 1;
  bool is_overdue = false;  // may be cancelled while it waits
};

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

// Commands that use one lock. All checks note their failure, since a run is part of thousands.
class LockWorld {
 public:
  LockWorld(std::vector<Part> parts, u32 deviation_max)
      : parts_(std::move(parts)),
        explorer_(static_cast<u32>(parts_.size()), deviation_max, [this](u32 i) { work(i); }),
        engine_(static_cast<engine::Engine*>(std::aligned_alloc(alignof(engine::Engine), sizeof(engine::Engine)))),
        commands_(parts_.size()),
        cells_(16) {
    std::memset(static_cast<void*>(engine_.get()), 0, sizeof(engine::Engine));
    engine_->commands = commands_.data();
    engine_->config.command_count = static_cast<u32>(commands_.size());
    engine_->run_queue.cells = cells_.data();
    engine_->run_queue.capacity = static_cast<u32>(cells_.size());
    explorer_.watch(&lock_, sizeof(lock_));
  }

  // Empty: no schedule failed.
  std::string run_all() {
    do {
      ++schedules_;
      reset();
      const bool ended = explorer_.run();
      if (fault_.empty() && !ended) fault_ = "somebody waits for ever";
      if (fault_.empty() && !lock_.is_idle()) fault_ = "the lock is not free at the end";
      if (!fault_.empty()) return fault_ + ", schedule " + std::to_string(schedules_);
    } while (explorer_.next());
    return {};
  }
  u64 schedules() const { return schedules_; }
  u64 cancelled() const { return cancelled_; }
  u64 answered_unlocked() const { return answered_unlocked_; }
  u64 passed_by() const { return passed_by_; }

 private:
  struct Progress {
    u32 rounds = 0;
    bool has_arrived = false;
    bool is_queued = false;
    u32 waits = 0;  // how often it was queued
    struct Wait {
      u32 command;
      u32 waits;
    };
    std::vector<Wait> before;  // who was in the queue when it arrived
  };

  void reset() {
    left_ = 0;
    writers_ = readers_ = 0;
    progress_.assign(parts_.size(), {});
    for (u32 i = 0; i < parts_.size(); ++i) {
      CommandState& c = commands_[i];
      c.index = i;
      c.lock_count = 0;
      c.cancel_status = static_cast<u32>(Status::ok);
      c.deadline_ns = parts_[i].is_overdue ? overdue_ns : 0;
      c.phase = static_cast<u32>(CommandPhase::running);
      if (has_command(i)) ++left_;
    }
  }
  bool has_command(u32 i) const { return parts_[i].role == Role::writes || parts_[i].role == Role::reads; }
  void expect(bool condition, const char* fault) {
    if (!condition && fault_.empty()) fault_ = fault;
  }

  void work(u32 i) {
    if (parts_[i].role == Role::reads_unlocked) {
      for (u32 round = 0; round < parts_[i].rounds; ++round) read_unlocked();
    } else if (parts_[i].role == Role::passes_by) {
      for (u32 round = 0; round < parts_[i].rounds; ++round) pass_by();
    } else if (parts_[i].role == Role::cancels) {
      for (u32 round = 0; round < parts_[i].rounds; ++round) cancel_overdue();
    } else {
      execute(commands_[i]);
    }
    while (left_ != 0) {
      u32 item = 0;
      if (!engine_->run_queue.pop(&item)) {
        explorer_.wait();
        continue;
      }
      engine::set_phase(commands_[item], CommandPhase::running);
      execute(commands_[item]);
    }
  }

  void execute(CommandState& c) {
    for (;;) {
      const Status status = step(c);
      if (status == Status::ok) break;
      explorer_.point();
      if (engine::park_command(c)) return;
    }
    --left_;
    explorer_.note_change();
  }

  Status step(CommandState& c) {
    Progress& own = progress_[c.index];
    const Part& part = parts_[c.index];
    if (c.cancel_status != static_cast<u32>(Status::ok)) {
      engine::release_all_locks(*engine_, c);
      ++cancelled_;
      own.is_queued = false;
      return Status::ok;
    }
    while (own.rounds < part.rounds) {
      if (!own.has_arrived) arrive(own);
      const LockMode mode = part.role == Role::writes ? LockMode::exclusive : LockMode::shared;
      const Status status = engine::acquire_command_lock(*engine_, c, &lock_, locked_inode, mode);
      if (status != Status::ok) {
        own.is_queued = true;
        ++own.waits;
        return status;
      }
      check_order(own);
      own.is_queued = own.has_arrived = false;
      use(mode);
      engine::release_command_lock(*engine_, c, locked_inode);
      ++own.rounds;
    }
    return Status::ok;
  }

  bool is_waiting(u32 i) const {
    if (!progress_[i].is_queued || commands_[i].locks[0].granted != 0) return false;
    u32 at = engine::detail::LockWord::unpack(lock_.word).head;
    while (at != no_command && at != i) at = commands_[at].wait_next;
    return at == i;
  }
  void arrive(Progress& own) {
    own.has_arrived = true;
    own.before.clear();
    for (u32 i = 0; i < parts_.size(); ++i) {
      if (is_waiting(i)) own.before.push_back({i, progress_[i].waits});
    }
  }
  void check_order(const Progress& own) {
    for (const Progress::Wait& other : own.before) {
      const bool still_waits = is_waiting(other.command) && progress_[other.command].waits == other.waits;
      expect(!still_waits, "a command overtakes one that waited before it came");
    }
  }

  void use(LockMode mode) {
    expect(writers_ == 0, "a writer is not alone");
    if (mode == LockMode::exclusive) {
      expect(readers_ == 0, "a writer joins readers");
      ++writers_;
      ++first_;
      explorer_.point();
      ++second_;
      --writers_;
    } else {
      ++readers_;
      const u64 first = first_;
      explorer_.point();
      expect(first == second_, "a reader sees half a change");
      --readers_;
    }
  }

  void read_unlocked() {
    explorer_.point();
    const engine::LockSeen seen = engine::look_at(lock_);
    const u64 first = first_;
    explorer_.point();
    const u64 second = second_;
    if (!seen.is_quiet || !engine::is_unchanged(lock_, seen.version)) return;
    ++answered_unlocked_;
    expect(first == second, "a reader without a lock sees half a change");
  }

  // Reads if it need not wait.
  void pass_by() {
    explorer_.point();
    if (!engine::detail::try_shared_lock(*engine_, lock_)) return;
    ++passed_by_;
    use(LockMode::shared);
    engine::detail::release_lock(*engine_, lock_, LockMode::shared);
  }

  // As the deadline sweep does it.
  void cancel_overdue() {
    for (u32 i = 0; i < parts_.size(); ++i) {
      if (!has_command(i)) continue;
      explorer_.point();
      if (engine::phase_of(commands_[i]) != CommandPhase::parked) continue;
      if (!engine::cancel_lock_wait(*engine_, lock_, i, now_ns)) continue;
      commands_[i].cancel_status = static_cast<u32>(Status::deadline_exceeded);
      engine::wake_command(*engine_, i);
    }
  }

  std::vector<Part> parts_;
  ScheduleExplorer explorer_;
  std::unique_ptr<engine::Engine, Free> engine_;
  std::vector<CommandState> commands_;
  std::vector<u64> cells_;
  std::vector<Progress> progress_;
  CommandLock lock_{};
  u32 left_ = 0;
  u32 writers_ = 0;
  u32 readers_ = 0;
  u64 first_ = 0;
  u64 second_ = 0;
  u64 schedules_ = 0;
  u64 cancelled_ = 0;
  u64 answered_unlocked_ = 0;
  u64 passed_by_ = 0;
  std::string fault_;
};

// ThreadSanitizer takes fibers for threads, and the explorer has no other synchronisation between them.
class LockSchedules : public ::testing::Test {
 protected:
  void SetUp() override {
    if (GPU4FS_TSAN != 0) GTEST_SKIP() << "the fibers share the explorer's state";
  }
  // Three take a second for each test, and four a minute.
  u32 deviation_max_ = scaled(100) < 50 ? 2 : 3;
};

TEST_F(LockSchedules, WritersAndReaders) {
  for (const std::vector<Part>& parts : {
           std::vector<Part>{{Role::writes, 2}, {Role::writes, 1}, {Role::reads, 2}},
           std::vector<Part>{{Role::writes, 1}, {Role::reads, 2}, {Role::reads, 2}},
           std::vector<Part>{{Role::writes}, {Role::writes}, {Role::reads}, {Role::reads}},
       }) {
    LockWorld world(parts, deviation_max_);
    EXPECT_EQ(world.run_all(), "");
    EXPECT_GT(world.schedules(), 1000u);
  }
}

TEST_F(LockSchedules, WaitersAreCancelledWhileReadersComeAndGo) {
  for (const std::vector<Part>& parts : {
           std::vector<Part>{{Role::writes}, {Role::writes, 1, true}, {Role::reads, 2}, {Role::cancels, 2}},
           std::vector<Part>{{Role::reads}, {Role::writes, 1, true}, {Role::reads, 1}, {Role::cancels, 2}},
           std::vector<Part>{{Role::writes}, {Role::reads, 1, true}, {Role::writes}, {Role::cancels, 2}},
       }) {
    LockWorld world(parts, deviation_max_);
    EXPECT_EQ(world.run_all(), "");
    EXPECT_GT(world.cancelled(), 0u);
  }
}

TEST_F(LockSchedules, ReadersWithoutALockSeeWholeChanges) {
  LockWorld world({{Role::writes, 2}, {Role::reads}, {Role::writes}, {Role::reads_unlocked, 2}}, deviation_max_);
  EXPECT_EQ(world.run_all(), "");
  EXPECT_GT(world.answered_unlocked(), 0u);
}

TEST_F(LockSchedules, ReadersThatDoNotWaitHoldNobodyUp) {
  for (const std::vector<Part>& parts : {
           std::vector<Part>{{Role::writes, 2}, {Role::writes}, {Role::passes_by, 2}},
           std::vector<Part>{{Role::writes}, {Role::reads}, {Role::passes_by, 2}, {Role::passes_by}},
           std::vector<Part>{{Role::writes}, {Role::writes, 1, true}, {Role::passes_by, 2}, {Role::cancels}},
       }) {
    LockWorld world(parts, deviation_max_);
    EXPECT_EQ(world.run_all(), "");
    EXPECT_GT(world.passed_by(), 0u);
  }
}

}  // namespace
}  // namespace gpu4fs::test
