// An engine whose workers are emulated warps: every handler runs the code paths of the GPU engine, and its group
// discipline is checked, on a machine without a GPU. Threads of clients do not work for it.
#pragma once

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "base/emulated_warp.hpp"
#include "engine/engine_cpu.hpp"
#include "support/warp_worker.hpp"

namespace gpu4fs::test {

class WarpEngine final : public engine::EngineHost {
 public:
  WarpEngine(engine::Engine* engine, u32 warp_count)
      : engine_(engine), table_(engine, 1), warp_count_(warp_count), turns_(warp_count) {}
  ~WarpEngine() override { stop(); }

  void start() override {
    stopping_ = 0;
    thread_ =
        std::thread([this] { run_emulated_warps(warp_count_, [this](EmulatedWarp g, u32 warp) { work(g, warp); }); });
  }
  void stop() override {
    if (!thread_.joinable()) return;
    while (load<Order::acquire, Scope::engine>(&engine_->commands_active) != 0 ||
           load<Order::acquire, Scope::engine>(&engine_->epochs.checkpoint_running) != 0) {
      rest();
    }
    store<Order::release, Scope::engine>(&stopping_, 1u);
    thread_.join();
  }

  u32 open_session(const engine::SessionRequest& request) override { return table_.open_session(request); }
  void close_session(u32 session) override {
    // No warp reads the ring when the table forgets it.
    store<Order::seq_cst, Scope::system>(&engine_->sessions[session].phase,
                                         static_cast<u32>(engine::SessionPhase::closing));
    for (Turns& turns : turns_) {
      const u64 seen = load<Order::acquire, Scope::engine>(&turns.count);
      while (load<Order::acquire, Scope::engine>(&turns.count) < seen + 2) rest();
    }
    table_.close_session(session);
  }
  Status add_buffer(u32 session, u32 buffer, void* base, u64 length) override {
    return table_.add_buffer(session, buffer, base, length);
  }
  void remove_buffer(u32 session, u32 buffer) override { table_.remove_buffer(session, buffer); }
  ring::EnginePort& port(u32) override { return port_; }
  bool wait_upcall(ring::Upcall* upcall, u64 timeout_ns) override { return table_.wait_upcall(upcall, timeout_ns); }
  Status map_memory(void*, u64) override { return Status::ok; }
  void while_paused(const std::function<void()>& work) override { work(); }
  bool has_died() const override { return false; }
  std::string fault_text() const override { return {}; }
  void request_death() override {}
  std::string description() const override { return "emulated warps"; }
  engine::EngineCounters counters() const override { return table_.counters(); }
  u64 durable_epoch() const override { return table_.durable_epoch(); }

 private:
  struct alignas(cache_line) Turns {
    u64 count = 0;
  };
  class Port final : public ring::EnginePort {
   public:
    void doorbell() override {}
    bool wait(u64, ring::Predicate done) override {
      while (!done()) rest();
      return true;
    }
  };

  // Leaves the processor to the many threads of the warps.
  static void rest() { std::this_thread::sleep_for(std::chrono::microseconds(20)); }

  void work(EmulatedWarp g, u32 warp) {
    engine::WorkerState worker = engine::WorkerState::make(warp);
    while (!on_leader(g, [&] { return load<Order::acquire, Scope::engine>(&stopping_) != 0; })) {
      const bool worked = engine::worker_step(g, *engine_, worker);
      if (!worked) engine::worker_sweep(g, *engine_);
      on_leader(g, [&] {
        fetch_add<Order::release, Scope::engine>(&turns_[warp].count, u64{1});
        if (!worked) rest();
      });
    }
    engine::worker_release(g, *engine_, worker);
  }

  engine::Engine* engine_;
  engine::CpuEngine table_;  // of sessions; it never starts
  u32 warp_count_;
  std::vector<Turns> turns_;
  u32 stopping_ = 0;
  std::thread thread_;
  Port port_;
};

}  // namespace gpu4fs::test
