// An engine without threads: the thread that waits for a command executes everything, flushes included. It executes
// single steps in one order, so equal commands write equal data in an equal order, and nothing is started or stopped.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <utility>

#include "device/staged/worker.hpp"
#include "engine/engine_cpu.hpp"
#include "engine/upcalls.hpp"
#include "engine/worker.hpp"

namespace gpu4fs::test {

class LoneEngine : public engine::EngineHost {
 public:
  // `flush`: executes a flush of the device, or of all (~0). `where`: printed if there is no progress. `worker`: the
  // number of the worker that this engine is, whose space comes from the allocation shard with this number.
  LoneEngine(engine::Engine* engine, std::function<Status(u64 device)> flush, const char* where, u32 worker)
      : engine_(engine),
        table_(engine, 1),
        port_(*this),
        flush_(std::move(flush)),
        where_(where),
        worker_(engine::WorkerState::make(worker)) {
    upcalls_.ring = engine->upcalls;
  }

  void start() override {}
  void stop() override {}
  u32 open_session(const engine::SessionRequest& request) override { return table_.open_session(request); }
  void close_session(u32 session) override { table_.close_session(session); }
  Status add_buffer(u32 session, u32 buffer, void* base, u64 length) override {
    return table_.add_buffer(session, buffer, base, length);
  }
  void remove_buffer(u32 session, u32 buffer) override { table_.remove_buffer(session, buffer); }
  ring::EnginePort& port(u32) override { return port_; }
  bool wait_upcall(ring::Upcall*, u64) override { return false; }
  Status map_memory(void*, u64) override { return Status::ok; }
  void while_paused(const std::function<void()>& work) override { work(); }
  bool has_died() const override { return false; }
  std::string fault_text() const override { return {}; }
  void request_death() override {}
  std::string description() const override { return "CPU, no workers"; }
  device::PageCacheCounters page_cache() const override { return {}; }
  engine::EngineCounters counters() const override { return table_.counters(); }
  u64 durable_epoch() const override { return table_.durable_epoch(); }

  // Until there is no work left.
  void drain() {
    while (step()) {
    }
  }

 protected:
  // One step of progress; false: there is none.
  virtual bool step() {
    const device::WorkerGuard guard(worker_.index);
    if (engine::worker_step(Lane{}, *engine_, worker_)) return true;
    ring::Upcall upcall{};
    if (!read_upcall(&upcall)) return false;
    answer(upcall);
    return true;
  }
  bool read_upcall(ring::Upcall* upcall) { return upcalls_.read(upcall); }
  // Executes and answers it.
  void answer(const ring::Upcall& upcall) {
    if (!ring::wants_answer(upcall.kind)) return;
    const Status result =
        upcall.kind == ring::UpcallKind::flush_device ? flush_(upcall.argument) : Status::not_supported;
    (void)engine::answer_upcall(*engine_, upcall.id, static_cast<u64>(result));
  }
  engine::Engine& engine() { return *engine_; }
  [[noreturn]] virtual void report_stuck() const {
    std::fprintf(stderr, "nothing moves any more: %s\n", where_);
    std::abort();
  }

 private:
  class Port final : public ring::EnginePort {
   public:
    explicit Port(LoneEngine& engine) : engine_(engine) {}
    void doorbell() override {}
    bool wait(u64, ring::Predicate done) override {
      u64 idle_since_ns = 0;
      while (!done()) {
        if (engine_.step()) {
          idle_since_ns = 0;
          continue;
        }
        const u64 now_ns = now_monotonic_ns();
        if (idle_since_ns == 0) idle_since_ns = now_ns;
        if (now_ns - idle_since_ns > stuck_ns) engine_.report_stuck();
        engine::worker_sweep(Lane{}, *engine_.engine_);
      }
      return true;
    }

   private:
    LoneEngine& engine_;
  };
  static constexpr u64 stuck_ns = 20'000'000'000;

  engine::Engine* engine_;
  engine::CpuEngine table_;  // of sessions; it never starts
  Port port_;
  std::function<Status(u64)> flush_;
  const char* where_;
  ring::UpcallReader upcalls_{};
  engine::WorkerState worker_;
};

}  // namespace gpu4fs::test
