// A session of the engine whose client is another process: its memory, its doorbell, and its place in the engine's
// table. Host only.
#pragma once

#include "engine/engine_host.hpp"
#include "ring/ring_layout.hpp"
#include "session/processes/peer.hpp"
#include "session/processes/sealed_memory.hpp"

namespace gpu4fs::session {

class ProcessSession {
 public:
  // Untrusted: the engine checks every command with the rights of `peer`. The engine outlives the session. PoolError:
  // too_many_sessions, no_memory.
  ProcessSession(engine::EngineHost& host, const Peer& peer, const ring::SessionLayout& layout);
  // Takes no more commands, and waits until those that were taken have ended. Others may open and close sessions
  // meanwhile.
  ~ProcessSession();
  ProcessSession(const ProcessSession&) = delete;
  ProcessSession& operator=(const ProcessSession&) = delete;

  [[nodiscard]] const ring::SessionLayout& layout() const { return layout_; }
  [[nodiscard]] int memory_fd() const { return memory_.fd(); }
  [[nodiscard]] int doorbell_fd() const { return doorbell_fd_; }  // an eventfd
  [[nodiscard]] u32 uid() const { return uid_; }

  // Wakes the engine if it sleeps. One thread at a time.
  void answer_doorbell();

 private:
  engine::EngineHost& host_;
  ring::SessionLayout layout_;
  SealedMemory memory_;
  u32 uid_;
  int doorbell_fd_ = -1;
  u32 index_ = 0;  // in the engine
};

}  // namespace gpu4fs::session
