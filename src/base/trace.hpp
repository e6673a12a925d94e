// Measures where a command spends its time. The cycles between two points of the source are added to the phase that
// ends at the second one. Only builds with the option GPU4FS_TRACE count; in others a point does nothing.
//
// A worker counts in memory of its own: a warp in shared memory, a thread in thread-local memory. When a command ends,
// the worker adds its counts to those of the engine (trace_flush). The cost of a point itself, some 30 cycles of a
// warp, is part of the next phase. One rank of a group counts.
#pragma once

#include "base/atomics.hpp"
#include "base/config.hpp"
#include "base/types.hpp"

namespace gpu4fs {

enum class TracePhase : u32 {
  fetch,       // descriptors from the ring, once they were seen
  slot,        // a command slot, decoding, passing the token on
  gate,        // into the step gate
  prepare,     // names over the bus, addresses of answers, deadline
  inode,       // the inode's page in memory
  lock,        // the inode's lock
  checks,      // rights, type, range
  map,         // from page of file to address
  translate,   // from address to device
  transfer,    // the pages themselves, with their checksums
  finish,      // access time, attributes to the client
  name,        // hash of a name
  walk,        // leaves of a directory
  claim,       // inode number and inode of a new file
  reserve,     // metadata pages and log room that a commit may use
  commit,      // changes of metadata inside the commit gate
  log,         // the record of the change
  sync,        // the write of the log to the medium
  leave,       // leaving the gates
  claims,      // return of unused reservations
  fence,       // payload before completion
  completion,  // the answer itself
  unlock,      // release of locks and slot, after the answer
  count
};
inline constexpr u32 trace_phase_count = static_cast<u32>(TracePhase::count);

#if defined(GPU4FS_TRACE) && GPU4FS_TRACE
inline constexpr bool trace_is_compiled_in = true;
#else
inline constexpr bool trace_is_compiled_in = false;
#endif

// Totals of all workers since the engine was created.
struct TraceTotals {
  u64 cycles[trace_phase_count];  // atomic
  u64 points[trace_phase_count];  // atomic: how often the phase ended
};

namespace detail {

struct TraceCounts {
  u64 last;
  u64 cycles[trace_phase_count];
  u32 points[trace_phase_count];
};

#if defined(GPU4FS_TRACE) && GPU4FS_TRACE
#if GPU4FS_CUDA_COMPILER
inline constexpr u32 trace_warps_max = 32;  // of a block
static __shared__ TraceCounts trace_of_warps[trace_warps_max];
#endif
inline thread_local TraceCounts trace_of_thread{};

GPU4FS_FN inline u64 trace_clock() {
#if GPU4FS_DEVICE_CODE
  return static_cast<u64>(clock64());
#elif GPU4FS_X86_64
  return __builtin_ia32_rdtsc();
#else
  return 0;
#endif
}

GPU4FS_FN inline TraceCounts& own_trace() {
#if GPU4FS_DEVICE_CODE
  return trace_of_warps[threadIdx.x / 32 % trace_warps_max];
#else
  return trace_of_thread;
#endif
}

GPU4FS_FN inline bool is_trace_rank() {
#if GPU4FS_DEVICE_CODE
  return threadIdx.x % 32 == 0;
#else
  return true;
#endif
}

GPU4FS_FN inline void trace_begin() {
  if (is_trace_rank()) own_trace().last = trace_clock();
}

GPU4FS_FN inline void trace_point(TracePhase phase) {
  if (!is_trace_rank()) return;
  TraceCounts& own = own_trace();
  const u64 now = trace_clock();
  own.cycles[static_cast<u32>(phase)] += now - own.last;
  own.points[static_cast<u32>(phase)] += 1;
  own.last = now;
}

// Shared memory of a kernel is not initialised.
GPU4FS_FN inline void trace_reset() {
  if (is_trace_rank()) own_trace() = TraceCounts{};
}

GPU4FS_FN inline void trace_flush(TraceTotals& totals) {
  if (!is_trace_rank()) return;
  TraceCounts& own = own_trace();
  for (u32 i = 0; i < trace_phase_count; ++i) {
    if (own.points[i] == 0) continue;
    add<Scope::engine>(&totals.cycles[i], own.cycles[i]);
    add<Scope::engine>(&totals.points[i], u64{own.points[i]});
    own.cycles[i] = 0;
    own.points[i] = 0;
  }
}
#endif

}  // namespace detail

}  // namespace gpu4fs

#if defined(GPU4FS_TRACE) && GPU4FS_TRACE
#define GPU4FS_TRACE_RESET() ::gpu4fs::detail::trace_reset()
#define GPU4FS_TRACE_BEGIN() ::gpu4fs::detail::trace_begin()
#define GPU4FS_TRACE_POINT(phase) ::gpu4fs::detail::trace_point(::gpu4fs::TracePhase::phase)
#define GPU4FS_TRACE_FLUSH(totals) ::gpu4fs::detail::trace_flush(totals)
#else
#define GPU4FS_TRACE_RESET() static_cast<void>(0)
#define GPU4FS_TRACE_BEGIN() static_cast<void>(0)
#define GPU4FS_TRACE_POINT(phase) static_cast<void>(0)
#define GPU4FS_TRACE_FLUSH(totals) static_cast<void>(0)
#endif
