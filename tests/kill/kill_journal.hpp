// The actions of clients of a server that will be killed, in memory that outlives it.
//
// Each row has one writer. A row's counters are written after the entries that they count, so a reader after the kill
// finds complete entries.
#pragma once

#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cstring>
#include <new>
#include <string>

#include "model/actor.hpp"

namespace gpu4fs::test {

inline constexpr u32 kill_actor_count = 3;

struct KillJournal {
  static constexpr u64 step_max = 6000;
  using Counts = std::array<u64, kill_actor_count>;

  struct Step {
    Counts seen;
    u64 result;
    u32 status;
  };
  struct Row {
    std::atomic<u64> begun;
    std::atomic<u64> ended;
    std::atomic<u64> promise_count;
    Counts promises[2];  // the last one at promise_count % 2
    Step steps[step_max];
  };

  std::atomic<u32> is_started;
  std::atomic<u32> checkpoints;
  std::atomic<u32> has_problem;
  char problem[4000];
  Row rows[kill_actor_count];

  void reset() {
    is_started = checkpoints = has_problem = 0;
    for (Row& row : rows) row.begun = row.ended = row.promise_count = 0;
  }
  Counts ended() const {
    Counts counts{};
    for (u32 i = 0; i < kill_actor_count; ++i) counts[i] = rows[i].ended.load();
    return counts;
  }
  // For this row's writer: a sync was acknowledged that began when `seen` had ended.
  static void promise(Row& row, const Counts& seen) {
    const u64 next = row.promise_count.load() + 1;
    row.promises[next % 2] = seen;
    row.promise_count = next;
  }
  void tell(const std::string& text) {
    if (has_problem.exchange(1) != 0) return;
    std::strncpy(problem, text.c_str(), sizeof(problem) - 1);
    has_problem = 2;
  }
};

// Shared with children.
class SharedJournal {
 public:
  SharedJournal() {
    void* memory = ::mmap(nullptr, sizeof(KillJournal), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    journal_ = new (memory) KillJournal();
  }
  SharedJournal(const SharedJournal&) = delete;
  SharedJournal& operator=(const SharedJournal&) = delete;
  ~SharedJournal() { ::munmap(journal_, sizeof(KillJournal)); }
  KillJournal& operator*() { return *journal_; }
  KillJournal* operator->() { return journal_; }

 private:
  KillJournal* journal_;
};

}  // namespace gpu4fs::test
