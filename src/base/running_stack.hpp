// Finds atomic accesses to objects on the stack of an emulated warp's rank, in builds with AddressSanitizer.
//
// On a GPU base/atomics.hpp takes every address as one of global memory. For an object on a thread's own stack the
// compiler knows better, and removes the access with all that follows it. Nothing on a CPU fails in that case, so the
// CPU has to look for it. base/check.hpp uses atomics and cannot be used here.
#pragma once

#include "base/config.hpp"
#include "base/types.hpp"

#if !GPU4FS_DEVICE_CODE
#include <cstdio>
#include <cstdlib>
#endif

namespace gpu4fs::detail {

// ThreadSanitizer takes fibers for threads, and these would race for the variable.
#if GPU4FS_ASAN && !GPU4FS_CUDA_COMPILER

struct StackRange {
  u64 begin;
  u64 length_bytes;
};
inline thread_local StackRange running_stack{0, 0};  // of the fiber that runs on this thread; empty if none does

inline void enter_stack(const void* begin, u64 length_bytes) {
  running_stack = StackRange{reinterpret_cast<u64>(begin), length_bytes};
}
// Ends the process if `address` lies on the stack of the fiber that calls.
inline void check_not_on_stack(const volatile void* address) {
  const StackRange stack = running_stack;
  if (reinterpret_cast<u64>(address) - stack.begin >= stack.length_bytes) return;
  std::fputs("gpu4fs: an atomic access to an object on the stack of a rank: a GPU has no such access\n", stderr);
  std::abort();
}

#else

inline void enter_stack(const void*, u64) {}
GPU4FS_FN inline void check_not_on_stack(const volatile void*) {}

#endif

}  // namespace gpu4fs::detail
