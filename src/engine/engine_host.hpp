// The host side of an engine as the management process uses it, the same for both engines. Host only.
//
// Threads: any thread opens and closes sessions. One management thread at a time calls start, stop and the like. A port
// is used by its session's thread. One upcall thread calls wait_upcall.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/staged/page_cache_counters.hpp"
#include "device/tier/page_tier_counters.hpp"
#include "engine/engine_types.hpp"
#include "ring/engine_port.hpp"
#include "ring/ring_layout.hpp"
#include "ring/upcall_ring.hpp"

namespace gpu4fs::engine {

struct SessionRequest {
  u8* memory = nullptr;  // the session's shared memory, zeroed, page aligned, layout.total_length bytes
  ring::SessionLayout layout{};
  u32 uid = 0;
  u32 gid = 0;
  std::vector<u32> groups;  // supplementary, in any order
  bool trusted = false;
  bool internal = false;
  bool has_doorbell = false;  // the client is in another process: it asks engine_asleep before it rings
};

// A session's groups. They are in memory of their own that an engine can register, because clients write the session's
// memory.
class SessionGroups {
 public:
  SessionGroups() = default;
  explicit SessionGroups(std::vector<u32> groups);

  [[nodiscard]] u32* begin() const { return memory_.get(); }  // null: there are none
  [[nodiscard]] u32 count() const { return count_; }
  [[nodiscard]] u64 memory_bytes() const;  // whole pages

 private:
  struct Free {
    void operator()(u32* memory) const { std::free(memory); }
  };
  std::unique_ptr<u32, Free> memory_;
  u32 count_ = 0;
};

class EngineHost {
 public:
  virtual ~EngineHost() = default;

  virtual void start() = 0;

  // Ends when every command taken has completed. The rings of clients are not polled meanwhile. Their pending commands
  // get Status::engine_stopped.
  virtual void stop() = 0;

  // Returns the new session's index, or session_max: too_many_sessions. Writes the ring's control page.
  virtual u32 open_session(const SessionRequest& request) = 0;

  // Waits until the session's commands have completed. Its memory may be freed afterwards.
  virtual void close_session(u32 session) = 0;

  // Adds memory to a session's addresses, as buffer 1 to session_buffer_max - 1. `base` is a host address, or on the
  // GPU engine also a device address. Must not be called while commands use the buffer.
  virtual Status add_buffer(u32 session, u32 buffer, void* base, u64 length) = 0;
  virtual void remove_buffer(u32 session, u32 buffer) = 0;

  virtual ring::EnginePort& port(u32 session) = 0;

  // Whether a client that sleeps on its ring's wake_sequence is woken (docs/wire.md).
  virtual bool wakes_clients() const { return true; }

  // Waits for an upcall, at most timeout_ns. False: none. Answers are sent through an internal session as
  // Opcode::upcall_done (answer_upcall_command below).
  virtual bool wait_upcall(ring::Upcall* upcall, u64 timeout_ns) = 0;

  // Makes [base, base + length), memory of a device, accessible to the engine. Called for map_chunk. The engine and the
  // host use the same address.
  virtual Status map_memory(void* base, u64 length) = 0;

  // Reverses map_memory() for any part of the range, inside while_paused(). If a command accesses the part before the
  // next map_memory(), a GPU engine dies. It also dies if this call fails.
  virtual void unmap_memory(void* /*base*/, u64 /*length*/) {}

  // Runs `work`, which changes engine memory that no command uses yet. On a GPU it runs while no kernel runs.
  virtual void while_paused(const std::function<void()>& work) = 0;

  virtual bool has_died() const = 0;
  virtual std::string fault_text() const = 0;  // the reason, empty if the engine lives
  // Makes the engine die at the end of a step, as a failed check would. For tests of the consequences.
  virtual void request_death() = 0;
  virtual std::string description() const = 0;  // "CPU, 8 workers"

  // From any thread, while the workers count. Each number except the pauses is at least what an earlier call returned.
  // If commands_completed is equal, nothing was counted as completed in between. But two numbers are not of one moment:
  // commands_completed may be larger than commands_started. A command is counted after its answer can be seen, at the
  // end of its worker's step. All numbers are exact after stop(). Whether commands are in flight is known to
  // Engine::commands_active alone. Zeros if a GPU engine has died.
  virtual EngineCounters counters() const = 0;
  // Sums since the engine was created, as for counters(). Zeros without staged devices.
  virtual device::PageCacheCounters page_cache() const = 0;
  // The same for the second tier.
  virtual device::PageTierCounters page_tier() const { return {}; }
  virtual TraceTotals trace() const { return {}; }  // zeros without trace_is_compiled_in
  virtual u64 durable_epoch() const = 0;
};

// `devices`: one bit for each device whose flush failed.
inline wire::Command answer_upcall_command(const ring::Upcall& upcall, Status result, u64 devices = 0) {
  wire::Command command{};
  command.opcode = wire::Opcode::upcall_done;
  command.inode = upcall.id;
  command.offset = static_cast<u64>(result);
  command.aux = devices;
  return command;
}

// Fills the session's table entry and control page as both engines need it, except for `phase`, which is set last.
// `groups` lives as long as the session.
void fill_session(Session& session, const SessionRequest& request, const SessionGroups& groups);

// Adds what a worker has counted. It may be counting meanwhile.
void add_counters_of(const WorkerCounters& worker, EngineCounters& sums);

}  // namespace gpu4fs::engine
