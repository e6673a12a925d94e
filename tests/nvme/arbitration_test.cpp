// Priorities of queues: in which order a controller with weighted round robin takes commands, and what happens without.
#include <gtest/gtest.h>

#include <mutex>
#include <vector>

#include "device/nvme/submit.hpp"
#include "nvme/emulated_drive.hpp"

namespace gpu4fs::nvme::test {
namespace {

// Five commands of each queue, which all wait when the controller begins. Returns the queues in the order in which it
// took the commands.
std::vector<u32> order_of(bool has_weights, const std::vector<QueuePriority>& priorities) {
  constexpr u32 commands = 5;
  std::mutex mutex;
  std::vector<u32> order;
  DriveOptions options;
  options.emulated.namespaces = {{1, medium_of(1 << 20, 512, false)}};
  options.emulated.has_weighted_arbitration = has_weights;
  options.emulated.inject = [&](const SubmissionEntry& entry) {
    const std::lock_guard<std::mutex> guard(mutex);
    order.push_back(entry.dword10);
    return StatusCode::success;
  };
  options.controller.queue_count = static_cast<u32>(priorities.size());
  options.controller.priorities = priorities;
  options.controller.weights[0] = 3;
  options.controller.weights[1] = 2;
  options.controller.weights[2] = 1;
  EmulatedDrive drive(options);
  EXPECT_EQ(drive.controller().is_weighted(), has_weights);
  const DmaBlock data = drive.bus().allocate(page_size);
  drive.emulated().stop_dma();
  // Names its queue by its block.
  for (u32 queue = 0; queue < priorities.size(); ++queue) {
    SubmissionEntry entry{};
    entry.opcode = static_cast<u8>(IoOpcode::read);
    entry.namespace_id = 1;
    entry.dword10 = queue;
    entry.data.prp.first = data.bus_address;
    for (u32 i = 0; i < commands; ++i) {
      EXPECT_EQ(try_submit(Lane{}, drive.controller().queue(queue), {entry, i}), SubmitResult::submitted);
    }
  }
  drive.emulated().allow_dma();
  u32 done = 0;
  while (done < commands * priorities.size()) {
    for (u32 queue = 0; queue < priorities.size(); ++queue) {
      done +=
          poll(Lane{}, drive.controller().queue(queue), [](const Outcome& outcome) { EXPECT_EQ(outcome.status, 0u); });
    }
    backoff(1000);
  }
  EXPECT_EQ(drive.emulated().complaint(), "");
  return order;
}

TEST(Arbitration, UrgentQueuesFirstAndTheOthersByWeight) {
  const std::vector<QueuePriority> priorities = {QueuePriority::low, QueuePriority::high, QueuePriority::urgent};
  EXPECT_EQ(order_of(true, priorities), (std::vector<u32>{2, 2, 2, 2, 2, 1, 1, 1, 0, 1, 1, 0, 0, 0, 0}));
}

TEST(Arbitration, QueuesOfOnePriorityTakeTurns) {
  const std::vector<u32> order = order_of(true, {QueuePriority::medium, QueuePriority::medium, QueuePriority::low});
  // Two of the first two queues, one each, and then one of the third.
  for (u32 i = 0; i < 15; i += 3) {
    EXPECT_EQ(order[i] + order[i + 1], 1u) << i;
    EXPECT_EQ(order[i + 2], 2u) << i;
  }
}

TEST(Arbitration, WithoutWeightsQueuesTakeTurns) {
  const std::vector<QueuePriority> priorities = {QueuePriority::low, QueuePriority::high, QueuePriority::urgent};
  const std::vector<u32> order = order_of(false, priorities);
  for (u32 i = 0; i < 15; ++i) EXPECT_EQ(order[i], i % 3) << i;
}

}  // namespace
}  // namespace gpu4fs::nvme::test
