// Where workers on the CPU sleep.
//
// A worker that goes to sleep is counted as a sleeper, and looks for work once more. Then it waits for a wake-up. A
// producer makes work available first and then looks for sleepers. There are fences in between. So at least one of the
// two sees the other.
//
// Who wakes a sleeper takes it from the count, and leaves a wake-up in its place. Sleepers and wake-ups are one word:
// together they are as many as there are workers between begin_sleep() and its end, and each of these ends with one of
// the two. So a worker that was woken and has not got a processor yet is woken by nobody else. There is one call of
// the system for each sleep at most, however much work comes meanwhile.
#pragma once

#include "base/atomics.hpp"
#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/config.hpp"
#include "base/limits.hpp"
#include "base/mutant.hpp"
#include "base/types.hpp"

#if !GPU4FS_DEVICE_CODE
#include <bit>
#endif

namespace gpu4fs::engine {

struct Parking {
  alignas(cache_line) u64 word;  // atomic: sleepers in the upper half, wake-ups in the lower one
};

namespace detail {

inline constexpr u64 one_sleeper = u64{1} << 32;

GPU4FS_FN constexpr u32 sleepers_of(u64 word) {
  return static_cast<u32>(word >> 32);
}
GPU4FS_FN constexpr u32 wake_ups_of(u64 word) {
  return static_cast<u32>(word);
}

}  // namespace detail

// Of workers that nobody has woken yet.
GPU4FS_FN inline u32 sleeper_count(const Parking& parking) {
  return detail::sleepers_of(load<Order::relaxed, Scope::engine>(&parking.word));
}

// Leaves a wake-up for each of at most `count` sleepers. Returns for how many. The caller then wakes as many threads
// that wait for the lower half of the word to be other than zero. Work was made available before, and a fence followed.
GPU4FS_FN inline u32 claim_sleepers(Parking& parking, u32 count) {
  u64 seen = load<Order::relaxed, Scope::engine>(&parking.word);
  for (;;) {
    const u32 claimed = minimum(count, detail::sleepers_of(seen));
    if (claimed == 0) return 0;
    const u64 left = GPU4FS_MUTANT(sleeper_woken_again, seen - claimed * detail::one_sleeper, seen);
    const u64 next = left + claimed;
    if (compare_exchange<Order::acq_rel, Scope::engine>(&parking.word, seen, next)) return claimed;
  }
}

// The caller looks for work afterwards, and then waits for a wake-up or ends the sleep by itself.
inline void begin_sleep(Parking& parking) {
  fetch_add<Order::acq_rel, Scope::engine>(&parking.word,
                                           GPU4FS_MUTANT(sleeper_not_counted, detail::one_sleeper, u64{0}));
  fence<Order::seq_cst, Scope::engine>();
}

// Ends the sleep if there is a wake-up. False: the caller sleeps while there is none, and comes again.
inline bool take_wake_up(Parking& parking) {
  u64 seen = load<Order::relaxed, Scope::engine>(&parking.word);
  while (detail::wake_ups_of(seen) != 0) {
    if (compare_exchange<Order::acq_rel, Scope::engine>(&parking.word, seen, seen - 1)) return true;
  }
  return false;
}

// Ends a sleep without a wake-up. If the caller was woken all the same, the wake-up is gone with it: the caller looks
// for work before it sleeps again.
inline void end_sleep(Parking& parking) {
  u64 seen = load<Order::relaxed, Scope::engine>(&parking.word);
  for (;;) {
    const bool is_counted = detail::sleepers_of(seen) != 0;
    GPU4FS_CHECK(is_counted || detail::wake_ups_of(seen) != 0);
    const u64 next = seen - (is_counted ? detail::one_sleeper : 1);
    if (compare_exchange<Order::acq_rel, Scope::engine>(&parking.word, seen, next)) return;
  }
}

#if !GPU4FS_DEVICE_CODE
// The futex's word: the wake-ups.
inline u32* futex_word(Parking& parking) {
  static_assert(std::endian::native == std::endian::little);
  return reinterpret_cast<u32*>(&parking.word);
}
#endif

}  // namespace gpu4fs::engine
