// The part of an engine's interface that a client needs besides the ring. Host only. The engine's host side implements
// it.
#pragma once

#include <cstdint>

namespace gpu4fs::ring {

// A completion test that can be called from any loop; no ownership, valid during the call only.
class Predicate {
 public:
  template <class Callable>
  Predicate(const Callable& callable)  // NOLINT(google-explicit-constructor)
      : object_(&callable), call_([](const void* object) { return (*static_cast<const Callable*>(object))(); }) {}
  bool operator()() const { return call_(object_); }

 private:
  const void* object_;
  bool (*call_)(const void*);
};

// One session's connection to the engine. The session's producer thread makes the calls.
class EnginePort {
 public:
  virtual ~EnginePort() = default;

  // Commands up to (not including) `end_position` have been published, and no thread will wait for them soon: wakes the
  // engine if it sleeps.
  virtual void doorbell() = 0;

  // Returns when `done()` is true; also rings the doorbell. With the CPU engine the caller's thread executes engine
  // work meanwhile, its own command first. Returns false if the engine has died; then the command will not complete
  // (Status::engine_died).
  virtual bool wait(std::uint64_t end_position, Predicate done) = 0;
};

}  // namespace gpu4fs::ring
