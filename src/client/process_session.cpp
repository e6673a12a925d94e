#include "client/process_session.hpp"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "base/access.hpp"
#include "base/atomics.hpp"
#include "base/futex.hpp"
#include "base/mutant.hpp"
#include "client/session_connection.hpp"
#include "ring/engine_port.hpp"
#include "ring/wait_policy.hpp"

namespace gpu4fs::client {
namespace {

void sleep_ns(u64 duration_ns) {
  const timespec duration{static_cast<time_t>(duration_ns / 1000000000u), static_cast<long>(duration_ns % 1000000000u)};
  ::nanosleep(&duration, nullptr);
}

class ProcessPort final : public ring::EnginePort {
 public:
  ProcessPort(const std::string& path, const ProcessSessionOptions& options) : connection_(path, options) {}

  [[nodiscard]] const SessionConnection& connection() const { return connection_; }

  // The command is published before the word is read; CpuEngine::tell_whether_asleep() says why this suffices.
  void doorbell() override {
    fence<Order::seq_cst, Scope::system>();
    if (load<Order::relaxed, Scope::system>(&control().engine_asleep) != 0) connection_.ring();
  }

  bool wait(u64 /*end_position*/, ring::Predicate done) override {
    if (done()) return true;
    doorbell();
    const u64 begin_ns = now_monotonic_ns();
    const bool is_woken = connection_.welcome().engine == wire::SessionEngine::wakes_clients;
    while (now_monotonic_ns() - begin_ns < spin_ns) {
      for (u32 i = 0; i < 32; ++i) {
        if (done()) return true;
        cpu_relax();
      }
    }
    return is_woken ? sleep_until(done) : poll_until(begin_ns, done);
  }

 private:
  static constexpr u64 spin_ns = 20000;
  static constexpr u64 sleep_max_ns = 20000000;  // then the client looks whether the server is still there

  [[nodiscard]] ring::RingControl& control() const {
    return *reinterpret_cast<ring::RingControl*>(connection_.memory());
  }

  // A worker that is awake may be busy for long. Another one takes the command, if some sleep.
  bool sleep_until(ring::Predicate done) {
    connection_.ring();
    for (;;) {
      store<Order::relaxed, Scope::system>(&control().client_sleeping, 1u);
      fence<Order::seq_cst, Scope::system>();
      const u32 sequence = load<Order::acquire, Scope::system>(&control().wake_sequence);
      if (!done()) futex_wait(&control().wake_sequence, sequence, sleep_max_ns);
      store<Order::relaxed, Scope::system>(&control().client_sleeping, 0u);
      if (done()) return true;
      if (connection_.has_ended()) return GPU4FS_MUTANT(end_not_seen, done(), true);
    }
  }

  bool poll_until(u64 begin_ns, ring::Predicate done) {
    u64 looked_ns = begin_ns;
    for (;;) {
      if (done()) {
        policy_.note_wait(now_monotonic_ns() - begin_ns);
        return true;
      }
      const u64 now_ns = now_monotonic_ns();
      if (now_ns - looked_ns > sleep_max_ns) {
        looked_ns = now_ns;
        if (connection_.has_ended()) return done();
      }
      const u64 pause_ns = policy_.pause_ns(now_ns - begin_ns);
      if (pause_ns == 0) {
        cpu_relax();
        continue;
      }
      sleep_ns(pause_ns);
      doorbell();
    }
  }

  SessionConnection connection_;
  ring::WaitPolicy policy_;  // of an engine that is polled
};

}  // namespace

OpenedSession open_process_session(const std::string& path, const ProcessSessionOptions& options) {
  auto port = std::make_shared<ProcessPort>(path, options);
  const SessionConnection& connection = port->connection();
  Uuid pool{};
  std::copy(std::begin(connection.welcome().pool_uuid), std::end(connection.welcome().pool_uuid), pool.bytes);
  ring::EnginePort* const used = port.get();
  return {Session({ring::RingProducer::attach(connection.memory(), connection.layout()), used, std::move(port)}), pool};
}

}  // namespace gpu4fs::client
