// The way in which a client's thread waits for an engine that cannot wake it. It polls without a pause while the
// command may be a short one. Otherwise it sleeps between polls. Host only.
//
// After recent short waits a client polls without a pause for spin_ns, so it sees each completion at once. A client
// whose commands are all long sleeps from the beginning. It sees the first short command among them late. The length of
// a sleep depends on the time waited so far. So a sleep lengthens the wait only a little: by 1/16 if it is short, by
// 1/64 if it takes some milliseconds.
#pragma once

#include "base/bits.hpp"
#include "base/types.hpp"

namespace gpu4fs::ring {

class WaitPolicy {
 public:
  static constexpr u64 spin_ns = 100000;

  // The time to sleep, `passed_ns` after the wait began. 0: poll again at once.
  u64 pause_ns(u64 passed_ns) {
    if (long_waits_ < long_waits_max && passed_ns < spin_ns) return 0;
    ++pauses_;
    const bool is_first = pauses_ == 1 && long_waits_ == long_waits_max;
    return is_first ? maximum(minimum(expected_ns_ / 4, pause_max_ns), pause_min_ns) : pause_after(passed_ns);
  }

  // The wait has ended.
  void note_wait(u64 took_ns) {
    // The sleeps are part of the time a wait took, and must not lengthen themselves. So the share of sleeping is small.
    expected_ns_ = expected_ns_ - expected_ns_ / 8 + took_ns / 8;
    // If a wait ended within the first sleep, its real length is unknown.
    const bool was_slept_over = long_waits_ == long_waits_max && pauses_ <= 1;
    pauses_ = 0;
    if (took_ns < spin_ns || was_slept_over) {
      long_waits_ = 0;
    } else if (long_waits_ < long_waits_max) {
      ++long_waits_;
    }
  }

 private:
  static constexpr u32 long_waits_max = 8;  // in a row; afterwards no short wait is expected
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

}  // namespace gpu4fs::ring
