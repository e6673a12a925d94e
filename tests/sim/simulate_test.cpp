// The CPU engine in a simulation: each seed is one world of workers, clients, devices, time and accidents
// (sim_run.hpp).
//
// Environment:
//   GPU4FS_SIM_SEED     the first seed, default 1; a failure prints its own
//   GPU4FS_SIM_COUNT    number of seeds, default 300
//   GPU4FS_TEST_SCALE   percent of them (cmake/tests.cmake)
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <mutex>
#include <thread>

#include "sim/sim_run.hpp"
#include "support/test_scale.hpp"

// The engine's clock is that of the world that the thread simulates. Other tests of the program read the time a million
// times, for which the library's function needs no system call.
extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const gpu4fs::test::SimWorld* world = gpu4fs::test::world_of_clock;
  if (world == nullptr) {
    static const auto real = reinterpret_cast<int (*)(clockid_t, timespec*)>(::dlsym(RTLD_NEXT, "clock_gettime"));
    return real(clock, time);
  }
  time->tv_sec = static_cast<time_t>(world->now_ns() / 1'000'000'000);
  time->tv_nsec = static_cast<long>(world->now_ns() % 1'000'000'000);
  return 0;
}

namespace gpu4fs::test::simulate_test {
namespace {

SimOutcome simulate(u64 seed, SimFlaw flaw = SimFlaw::none) {
  const auto place = static_cast<CrashPlace>(seed / 10 % crash_place_count);
  const CrashBase& base = base_of(place);
  const auto& entries = base.model.nodes.at(PosixModel::root).entries;
  const u64 filler = place == CrashPlace::nearly_full ? entries.at("big") : 0;
  return SimRun(seed, base, filler, flaw).run();
}

class Simulation : public ::testing::Test {
 protected:
  void SetUp() override {
    (void)base_of(CrashPlace::one_device);
    previous_ = set_check_handler([](const CheckFailure& failure) {
      std::fprintf(stderr, "GPU4FS_SIM_SEED=%llu\n%s:%d: check %s fails (%llu, %llu)\n",
                   static_cast<unsigned long long>(world_of_clock == nullptr ? 0 : world_of_clock->seed()),
                   failure.file, static_cast<int>(failure.line), failure.expression,
                   static_cast<unsigned long long>(failure.left), static_cast<unsigned long long>(failure.right));
      std::abort();
    });
  }
  void TearDown() override { set_check_handler(previous_); }

  CheckHandler previous_ = nullptr;
};

TEST_F(Simulation, SeedsEndWell) {
  const u64 first = number_from("GPU4FS_SIM_SEED", 1);
  const bool is_repeated = std::getenv("GPU4FS_SIM_SEED") != nullptr;
  const u64 count = number_from("GPU4FS_SIM_COUNT", is_repeated ? 1 : scaled(300));
  std::atomic<u64> next{0};
  std::mutex mutex;
  SimOutcome sum;
  u64 failures = 0;
  const auto work = [&] {
    for (u64 i = next++; i < count; i = next++) {
      const SimOutcome outcome = simulate(first + i);
      const std::lock_guard guard(mutex);
      sum.operations += outcome.operations;
      sum.quiet_points += outcome.quiet_points;
      sum.power_failures += outcome.power_failures;
      sum.replayed += outcome.replayed;
      sum.faults += outcome.faults;
      sum.timeouts += outcome.timeouts;
      sum.refusals += outcome.refusals;
      sum.given_back += outcome.given_back;
      if (outcome.problem.empty()) continue;
      ADD_FAILURE() << "GPU4FS_SIM_SEED=" << first + i << "\n"
                    << outcome.problem << "\nwhat happened last:\n"
                    << outcome.tail;
      if (++failures >= 5) next = count;
    }
  };
  std::vector<std::thread> threads;
  const u32 thread_count = std::clamp(std::thread::hardware_concurrency(), 1u, 8u);
  for (u32 i = 0; i < thread_count; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  const auto number = [](u64 value) { return static_cast<unsigned long long>(value); };
  std::printf(
      "%llu seeds: %llu operations, %llu comparisons of everything, %llu power failures, %llu operations replayed, "
      "%llu faults of devices, %llu deadlines overrun, %llu refusals on full pools, %llu inode pages given back\n",
      number(count), number(sum.operations), number(sum.quiet_points), number(sum.power_failures), number(sum.replayed),
      number(sum.faults), number(sum.timeouts), number(sum.refusals), number(sum.given_back));
  if (failures != 0 || count < 200) return;
  EXPECT_GT(sum.replayed, count);
  EXPECT_GT(sum.faults, count / 4);
  EXPECT_GT(sum.timeouts, count / 20);
  EXPECT_GT(sum.refusals, count);
  EXPECT_GT(sum.given_back, 0u);
}

// The seed determines a run completely.
TEST_F(Simulation, EqualSeedsAreEqualRuns) {
  for (const u64 seed : {1, 5, 7, 9, 13}) {
    const SimOutcome first = simulate(seed);
    const SimOutcome second = simulate(seed);
    EXPECT_EQ(first.trace, second.trace) << "seed " << seed;
    EXPECT_EQ(first.operations, second.operations);
    EXPECT_NE(first.trace, simulate(seed + 10).trace);
  }
}

// The symptom of each kind of mistake, within a few seeds.
std::string first_problem(SimFlaw flaw) {
  for (u64 seed = 1; seed <= 40; ++seed) {
    const std::string problem = simulate(seed * 10 + 1, flaw).problem;
    if (!problem.empty()) return problem;
  }
  return "";
}

TEST_F(Simulation, ForgottenFlushIsNoticed) {
  EXPECT_NE(first_problem(SimFlaw::forgets_flush), "");
}

TEST_F(Simulation, LostWakeUpIsNoticed) {
  EXPECT_NE(first_problem(SimFlaw::loses_item).find("nothing moves any more"), std::string::npos);
}

TEST_F(Simulation, TwoInOneFolderAreNoticed) {
  EXPECT_NE(first_problem(SimFlaw::shares_folder), "");
}

}  // namespace
}  // namespace gpu4fs::test::simulate_test
