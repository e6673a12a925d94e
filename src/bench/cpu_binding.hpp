// Binds a benchmark to few CPUs. Private to the tools.
#pragma once

#include <sched.h>

#include "base/types.hpp"
#include "bench/mounts.hpp"

namespace gpu4fs::bench {

// While it exists, this thread, and threads and programs that it starts, run on its first CPUs, `count` at most.
// Threads of the kernel are not bound.
class CpuBinding {
 public:
  explicit CpuBinding(u32 count) {
    CPU_ZERO(&before_);
    if (::sched_getaffinity(0, sizeof(before_), &before_) != 0) fail_by_errno("sched_getaffinity");
    cpu_set_t chosen;
    CPU_ZERO(&chosen);
    for (int cpu = 0; cpu < CPU_SETSIZE && count > 0; ++cpu) {
      if (!CPU_ISSET(cpu, &before_)) continue;
      CPU_SET(cpu, &chosen);
      --count;
    }
    if (::sched_setaffinity(0, sizeof(chosen), &chosen) != 0) fail_by_errno("sched_setaffinity");
  }
  ~CpuBinding() { (void)::sched_setaffinity(0, sizeof(before_), &before_); }
  CpuBinding(const CpuBinding&) = delete;
  CpuBinding& operator=(const CpuBinding&) = delete;

 private:
  cpu_set_t before_;
};

}  // namespace gpu4fs::bench
