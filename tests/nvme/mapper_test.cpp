// The mapper of queues: where commands go, what a slow queue keeps, and that slots do not gather on a few queues.
#include "device/nvme/mapper.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>
#include <vector>

#include "support/on_all_groups.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::nvme::test {
namespace {

using gpu4fs::test::on_all_groups;
using gpu4fs::test::scaled;

// Queues that are only counters.
class MappedQueues {
 public:
  MappedQueues(u32 queue_count, u32 slot_count, MapperPolicy policy, u32 threshold)
      : queues_(queue_count), table_(mapper_table_bytes(queue_count, slot_count) / sizeof(u32)) {
    place_mapper(mapper_, queues_.data(), queue_count, table_.data(), {slot_count, threshold, policy});
  }

  QueueMapper& mapper() { return mapper_; }
  VirtualQueue& queue(u32 index) { return queues_[index]; }
  u32 queue_count() const { return mapper_.queue_count; }

  template <class Group>
  u32 submit(Group g, u32 commands = 1) {
    const MappedQueue mapped = map_queue(g, mapper_);
    on_leader(g, [&] { add<Scope::engine>(&queues_[mapped.queue].next_ticket, commands); });
    rebalance(g, mapper_, mapped);
    return mapped.queue;
  }
  void complete(u32 index, u32 count) {
    VirtualQueue& queue = queues_[index];
    queue.completed += std::min(count, load_of(queue));
  }
  // Slots and shares say the same.
  void check_shares() {
    std::vector<u32> found(queue_count());
    for (u32 i = 0; i < mapper_.slot_count; ++i) ++found[mapper_.slots[i]];
    for (u32 i = 0; i < queue_count(); ++i) EXPECT_EQ(mapper_.shares[i], found[i]);
  }
  u32 least_share() const { return *std::min_element(mapper_.shares, mapper_.shares + mapper_.queue_count); }
  u32 greatest_share() const { return *std::max_element(mapper_.shares, mapper_.shares + mapper_.queue_count); }
  u32 greatest_load() const {
    u32 load = 0;
    for (const VirtualQueue& queue : queues_) load = std::max(load, load_of(queue));
    return load;
  }

 private:
  QueueMapper mapper_{};
  std::vector<VirtualQueue> queues_;
  std::vector<u32> table_;
};

TEST(QueueMapper, CommandsGoRoundTheSlots) {
  on_all_groups([](auto g) {
    static MappedQueues* queues;
    on_leader(g, [] { queues = new MappedQueues(6, 15, MapperPolicy::fixed, 0); });
    for (u32 i = 0; i < 45; ++i) EXPECT_EQ(queues->submit(g), i % 15 % 6);
    on_leader(g, [] {
      queues->check_shares();
      EXPECT_EQ(queues->mapper().move_count, 0u);
      delete queues;
    });
  });
}

// 24 queues of which one completes a tenth of what the others do. Returns the greatest load that was seen.
u32 run_with_a_slow_queue(MappedQueues& queues) {
  constexpr u32 slow = 7;
  std::mt19937 random(3);
  u32 greatest = 0;
  for (u32 tick = 0; tick < 3000; ++tick) {
    for (u32 i = 0; i < 180; ++i) queues.submit(Lane{});
    for (u32 i = 0; i < queues.queue_count(); ++i) queues.complete(i, i == slow ? 1 : 6 + random() % 5);
    if (tick > 500) greatest = std::max(greatest, queues.greatest_load());
  }
  queues.check_shares();
  return greatest;
}

TEST(QueueMapper, ASlowQueueGetsFewerCommands) {
  MappedQueues fixed(24, 48 * 4, MapperPolicy::fixed, 32);
  MappedQueues balanced(24, 48 * 4, MapperPolicy::two_choices, 32);
  EXPECT_GT(run_with_a_slow_queue(fixed), 10000u);
  EXPECT_LT(run_with_a_slow_queue(balanced), 4000u);
  EXPECT_EQ(balanced.mapper().shares[7], 1u);
  EXPECT_EQ(fixed.mapper().shares[7], 8u);
}

// All queues are equally fast. The loads that everybody sees are old, as they are for many lanes at once.
TEST(QueueMapper, SlotsDoNotGatherOnAFewQueues) {
  const auto run = [](MappedQueues& queues) {
    u32 greatest_share = 0;
    for (u32 round = 0; round < 400; ++round) {
      std::vector<MappedQueue> all;
      for (u32 i = 0; i < 512; ++i) all.push_back(map_queue(Lane{}, queues.mapper()));
      for (const MappedQueue& mapped : all) queues.queue(mapped.queue).next_ticket += 1;
      for (const MappedQueue& mapped : all) rebalance(Lane{}, queues.mapper(), mapped);
      for (u32 i = 0; i < queues.queue_count(); ++i) queues.complete(i, i == round / 3 % 24 ? 0 : 23);
      greatest_share = std::max(greatest_share, queues.greatest_share());
    }
    queues.check_shares();
    return greatest_share;
  };
  MappedQueues least(24, 48, MapperPolicy::least_loaded, 16);
  MappedQueues balanced(24, 48, MapperPolicy::two_choices, 16);
  // The proposal of the source gathers them.
  EXPECT_GT(run(least), 12u);
  EXPECT_LE(run(balanced), 4u);
  EXPECT_GE(balanced.least_share(), 1u);
  EXPECT_GT(balanced.mapper().move_count, 0u);
}

// Threads move slots at the same time; then each queue still has one, and the shares are right.
TEST(QueueMapper, ThreadsMoveSlots) {
  MappedQueues queues(4, 8, MapperPolicy::two_choices, 0);
  std::vector<std::thread> threads;
  const u32 count = scaled(20000);
  for (u32 i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      std::mt19937 random(i);
      for (u32 k = 0; k < count; ++k) {
        const u32 queue = queues.submit(Lane{});
        // Loads change at random.
        if (random() % 2 == 0) add<Scope::engine>(&queues.queue(queue).completed, 1u);
        if (random() % 16 == 0) subtract<Scope::engine>(&queues.queue(random() % 4).completed, 2u);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  queues.check_shares();
  EXPECT_GE(queues.least_share(), 1u);
  EXPECT_LE(queues.greatest_share(), queues.mapper().share_max);
  EXPECT_GT(queues.mapper().move_count, 0u);
}

}  // namespace
}  // namespace gpu4fs::nvme::test
