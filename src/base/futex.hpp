// Sleeping on a word of memory. Host only.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

#include "base/types.hpp"

namespace gpu4fs {

inline void futex_wake(u32* word, u32 count) {
  const int limit = count > INT_MAX ? INT_MAX : static_cast<int>(count);
  syscall(SYS_futex, word, FUTEX_WAKE, limit, nullptr, nullptr, 0);
}

// Sleeps while *word == expected, at most timeout_ns (0: without limit). May return early.
inline void futex_wait(u32* word, u32 expected, u64 timeout_ns) {
  timespec timeout{};
  timeout.tv_sec = static_cast<time_t>(timeout_ns / 1000000000u);
  timeout.tv_nsec = static_cast<long>(timeout_ns % 1000000000u);
  syscall(SYS_futex, word, FUTEX_WAIT, expected, timeout_ns == 0 ? nullptr : &timeout, nullptr, 0);
}

}  // namespace gpu4fs
