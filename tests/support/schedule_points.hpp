// Schedule points in engine code: a test decides at each access to watched memory which fiber goes on.
//
// This header is included first. It renames the namespace, so that the code that is compiled with schedule points does
// not meet the same inline functions of other files. Standard headers come before the macros and have no points.
//
// The model is sequentially consistent: schedules find lost wake-ups, wrong hand-overs and broken exclusion, but no
// wrong memory order. ThreadSanitizer looks for those where threads execute the same code. With delay_stores() it is
// the one of x86 (Intel SDM volume 3, 9.2.3.4) in its extreme: a store stays in the fiber's buffer until the fiber
// executes a full fence or a read-modify-write, loads the same place, waits or ends. So a missing fence is found.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace schedule_points {

// Called before every atomic access. They do nothing outside of a run.
void before_load(const void* address);
void before_change(const void* address);
void before_fence(int order);
// True: the store is done later, of `size` bytes at `value`.
bool delay_store(void* address, const void* value, unsigned long size);

}  // namespace schedule_points

#define gpu4fs gpu4fs_with_schedule_points

#define __atomic_load(address, ...) (::schedule_points::before_load(address), __atomic_load(address, __VA_ARGS__))
#define __atomic_store(address, value, order)                         \
  (::schedule_points::delay_store(address, value, sizeof(*(address))) \
       ? (void)0                                                      \
       : (::schedule_points::before_change(address), __atomic_store(address, value, order)))
#define __atomic_thread_fence(order) (::schedule_points::before_fence(order), __atomic_thread_fence(order))
#define __atomic_exchange(address, ...) \
  (::schedule_points::before_change(address), __atomic_exchange(address, __VA_ARGS__))
#define __atomic_compare_exchange(address, ...) \
  (::schedule_points::before_change(address), __atomic_compare_exchange(address, __VA_ARGS__))
#define __atomic_fetch_add(address, ...) \
  (::schedule_points::before_change(address), __atomic_fetch_add(address, __VA_ARGS__))
#define __atomic_fetch_sub(address, ...) \
  (::schedule_points::before_change(address), __atomic_fetch_sub(address, __VA_ARGS__))
#define __atomic_fetch_or(address, ...) \
  (::schedule_points::before_change(address), __atomic_fetch_or(address, __VA_ARGS__))
#define __atomic_fetch_and(address, ...) \
  (::schedule_points::before_change(address), __atomic_fetch_and(address, __VA_ARGS__))

#include "base/fiber.hpp"

namespace gpu4fs::test {

// Runs a few fibers under every schedule with at most `deviation_max` deviations from the plain one. There a fiber runs
// until it waits or ends, and the next one that can run follows.
class ScheduleExplorer {
 public:
  // body(i) is run by fiber i < fiber_count. Accesses to [watched, watched + length) are schedule points.
  ScheduleExplorer(u32 fiber_count, u32 deviation_max, std::function<void(u32)> body)
      : body_(std::move(body)), deviation_max_(deviation_max), states_(fiber_count), starts_(fiber_count) {
    GPU4FS_CHECK_LE(fiber_count, fiber_max);
    for (u32 i = 0; i < fiber_count; ++i) {
      starts_[i] = {this, i};
      fibers_.push_back(std::make_unique<Fiber>(&ScheduleExplorer::enter, &starts_[i]));
    }
    active_ = this;
  }
  ~ScheduleExplorer() { active_ = nullptr; }
  ScheduleExplorer(const ScheduleExplorer&) = delete;
  ScheduleExplorer& operator=(const ScheduleExplorer&) = delete;

  void watch(const void* address, u64 length) {
    watched_ = reinterpret_cast<u64>(address);
    watched_length_ = length;
  }

  // Code that loads one place so often without a change is said to spin. Code that looks at a place again needs more
  // than the default.
  void set_spin_loads(u32 count) { spin_loads_ = count; }

  void delay_stores(bool is_delaying) { is_delaying_ = is_delaying; }

  // One schedule. False: some fibers wait, and nobody is left who could let them go on. The explorer is then of no
  // further use.
  bool run() {
    for (State& state : states_) state = {};
    deviations_ = 0;
    depth_ = 0;
    is_running_ = true;
    switch_to(choose());
    is_running_ = false;
    for (const State& state : states_) {
      if (!state.is_done) return false;
    }
    return true;
  }
  // Chooses the next schedule. False: all were run.
  bool next() {
    while (!choices_.empty() && choices_.back().chosen + 1 == choices_.back().count) choices_.pop_back();
    if (choices_.empty()) return false;
    ++choices_.back().chosen;
    return true;
  }

  // For bodies: another fiber may be preferred here.
  void point() {
    if (!is_running_) return;
    states_[current_].last_load = nullptr;
    deviate();
  }
  // Others go on until something has changed.
  void wait() {
    finish_stores();
    states_[current_].is_waiting = true;
    states_[current_].last_load = nullptr;
    leave();
  }
  // Something that fibers may wait for.
  void note_change() {
    for (State& state : states_) {
      state.is_waiting = false;
      state.last_load = nullptr;
    }
  }

  static ScheduleExplorer* active() { return active_; }

  void before_load(const void* address) {
    if (!is_running_ || current_ == no_fiber || !is_watched(address)) return;
    State& state = states_[current_];
    for (const DelayedStore& store : state.stores) {
      if (store.address == address) {
        finish_stores();
        break;
      }
    }
    // The same load again, and nothing has changed: it spins.
    const u32 loads = state.last_load == address ? state.load_count + 1 : 1;
    if (loads == spin_loads_) return wait();
    deviate();
    state.last_load = address;
    state.load_count = loads;
  }
  void before_change(const void* address) {
    if (!is_running_ || current_ == no_fiber) return;
    finish_stores();
    if (is_watched(address)) deviate();
    note_change();
  }
  void before_fence(int order) {
    if (is_running_ && current_ != no_fiber && order == __ATOMIC_SEQ_CST) finish_stores();
  }
  bool delay_store(void* address, const void* value, u64 size) {
    if (!is_running_ || current_ == no_fiber || !is_delaying_ || !is_watched(address)) return false;
    deviate();
    DelayedStore store{address, 0, size};
    std::memcpy(&store.value, value, size);
    states_[current_].stores.push_back(store);
    return true;
  }

 private:
  static constexpr u32 no_fiber = ~0u;
  static constexpr u32 fiber_max = 8;

  struct DelayedStore {
    void* address;
    u64 value;
    u64 size;  // 4 or 8
  };
  struct State {
    bool is_done = false;
    bool is_waiting = false;
    const void* last_load = nullptr;
    u32 load_count = 0;  // of last_load
    std::vector<DelayedStore> stores;
  };
  struct Choice {
    u32 chosen;
    u32 count;
  };
  struct Start {
    ScheduleExplorer* explorer;
    u32 index;
  };

  static void enter(void* argument) {
    const Start start = *static_cast<Start*>(argument);
    for (;;) {
      start.explorer->body_(start.index);
      start.explorer->finish_stores();
      start.explorer->states_[start.index].is_done = true;
      start.explorer->note_change();
      start.explorer->leave();
    }
  }

  void finish_stores() {
    std::vector<DelayedStore>& stores = states_[current_].stores;
    if (stores.empty()) return;
    for (const DelayedStore& store : stores) {
      if (store.size == sizeof(u32)) {
        __atomic_store_n(static_cast<u32*>(store.address), static_cast<u32>(store.value), __ATOMIC_SEQ_CST);
      } else {
        __atomic_store_n(static_cast<u64*>(store.address), store.value, __ATOMIC_SEQ_CST);
      }
    }
    stores.clear();
    note_change();
  }
  bool is_watched(const void* address) const { return reinterpret_cast<u64>(address) - watched_ < watched_length_; }
  bool can_run(u32 fiber) const { return !states_[fiber].is_done && !states_[fiber].is_waiting; }

  // A fiber that can run: by the plain schedule the current one, otherwise the next. no_fiber: there is none.
  u32 choose() {
    u32 options[fiber_max];
    u32 count = 0;
    const u32 fiber_count = static_cast<u32>(states_.size());
    const u32 first = current_ == no_fiber ? 0 : current_;
    for (u32 i = 0; i < fiber_count; ++i) {
      const u32 fiber = (first + i) % fiber_count;
      if (can_run(fiber)) options[count++] = fiber;
    }
    if (count == 0) return no_fiber;
    if (count == 1 || deviations_ == deviation_max_) return options[0];
    if (depth_ == choices_.size()) choices_.push_back({0, count});
    GPU4FS_CHECK_EQ(choices_[depth_].count, count);
    const u32 chosen = choices_[depth_++].chosen;
    if (chosen != 0) ++deviations_;
    return options[chosen];
  }
  void deviate() {
    if (deviations_ == deviation_max_) return;
    const u32 chosen = choose();
    if (chosen != current_) switch_to(chosen);
  }
  void leave() { switch_to(choose()); }
  void switch_to(u32 fiber) {
    Fiber& from = current_ == no_fiber ? caller_ : *fibers_[current_];
    current_ = fiber;
    Fiber& to = fiber == no_fiber ? caller_ : *fibers_[fiber];
    if (&from != &to) from.switch_to(to);
  }

  static inline ScheduleExplorer* active_ = nullptr;

  std::function<void(u32)> body_;
  u32 deviation_max_;
  u32 spin_loads_ = 2;
  u64 watched_ = 0;
  u64 watched_length_ = 0;
  Fiber caller_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<State> states_;
  std::vector<Start> starts_;
  std::vector<Choice> choices_;
  u64 depth_ = 0;
  u32 current_ = no_fiber;
  u32 deviations_ = 0;
  bool is_running_ = false;
  bool is_delaying_ = false;
};

}  // namespace gpu4fs::test

namespace schedule_points {

inline void before_load(const void* address) {
  auto* const explorer = ::gpu4fs::test::ScheduleExplorer::active();
  if (explorer != nullptr) explorer->before_load(address);
}
inline void before_change(const void* address) {
  auto* const explorer = ::gpu4fs::test::ScheduleExplorer::active();
  if (explorer != nullptr) explorer->before_change(address);
}
inline void before_fence(int order) {
  auto* const explorer = ::gpu4fs::test::ScheduleExplorer::active();
  if (explorer != nullptr) explorer->before_fence(order);
}
inline bool delay_store(void* address, const void* value, unsigned long size) {
  auto* const explorer = ::gpu4fs::test::ScheduleExplorer::active();
  return explorer != nullptr && explorer->delay_store(address, value, size);
}

}  // namespace schedule_points
