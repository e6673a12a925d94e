// Fiber: a stack and where its execution stands, for switching between lines of execution on one thread. Host only, for
// emulated warps.
//
// On x86-64 a switch changes stacks by itself, because swapcontext() is slow: it asks the kernel for the signal mask
// each time, and AddressSanitizer clears the shadow of the whole stack after it. Under ThreadSanitizer, whose runtime
// knows swapcontext(), and on other processors a switch calls swapcontext().
//
// Each switch is announced to the sanitizers. For ThreadSanitizer a fiber is a thread of its own, and a switch orders
// nothing. So unsynchronised accesses of two fibers count as a race although one thread executes both.
#pragma once

#include <sys/mman.h>
#include <ucontext.h>

#include <atomic>
#include <new>

#include "base/check.hpp"
#include "base/config.hpp"
#include "base/limits.hpp"
#include "base/running_stack.hpp"
#include "base/types.hpp"

#if GPU4FS_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if GPU4FS_TSAN
#include <sanitizer/tsan_interface.h>
#endif

#if GPU4FS_X86_64 && !GPU4FS_TSAN
#define GPU4FS_FIBER_SWAPS_STACKS 1
#else
#define GPU4FS_FIBER_SWAPS_STACKS 0
#endif

namespace gpu4fs {

class Fiber {
 public:
  // The calling thread as it is: a target to switch back to.
  Fiber() {
#if GPU4FS_TSAN
    sanitizer_thread_ = __tsan_get_current_fiber();
#endif
  }

  // Runs `entry(argument)` on a stack of its own when it is first switched to. `entry` never returns.
  Fiber(void (*entry)(void*), void* argument) : entry_(entry), argument_(argument) {
    memory_ = ::mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    // An overflow of the stack hits the guard page.
    GPU4FS_CHECK_EQ(::mprotect(memory_, page_size, PROT_NONE), 0);
    stack_ = static_cast<u8*>(memory_) + page_size;
    stack_length_ = stack_bytes - page_size;
    make_context();
#if GPU4FS_TSAN
    sanitizer_thread_ = __tsan_create_fiber(0);
    owns_sanitizer_thread_ = true;
#endif
  }

  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  ~Fiber() {
#if GPU4FS_TSAN
    if (owns_sanitizer_thread_) __tsan_destroy_fiber(sanitizer_thread_);
#endif
    if (memory_ == nullptr) return;
#if GPU4FS_ASAN
    // The functions that it was in have not returned. Their red zones would stay at these addresses.
    __asan_unpoison_memory_region(memory_, stack_bytes);
#endif
    ::munmap(memory_, stack_bytes);
  }

  // Orders everything that the fiber has done before the next actions of the caller, which ends the fiber and the
  // objects it touches.
  void acquire() const {
    (void)left_.load(std::memory_order_acquire);
  }

  // Called on `this`. Returns when another fiber switches back.
  void switch_to(Fiber& other) {
#if GPU4FS_TSAN
    void* const thread = other.sanitizer_thread_;
    left_.store(true, std::memory_order_release);
    __tsan_switch_to_fiber(thread, __tsan_switch_to_fiber_no_sync);
#endif
#if GPU4FS_ASAN
    other.came_from_ = this;
    __sanitizer_start_switch_fiber(&fake_stack_, other.stack_, other.stack_length_);
#endif
    swap_context(other);
    arrive();
  }

 private:
  static constexpr u64 stack_bytes = u64{256} << 10;

  void run() {
    arrive();
    entry_(argument_);
    GPU4FS_CHECK(!"the entry of a fiber returned");
  }

#if GPU4FS_FIBER_SWAPS_STACKS
  static void begin() {
    next_->run();
  }

  // The first switch pops the address of begin(), which finds the stack as after a call.
  void make_context() {
    auto** const top = reinterpret_cast<void**>(static_cast<u8*>(stack_) + stack_length_);
    top[-1] = nullptr;
    top[-2] = reinterpret_cast<void*>(&Fiber::begin);
    place_ = top - 2;
  }
  void swap_context(Fiber& other) {
    next_ = &other;
    swap_stacks(&place_, other.place_);
  }

  // Stores at *from the state that is needed to continue after this function. The compiler saves all registers except
  // the frame's. The red zone below the stack pointer may be in use.
  GPU4FS_NOINLINE static void swap_stacks(void** from, void* to) {
    asm volatile(
        "leaq -128(%%rsp), %%rsp\n\t"
        "pushq %%rbp\n\t"
        "pushq %%rbx\n\t"
        "leaq 1f(%%rip), %%rax\n\t"
        "pushq %%rax\n\t"
        "movq %%rsp, (%[from])\n\t"
        "movq %[to], %%rsp\n\t"
        "popq %%rax\n\t"
        "jmpq *%%rax\n"
        "1:\n\t"
        "popq %%rbx\n\t"
        "popq %%rbp\n\t"
        "leaq 128(%%rsp), %%rsp"
        : [from] "+D"(from), [to] "+S"(to)
        :
        : "rax", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm1", "xmm2", "xmm3",
          "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc",
          "memory");
  }

  static inline thread_local Fiber* next_ = nullptr;  // the fiber that is being switched to
  void* place_ = nullptr;                             // top of the stack while the fiber is not running
#else
  static void begin(u32 high, u32 low) {
    reinterpret_cast<Fiber*>(u64{high} << 32 | low)->run();
  }

  void make_context() {
    GPU4FS_CHECK_EQ(::getcontext(&context_), 0);
    context_.uc_stack.ss_sp = stack_;
    context_.uc_stack.ss_size = stack_length_;
    context_.uc_link = nullptr;
    const u64 self = reinterpret_cast<u64>(this);
    ::makecontext(&context_, reinterpret_cast<void (*)()>(&Fiber::begin), 2, static_cast<u32>(self >> 32),
                  static_cast<u32>(self));
  }
  void swap_context(Fiber& other) {
    GPU4FS_CHECK_EQ(::swapcontext(&context_, &other.context_), 0);
  }

  ucontext_t context_{};
#endif

  void arrive() {
#if GPU4FS_ASAN
    const void* stack = nullptr;
    std::size_t length = 0;
    __sanitizer_finish_switch_fiber(fake_stack_, &stack, &length);
    came_from_->stack_ = const_cast<void*>(stack);
    came_from_->stack_length_ = length;
#endif
    detail::enter_stack(memory_, memory_ == nullptr ? 0 : stack_bytes);
  }

  std::atomic<bool> left_{false};  // see acquire(); only ThreadSanitizer needs it
  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
  void* memory_ = nullptr;  // including the guard
  void* stack_ = nullptr;
  u64 stack_length_ = 0;
#if GPU4FS_ASAN
  void* fake_stack_ = nullptr;
  Fiber* came_from_ = nullptr;
#endif
#if GPU4FS_TSAN
  void* sanitizer_thread_ = nullptr;
  bool owns_sanitizer_thread_ = false;
#endif
};

}  // namespace gpu4fs
