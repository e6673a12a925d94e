// A session that this process opens with its own engine, for the server's internal commands and as the base of front
// ends' sessions. Host only.
#pragma once

#include <mutex>

#include "base/status.hpp"
#include "engine/engine_host.hpp"
#include "ring/engine_port.hpp"
#include "ring/ring_client.hpp"
#include "wire/ring_format.hpp"

namespace gpu4fs::session {

// Deadline of commands that no user waits for: loading, recovery, the last checkpoint.
inline constexpr u32 patient_deadline_ms = 600'000;

class ServerSession {
 public:
  enum class Kind { internal, trusted };

  // `open_close` is held while the session is opened or closed; it and the engine outlive the session.
  // PoolError: too many sessions, or no memory.
  ServerSession(engine::EngineHost& host, std::mutex& open_close, Kind kind, u32 depth_log2, u64 data_bytes);
  // Waits for the commands in flight.
  ~ServerSession();
  ServerSession(const ServerSession&) = delete;
  ServerSession& operator=(const ServerSession&) = delete;

  ring::RingProducer& producer() { return producer_; }
  ring::EnginePort& port() { return host_.port(index_); }
  u32 index() const { return index_; }  // index of the session in the engine
  u8* data() { return memory_ + layout_.data_offset; }

  // Submits and waits. Internal sessions need only this part of a client.
  ring::Completion call(const wire::Command& command);

 private:
  engine::EngineHost& host_;
  std::mutex& open_close_;
  ring::SessionLayout layout_{};
  u8* memory_ = nullptr;
  u32 index_ = 0;
  ring::RingProducer producer_{};
};

}  // namespace gpu4fs::session
