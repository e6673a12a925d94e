// The GPU engine: a persistent service kernel on a few multiprocessors, its memory and its host side. Host only. This
// header includes nothing of CUDA. In a build without CUDA, cuda_availability() says so, and nothing else may be used.
//
// The kernel is started when there is work. It ends by itself after idle_exit_us without work, so an idle mount does
// not use the GPU. Handover: after the kernel's end the host marks every session's engine_asleep, then looks at all
// rings once more. A client publishes, then reads engine_asleep and rings the doorbell if it is set. At least one of
// the two sees the other.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/host/engine_allocator.hpp"
#include "engine/engine_host.hpp"

namespace gpu4fs::engine {

struct CudaOptions {
  u32 block_count = 8;         // at most 8: the rest of the GPU belongs to its user
  u32 pollers_per_block = 16;  // workers that look at rings
  u32 idle_exit_us = 20000;
  u32 time_slice_ms = 1000;     // maximum time that a kernel runs without a break
  u32 exit_timeout_ms = 10000;  // time to end after a request; a slower kernel is given up
  int device = 0;
  // The kernel ends while memory is registered. For compute-sanitizer, which knows only the memory that was registered
  // when the kernel began.
  bool pause_to_register = false;
  // Called with true before a kernel is started, and with false after it has ended.
  std::function<void(bool)> on_running = nullptr;
};

struct CudaAvailability {
  bool available;
  std::string reason;  // the device's name, or the reason why it cannot be used
};

// Whether this machine has a GPU that can run the engine: present, recent enough, and able to use registered
// host memory under its host address.
CudaAvailability cuda_availability(int device = 0);

// The engine's tunables for this GPU, including worker_count and realtime_offset_ns.
EngineConfig cuda_engine_config(const CudaOptions& options);

// GPU memory for engine_build.hpp, and host memory that both sides see. Everything is freed with the object, which
// outlives the engine. Throws std::runtime_error with CUDA's error text.
class CudaAllocator final : public EngineAllocator {
 public:
  explicit CudaAllocator(int device = 0);
  CudaAllocator(const CudaAllocator&) = delete;
  CudaAllocator& operator=(const CudaAllocator&) = delete;
  ~CudaAllocator() override;

  void* allocate(u64 bytes, u64 alignment) override;
  void copy_in(void* engine_destination, const void* host_source, u64 bytes) override;
  void zero(void* engine_destination, u64 bytes) override;
  bool copy_out(void* host_destination, const void* engine_source, u64 bytes) override;

  // Pinned host memory, zeroed, at the same address on both sides: rings of upcalls, fault records.
  void* allocate_shared(u64 bytes);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class CudaEngine final : public EngineHost {
 public:
  // `engine` from place_engine() with a CudaAllocator; `upcalls` from allocate_shared().
  CudaEngine(Engine* engine, ring::UpcallRing* upcalls, CudaAllocator& allocator, const CudaOptions& options);
  ~CudaEngine() override;

  void start() override;
  void stop() override;
  u32 open_session(const SessionRequest& request) override;
  void close_session(u32 session) override;
  Status add_buffer(u32 session, u32 buffer, void* base, u64 length) override;
  void remove_buffer(u32 session, u32 buffer) override;
  ring::EnginePort& port(u32 session) override;
  bool wakes_clients() const override { return false; }
  bool wait_upcall(ring::Upcall* upcall, u64 timeout_ns) override;
  Status map_memory(void* base, u64 length) override;
  void unmap_memory(void* base, u64 length) override;
  void while_paused(const std::function<void()>& work) override;
  bool has_died() const override;
  std::string fault_text() const override;
  void request_death() override;
  std::string description() const override;
  EngineCounters counters() const override;
  device::PageCacheCounters page_cache() const override;
  device::PageTierCounters page_tier() const override;
  TraceTotals trace() const override;
  u64 durable_epoch() const override;

  // For tests and statistics.
  bool is_asleep() const;
  u64 launch_count() const;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace gpu4fs::engine
