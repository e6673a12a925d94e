// The CPU engine: worker threads over heap memory, in the process of the server. Host only.
//
// A worker without work for config.spin_ns sleeps on a futex, so an idle engine uses no CPU. A client thread that waits
// for its command executes engine work meanwhile (EnginePort::wait). So a single call needs no thread switch.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/host/engine_allocator.hpp"
#include "engine/engine_host.hpp"

namespace gpu4fs::engine {

// Heap memory for engine_build.hpp; freed with the object. Pages of large blocks are touched on first use.
class HeapAllocator final : public EngineAllocator {
 public:
  HeapAllocator() = default;
  HeapAllocator(const HeapAllocator&) = delete;
  HeapAllocator& operator=(const HeapAllocator&) = delete;
  ~HeapAllocator() override;

  void* allocate(u64 bytes, u64 alignment) override;
  void copy_in(void* engine_destination, const void* host_source, u64 bytes) override;
  void zero(void* engine_destination, u64 bytes) override;

 private:
  struct Block {
    void* memory;
    u64 length;
  };
  std::vector<Block> blocks_;
};

class CpuEngine final : public EngineHost {
 public:
  // `engine` from place_engine(); its memory outlives this object. `worker_count` threads are started.
  CpuEngine(Engine* engine, u32 worker_count);
  ~CpuEngine() override;

  void start() override;
  void stop() override;
  u32 open_session(const SessionRequest& request) override;
  void close_session(u32 session) override;
  Status add_buffer(u32 session, u32 buffer, void* base, u64 length) override;
  void remove_buffer(u32 session, u32 buffer) override;
  ring::EnginePort& port(u32 session) override;
  bool wait_upcall(ring::Upcall* upcall, u64 timeout_ns) override;
  Status map_memory(void* base, u64 length) override;
  void while_paused(const std::function<void()>& work) override { work(); }
  // A failed check ends the process. Only request_death() ends an engine alone.
  bool has_died() const override { return died_.load(); }
  std::string fault_text() const override;
  void request_death() override;
  std::string description() const override;
  EngineCounters counters() const override;
  device::PageCacheCounters page_cache() const override;
  device::PageTierCounters page_tier() const override;
  TraceTotals trace() const override;
  u64 durable_epoch() const override;

  Engine& engine() { return *engine_; }

  // The number of sleeping workers, for tests and statistics.
  u32 sleeping_worker_count() const;

 private:
  class Port;

  // Odd while its thread is inside a step. close_session() waits until every step that may have seen the session has
  // ended.
  struct alignas(cache_line) StepMark {
    u64 value = 0;
  };

  // False: there was nothing to do, or the engine is dead, or is_done() was true before there was room for the step.
  template <class IsDone>
  static bool marked_step(Engine& engine, WorkerState& worker, StepMark& mark, const std::atomic<bool>& died,
                          IsDone&& is_done);
  void wait_for_steps();
  void work(u32 index);
  bool find_work(WorkerState& worker, StepMark& mark);
  void sleep(WorkerState& worker, StepMark& mark);
  u64 sleep_limit_ns() const;
  bool is_drained() const;
  void tell_whether_asleep();
  void add_doorbell(ring::RingControl* control);
  void remove_doorbell(ring::RingControl* control);

  Engine* engine_;
  u32 worker_count_;
  std::vector<std::thread> threads_;
  std::vector<std::unique_ptr<Port>> ports_;
  std::array<SessionGroups, session_max> groups_;
  std::vector<StepMark> marks_;  // of the sessions' threads, followed by those of the workers
  std::mutex sessions_mutex_;    // the table of sessions
  std::mutex doorbells_mutex_;
  std::vector<ring::RingControl*> doorbells_;  // of sessions with a doorbell; under doorbells_mutex_
  std::atomic<u32> doorbell_count_{0};         // may be read without the mutex
  ring::UpcallReader upcall_reader_{};
  std::atomic<bool> died_{false};
};

}  // namespace gpu4fs::engine
