// What a client needs of an engine besides the ring. Host only. The engine's host side implements it.
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

// One session's way to the engine. Calls are made by the session's producer thread.
class EnginePort {
 public:
  virtual ~EnginePort() = default;

  // Commands up to (not including) `end_position` have been published and nobody will wait for them soon:
  // wakes the engine if it sleeps.
  virtual void doorbell() = 0;

  // Returns when `done()` is true; rings the doorbell by itself. On the CPU engine the caller's thread
  // executes engine work meanwhile, its own command first. Returns false if the engine has died, in which
  // case the command will not complete (Status::engine_died).
  virtual bool wait(std::uint64_t end_position, Predicate done) = 0;
};

}  // namespace gpu4fs::ring
