// The I/O queue with threads: order, room, completion, sleeping.
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "device/io_queue_memory.hpp"
#include "device/queue/io_wait.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test {
namespace {

using device::IoOperation;
using device::IoQueue;
using device::IoQueueShared;

TEST(IoQueue, RequestsArriveInOrderWithTheirContent) {
  IoQueueMemory memory(8);
  u32 slot = 0;
  EXPECT_EQ(memory.take_page(&slot), ~u64{0});
  EXPECT_TRUE(device::looks_empty(memory.shared()));
  const u32 first = memory.submit_read(7);
  const u32 second = device::submit(memory.queue(), {IoOperation::flush, 3, 0, 0, 0, nullptr});
  EXPECT_FALSE(device::looks_empty(memory.shared()));
  EXPECT_EQ(memory.take_page(&slot), 7u);
  EXPECT_EQ(slot, first);
  ASSERT_TRUE(device::take(memory.shared(), &slot));
  EXPECT_EQ(slot, second);
  EXPECT_EQ(device::request_of(memory.shared(), slot).operation, IoOperation::flush);
  EXPECT_EQ(device::request_of(memory.shared(), slot).device, 3u);
  EXPECT_TRUE(device::looks_empty(memory.shared()));
}

TEST(IoQueue, FullQueueRefusesUntilASlotIsReleased) {
  IoQueueMemory memory(8);
  for (u32 i = 0; i < 8; ++i) ASSERT_NE(memory.submit_read(i), device::no_io_slot);
  EXPECT_EQ(memory.submit_read(8), device::no_io_slot);
  u32 slot = 0;
  ASSERT_EQ(memory.take_page(&slot), 0u);
  EXPECT_EQ(memory.submit_read(8), device::no_io_slot) << "taken, but not completed";
  device::complete(memory.shared(), slot, Status::ok);
  EXPECT_EQ(memory.submit_read(8), device::no_io_slot) << "completed, but not released";
  device::release(memory.queue(), slot);
  EXPECT_EQ(memory.submit_read(8), slot);
  for (u32 i = 1; i <= 8; ++i) EXPECT_EQ(memory.take_page(&slot), i);
}

TEST(IoQueue, CompletionsComeInAnyOrderWithTheirStatus) {
  IoQueueMemory memory(8);
  std::vector<u32> slots;
  for (u32 i = 0; i < 4; ++i) slots.push_back(memory.submit_read(i));
  u32 slot = 0;
  while (memory.take_page(&slot) != ~u64{0}) EXPECT_TRUE(device::poll(memory.queue(), slot).is_pending);
  device::complete(memory.shared(), slots[2], Status::medium_error);
  device::complete(memory.shared(), slots[0], Status::ok);
  EXPECT_FALSE(device::poll(memory.queue(), slots[2]).is_pending);
  EXPECT_EQ(device::poll(memory.queue(), slots[2]).status, Status::medium_error);
  EXPECT_EQ(device::poll(memory.queue(), slots[0]).status, Status::ok);
  EXPECT_TRUE(device::poll(memory.queue(), slots[1]).is_pending);
  EXPECT_TRUE(device::poll(memory.queue(), slots[3]).is_pending);
  // A released slot is used again after the others, and is pending then.
  device::release(memory.queue(), slots[2]);
  for (u32 i = 4; i < 8; ++i) EXPECT_NE(memory.submit_read(i), slots[2]);
  EXPECT_EQ(memory.submit_read(9), slots[2]);
  EXPECT_TRUE(device::poll(memory.queue(), slots[2]).is_pending);
}

TEST(IoQueue, PendingRequestsOfADeviceAreKnown) {
  IoQueueMemory memory(8);
  EXPECT_FALSE(device::may_be_pending(memory.shared(), 0)) << "slots that were never used";
  const u32 first = memory.submit_read(1);
  const u32 second = device::submit(memory.queue(), {IoOperation::flush, 5, 0, 0, 0, nullptr});
  u32 slot = 0;
  while (device::take(memory.shared(), &slot)) {
  }
  EXPECT_TRUE(device::may_be_pending(memory.shared(), 0));
  EXPECT_TRUE(device::may_be_pending(memory.shared(), 5));
  EXPECT_FALSE(device::may_be_pending(memory.shared(), 4));
  device::complete(memory.shared(), first, Status::ok);
  EXPECT_FALSE(device::may_be_pending(memory.shared(), 0));
  device::release(memory.queue(), first);
  EXPECT_FALSE(device::may_be_pending(memory.shared(), 0));
  device::complete(memory.shared(), second, Status::io_error);
  EXPECT_FALSE(device::may_be_pending(memory.shared(), 5));
}

// Positions are stored with 32 bits.
TEST(IoQueue, PositionsWrapAround) {
  IoQueueMemory memory(8);
  const u64 start = (u64{1} << 32) - 20;
  memory.queue().tail = start;
  memory.shared().head = start;
  u64 next_out = 0;
  u32 slot = 0;
  for (u64 page = 0; page < 60;) {
    for (u64 i = 0; i < page % 8 + 1; ++i) ASSERT_NE(memory.submit_read(page++), device::no_io_slot);
    for (u64 taken = memory.take_page(&slot); taken != ~u64{0}; taken = memory.take_page(&slot)) {
      ASSERT_EQ(taken, next_out++);
      device::complete(memory.shared(), slot, Status::ok);
      device::release(memory.queue(), slot);
    }
    ASSERT_EQ(next_out, page);
  }
  EXPECT_GT(memory.shared().head, u64{1} << 32);
}

TEST(IoQueueDeathTest, MalformedRequestsAreMistakesOfTheCaller) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  IoQueueMemory memory(8);
  device::IoRequest request = memory.read_of(1);
  request.offset += 512;
  EXPECT_DEATH(device::submit(memory.queue(), request), "check failed");
  request = memory.read_of(1);
  request.length = 0;
  EXPECT_DEATH(device::submit(memory.queue(), request), "check failed");
  request = memory.read_of(1);
  request.memory = nullptr;
  EXPECT_DEATH(device::submit(memory.queue(), request), "check failed");
  const u32 slot = memory.submit_read(1);
  EXPECT_DEATH(device::release(memory.queue(), slot), "check failed");
}

TEST(IoQueue, NoWakeUpIsKeptForAConsumerThatIsAwake) {
  IoQueueMemory memory(8);
  const int doorbell = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  memory.shared().doorbells[3] = doorbell;
  u64 count = 0;
  device::wake_consumer(memory.shared(), 3);
  EXPECT_LT(::read(doorbell, &count, sizeof(count)), 0) << "it would find its next sleep short";
  ASSERT_TRUE(device::may_sleep(memory.shared(), 3));
  device::wake_consumer(memory.shared(), 2);
  device::wake_consumer(memory.shared(), 3);
  device::wake_consumer(memory.shared(), 3);
  ASSERT_EQ(::read(doorbell, &count, sizeof(count)), static_cast<ssize_t>(sizeof(count)));
  EXPECT_EQ(count, 1u) << "once for each sleep";
  ::close(doorbell);
}

// Threads that sleep on their doorbells, and store a pattern into the memory of each read.
class Consumers {
 public:
  Consumers(IoQueueShared& shared, u32 count) : shared_(shared) {
    for (u32 i = 0; i < count; ++i) shared.doorbells[i] = ::eventfd(0, EFD_CLOEXEC);
    for (u32 i = 0; i < count; ++i) threads_.emplace_back([this, i] { run(i); });
  }
  ~Consumers() {
    is_stopping_ = true;
    for (u32 i = 0; i < threads_.size(); ++i) device::write_doorbell(shared_, i);
    for (std::thread& thread : threads_) thread.join();
    for (u32 i = 0; i < threads_.size(); ++i) ::close(shared_.doorbells[i]);
  }
  u64 sleeps() const { return sleeps_; }
  u64 looks() const { return looks_; }

 private:
  void run(u32 number) {
    std::mt19937_64 random(number);
    std::vector<u32> held;
    while (!is_stopping_) {
      ++looks_;
      u32 slot = 0;
      while (held.size() < 16 && device::take(shared_, &slot)) held.push_back(slot);
      if (!device::looks_empty(shared_)) device::wake_consumer(shared_);
      std::shuffle(held.begin(), held.end(), random);
      for (const u32 taken : held) {
        const device::IoRequest& request = device::request_of(shared_, taken);
        *static_cast<u64*>(request.memory) = request.offset + 1;
        device::complete(shared_, taken, request.offset % (3 * page_size) == 0 ? Status::medium_error : Status::ok);
      }
      if (!held.empty()) device::announce_completions(shared_);
      const bool had_work = !held.empty();
      held.clear();
      if (had_work || !device::may_sleep(shared_, number)) continue;
      ++sleeps_;
      u64 value = 0;
      EXPECT_EQ(::read(shared_.doorbells[number], &value, sizeof(value)), ssize_t{sizeof(value)});
      device::end_sleep(shared_, number);
    }
  }

  IoQueueShared& shared_;
  std::atomic<bool> is_stopping_{false};
  std::atomic<u64> sleeps_{0};
  std::atomic<u64> looks_{0};
  std::vector<std::thread> threads_;
};

// One producer with its own pages: submits a random number of requests, rings once, waits for each in any order.
void produce(IoQueue& queue, u32 number, u32 rounds, std::atomic<u64>& violations) {
  constexpr u32 batch_max = 12;
  HeapAllocator allocator;
  u8* const pages = static_cast<u8*>(allocator.allocate(batch_max * page_size, page_size));
  std::mt19937_64 random(number);
  for (u32 round = 0; round < rounds; ++round) {
    const u32 count = 1 + static_cast<u32>(random() % batch_max);
    std::vector<std::pair<u32, u64>> slots;
    for (u32 i = 0; i < count; ++i) {
      const u64 offset = random() % 1000 * page_size;
      u8* const page = pages + i * page_size;
      *reinterpret_cast<u64*>(page) = 0;
      const u32 slot = device::submit(queue, {IoOperation::read, number, offset, u32{page_size}, 0, page});
      if (slot == device::no_io_slot) break;
      slots.emplace_back(slot, offset);
    }
    device::ring(queue);
    for (u64 i = 0; i < slots.size(); ++i) {
      const auto [slot, offset] = slots[i];
      const Status status = device::wait_for(queue, slot);
      if ((status == Status::medium_error) != (offset % (3 * page_size) == 0)) ++violations;
      if (*reinterpret_cast<u64*>(pages + i * page_size) != offset + 1) ++violations;
    }
  }
}

TEST(IoQueue, ProducersAndConsumersLoseNothing) {
  for (const u32 consumer_count : {1u, 3u}) {
    IoQueueMemory memory(16);
    Consumers consumers(memory.shared(), consumer_count);
    std::atomic<u64> violations{0};
    std::vector<std::thread> producers;
    for (u32 i = 0; i < 4; ++i) {
      producers.emplace_back([&, i] { produce(memory.queue(), i, scaled(4000), violations); });
    }
    for (std::thread& thread : producers) thread.join();
    EXPECT_EQ(violations.load(), 0u);
    EXPECT_EQ(memory.free_count(), 16u);
    EXPECT_GT(consumers.sleeps(), 0u);
  }
}

// Every request finds the consumer asleep or about to sleep.
TEST(IoQueue, SingleRequestsAlwaysWake) {
  IoQueueMemory memory(8);
  Consumers consumers(memory.shared(), 1);
  std::atomic<u64> violations{0};
  for (u32 i = 0; i < scaled(20000); ++i) {
    const u32 slot = memory.submit_read(1);
    device::ring(memory.queue());
    if (device::wait_for(memory.queue(), slot) != Status::ok) ++violations;
  }
  EXPECT_EQ(violations.load(), 0u);
}

TEST(IoQueue, ConsumersStayAwakeForProducersThatCannotWake) {
  IoQueueMemory memory(8, false);
  device::set_must_poll(memory.shared(), true);
  EXPECT_FALSE(device::may_sleep(memory.shared(), 0));
  EXPECT_EQ(memory.shared().sleeping, 0u);
  Consumers consumers(memory.shared(), 2);
  for (u32 i = 0; i < 100; ++i) {
    const u32 slot = memory.submit_read(1);
    device::ring(memory.queue());
    EXPECT_EQ(device::wait_for(memory.queue(), slot), Status::ok);
  }
  EXPECT_EQ(consumers.sleeps(), 0u);
  device::set_must_poll(memory.shared(), false);
  while (consumers.sleeps() < 2) std::this_thread::yield();
  // They wake when it begins again.
  const u64 looks = consumers.looks();
  device::set_must_poll(memory.shared(), true);
  while (consumers.looks() < looks + 1000) std::this_thread::yield();
  const u64 sleeps = consumers.sleeps();
  while (consumers.looks() < looks + 2000) std::this_thread::yield();
  EXPECT_EQ(consumers.sleeps(), sleeps);
}

}  // namespace
}  // namespace gpu4fs::test
