// How a client's thread waits for an engine that cannot wake it: it looks without a pause as long as the command may be
// a short one, and sleeps between its looks otherwise. Host only.
//
// Whoever has waited for short commands lately looks without a pause for spin_ns, so that it hears of each at once. A
// client whose commands are all long sleeps from the beginning; of a short command among them it hears late, once. How
// long it sleeps follows from how long the wait is by now, so that little of it is slept over: 1/16 of short ones, 1/64
// of those of some milliseconds.
#pragma once

#include "base/bits.hpp"
#include "base/types.hpp"

namespace gpu4fs::engine {

class WaitPolicy {
 public:
  static constexpr u64 spin_ns = 100000;

  // How long to sleep now, `passed_ns` after the wait began; 0: look again at once.
  u64 pause_ns(u64 passed_ns) {
    if (long_waits_ < long_waits_max && passed_ns < spin_ns) return 0;
    ++pauses_;
    const bool is_first = pauses_ == 1 && long_waits_ == long_waits_max;
    return is_first ? maximum(minimum(expected_ns_ / 4, pause_max_ns), pause_min_ns) : pause_after(passed_ns);
  }

  // The wait has ended.
  void note_wait(u64 took_ns) {
    // The sleeps are part of what a wait took, and must not feed themselves: the share that is slept is small.
    expected_ns_ = expected_ns_ - expected_ns_ / 8 + took_ns / 8;
    // How short it was that ended within the first sleep nobody knows.
    const bool was_slept_over = long_waits_ == long_waits_max && pauses_ <= 1;
    pauses_ = 0;
    if (took_ns < spin_ns || was_slept_over) {
      long_waits_ = 0;
    } else if (long_waits_ < long_waits_max) {
      ++long_waits_;
    }
  }

 private:
  static constexpr u32 long_waits_max = 8;  // in a row, after which nothing short is expected
  static constexpr u64 pause_min_ns = 5000;
  static constexpr u64 pause_max_ns = 500000;

  static u64 pause_after(u64 passed_ns) {
    const u64 pause_ns = maximum(minimum(passed_ns / 16, pause_max_ns / 10), minimum(passed_ns / 64, pause_max_ns));
    return maximum(pause_ns, pause_min_ns);
  }

  u64 expected_ns_ = 0;  // running mean
  u32 long_waits_ = 0;
  u32 pauses_ = 0;  // of this wait
};

}  // namespace gpu4fs::engine
