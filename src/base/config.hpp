// Decides once which compiler is in use. This is the only file that may test __CUDACC__, __CUDA_ARCH__ or a sanitizer's
// macro; everything else uses the names defined here.
//
//   GPU4FS_FN             runs on both processors. A plain function in a header is written
//                         `GPU4FS_FN inline`, a template just `GPU4FS_FN`.
//   GPU4FS_CUDA_COMPILER  1 in a translation unit compiled by nvcc (host pass and device pass).
//   GPU4FS_DEVICE_CODE    1 while device code is compiled, for `#if` inside function bodies. It
//                         must not change a declaration that kernels or both passes use.
//   GPU4FS_DEVICE_DATA    storage of a variable in GPU memory, one per translation unit.
//   GPU4FS_UNROLL         in front of a loop whose trip count is a constant.
//   GPU4FS_NO_UNROLL      in front of a loop that rarely runs more than once.
//   GPU4FS_TSAN           1 under ThreadSanitizer, which does not see inline assembly.
//   GPU4FS_ASAN           1 under AddressSanitizer.
//   GPU4FS_X86_64         1 in host code for x86-64.
#pragma once

#if defined(__CUDACC__)
#define GPU4FS_CUDA_COMPILER 1
#define GPU4FS_FN __host__ __device__
#define GPU4FS_DEVICE_DATA static __device__
#else
#define GPU4FS_CUDA_COMPILER 0
#define GPU4FS_FN
#endif

#if defined(__CUDA_ARCH__)
#define GPU4FS_DEVICE_CODE 1
#else
#define GPU4FS_DEVICE_CODE 0
#endif

#if defined(__SANITIZE_THREAD__)
#define GPU4FS_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define GPU4FS_TSAN 1
#endif
#endif
#if !defined(GPU4FS_TSAN)
#define GPU4FS_TSAN 0
#endif

#if defined(__SANITIZE_ADDRESS__)
#define GPU4FS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define GPU4FS_ASAN 1
#endif
#endif
#if !defined(GPU4FS_ASAN)
#define GPU4FS_ASAN 0
#endif

#if defined(__x86_64__) && !GPU4FS_DEVICE_CODE
#define GPU4FS_X86_64 1
#else
#define GPU4FS_X86_64 0
#endif

#define GPU4FS_NOINLINE __attribute__((noinline))
#define GPU4FS_FORCE_INLINE inline __attribute__((always_inline))

#if GPU4FS_DEVICE_CODE
#define GPU4FS_UNROLL _Pragma("unroll")
#define GPU4FS_NO_UNROLL _Pragma("unroll 1")
#elif defined(__GNUC__) && !defined(__clang__) && !GPU4FS_CUDA_COMPILER
#define GPU4FS_UNROLL _Pragma("GCC unroll 32")
#else
#define GPU4FS_UNROLL
#endif
#if !GPU4FS_DEVICE_CODE
#define GPU4FS_NO_UNROLL
#endif

#if GPU4FS_CUDA_COMPILER
// base/atomics.hpp is never used on a thread's own stack, so the branch for this case is not needed.
#define _LIBCUDACXX_ATOMIC_UNSAFE_AUTOMATIC_STORAGE
#include <cuda_runtime.h>

#include <cuda/atomic>
#endif
