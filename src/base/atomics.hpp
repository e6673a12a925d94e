// Atomic accesses to plain objects, with explicit order and scope, on both processors.
//
// Engine structures are shared between threads of one processor (scope engine) or between CPU and GPU (scope system).
// Their members are plain integers, and every concurrent access goes through these functions. So one definition of a
// structure serves both compilers. T is a 4- or 8-byte trivially copyable type, naturally aligned; the arithmetic
// functions take integers only. Not for objects on a thread's own stack: builds with AddressSanitizer check that.
//
// On the CPU these are the compiler's __atomic built-ins, and the scope has no effect. On the GPU they are the scoped
// operations of the PTX memory model, which extends the C++ one: group = thread block, engine = the device, system =
// all processors.
//
// A GPU has no native read-modify-write for host memory. So fetch_*, exchange and compare_exchange are for engine
// memory only. In shared memory every word has one writer and is accessed by load and store.
#pragma once

#include <type_traits>

#include "base/config.hpp"
#include "base/running_stack.hpp"
#include "base/types.hpp"

namespace gpu4fs {

enum class Scope { group, engine, system };
enum class Order { relaxed, acquire, release, acq_rel, seq_cst };

namespace detail {

template <class T>
inline constexpr bool is_atomic_type = std::is_trivially_copyable_v<T> && (sizeof(T) == 4 || sizeof(T) == 8) &&
                                       alignof(T) == sizeof(T);

template <class T>
inline constexpr bool is_atomic_integer = is_atomic_type<T>&& std::is_integral_v<T>;

#if GPU4FS_DEVICE_CODE
template <Scope scope>
inline constexpr cuda::thread_scope cuda_scope = scope == Scope::group    ? cuda::thread_scope_block
                                                 : scope == Scope::engine ? cuda::thread_scope_device
                                                                          : cuda::thread_scope_system;
template <Order order>
inline constexpr cuda::memory_order native_order = order == Order::relaxed   ? cuda::memory_order_relaxed
                                                   : order == Order::acquire ? cuda::memory_order_acquire
                                                   : order == Order::release ? cuda::memory_order_release
                                                   : order == Order::acq_rel ? cuda::memory_order_acq_rel
                                                                             : cuda::memory_order_seq_cst;
template <Scope scope, class T>
__device__ auto atomic_ref(T* address) {
  // Without this, each operation first tests whether the address lies in shared memory.
  __builtin_assume(__isGlobal(address));
  return cuda::atomic_ref<T, cuda_scope<scope>>(*address);
}

// cuda::atomic_ref waits for the old value, also where nobody uses it. `red` has none. Only for the engine's scope.
template <Scope scope, class T>
__device__ void reduce_add(T* address, T operand) {
  static_assert(scope == Scope::engine);
  const u64 global = __cvta_generic_to_global(address);
  if constexpr (sizeof(T) == 4) {
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(global), "r"(operand) : "memory");
  } else {
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(global), "l"(operand) : "memory");
  }
}
template <Scope scope>
__device__ void reduce_or(u32* address, u32 bits) {
  static_assert(scope == Scope::engine);
  asm volatile("red.relaxed.gpu.global.or.b32 [%0], %1;" ::"l"(__cvta_generic_to_global(address)), "r"(bits)
               : "memory");
}

// cuda::atomic_thread_fence makes both of them fence.acq_rel. An acquire alone only empties the first-level cache, in
// place of waiting until all stores have arrived. A release alone keeps that cache. PTX ISA 8.6.
template <Order order, Scope scope>
__device__ void one_sided_fence() {
  if constexpr (order == Order::acquire) {
    if constexpr (scope == Scope::group) asm volatile("fence.acquire.cta;" ::: "memory");
    if constexpr (scope == Scope::engine) asm volatile("fence.acquire.gpu;" ::: "memory");
    if constexpr (scope == Scope::system) asm volatile("fence.acquire.sys;" ::: "memory");
  } else {
    if constexpr (scope == Scope::group) asm volatile("fence.release.cta;" ::: "memory");
    if constexpr (scope == Scope::engine) asm volatile("fence.release.gpu;" ::: "memory");
    if constexpr (scope == Scope::system) asm volatile("fence.release.sys;" ::: "memory");
  }
}
#else
template <Order order>
inline constexpr int native_order = order == Order::relaxed   ? __ATOMIC_RELAXED
                                    : order == Order::acquire ? __ATOMIC_ACQUIRE
                                    : order == Order::release ? __ATOMIC_RELEASE
                                    : order == Order::acq_rel ? __ATOMIC_ACQ_REL
                                                              : __ATOMIC_SEQ_CST;
#endif

// The order of a failed compare-exchange: it stores nothing, so the release half is dropped.
inline constexpr Order load_part(Order order) {
  return order == Order::acq_rel ? Order::acquire : order == Order::release ? Order::relaxed : order;
}

#if GPU4FS_TSAN
inline u32 tsan_fence_word = 0;
#endif

}  // namespace detail

template <Order order, Scope scope, class T>
GPU4FS_FN T load(const T* address) {
  static_assert(detail::is_atomic_type<T>);
  static_assert(order != Order::release && order != Order::acq_rel, "a load does not release");
#if GPU4FS_DEVICE_CODE
  return detail::atomic_ref<scope>(const_cast<T*>(address)).load(detail::native_order<order>);
#else
  detail::check_not_on_stack(address);
  T value;
  __atomic_load(address, &value, detail::native_order<order>);
  return value;
#endif
}

template <Order order, Scope scope, class T>
GPU4FS_FN void store(T* address, std::type_identity_t<T> value) {
  static_assert(detail::is_atomic_type<T>);
  static_assert(order != Order::acquire && order != Order::acq_rel, "a store does not acquire");
#if GPU4FS_DEVICE_CODE
  detail::atomic_ref<scope>(address).store(value, detail::native_order<order>);
#else
  detail::check_not_on_stack(address);
  __atomic_store(address, &value, detail::native_order<order>);
#endif
}

// The read-modify-write functions return the value before the operation. Integers wrap.
template <Order order, Scope scope, class T>
GPU4FS_FN T fetch_add(T* address, std::type_identity_t<T> operand) {
  static_assert(detail::is_atomic_integer<T>);
#if GPU4FS_DEVICE_CODE
  return detail::atomic_ref<scope>(address).fetch_add(operand, detail::native_order<order>);
#else
  detail::check_not_on_stack(address);
  return __atomic_fetch_add(address, operand, detail::native_order<order>);
#endif
}

template <Order order, Scope scope, class T>
GPU4FS_FN T fetch_sub(T* address, std::type_identity_t<T> operand) {
  static_assert(detail::is_atomic_integer<T>);
#if GPU4FS_DEVICE_CODE
  return detail::atomic_ref<scope>(address).fetch_sub(operand, detail::native_order<order>);
#else
  detail::check_not_on_stack(address);
  return __atomic_fetch_sub(address, operand, detail::native_order<order>);
#endif
}

template <Order order, Scope scope, class T>
GPU4FS_FN T fetch_or(T* address, std::type_identity_t<T> operand) {
  static_assert(detail::is_atomic_integer<T>);
#if GPU4FS_DEVICE_CODE
  return detail::atomic_ref<scope>(address).fetch_or(operand, detail::native_order<order>);
#else
  detail::check_not_on_stack(address);
  return __atomic_fetch_or(address, operand, detail::native_order<order>);
#endif
}

// add and subtract are fetch_add and fetch_sub, relaxed and without a result: a GPU sends the operation and does not
// wait for it. Integers wrap.
template <Scope scope, class T>
GPU4FS_FN void add(T* address, std::type_identity_t<T> operand) {
  static_assert(detail::is_atomic_integer<T>);
#if GPU4FS_DEVICE_CODE
  detail::reduce_add<scope>(address, operand);
#else
  detail::check_not_on_stack(address);
  __atomic_fetch_add(address, operand, __ATOMIC_RELAXED);
#endif
}
template <Scope scope, class T>
GPU4FS_FN void subtract(T* address, std::type_identity_t<T> operand) {
  add<scope>(address, static_cast<T>(T{0} - operand));
}

// add to a word with one writer at a time. Others may load it. A CPU then needs no locked instruction.
template <Scope scope, class T>
GPU4FS_FN void add_as_only_writer(T* address, std::type_identity_t<T> operand) {
#if GPU4FS_DEVICE_CODE
  add<scope>(address, operand);
#else
  store<Order::relaxed, scope>(address, static_cast<T>(load<Order::relaxed, scope>(address) + operand));
#endif
}

// Sets bits that are usually set already; relaxed. A CPU reads first, so the line stays in every cache. A GPU does not
// wait.
template <Scope scope>
GPU4FS_FN void set_bits(u32* address, u32 bits) {
#if GPU4FS_DEVICE_CODE
  detail::reduce_or<scope>(address, bits);
#else
  if ((load<Order::relaxed, scope>(address) & bits) == bits) return;
  fetch_or<Order::relaxed, scope>(address, bits);
#endif
}

template <Order order, Scope scope, class T>
GPU4FS_FN T fetch_and(T* address, std::type_identity_t<T> operand) {
  static_assert(detail::is_atomic_integer<T>);
#if GPU4FS_DEVICE_CODE
  return detail::atomic_ref<scope>(address).fetch_and(operand, detail::native_order<order>);
#else
  detail::check_not_on_stack(address);
  return __atomic_fetch_and(address, operand, detail::native_order<order>);
#endif
}

template <Order order, Scope scope, class T>
GPU4FS_FN T exchange(T* address, std::type_identity_t<T> desired) {
  static_assert(detail::is_atomic_type<T>);
#if GPU4FS_DEVICE_CODE
  return detail::atomic_ref<scope>(address).exchange(desired, detail::native_order<order>);
#else
  detail::check_not_on_stack(address);
  T previous;
  __atomic_exchange(address, &desired, &previous, detail::native_order<order>);
  return previous;
#endif
}

// Strong compare-exchange. True if *address was `expected` and is now `desired`; otherwise
// `expected` becomes the value found. A failure has only the load part of `order`.
template <Order order, Scope scope, class T>
GPU4FS_FN bool compare_exchange(T* address, T& expected, std::type_identity_t<T> desired) {
  static_assert(detail::is_atomic_type<T>);
  constexpr Order on_failure = detail::load_part(order);
#if GPU4FS_DEVICE_CODE
  return detail::atomic_ref<scope>(address).compare_exchange_strong(expected, desired, detail::native_order<order>,
                                                                    detail::native_order<on_failure>);
#else
  detail::check_not_on_stack(address);
  return __atomic_compare_exchange(address, &expected, &desired, false, detail::native_order<order>,
                                   detail::native_order<on_failure>);
#endif
}

// ThreadSanitizer does not model fences. There a fence is a read-modify-write of one word, which orders at least as
// much, and may hide a race that only a fence would order.
template <Order order, Scope scope>
GPU4FS_FN void fence() {
#if GPU4FS_DEVICE_CODE
  if constexpr (order == Order::acquire || order == Order::release) {
    detail::one_sided_fence<order, scope>();
  } else if constexpr (order != Order::relaxed) {
    cuda::atomic_thread_fence(detail::native_order<order>, detail::cuda_scope<scope>);
  }
#elif GPU4FS_TSAN
  __atomic_fetch_add(&detail::tsan_fence_word, 0, __ATOMIC_SEQ_CST);
#else
  __atomic_thread_fence(detail::native_order<order>);
#endif
}

}  // namespace gpu4fs
