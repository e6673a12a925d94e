// Slots of the I/O queue that a group takes and publishes together: nobody else has them, and requests keep their
// order. See io_queue_schedules_test.cpp for producers under all schedules.
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "base/emulated_warp.hpp"
#include "device/io_queue_memory.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test {
namespace {

// Ranks that want a slot, one bit each, and what they got.
std::vector<u32> take_by_warp(device::IoQueue& queue, u32 wanting) {
  std::vector<u32> slots(warp_size, device::no_io_slot);
  run_emulated_warp(
      [&](EmulatedWarp g) { slots[g.rank()] = device::take_slots(g, queue, (wanting >> g.rank() & 1) != 0); });
  return slots;
}

TEST(IoSlots, RanksThatWantOneGetTheirOwn) {
  IoQueueMemory memory(64);
  const u32 wanting = 0xf00f5a01u;
  const std::vector<u32> slots = take_by_warp(memory.queue(), wanting);
  std::set<u32> distinct;
  for (u32 rank = 0; rank < warp_size; ++rank) {
    if ((wanting >> rank & 1) == 0) {
      EXPECT_EQ(slots[rank], device::no_io_slot) << rank;
      continue;
    }
    ASSERT_LT(slots[rank], 64u) << rank;
    EXPECT_TRUE(distinct.insert(slots[rank]).second) << rank;
    EXPECT_TRUE(device::poll(memory.queue(), slots[rank]).is_pending);
  }
  EXPECT_EQ(memory.free_count(), 64u - popcount(wanting));
}

TEST(IoSlots, TheFirstRanksGetWhatIsLeft) {
  IoQueueMemory memory(8);
  memory.keep_slots(3);
  const std::vector<u32> slots = take_by_warp(memory.queue(), 0xaaaaaaaau);
  for (u32 rank = 0; rank < warp_size; ++rank) {
    EXPECT_EQ(slots[rank] != device::no_io_slot, rank == 1 || rank == 3 || rank == 5) << rank;
  }
  EXPECT_EQ(device::take_slots(Lane{}, memory.queue(), true), device::no_io_slot);
  device::complete(memory.shared(), slots[3], Status::ok);
  device::release(memory.queue(), slots[3]);
  EXPECT_EQ(device::take_slots(Lane{}, memory.queue(), false), device::no_io_slot);
  EXPECT_EQ(device::take_slots(Lane{}, memory.queue(), true), slots[3]);
}

TEST(IoSlots, RequestsOfAGroupArePublishedInTheOrderOfTheRanks) {
  IoQueueMemory memory(64);
  u32 before = 0;
  ASSERT_NE(before = memory.submit_read(1000), device::no_io_slot);
  run_emulated_warp([&](EmulatedWarp g) {
    const bool wants = g.rank() % 3 == 1;
    const u32 slot = device::take_slots(g, memory.queue(), wants);
    if (wants) device::set_request(memory.queue(), slot, memory.read_of(g.rank()));
    EXPECT_EQ(device::publish_slots(g, memory.queue(), slot), 11u);
    EXPECT_EQ(device::publish_slots(g, memory.queue(), device::no_io_slot), 0u);
  });
  u32 slot = 0;
  EXPECT_EQ(memory.take_page(&slot), 1000u);
  for (u32 rank = 1; rank < warp_size; rank += 3) EXPECT_EQ(memory.take_page(&slot), rank);
  EXPECT_EQ(memory.take_page(&slot), ~u64{0});
}

// More rounds than there are positions in the cells, and as many requests as slots.
TEST(IoSlots, WarpsShareFewSlots) {
  IoQueueMemory memory(16);
  constexpr u32 none = ~u32{0};
  std::vector<u32> owners(16, none);
  u64 violations = 0;
  u64 taken = 0;
  run_emulated_warps(2, [&](EmulatedWarp g, u32 warp) {
    for (u32 round = 0; round < scaled(200); ++round) {
      const u32 slot = device::take_slots(g, memory.queue(), (g.rank() + round) % 5 == 0);
      if (slot == device::no_io_slot) continue;
      add<Scope::engine>(&taken, u64{1});
      if (exchange<Order::acq_rel, Scope::engine>(&owners[slot], warp * warp_size + g.rank()) != none) {
        add<Scope::engine>(&violations, u64{1});
      }
      store<Order::release, Scope::engine>(&owners[slot], none);
      device::complete(memory.shared(), slot, Status::ok);
      device::release(memory.queue(), slot);
    }
  });
  EXPECT_EQ(violations, 0u);
  EXPECT_GT(taken, 0u);
  EXPECT_EQ(memory.free_count(), 16u);
}

}  // namespace
}  // namespace gpu4fs::test
