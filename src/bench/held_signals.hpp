// Signals that would end a benchmark while it has mounts and loop devices. Host only.
#pragma once

#include <csignal>
#include <stdexcept>

#include "base/types.hpp"

namespace gpu4fs::bench {

// What check() throws. Whoever keeps failures for later lets it pass.
class Interrupted : public std::runtime_error {
 public:
  Interrupted() : std::runtime_error("interrupted") {}
};

// While it exists, SIGINT, SIGTERM and SIGHUP are only noted, and programs that start_program() starts are in process
// groups of their own, so a terminal does not send them its signals. It sends itself the first noted signal in its
// destructor, when everything that came after it is gone. One at a time.
class HeldSignals {
 public:
  HeldSignals();
  ~HeldSignals();
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  // Whether there is one.
  static bool exist();
  // Throws Interrupted if a signal has come. Otherwise, or without an object, it does nothing.
  static void check();

 private:
  static constexpr int signals_[] = {SIGINT, SIGTERM, SIGHUP};
  struct sigaction before_[3]{};
};

}  // namespace gpu4fs::bench
