// The CPU engine with several workers in one thread: a seed determines which worker makes the next step, how long
// flushes take and how time passes.
//
// A worker's step is one call of worker_step() and is not interrupted. So the stress tests and ThreadSanitizer test
// concurrency inside of steps; this simulation tests interactions from step to step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "crash/crash_pool.hpp"
#include "support/group_runner.hpp"

namespace gpu4fs::test {

// Deliberate mistakes, for the tests of the tests.
enum class SimFlaw { none, forgets_flush, loses_item, shares_folder };

// The decisions of the seed, and their trace.
class SimWorld {
 public:
  explicit SimWorld(u64 seed) : random_(seed), seed_(seed) {
    worker_count = 1 + static_cast<u32>(below(4));
    flush_ns = u64{1000} << below(13);
  }

  u64 below(u64 bound) { return random_.next() % bound; }
  bool chance(u64 percent) { return below(100) < percent; }
  u64 seed() const { return seed_; }

  void note(u64 value) { trace_ = (trace_ ^ value) * 0x9e3779b97f4a7c15u + (trace_ >> 29); }
  u64 trace() const { return trace_; }

  u64 now_ns() const { return now_ns_; }
  void pass(u64 duration_ns) { now_ns_ += duration_ns; }

  u32 worker_count = 1;
  u64 flush_ns = 1000;  // flushes take up to twice as long
  SimFlaw flaw = SimFlaw::none;
  u64 steps = 0;
  bool is_mounted = false;

 private:
  Sequence random_;
  u64 seed_;
  u64 trace_ = 0;
  u64 now_ns_ = u64{1'700'000'000} * 1'000'000'000;
};

// The world whose time this thread has (simulate_test.cpp defines the clock).
inline thread_local const SimWorld* world_of_clock = nullptr;

class SimEngine : public LoneEngine {
 public:
  // `where` outlives it.
  SimEngine(engine::Engine* engine, FlushDevices flush, const char* where, SimWorld& world)
      : LoneEngine(engine, flush, where, 0), world_(world), flush_devices_(std::move(flush)) {
    // Waiting threads of clients work for the engine: they poll rings first.
    const u32 lenders = static_cast<u32>(world_.below(3));
    for (u32 i = 0; i < world_.worker_count + lenders; ++i) {
      workers_.push_back(engine::WorkerState::make(i));
      workers_.back().rings_first = i < world_.worker_count ? 0 : 1;
    }
  }

  // One decision. False: there is no work, and nothing is awaited.
  bool decide() { return step(); }
  // Something was submitted.
  void wake() { idle_count_ = 0; }

 protected:
  // The sessions of a mounted pool are kept by the code that catches this.
  [[noreturn]] void report_stuck() const override {
    if (!world_.is_mounted) LoneEngine::report_stuck();
    throw std::runtime_error("nothing moves any more");
  }

  bool step() override {
    ++world_.steps;
    world_.pass(200 + world_.below(3000));
    collect_upcalls();
    if (!pending_.empty() && world_.chance(20) && advance_flush()) return true;
    if (world_.below(200) == 0) engine::worker_sweep(Lane{}, engine());
    const u64 which = world_.below(workers_.size());
    world_.note(which);
    if (world_.flaw == SimFlaw::loses_item && world_.is_mounted && world_.below(400) == 0) lose_item();
    const device::WorkerGuard guard(workers_[which].index);
    if (engine::worker_step(Lane{}, engine(), workers_[which])) {
      idle_count_ = 0;
      return true;
    }
    collect_upcalls();
    if (++idle_count_ < 4 * workers_.size()) return true;
    if (pending_.empty()) return false;
    // All commands wait for a flush.
    world_.pass(world_.flush_ns);
    advance_flush();
    return true;
  }

 private:
  struct Pending {
    ring::Upcall upcall;
    u64 due_ns;
    bool is_done;
    Status result;
  };

  void collect_upcalls() {
    ring::Upcall upcall{};
    while (read_upcall(&upcall)) {
      if (ring::wants_answer(upcall.kind)) pending_.push_back({upcall, later(), false, Status::not_supported});
    }
  }
  u64 later() { return world_.now_ns() + world_.below(world_.flush_ns); }

  // Executes any one of the due flushes, and answers it some time later.
  bool advance_flush() {
    std::vector<std::size_t> due;
    for (std::size_t i = 0; i < pending_.size(); ++i) {
      if (pending_[i].due_ns <= world_.now_ns()) due.push_back(i);
    }
    if (due.empty()) return false;
    idle_count_ = 0;
    const std::size_t which = due[world_.below(due.size())];
    Pending& pending = pending_[which];
    world_.note(1000 + which);
    if (!pending.is_done) {
      pending.is_done = true;
      pending.due_ns = later();
      const bool forgets = world_.flaw == SimFlaw::forgets_flush && world_.chance(50);
      const bool flushes = pending.upcall.kind == ring::UpcallKind::flush_device;
      if (flushes) pending.result = forgets ? Status::ok : flush_devices_(pending.upcall.argument);
      return true;
    }
    (void)engine::answer_upcall(engine(), pending.upcall.id, static_cast<u64>(pending.result));
    pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(which));
    return true;
  }

  void lose_item() {
    u32 item = 0;
    (void)engine().run_queue.pop(&item);
  }

  SimWorld& world_;
  FlushDevices flush_devices_;
  std::vector<engine::WorkerState> workers_;
  std::vector<Pending> pending_;
  u64 idle_count_ = 0;
};

}  // namespace gpu4fs::test
