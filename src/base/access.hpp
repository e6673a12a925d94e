// Sixteen-byte accesses, waiting, and time, on both processors.
//
// load_shared_16 and store_shared_16 are for memory that the other processor accesses at the same time: one relaxed
// access that is never torn. Self-validating structures (a sequence number in every 16 bytes) rely on this.
//
//   x86-64           movdqa, atomic on every processor with AVX (Intel SDM volume 3, 9.1.1; AMD APM volume 2, 7.3.2)
//   GPU              ld and st.relaxed.sys.b128 (PTX ISA 8.3), past the L1 cache
//   others           the 16-byte __atomic built-ins, which may lock inside a process
//   ThreadSanitizer  the same built-ins
//
// load_stream_16 and store_stream_16 are for bulk data that is used once, or that another thread may have written
// before a synchronisation: it is not kept in the GPU's L1 cache. The loads are volatile, so the compiler never reads
// twice. Code for memory that a client can change at any time relies on this. All addresses are 16-byte aligned.
#pragma once

#include "base/atomics.hpp"
#include "base/config.hpp"
#include "base/types.hpp"

#if !GPU4FS_DEVICE_CODE
#include <sched.h>
#include <time.h>
#endif

namespace gpu4fs {

GPU4FS_FN GPU4FS_FORCE_INLINE Vector16 load_shared_16(const void* address) {
#if GPU4FS_DEVICE_CODE
  Vector16 value;
  asm volatile("{ .reg .b128 wide; ld.relaxed.sys.b128 wide, [%2]; mov.b128 {%0, %1}, wide; }"
               : "=l"(value.low), "=l"(value.high)
               : "l"(address)
               : "memory");
  return value;
#elif GPU4FS_X86_64 && !GPU4FS_TSAN
  typedef u64 Register __attribute__((vector_size(16), may_alias));
  Register value;
  asm volatile("movdqa %1, %0" : "=x"(value) : "m"(*static_cast<const Register*>(address)) : "memory");
  return Vector16{value[0], value[1]};
#else
  __extension__ typedef unsigned __int128 Wide;
  const Wide value = __atomic_load_n(static_cast<const Wide*>(address), __ATOMIC_RELAXED);
  return Vector16{static_cast<u64>(value), static_cast<u64>(value >> 64)};
#endif
}

GPU4FS_FN GPU4FS_FORCE_INLINE void store_shared_16(void* address, Vector16 value) {
#if GPU4FS_DEVICE_CODE
  asm volatile("{ .reg .b128 wide; mov.b128 wide, {%0, %1}; st.relaxed.sys.b128 [%2], wide; }"
               :
               : "l"(value.low), "l"(value.high), "l"(address)
               : "memory");
#elif GPU4FS_X86_64 && !GPU4FS_TSAN
  typedef u64 Register __attribute__((vector_size(16), may_alias));
  const Register wide = {value.low, value.high};
  asm volatile("movdqa %1, %0" : "=m"(*static_cast<Register*>(address)) : "x"(wide) : "memory");
#else
  __extension__ typedef unsigned __int128 Wide;
  __atomic_store_n(static_cast<Wide*>(address), (static_cast<Wide>(value.high) << 64) | value.low, __ATOMIC_RELAXED);
#endif
}

GPU4FS_FN GPU4FS_FORCE_INLINE Vector16 load_stream_16(const void* address) {
#if GPU4FS_DEVICE_CODE
  Vector16 value;
  asm volatile("ld.relaxed.gpu.v2.u64 {%0, %1}, [%2];" : "=l"(value.low), "=l"(value.high) : "l"(address) : "memory");
  return value;
#else
  Vector16 value;
  __builtin_memcpy(&value, __builtin_assume_aligned(address, 16), sizeof(value));
  return value;
#endif
}

GPU4FS_FN GPU4FS_FORCE_INLINE void store_stream_16(void* address, Vector16 value) {
#if GPU4FS_DEVICE_CODE
  asm volatile("st.cg.v2.u64 [%2], {%0, %1};" : : "l"(value.low), "l"(value.high), "l"(address) : "memory");
#else
  __builtin_memcpy(__builtin_assume_aligned(address, 16), &value, sizeof(value));
#endif
}

// One step of a short busy wait: tells the core that another thread should make progress.
GPU4FS_FN GPU4FS_FORCE_INLINE void cpu_relax() {
#if GPU4FS_X86_64
  __builtin_ia32_pause();
#elif !GPU4FS_DEVICE_CODE && defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

// Nanoseconds of a monotonic clock: CLOCK_MONOTONIC on the CPU, %globaltimer on the GPU. The two have different origins
// and are not comparable. %globaltimer may advance in steps of up to a microsecond.
GPU4FS_FN inline u64 now_monotonic_ns() {
#if GPU4FS_DEVICE_CODE
  u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
  return now;
#else
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<u64>(now.tv_sec) * 1000000000u + static_cast<u64>(now.tv_nsec);
#endif
}

// Waits for about `duration_ns` and gives others a turn. The GPU sleeps (at most 1 ms, the hardware's bound). The CPU
// pauses for short waits; for waits of a microsecond or more it yields the core for an unknown time.
GPU4FS_FN inline void backoff(u32 duration_ns) {
#if GPU4FS_DEVICE_CODE
  __nanosleep(duration_ns < 1000000 ? duration_ns : 1000000);
#else
  if (duration_ns >= 1000) {
    sched_yield();
    return;
  }
  for (u32 passed_ns = 0; passed_ns <= duration_ns; passed_ns += 40) cpu_relax();
#endif
}

}  // namespace gpu4fs
