#include "ring/wait_policy.hpp"

#include <gtest/gtest.h>

namespace gpu4fs::ring {
namespace {

constexpr u64 short_ns = 10000;
constexpr u64 long_ns = 8000000;

// Properties of a wait of `length_ns`: how late its end is noticed, and how often it is polled.
struct Heard {
  u64 late_ns;
  u64 slept_ns;
};

// A poll takes `look_ns`, and a sleep exactly the requested time.
Heard wait_for(WaitPolicy& policy, u64 length_ns) {
  constexpr u64 look_ns = 500;
  u64 passed_ns = 0;
  u64 slept_ns = 0;
  while (passed_ns < length_ns) {
    const u64 pause_ns = policy.pause_ns(passed_ns);
    slept_ns += pause_ns;
    passed_ns += pause_ns + look_ns;
  }
  policy.note_wait(passed_ns);
  return {passed_ns - length_ns, slept_ns};
}

TEST(WaitPolicyTest, ShortCommandsAreHeardOfAtOnce) {
  WaitPolicy policy;
  for (u64 length_ns = 1000; length_ns < WaitPolicy::spin_ns; length_ns += 1000) {
    EXPECT_LE(wait_for(policy, length_ns).late_ns, 1000u) << length_ns;
  }
}

TEST(WaitPolicyTest, ALongCommandAmongShortOnesDoesNotMakeTheNextOneLate) {
  WaitPolicy policy;
  for (int i = 0; i < 100; ++i) {
    EXPECT_LE(wait_for(policy, short_ns).late_ns, 1000u);
    wait_for(policy, long_ns);
  }
}

TEST(WaitPolicyTest, LongCommandsAreSleptThrough) {
  WaitPolicy policy;
  for (int i = 0; i < 20; ++i) wait_for(policy, long_ns);
  const Heard heard = wait_for(policy, long_ns);
  EXPECT_GE(heard.slept_ns, long_ns * 9 / 10);
  EXPECT_LE(heard.late_ns, long_ns / 32);
}

TEST(WaitPolicyTest, AfterLongCommandsOneShortOneIsLateAtMost) {
  WaitPolicy policy;
  for (int i = 0; i < 20; ++i) wait_for(policy, long_ns);
  EXPECT_GT(wait_for(policy, short_ns).late_ns, 1000u);
  for (int i = 0; i < 40; ++i) EXPECT_LE(wait_for(policy, short_ns).late_ns, 1000u);
}

}  // namespace
}  // namespace gpu4fs::ring
