// Collectives, on_leader(), atomics and 16-byte accesses on every host group, and the emulated warp's own guarantees.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "base/emulated_warp.hpp"
#include "base/group_bodies.hpp"

namespace gpu4fs::test {
namespace {

TEST(Group, Collectives) {
  EXPECT_TRUE(passes_on_all_groups("collectives", CollectivesBody{}));
}

TEST(Group, BytesAreMultiplied) {
  EXPECT_TRUE(passes_on_all_groups("galois", GaloisBody{}));
}

TEST(Group, SerialPublishesOneValue) {
  GroupMemory<u64> words(40);
  EXPECT_TRUE(passes_on_all_groups("on_leader", OnLeaderBody{words.data()}));
}

TEST(Group, Atomics) {
  GroupMemory<u64> words(4);
  EXPECT_TRUE(passes_on_all_groups("atomics", AtomicsBody{words.data()}));
}

TEST(Group, SharedAccess) {
  GroupMemory<Vector16> vectors(33);
  EXPECT_TRUE(passes_on_all_groups("shared access", SharedAccessBody{vectors.data()}));
}

// The runner itself must notice a wrong answer and a body without expectations.
struct FailingBody {
  template <class Group>
  GPU4FS_FN void operator()(Group g, GroupReport& report) const {
    GPU4FS_EXPECT_EQ(report, g.rank(), g.rank() + (Group::size() == 32 && g.rank() == 31 ? 1 : 0));
  }
};
struct SilentBody {
  template <class Group>
  GPU4FS_FN void operator()(Group, GroupReport&) const {}
};

TEST(GroupRunner, CanaryFails) {
  EXPECT_FALSE(passes_on_all_groups("canary (expected to fail)", FailingBody{}));
  EXPECT_FALSE(passes_on_all_groups("silent canary (expected to fail)", SilentBody{}));
}

TEST(EmulatedWarp, RunsManyRoundsAndSeveralAtOnce) {
  std::vector<u64> sums(3 * warp_size);
  for (u32 round = 0; round < 5; ++round) {
    run_emulated_warps(3, [&](EmulatedWarp g, u32 warp) {
      const u32 sum = g.reduce(g.rank() + warp, [](u32 a, u32 b) { return a + b; });
      sums[warp * warp_size + g.rank()] += sum;
    });
  }
  for (u32 i = 0; i < sums.size(); ++i) EXPECT_EQ(sums[i], 5u * (496 + 32 * (i / warp_size)));
}

TEST(EmulatedWarpDeathTest, DivergentCollectivesFail) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(run_emulated_warp([](EmulatedWarp g) {
                 if (g.rank() == 5) {
                   g.sync();
                 } else {
                   (void)g.ballot(true);
                 }
               }),
               "check failed: set.collective\\[neighbour\\] == collective");
}

TEST(EmulatedWarpDeathTest, EarlyReturnFails) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(run_emulated_warp([](EmulatedWarp g) {
                 if (g.rank() < 31) g.sync();
               }),
               "check failed");
}

// Two halves of a 16-byte access always belong together.
TEST(SharedAccess, NeverTorn) {
  GroupMemory<Vector16> cell(1);
  store_shared_16(cell.data(), Vector16{0, ~u64{0}});
  constexpr u64 last = 200000;
  std::thread writer([&] {
    for (u64 i = 1; i <= last; ++i) store_shared_16(cell.data(), Vector16{i, ~i});
  });
  u64 torn = 0;
  for (u64 seen = 0; seen < last;) {
    const Vector16 value = load_shared_16(cell.data());
    torn += value.low != ~value.high || value.low < seen ? 1 : 0;
    seen = value.low;
    cpu_relax();
  }
  writer.join();
  EXPECT_EQ(torn, 0u);
}

// A thread that acquires a released store sees everything before it.
TEST(Atomics, ReleaseAcquirePublishes) {
  u64 payload = 0;
  u32 flag = 0;
  u64 wrong = 0;
  constexpr u32 round_count = 2000;
  std::thread reader([&] {
    for (u32 round = 1; round <= round_count; ++round) {
      while (load<Order::acquire, Scope::system>(&flag) != 2 * round - 1) backoff(1000);
      wrong += payload != u64{round} * 7 ? 1 : 0;
      store<Order::release, Scope::system>(&flag, 2 * round);
    }
  });
  for (u32 round = 1; round <= round_count; ++round) {
    payload = u64{round} * 7;
    fence<Order::release, Scope::system>();
    store<Order::release, Scope::system>(&flag, 2 * round - 1);
    while (load<Order::acquire, Scope::system>(&flag) != 2 * round) backoff(1000);
  }
  reader.join();
  EXPECT_EQ(wrong, 0u);
}

}  // namespace
}  // namespace gpu4fs::test
