// Checks: conditions that the code relies on, tested in every build.
//
//   GPU4FS_CHECK(condition)          GPU4FS_CHECK_OK(status)
//   GPU4FS_CHECK_EQ(a, b)            and NE, LT, LE, GT, GE: record both values; integers of
//                                    different signedness are compared by value
//   GPU4FS_UNREACHABLE("why")
//
// A check states an invariant of this program. An error that a client, a medium or a device can cause is a Status and
// not a check. A failed check never returns. On the CPU it calls the handler, if one is set, then prints expression,
// values and place to stderr and aborts. On the GPU the first failing lane fills the FaultRecord in host-visible memory
// and traps, which ends the kernel. The host sees the launch error and reads the record. Arguments are evaluated once.
#pragma once

#include <type_traits>

#include "base/access.hpp"
#include "base/atomics.hpp"
#include "base/config.hpp"
#include "base/status.hpp"
#include "base/types.hpp"

#if !GPU4FS_DEVICE_CODE
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#endif

namespace gpu4fs {

// The record of the first failed check of a kernel. It lies in memory that outlives the kernel and that the host can
// read after a fault (pinned host memory, not managed memory). It is zero before use; `state` becomes 1 last.
struct FaultRecord {
  u32 state;
  u32 line;
  u64 left;
  u64 right;
  u32 block;
  u32 thread;
  char file[64];         // the end of the path, terminated
  char expression[160];  // cut if too long, terminated
};

static_assert(std::is_trivially_copyable_v<FaultRecord> && sizeof(FaultRecord) == 256);

// The argument of a check handler on the host.
struct CheckFailure {
  const char* file;
  u32 line;
  const char* expression;
  u64 left;
  u64 right;
};

using CheckHandler = void (*)(const CheckFailure&);

namespace detail {

// The last two components of a path: enough to find the file, without a machine's folders in a log.
GPU4FS_FN constexpr const char* short_path(const char* path) {
  const char* last = path;
  const char* before_last = path;
  for (const char* at = path; *at != 0; ++at) {
    if (*at == '/') {
      before_last = last;
      last = at + 1;
    }
  }
  return before_last;
}

#if !GPU4FS_DEVICE_CODE
inline CheckHandler check_handler = nullptr;
#endif

#if GPU4FS_CUDA_COMPILER
GPU4FS_DEVICE_DATA FaultRecord* fault_record_device = nullptr;
GPU4FS_DEVICE_DATA u32 fault_claimed_device = 0;

__device__ inline void copy_text(char* destination, u32 capacity, const char* source) {
  u32 i = 0;
  for (; i + 1 < capacity && source[i] != 0; ++i) destination[i] = source[i];
  destination[i] = 0;
}

// The claim lies in GPU memory because a compare-exchange on host memory would not be atomic. A lane that fails second
// waits a little for the record: its own trap would cut off the writes of the first lane.
[[noreturn]] static __device__ GPU4FS_NOINLINE void record_fault(const char* file, u32 line, const char* expression,
                                                                 u64 left, u64 right) {
  FaultRecord* record = fault_record_device;
  if (record != nullptr) {
    if (atomicCAS(&fault_claimed_device, 0u, 1u) == 0) {
      record->line = line;
      record->left = left;
      record->right = right;
      record->block = blockIdx.x;
      record->thread = threadIdx.x;
      copy_text(record->file, sizeof(record->file), short_path(file));
      copy_text(record->expression, sizeof(record->expression), expression);
      __threadfence_system();
      *static_cast<volatile u32*>(&record->state) = 1;
      __threadfence_system();
    } else {
      for (u32 i = 0; i < 1000 && *static_cast<volatile u32*>(&record->state) == 0; ++i) __nanosleep(1000);
    }
  }
  __trap();
  __builtin_unreachable();
}
#endif

[[noreturn]] GPU4FS_FN GPU4FS_NOINLINE inline void check_failed(const char* file, u32 line, const char* expression,
                                                                u64 left, u64 right) {
#if GPU4FS_DEVICE_CODE
  record_fault(file, line, expression, left, right);
#else
  if (check_handler != nullptr) check_handler(CheckFailure{file, line, expression, left, right});
  std::fprintf(stderr, "%s:%u: check failed: %s (%" PRIu64 " = 0x%" PRIx64 ", %" PRIu64 " = 0x%" PRIx64 ")\n",
               short_path(file), line, expression, left, left, right, right);
  std::fflush(stderr);
  std::abort();
#endif
}

enum class Comparison { equal, not_equal, less, less_equal, greater, greater_equal };

template <class T>
GPU4FS_FN constexpr u64 check_value(const T& value) {
  if constexpr (std::is_null_pointer_v<T>) {
    return 0;
  } else if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<std::uintptr_t>(value);
  } else {
    return static_cast<u64>(value);
  }
}

template <class T>
inline constexpr bool is_plain_integer = std::is_integral_v<T> && !std::is_same_v<T, bool>;

// a < b and a == b by value, independent of signedness.
template <class A, class B>
GPU4FS_FN constexpr bool value_less(A a, B b) {
  if constexpr (is_plain_integer<A> && is_plain_integer<B> && std::is_signed_v<A> != std::is_signed_v<B>) {
    if constexpr (std::is_signed_v<A>) {
      return a < 0 || static_cast<std::make_unsigned_t<A>>(a) < b;
    } else {
      return b >= 0 && a < static_cast<std::make_unsigned_t<B>>(b);
    }
  } else {
    return a < b;
  }
}

template <class A, class B>
GPU4FS_FN constexpr bool value_equal(A a, B b) {
  if constexpr (is_plain_integer<A> && is_plain_integer<B> && std::is_signed_v<A> != std::is_signed_v<B>) {
    return !value_less(a, b) && !value_less(b, a);
  } else {
    return a == b;
  }
}

template <Comparison comparison, class A, class B>
GPU4FS_FN GPU4FS_FORCE_INLINE constexpr void check_compare(A a, B b, const char* expression, const char* file,
                                                           u32 line) {
  bool holds = false;
  if constexpr (comparison == Comparison::equal) holds = value_equal(a, b);
  if constexpr (comparison == Comparison::not_equal) holds = !value_equal(a, b);
  if constexpr (comparison == Comparison::less) holds = value_less(a, b);
  if constexpr (comparison == Comparison::less_equal) holds = !value_less(b, a);
  if constexpr (comparison == Comparison::greater) holds = value_less(b, a);
  if constexpr (comparison == Comparison::greater_equal) holds = !value_less(a, b);
  if (__builtin_expect(!holds, 0)) check_failed(file, line, expression, check_value(a), check_value(b));
}

}  // namespace detail

#if GPU4FS_CUDA_COMPILER
// Sets the record that failed checks of this translation unit's kernels fill, and re-arms it. Host only; once before
// the first launch. `record` is an address that the device can access, or null for none.
[[maybe_unused]] static inline cudaError_t set_fault_record(FaultRecord* record) {
  const u32 unclaimed = 0;
  const cudaError_t error = cudaMemcpyToSymbol(detail::fault_claimed_device, &unclaimed, sizeof(unclaimed));
  if (error != cudaSuccess) return error;
  return cudaMemcpyToSymbol(detail::fault_record_device, &record, sizeof(record));
}
#endif

#if !GPU4FS_DEVICE_CODE
// For tests. The handler is called before the message is printed, and may throw. Returns the previous handler. Not
// synchronised: set it while no check can fail.
inline CheckHandler set_check_handler(CheckHandler handler) {
  const CheckHandler previous = detail::check_handler;
  detail::check_handler = handler;
  return previous;
}
#endif

}  // namespace gpu4fs

#define GPU4FS_CHECK(...)                                                     \
  do {                                                                        \
    if (__builtin_expect(!(__VA_ARGS__), 0)) {                                \
      ::gpu4fs::detail::check_failed(__FILE__, __LINE__, #__VA_ARGS__, 0, 0); \
    }                                                                         \
  } while (false)

#define GPU4FS_CHECK_COMPARE(comparison, operator_text, a, b)                                                      \
  ::gpu4fs::detail::check_compare<::gpu4fs::detail::Comparison::comparison>((a), (b), #a " " operator_text " " #b, \
                                                                            __FILE__, __LINE__)

#define GPU4FS_CHECK_EQ(a, b) GPU4FS_CHECK_COMPARE(equal, "==", a, b)
#define GPU4FS_CHECK_NE(a, b) GPU4FS_CHECK_COMPARE(not_equal, "!=", a, b)
#define GPU4FS_CHECK_LT(a, b) GPU4FS_CHECK_COMPARE(less, "<", a, b)
#define GPU4FS_CHECK_LE(a, b) GPU4FS_CHECK_COMPARE(less_equal, "<=", a, b)
#define GPU4FS_CHECK_GT(a, b) GPU4FS_CHECK_COMPARE(greater, ">", a, b)
#define GPU4FS_CHECK_GE(a, b) GPU4FS_CHECK_COMPARE(greater_equal, ">=", a, b)
#define GPU4FS_CHECK_OK(status) GPU4FS_CHECK_EQ(status, ::gpu4fs::Status::ok)
#define GPU4FS_UNREACHABLE(why) ::gpu4fs::detail::check_failed(__FILE__, __LINE__, why, 0, 0)
