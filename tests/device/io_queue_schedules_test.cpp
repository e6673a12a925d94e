// Doorbells and completions of the I/O queue under every schedule of a few producers and consumers with a bounded
// number of deviations, with stores at once and with stores that are delayed. Eventfds and futexes are modelled: their
// calls of the system would stop all fibers.
#include "support/schedule_points.hpp"
//
#include <algorithm>

#include "device/io_queue_memory.hpp"
#include "device/queue/io_wait.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test {
namespace {

struct Options {
  u32 producer_count = 1;
  u32 consumer_count = 1;
  u32 rounds = 1;  // of each producer
  u32 batch = 1;   // requests that are rung together
  bool delay_stores = false;
  bool wakes_others = true;  // a consumer that leaves requests in the queue wakes another one
};

constexpr u32 consumer_max = 2;

class QueueWorld {
 public:
  QueueWorld(Options options, u32 deviation_max)
      : options_(options),
        explorer_(options.producer_count + options.consumer_count, deviation_max, [this](u32 i) { work(i); }),
        memory_(8) {
    explorer_.set_spin_loads(8);
    explorer_.delay_stores(options.delay_stores);
    explorer_.watch(&memory_.shared(), device::io_queue_shared_bytes(8));
    total_ = options.producer_count * options.rounds * options.batch;
  }

  // Empty: no schedule failed.
  std::string run_all() {
    do {
      ++schedules_;
      completed_ = 0;
      for (bool& has_rung : has_rung_) has_rung = false;
      memory_.shared().sleeping = 0;
      if (!explorer_.run()) return "somebody sleeps for ever, schedule " + std::to_string(schedules_);
      if (completed_ != total_) return "a request was lost or taken twice";
    } while (explorer_.next());
    return {};
  }
  u64 schedules() const { return schedules_; }
  u64 sleeps() const { return sleeps_; }
  u64 waits() const { return waits_; }

 private:
  template <class Condition>
  void wait_until(Condition&& condition) {
    while (!condition()) explorer_.wait();
  }

  void work(u32 fiber) {
    if (fiber < options_.producer_count) {
      for (u32 i = 0; i < options_.rounds; ++i) produce();
    } else {
      consume(fiber - options_.producer_count);
    }
  }

  // wake_consumer() with a modelled eventfd.
  void wake() {
    const u32 consumer = device::detail::claim_sleeper(memory_.shared());
    if (consumer == device::io_consumer_max) return;
    has_rung_[consumer] = true;
    explorer_.note_change();
  }

  void produce() {
    std::vector<u32> slots;
    for (u32 i = 0; i < options_.batch; ++i) slots.push_back(memory_.submit_read(i));
    wake();
    for (const u32 slot : slots) {
      for (;;) {
        const u32 seen = device::completion_count(memory_.queue());
        if (!device::poll(memory_.queue(), slot).is_pending) break;
        sleep_on_count(seen);
      }
      device::release(memory_.queue(), slot);
    }
  }

  // wait_for_any_completion() with a modelled futex.
  void sleep_on_count(u32 seen) {
    device::IoQueueShared& shared = memory_.shared();
    const u32 expected = device::detail::begin_wait(shared, seen);
    explorer_.point();
    if (__atomic_load_n(&shared.completion_count, __ATOMIC_SEQ_CST) == expected) {
      ++waits_;
      const u64 before = futex_wakes_;
      wait_until([&] { return futex_wakes_ != before; });
    }
    device::detail::end_wait(shared);
  }

  void consume(u32 consumer) {
    device::IoQueueShared& shared = memory_.shared();
    for (u32 slot = 0; completed_ != total_;) {
      while (device::take(shared, &slot)) {
        if (options_.wakes_others && !device::looks_empty(shared)) wake();
        finish(slot);
      }
      if (completed_ == total_ || !device::may_sleep(shared, consumer)) continue;
      ++sleeps_;
      wait_until([&] { return has_rung_[consumer] || completed_ == total_; });
      device::end_sleep(shared, consumer);
      has_rung_[consumer] = false;
    }
  }

  void finish(u32 slot) {
    device::complete(memory_.shared(), slot, Status::ok);
    const bool wakes = device::detail::count_completions(memory_.shared());
    explorer_.point();
    ++completed_;
    if (wakes) ++futex_wakes_;
    explorer_.note_change();
  }

  Options options_;
  ScheduleExplorer explorer_;
  IoQueueMemory memory_;
  bool has_rung_[consumer_max] = {};
  u32 total_ = 0;
  u32 completed_ = 0;
  u64 futex_wakes_ = 0;
  u64 schedules_ = 0;
  u64 sleeps_ = 0;
  u64 waits_ = 0;
};

void expect_progress(Options options, u32 deviation_max) {
  if (GPU4FS_TSAN != 0) GTEST_SKIP() << "the fibers share the explorer's state";
  for (const bool delays : {false, true}) {
    options.delay_stores = delays;
    QueueWorld world(options, deviation_max);
    EXPECT_EQ(world.run_all(), "") << (delays ? "delayed stores" : "stores at once");
    EXPECT_GT(world.schedules(), 100u);
    // What could lose a wake-up has happened.
    EXPECT_GT(world.sleeps(), 0u);
    EXPECT_GT(world.waits(), 0u);
  }
}

u32 deviations() {
  return is_short() ? 3 : 4;
}

TEST(IoQueueSchedules, OneProducerWakesOneConsumer) {
  expect_progress({.rounds = 2}, deviations());
}

TEST(IoQueueSchedules, SeveralRequestsNeedOneRing) {
  expect_progress({.batch = 2}, deviations());
}

TEST(IoQueueSchedules, ProducersShareAConsumer) {
  expect_progress({.producer_count = 2}, deviations() - 1);
}

TEST(IoQueueSchedules, ConsumersShareTheQueue) {
  expect_progress({.producer_count = 2, .consumer_count = 2}, deviations() - 1);
}

// Whoever needs a line that is on its way looks at the slot of its request, which may get another request meanwhile
// (device/staged/detached_io.hpp).
TEST(IoQueueSchedules, OthersLookAtSlotsThatAreUsedAgain) {
  if (GPU4FS_TSAN != 0) GTEST_SKIP() << "the fibers share the explorer's state";
  IoQueueMemory memory(8);
  memory.keep_slots(1);
  u32 slot = 0;
  u64 seen[2] = {};
  const auto use = [&] {
    slot = memory.submit_read(0);
    u32 taken = 0;
    EXPECT_TRUE(device::take(memory.shared(), &taken));
    device::complete(memory.shared(), taken, Status::ok);
    device::release(memory.queue(), slot);
  };
  use();
  const u32 watched = slot;
  ScheduleExplorer explorer(2, deviations(), [&](u32 fiber) {
    for (u32 i = 0; i < 3; ++i) {
      if (fiber == 0) {
        use();
        EXPECT_EQ(slot, watched);
      } else {
        const device::IoProgress progress = device::poll(memory.queue(), watched);
        ++seen[progress.is_pending ? 1 : 0];
        EXPECT_EQ(progress.status, Status::ok);
      }
    }
  });
  explorer.set_spin_loads(16);  // looks at the same place, and does not wait for it
  explorer.watch(&memory.shared(), device::io_queue_shared_bytes(8));
  do {
    ASSERT_TRUE(explorer.run());
  } while (explorer.next());
  EXPECT_GT(seen[0], 0u);
  EXPECT_GT(seen[1], 0u);
}

TEST(IoQueueSchedules, ProducersNeverShareASlot) {
  if (GPU4FS_TSAN != 0) GTEST_SKIP() << "the fibers share the explorer's state";
  IoQueueMemory memory(8);
  memory.keep_slots(2);
  bool is_taken[8] = {};
  u64 refusals = 0;
  u64 uses = 0;
  ScheduleExplorer explorer(3, deviations() - 1, [&](u32) {
    for (u32 i = 0; i < 2; ++i) {
      const u32 slot = device::take_slots(Lane{}, memory.queue(), true);
      if (slot == device::no_io_slot) {
        ++refusals;
        continue;
      }
      ++uses;
      EXPECT_FALSE(is_taken[slot]);
      is_taken[slot] = true;
      explorer.point();
      is_taken[slot] = false;
      device::complete(memory.shared(), slot, Status::ok);
      device::release(memory.queue(), slot);
    }
  });
  explorer.set_spin_loads(32);  // a refused producer looks again, and does not wait
  // Both, and what happens to lie between them.
  const u8* const queue = reinterpret_cast<const u8*>(&memory.queue());
  const u8* const cells = reinterpret_cast<const u8*>(memory.queue().free_cells);
  const u8* const begin = std::min(queue, cells);
  explorer.watch(begin, static_cast<u64>(std::max(queue + sizeof(device::IoQueue), cells + 8 * sizeof(u64)) - begin));
  do {
    ASSERT_TRUE(explorer.run());
    ASSERT_EQ(memory.free_count(), 2u);
  } while (explorer.next());
  EXPECT_GT(refusals, 0u) << "three producers and two slots";
  EXPECT_GT(uses, refusals);
}

}  // namespace
}  // namespace gpu4fs::test
