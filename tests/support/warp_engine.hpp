// An engine whose workers are emulated warps, on a machine without a GPU: every handler runs the code paths of the GPU
// engine, and its group discipline is checked. Threads of clients do not work for it.
//
// The warps work as those of a service kernel do (engine/service_loop.hpp). They keep tokens of rings and remember
// where they have found things. Pausing the engine ends the kernel, and all that the warps keep is given back; a new
// kernel begins afterwards.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "base/emulated_warp.hpp"
#include "device/staged/worker.hpp"
#include "engine/engine_cpu.hpp"
#include "support/warp_worker.hpp"

namespace gpu4fs::test {

class WarpEngine final : public engine::EngineHost {
 public:
  WarpEngine(engine::Engine* engine, u32 warp_count) : engine_(engine), table_(engine, 1), warp_count_(warp_count) {}
  ~WarpEngine() override { stop(); }

  // `config` with what a service kernel's engine always has, see cuda_engine_config().
  static engine::EngineConfig kernel_config(engine::EngineConfig config, u32 warp_count) {
    config.worker_count = warp_count;
    config.caches_slots = 1;
    config.batch_max = 1;
    return config;
  }

  void start() override {
    GPU4FS_CHECK(!supervisor_.joinable());
    store<Order::release, Scope::system>(&engine_->stop_requested, 0u);
    stopping_ = false;
    stopped_ = false;
    supervisor_ = std::thread([this] { supervise(); });
  }
  void stop() override {
    if (!supervisor_.joinable()) return;
    store<Order::seq_cst, Scope::system>(&engine_->stop_requested, 1u);
    while (load<Order::acquire, Scope::engine>(&engine_->commands_active) != 0 ||
           load<Order::acquire, Scope::engine>(&engine_->epochs.checkpoint_running) != 0) {
      rest();
    }
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      stopping_ = true;
      request_exit();
      changed_.notify_all();
    }
    supervisor_.join();
    stopped_ = true;
  }

  u32 open_session(const engine::SessionRequest& request) override { return table_.open_session(request); }
  void close_session(u32 session) override {
    store<Order::seq_cst, Scope::system>(&engine_->sessions[session].phase,
                                         static_cast<u32>(engine::SessionPhase::closing));
    for (;;) {
      while (!stopped_.load() && has_commands(session)) rest();
      // Without a kernel nobody is at the ring or writes to the session's memory.
      pause();
      // Warps that had seen the session open may have taken commands in between.
      if (stopped_.load() || !has_commands(session)) break;
      resume();
    }
    table_.close_session(session);
    resume();
  }
  Status add_buffer(u32 session, u32 buffer, void* base, u64 length) override {
    return table_.add_buffer(session, buffer, base, length);
  }
  void remove_buffer(u32 session, u32 buffer) override {
    while_paused([&] { table_.remove_buffer(session, buffer); });
  }
  ring::EnginePort& port(u32) override { return port_; }
  bool wait_upcall(ring::Upcall* upcall, u64 timeout_ns) override { return table_.wait_upcall(upcall, timeout_ns); }
  Status map_memory(void*, u64) override { return Status::ok; }
  void while_paused(const std::function<void()>& work) override {
    pause();
    try {
      work();
    } catch (...) {
      resume();
      throw;
    }
    resume();
  }
  bool has_died() const override { return false; }
  std::string fault_text() const override { return {}; }
  void request_death() override {}
  std::string description() const override { return "emulated warps"; }
  device::PageCacheCounters page_cache() const override { return {}; }
  engine::EngineCounters counters() const override { return table_.counters(); }
  u64 durable_epoch() const override { return table_.durable_epoch(); }

  // Steps that found work at a quiet ring or nearby, see engine::quiet_step().
  u64 quiet_step_count() const { return quiet_steps_.load(); }

 private:
  class Port final : public ring::EnginePort {
   public:
    explicit Port(const std::atomic<bool>& stopped) : stopped_(stopped) {}
    void doorbell() override {}
    bool wait(u64, ring::Predicate done) override {
      while (!done()) {
        if (stopped_.load()) return done();
        rest();
      }
      return true;
    }

   private:
    const std::atomic<bool>& stopped_;
  };

  // Leaves the processor to other threads.
  static void rest() { std::this_thread::sleep_for(std::chrono::microseconds(20)); }

  bool has_commands(u32 session) const {
    return load<Order::acquire, Scope::engine>(&engine_->sessions[session].in_flight) != 0;
  }
  bool is_internal(u32 session) const {
    return session != engine::session_max && engine_->sessions[session].internal != 0;
  }
  void request_exit() { store<Order::release, Scope::system>(&engine_->service.exit_requested, 1u); }

  // No kernel runs between the two. Pairs may be nested.
  void pause() {
    std::unique_lock<std::mutex> guard(mutex_);
    ++pause_count_;
    request_exit();
    changed_.wait(guard, [this] { return !kernel_runs_; });
  }
  void resume() {
    const std::lock_guard<std::mutex> guard(mutex_);
    GPU4FS_CHECK_GT(pause_count_, 0u);
    --pause_count_;
    changed_.notify_all();
  }

  void supervise() {
    std::unique_lock<std::mutex> guard(mutex_);
    for (;;) {
      changed_.wait(guard, [this] { return stopping_ || pause_count_ == 0; });
      if (stopping_) break;
      store<Order::release, Scope::system>(&engine_->service.exit_requested, 0u);
      kernel_runs_ = true;
      guard.unlock();
      run_emulated_warps(warp_count_, [this](EmulatedWarp g, u32 warp) { work(g, warp); });
      guard.lock();
      kernel_runs_ = false;
      changed_.notify_all();
    }
  }

  // As service_loop(), but a warp that has found nothing rests.
  void work(EmulatedWarp g, u32 warp) {
    // The ranks of a warp share a thread, and the first one begins first.
    std::optional<device::WorkerGuard> guard;
    if (g.leader()) guard.emplace(warp);
    engine::WorkerState worker = engine::WorkerState::make(warp);
    worker.views = &engine_->worker_memory[warp].views;
    on_leader(g, [&] { *worker.views = engine::WorkerViews{}; });
    worker.keeps_token = 1;
    while (!on_leader(g, [&] { return engine::exit_is_requested(*engine_); })) {
      const bool was_quiet = engine::has_quiet_ring(worker);
      if (engine::kernel_step(g, *engine_, worker)) {
        if (was_quiet && g.leader()) quiet_steps_.fetch_add(1);
        continue;
      }
      engine::worker_sweep(g, *engine_);
      // Looks are slow here, and clients may wait for this warp at other rings. So the next step at this ring is the
      // last, and a single look if the ring is the management process's. At a client's ring it must be a quiet step:
      // only these use the places that the warp remembers.
      worker.held_polls = worker.polls_per_token;
      if (is_internal(worker.held_session)) worker.ring_is_quiet = 0;
      if (was_quiet || worker.held_session == engine::session_max) on_leader(g, [&] { rest(); });
    }
    engine::worker_release(g, *engine_, worker);
  }

  engine::Engine* engine_;
  engine::CpuEngine table_;  // of sessions; it never starts
  u32 warp_count_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread supervisor_;
  bool kernel_runs_ = false;
  bool stopping_ = false;
  u32 pause_count_ = 0;
  std::atomic<bool> stopped_{true};
  std::atomic<u64> quiet_steps_{0};
  Port port_{stopped_};
};

}  // namespace gpu4fs::test
