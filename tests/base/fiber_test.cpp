#include "base/fiber.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "base/atomics.hpp"
#include "base/emulated_warp.hpp"

namespace gpu4fs::test {
namespace {

struct Meeting {
  Fiber caller;
  Fiber* other = nullptr;
  u8* place = nullptr;  // in the frame of the other
};

GPU4FS_NOINLINE void wait_in_a_frame(Meeting& meeting) {
  u8 bytes[64] = {};
  meeting.place = bytes;
  meeting.other->switch_to(meeting.caller);
}

// AddressSanitizer marks what surrounds the variables of a function until it returns.
TEST(FiberStack, MemoryOfAFiberThatNeverReturnsIsUsedAgain) {
  if (GPU4FS_TSAN != 0) GTEST_SKIP() << "it takes fibers for threads, and a switch orders nothing";
  Meeting meeting;
  {
    Fiber fiber([](void* argument) { wait_in_a_frame(*static_cast<Meeting*>(argument)); }, &meeting);
    meeting.other = &fiber;
    meeting.caller.switch_to(fiber);
  }
  ASSERT_NE(meeting.place, nullptr);
  u8* const page = meeting.place - reinterpret_cast<u64>(meeting.place) % page_size;
  void* const memory =
      ::mmap(page, page_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  ASSERT_EQ(memory, page);
  std::memset(memory, 1, page_size);
  EXPECT_EQ(page[page_size - 1], 1);
  ::munmap(memory, page_size);
}

void count_on_the_stack() {
  run_emulated_warp([](EmulatedWarp) {
    u32 count = 0;
    add<Scope::engine>(&count, 1);
  });
}

// On a GPU the compiler removes such an access, with all that follows it.
TEST(FiberStackDeathTest, AtomicAccessesToTheStackOfARankAreFound) {
  if (GPU4FS_ASAN == 0) GTEST_SKIP() << "only builds with AddressSanitizer look for them";
  EXPECT_DEATH(count_on_the_stack(), "atomic access to an object on the stack of a rank");
}

TEST(FiberStack, AtomicAccessesToOtherMemoryAreNotMinded) {
  u32 count = 0;
  run_emulated_warp([&](EmulatedWarp) { add<Scope::engine>(&count, 1); });
  EXPECT_EQ(count, warp_size);
  add<Scope::engine>(&count, 1);
  EXPECT_EQ(count, warp_size + 1);
}

}  // namespace
}  // namespace gpu4fs::test
