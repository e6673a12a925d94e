// A session: the way in which one thread sends commands to an engine. Host only.
//
// A session owns one ring and one data area in memory that it shares with the engine. It is used by one thread at a
// time and shares nothing with other sessions. Everything that a command refers to (names, file data, attributes) is in
// the data area; address_of() returns the form in which commands refer to it.
//
// The port defines how a wait passes: in the process of a CPU engine the thread executes engine work until its own
// command is complete; elsewhere it spins for some microseconds and then sleeps.
#pragma once

#include <memory>
#include <span>

#include "base/status.hpp"
#include "base/types.hpp"
#include "ring/engine_port.hpp"
#include "ring/ring_client.hpp"
#include "wire/ring_format.hpp"

namespace gpu4fs::client {

// wire::Opcode defines the meaning of `result`, which is 0 unless status is ok.
struct Reply {
  Status status = Status::ok;
  u64 result = 0;
};

// The parts of a session. `owner` keeps memory and port alive, and closes the session at the engine when it is
// destroyed. Sessions in the engine's process and sessions behind a socket differ only here.
struct Connection {
  ring::RingProducer producer{};
  ring::EnginePort* port = nullptr;
  std::shared_ptr<void> owner;
};

class Session {
 public:
  explicit Session(Connection connection);
  Session(Session&&) = default;
  Session& operator=(Session&&) = default;
  // No command may be in flight.
  ~Session();

  u8* data() { return connection_.producer.data; }
  const u8* data() const { return connection_.producer.data; }
  u64 data_bytes() const { return connection_.producer.data_length; }

  // The ring address of a byte of the data area.
  u64 address_of(const void* place) const;

  // Submits one command and waits for its completion. engine_died if the engine has died.
  Reply call(const wire::Command& command);

  // Submits commands that run in order, each only after success of the previous one, and waits for all. The link flags
  // are set here. 1 <= commands.size() <= linked_max and == replies.size(). Commands after a failed one answer
  // `cancelled`. Returns the first failure or ok.
  static constexpr u32 linked_max = 16;
  Status call_linked(std::span<const wire::Command> commands, std::span<Reply> replies);

  // Asynchronous use: submit() publishes a command and returns its position, or `ring_full`; finish()
  // waits for it. Every position is finished once, in any order, before `depth` later ones are submitted. The engine
  // may sleep until wake_engine() or a finish().
  Status submit(const wire::Command& command, u64* position);
  void wake_engine();
  bool is_done(u64 position) const;
  Reply finish(u64 position);

  u64 depth() const { return connection_.producer.depth(); }

 private:
  Connection connection_;
};

}  // namespace gpu4fs::client
