// Batches that are timed side by side: who runs how often, in which order, and what happens to failures.
#include "bench/side_by_side.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

namespace gpu4fs::bench {
namespace {

struct Shared {
  std::atomic<u32> running{0};
  std::atomic<bool> overlapped{false};  // someone prepared or checked while another one ran
};

class Worker {
 public:
  Worker(Shared& shared, u32 fails_in) : shared_(shared), fails_in_(fails_in) {}
  void prepare_batch() { note_overlap(); }
  void run_batch() {
    ++shared_.running;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    ++rounds;
    const bool fails = rounds == fails_in_;
    --shared_.running;
    if (fails) throw std::runtime_error("wrong content");
  }
  void check_batch() { note_overlap(); }

  u32 rounds = 0;

 private:
  void note_overlap() {
    if (shared_.running != 0) shared_.overlapped = true;
  }
  Shared& shared_;
  u32 fails_in_;
};

std::vector<std::unique_ptr<Worker>> make_workers(Shared& shared, u32 count, u32 fails_in) {
  std::vector<std::unique_ptr<Worker>> workers;
  for (u32 i = 0; i < count; ++i) workers.push_back(std::make_unique<Worker>(shared, i == 1 ? fails_in : 0));
  return workers;
}

TEST(TimeBatchesTest, ClockCoversTheRunAndNothingElse) {
  Shared shared;
  auto workers = make_workers(shared, 3, 0);
  const std::vector<double> seconds = time_batches(workers, 4);
  ASSERT_EQ(seconds.size(), 4u);
  for (const double one : seconds) EXPECT_GE(one, 0.002);
  for (const auto& worker : workers) EXPECT_EQ(worker->rounds, 5u);
  EXPECT_FALSE(shared.overlapped);
}

TEST(TimeBatchesTest, FailureOfOneWorkerIsThrown) {
  Shared shared;
  auto workers = make_workers(shared, 3, 2);
  EXPECT_THROW(time_batches(workers, 4), std::runtime_error);
  EXPECT_EQ(workers[1]->rounds, 2u);
}

}  // namespace
}  // namespace gpu4fs::bench
