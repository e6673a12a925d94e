// EmulatedWarp: 32 lines of execution on one host thread that form one group. Host only, for tests.
//
// It lets machines without a GPU, and their sanitizers, execute the code paths of a warp. Every collective is one
// arrival of all 32 ranks at a barrier. A rank that waits there lets the next rank run, so the order of the ranks
// changes with every barrier. Between collectives a rank runs alone: it must not wait for another rank of its warp, but
// it may wait for other threads. Unlike a real warp it checks the discipline: at every barrier all ranks must call the
// same collective, or a check fails. On a GPU such code hangs or exchanges garbage.
//
//   run_emulated_warp(body)          calls body(EmulatedWarp) for 32 ranks and waits for them
//   run_emulated_warps(count, body)  `count` warps at once, a thread each, body(EmulatedWarp, warp_index)
//
// Threads are kept for the next run. A body must not throw.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "base/config.hpp"
#include "base/fiber.hpp"
#include "base/limits.hpp"
#include "base/types.hpp"

namespace gpu4fs {

namespace detail {

enum class Collective : u32 { none, sync, exchange, ballot, finish };

// The state that the 32 ranks of an emulated warp share. Two sets of slots alternate, so one barrier for each
// collective is enough: a slot is written again only two barriers after it was read.
class EmulatedWarpState {
 public:
  static constexpr u32 slot_bytes = 64;

  // Set before any rank runs.
  void set_fibers(std::unique_ptr<Fiber>* fibers) { fibers_ = fibers; }

  // Lets the next rank run. Returns when this rank's turn comes again.
  void pass_on(u32 rank) { fibers_[rank]->switch_to(*fibers_[(rank + 1) % warp_size]); }

  void arrive(u32 rank, Collective collective) { write_and_arrive(rank, collective, nullptr, 0); }

  // Returns the slots of all ranks, readable until the rank's next collective.
  const u8 (&exchange(u32 rank, const void* value, u32 bytes))[warp_size][slot_bytes] {
    return write_and_arrive(rank, Collective::exchange, value, bytes).bytes;
  }

  // Bit i: the predicate of rank i.
  u32 ballot(u32 rank, bool predicate) {
    std::atomic<u32>& mask = sets_[rank_state_[rank].set].mask;
    // One thread runs all ranks, so this loses no bit.
    if (predicate) mask.store(mask.load(std::memory_order_relaxed) | 1u << rank, std::memory_order_relaxed);
    return write_and_arrive(rank, Collective::ballot, nullptr, 0).mask.load(std::memory_order_relaxed);
  }

 private:
  struct alignas(cache_line) RankState {
    u32 set = 0;
  };
  struct SlotSet {
    u8 bytes[warp_size][slot_bytes] = {};
    Collective collective[warp_size] = {};
    std::atomic<u32> mask{0};
  };

  const SlotSet& write_and_arrive(u32 rank, Collective collective, const void* value, u32 bytes) {
    SlotSet& set = sets_[rank_state_[rank].set];
    rank_state_[rank].set ^= 1;
    if (value != nullptr && bytes != 0) std::memcpy(set.bytes[rank], value, bytes);
    set.collective[rank] = collective;
    barrier(rank);
    const u32 neighbour = (rank + 1) % warp_size;
    GPU4FS_CHECK_EQ(set.collective[neighbour], collective);
    return set;
  }

  // One thread runs all ranks; the memory orders are for sanitizers.
  void barrier(u32 rank) {
    const u32 generation = generation_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == warp_size) {
      arrived_.store(0, std::memory_order_relaxed);
      // All ranks have read the other set's mask.
      sets_[rank_state_[rank].set].mask.store(0, std::memory_order_relaxed);
      generation_.store(generation + 1, std::memory_order_release);
      return;
    }
    while (generation_.load(std::memory_order_acquire) == generation) pass_on(rank);
  }

  std::atomic<u32> arrived_{0};
  std::atomic<u32> generation_{0};
  RankState rank_state_[warp_size];
  SlotSet sets_[2];
  std::unique_ptr<Fiber>* fibers_ = nullptr;
};

}  // namespace detail

class EmulatedWarp {
 public:
  EmulatedWarp(detail::EmulatedWarpState* state, u32 rank) : state_(state), rank_(rank) {}

  static constexpr u32 size() { return warp_size; }
  u32 rank() const { return rank_; }
  bool leader() const { return rank_ == 0; }
  void sync() const { state_->arrive(rank_, detail::Collective::sync); }

  template <class T>
  T broadcast(T value) const {
    return shuffle(value, 0);
  }

  template <class T>
  T shuffle(T value, u32 source_rank) const {
    static_assert(std::is_trivially_copyable_v<T>);
    GPU4FS_CHECK_LT(source_rank, warp_size);
    constexpr u32 chunk_max = detail::EmulatedWarpState::slot_bytes;
    T result = value;
    for (u32 offset = 0; offset < sizeof(T); offset += chunk_max) {
      const u32 bytes = sizeof(T) - offset < chunk_max ? static_cast<u32>(sizeof(T)) - offset : chunk_max;
      const auto& slots = state_->exchange(rank_, reinterpret_cast<const u8*>(&value) + offset, bytes);
      std::memcpy(reinterpret_cast<u8*>(&result) + offset, slots[source_rank], bytes);
    }
    return result;
  }

  template <class T>
  T shuffle_xor(T value, u32 mask) const {
    const u32 source_rank = rank_ ^ mask;
    return shuffle(value, source_rank < warp_size ? source_rank : rank_);
  }

  u32 ballot(bool predicate) const { return state_->ballot(rank_, predicate); }

  bool any(bool predicate) const { return ballot(predicate) != 0; }
  bool all(bool predicate) const { return ballot(predicate) == 0xffffffffu; }

  template <class T, class Operation>
  T reduce(T value, Operation&& operation) const {
    for (u32 mask = 1; mask < warp_size; mask *= 2) value = operation(value, shuffle_xor(value, mask));
    return value;
  }

  template <class T>
  T exclusive_scan(T value) const {
    T sum{};
    visit_all(value, [&](u32 rank, T other) {
      if (rank < rank_) sum = static_cast<T>(sum + other);
    });
    return sum;
  }

  u32 match_any(u64 key) const {
    u32 mask = 0;
    visit_all(key, [&](u32 rank, u64 other) { mask |= other == key ? 1u << rank : 0u; });
    return mask;
  }

 private:
  template <class T, class Visit>
  void visit_all(T value, Visit&& visit) const {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= detail::EmulatedWarpState::slot_bytes);
    const auto& slots = state_->exchange(rank_, &value, sizeof(T));
    for (u32 rank = 0; rank < warp_size; ++rank) {
      T other;
      std::memcpy(&other, slots[rank], sizeof(T));
      visit(rank, other);
    }
  }

  detail::EmulatedWarpState* state_;
  u32 rank_;
};

namespace detail {

// A thread whose 32 fibers run one body at a time.
class EmulatedWarpCrew {
 public:
  EmulatedWarpCrew() : thread_([this] { work(); }) {}

  EmulatedWarpCrew(const EmulatedWarpCrew&) = delete;
  EmulatedWarpCrew& operator=(const EmulatedWarpCrew&) = delete;

  ~EmulatedWarpCrew() {
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void start(std::function<void(EmulatedWarp)> body) {
    const std::lock_guard<std::mutex> guard(mutex_);
    body_ = std::move(body);
    ++round_;
    changed_.notify_all();
  }

  void wait() {
    std::unique_lock<std::mutex> guard(mutex_);
    changed_.wait(guard, [this] { return done_ == round_; });
    body_ = nullptr;
  }

 private:
  struct Rank {
    EmulatedWarpCrew* crew = nullptr;
    u32 rank = 0;
  };

  void work() {
    Fiber own;
    std::unique_ptr<Fiber> fibers[warp_size];
    Rank ranks[warp_size];
    for (u32 rank = 0; rank < warp_size; ++rank) {
      ranks[rank] = {this, rank};
      fibers[rank] = std::make_unique<Fiber>(&EmulatedWarpCrew::run_rank, &ranks[rank]);
    }
    own_ = &own;
    fibers_ = fibers;
    state_.set_fibers(fibers);
    std::unique_lock<std::mutex> guard(mutex_);
    for (;;) {
      changed_.wait(guard, [&] { return stopping_ || round_ != done_; });
      if (stopping_) break;
      guard.unlock();
      finished_.store(0, std::memory_order_release);
      own.switch_to(*fibers[0]);
      GPU4FS_CHECK_EQ(finished_.load(std::memory_order_acquire), warp_size);
      guard.lock();
      done_ = round_;
      changed_.notify_all();
    }
    for (const auto& fiber : fibers) fiber->acquire();
  }

  // A fiber never ends: its round is over when it has passed on.
  static void run_rank(void* argument) {
    const Rank self = *static_cast<Rank*>(argument);
    EmulatedWarpCrew& crew = *self.crew;
    for (;;) {
      (void)crew.finished_.load(std::memory_order_acquire);  // the body was stored before
      crew.body_(EmulatedWarp(&crew.state_, self.rank));
      crew.state_.arrive(self.rank, Collective::finish);
      if (crew.finished_.fetch_add(1, std::memory_order_acq_rel) + 1 == warp_size) {
        crew.fibers_[self.rank]->switch_to(*crew.own_);
      } else {
        crew.state_.pass_on(self.rank);
      }
    }
  }

  EmulatedWarpState state_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void(EmulatedWarp)> body_;
  u64 round_ = 0;
  u64 done_ = 0;
  bool stopping_ = false;
  Fiber* own_ = nullptr;
  std::unique_ptr<Fiber>* fibers_ = nullptr;
  std::atomic<u32> finished_{0};
  std::thread thread_;
};

class EmulatedWarpCrews {
 public:
  static EmulatedWarpCrews& instance() {
    static EmulatedWarpCrews crews;
    return crews;
  }

  std::unique_ptr<EmulatedWarpCrew> take() {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (idle_.empty()) return std::make_unique<EmulatedWarpCrew>();
    std::unique_ptr<EmulatedWarpCrew> crew = std::move(idle_.back());
    idle_.pop_back();
    return crew;
  }

  void give_back(std::unique_ptr<EmulatedWarpCrew> crew) {
    const std::lock_guard<std::mutex> guard(mutex_);
    idle_.push_back(std::move(crew));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<EmulatedWarpCrew>> idle_;
};

}  // namespace detail

template <class Body>
void run_emulated_warps(u32 count, Body&& body) {
  std::vector<std::unique_ptr<detail::EmulatedWarpCrew>> crews;
  for (u32 index = 0; index < count; ++index) crews.push_back(detail::EmulatedWarpCrews::instance().take());
  for (u32 index = 0; index < count; ++index) {
    crews[index]->start([&body, index](EmulatedWarp g) { body(g, index); });
  }
  for (auto& crew : crews) {
    crew->wait();
    detail::EmulatedWarpCrews::instance().give_back(std::move(crew));
  }
}

template <class Body>
void run_emulated_warp(Body&& body) {
  run_emulated_warps(1, [&body](EmulatedWarp g, u32) { body(g); });
}

}  // namespace gpu4fs
