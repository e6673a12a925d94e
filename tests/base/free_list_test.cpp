#include "base/free_list.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace gpu4fs::test {
namespace {

TEST(FreeList, HandsOutEachSlotOnce) {
  constexpr u32 count = 16;
  std::vector<u32> next(count, 0);
  FreeList list{};
  list.next = next.data();
  for (u32 i = 0; i < count; ++i) list.push(i);
  std::vector<std::atomic<u32>> taken(count);
  std::atomic<u32> violations{0};
  std::vector<std::thread> threads;
  for (u32 t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (u32 round = 0; round < 20000; ++round) {
        u32 a = 0;
        if (!list.pop(&a)) continue;
        if (taken[a].exchange(1) != 0) ++violations;
        taken[a].store(0);
        list.push(a);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(violations.load(), 0u);
  EXPECT_EQ(list.count, count);
  u32 index = 0;
  u32 found = 0;
  while (list.pop(&index)) ++found;
  EXPECT_EQ(found, count);
}

}  // namespace
}  // namespace gpu4fs::test
