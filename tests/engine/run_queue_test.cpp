#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "engine/run_queue.hpp"

namespace gpu4fs::test {
namespace {

struct Queue {
  explicit Queue(u32 capacity) : cells(capacity, 0) {
    queue.cells = cells.data();
    queue.capacity = capacity;
  }
  std::vector<u64> cells;
  engine::RunQueue queue{};
};

TEST(RunQueue, FirstInFirstOutOverManyLaps) {
  Queue q(8);
  u32 item = 0;
  EXPECT_FALSE(q.queue.pop(&item));
  u32 next_in = 0;
  u32 next_out = 0;
  for (u32 round = 0; round < 1000; ++round) {
    for (u32 i = 0; i < round % 8 + 1; ++i) q.queue.push(next_in++);
    EXPECT_FALSE(q.queue.looks_empty());
    while (q.queue.pop(&item)) ASSERT_EQ(item, next_out++);
    ASSERT_EQ(next_in, next_out);
    EXPECT_TRUE(q.queue.looks_empty());
  }
}

// Items circulate: each consumer puts back what it took. None is lost, none appears twice.
TEST(RunQueue, ProducersAndConsumersLoseNothing) {
  constexpr u32 item_count = 24;
  constexpr u32 thread_count = 4;
  constexpr u32 moves = 30000;
  Queue q(64);
  std::vector<std::atomic<u32>> held(item_count);
  for (u32 i = 0; i < item_count; ++i) q.queue.push(i);
  std::atomic<u32> violations{0};
  std::vector<std::thread> threads;
  for (u32 t = 0; t < thread_count; ++t) {
    threads.emplace_back([&] {
      for (u32 done = 0; done < moves;) {
        u32 item = 0;
        if (!q.queue.pop(&item)) {
          std::this_thread::yield();
          continue;
        }
        if (item >= item_count || held[item].exchange(1) != 0) ++violations;
        held[item % item_count].store(0);
        q.queue.push(item);
        ++done;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(violations.load(), 0u);
  std::vector<u32> seen(item_count, 0);
  u32 item = 0;
  while (q.queue.pop(&item)) ++seen.at(item);
  for (const u32 times : seen) EXPECT_EQ(times, 1u);
}

TEST(RunQueue, ClaimedButUnfilledCellHidesNothingForGood) {
  Queue q(8);
  const u64 first = q.queue.claim(1);
  q.queue.push(7);
  u32 item = 0;
  EXPECT_FALSE(q.queue.pop(&item)) << "order is kept";
  q.queue.put(first, 6);
  ASSERT_TRUE(q.queue.pop(&item));
  EXPECT_EQ(item, 6u);
  ASSERT_TRUE(q.queue.pop(&item));
  EXPECT_EQ(item, 7u);
}

}  // namespace
}  // namespace gpu4fs::test
