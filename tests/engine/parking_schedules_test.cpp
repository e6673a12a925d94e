// Workers that sleep and producers that wake them under every schedule of a few of them with a bounded number of
// deviations, with stores at once and with stores that are delayed. The futex is modelled: its calls of the system
// would stop all fibers.
#include "support/schedule_points.hpp"
//
#include "engine/parking.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test {
namespace {

struct Options {
  u32 producer_count = 1;
  u32 worker_count = 1;
  u32 rounds = 2;  // of each producer
  bool delay_stores = false;
};

// The run queue is a number.
struct Shared {
  engine::Parking parking;
  alignas(cache_line) u32 work;
};

class ParkingWorld {
 public:
  ParkingWorld(Options options, u32 deviation_max)
      : options_(options),
        explorer_(options.producer_count + options.worker_count, deviation_max, [this](u32 i) { run(i); }) {
    explorer_.set_spin_loads(8);
    explorer_.delay_stores(options.delay_stores);
    explorer_.watch(&shared_, sizeof(shared_));
  }

  // Empty: no schedule failed.
  std::string run_all() {
    do {
      ++schedules_;
      shared_ = {};
      done_ = sleeps_of_run_ = claims_of_run_ = 0;
      if (!explorer_.run()) return "somebody sleeps for ever, schedule " + std::to_string(schedules_);
      if (shared_.parking.word != 0) return "a sleeper or a wake-up is left, schedule " + std::to_string(schedules_);
      if (claims_of_run_ > sleeps_of_run_) return "a sleeper was woken twice, schedule " + std::to_string(schedules_);
      sleeps_ += sleeps_of_run_;
      claims_ += claims_of_run_;
    } while (explorer_.next());
    return {};
  }
  u64 schedules() const { return schedules_; }
  u64 sleeps() const { return sleeps_; }
  u64 claims() const { return claims_; }
  u64 waits() const { return waits_; }

 private:
  void run(u32 fiber) {
    if (fiber < options_.producer_count) {
      for (u32 i = 0; i < options_.rounds; ++i) produce();
    } else {
      work();
    }
  }

  // As wake_workers().
  void produce() {
    fetch_add<Order::release, Scope::engine>(&shared_.work, 1u);
    fence<Order::seq_cst, Scope::engine>();
    claims_of_run_ += engine::claim_sleepers(shared_.parking, 1);
    explorer_.note_change();
  }

  bool take_work() {
    u32 seen = load<Order::relaxed, Scope::engine>(&shared_.work);
    while (seen != 0) {
      if (!compare_exchange<Order::acq_rel, Scope::engine>(&shared_.work, seen, seen - 1)) continue;
      ++done_;
      explorer_.note_change();
      return true;
    }
    return false;
  }
  bool is_over() const { return done_ == options_.producer_count * options_.rounds; }

  // As CpuEngine::work().
  void work() {
    engine::Parking& parking = shared_.parking;
    while (!is_over()) {
      if (take_work()) continue;
      engine::begin_sleep(parking);
      ++sleeps_of_run_;
      const bool has_work = take_work() || is_over();
      if (!has_work) ++waits_;
      while (!has_work && *engine::futex_word(parking) == 0 && !is_over()) explorer_.wait();
      if (has_work || !engine::take_wake_up(parking)) engine::end_sleep(parking);
      explorer_.note_change();
    }
  }

  Options options_;
  ScheduleExplorer explorer_;
  Shared shared_{};
  u32 done_ = 0;
  u64 sleeps_of_run_ = 0;
  u64 claims_of_run_ = 0;
  u64 schedules_ = 0;
  u64 sleeps_ = 0;
  u64 claims_ = 0;
  u64 waits_ = 0;
};

void expect_progress(Options options, u32 deviation_max) {
  if (GPU4FS_TSAN != 0) GTEST_SKIP() << "the fibers share the explorer's state";
  for (const bool delays : {false, true}) {
    options.delay_stores = delays;
    ParkingWorld world(options, deviation_max);
    EXPECT_EQ(world.run_all(), "") << (delays ? "delayed stores" : "stores at once");
    EXPECT_GT(world.schedules(), 100u);
    EXPECT_GT(world.waits(), 0u);
    EXPECT_GT(world.claims(), 0u);
    EXPECT_GT(world.sleeps(), world.claims()) << "some ended by themselves";
  }
}

u32 deviations() {
  return is_short() ? 3 : 4;
}

TEST(ParkingSchedules, AProducerWakesAWorker) {
  expect_progress({.rounds = 3}, deviations());
}

TEST(ParkingSchedules, ProducersShareAWorker) {
  expect_progress({.producer_count = 2}, deviations() - 1);
}

TEST(ParkingSchedules, WorkersShareTheWork) {
  expect_progress({.producer_count = 2, .worker_count = 2}, deviations() - 1);
}

}  // namespace
}  // namespace gpu4fs::test
