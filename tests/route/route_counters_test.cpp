// Counts of routes by reason, and their text.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "route/route_counters.hpp"

namespace gpu4fs::route {
namespace {

TEST(RouteCounters, CountByRouteAndReason) {
  RouteCounters counters;
  counters.count(Route::cached, Reason::resident, 4096);
  counters.count(Route::cached, Reason::resident, 4096);
  counters.count(Route::cached, Reason::misaligned, 100);
  counters.count(Route::direct, Reason::absent, 1 << 20);
  const RouteCounts counts = counters.counts();
  EXPECT_EQ(counts.of(Route::cached, Reason::resident), (RouteCount{2, 8192}));
  EXPECT_EQ(counts.total(Route::cached), (RouteCount{3, 8292}));
  EXPECT_EQ(counts.total(Route::direct), (RouteCount{1, 1 << 20}));
  EXPECT_EQ(counts.total(Route::engine), RouteCount{});
}

TEST(RouteCounters, StepsAreCountedWithTheirWriteBacks) {
  RouteCounters counters;
  const std::vector<TransferStep> steps = {{StepKind::write_back, 0, {0, 4096}, Route::direct, Reason::dirty},
                                           {StepKind::read, 0, {0, 8192}, Route::direct, Reason::merged},
                                           {StepKind::read, 0, {8192, 10}, Route::cached, Reason::resident}};
  counters.count(steps);
  counters.count_prefetch(16384);
  const RouteCounts counts = counters.counts();
  EXPECT_EQ(counts.written_back, (RouteCount{1, 4096}));
  EXPECT_EQ(counts.of(Route::direct, Reason::merged), (RouteCount{1, 8192}));
  EXPECT_EQ(counts.of(Route::direct, Reason::dirty), RouteCount{});
  EXPECT_EQ(to_text(counts),
            "cached: 1 transfer, 10 bytes\n"
            "  in the page cache: 1 transfer, 10 bytes\n"
            "direct: 1 transfer, 8192 bytes\n"
            "  in the page cache, but faster as a part of a longer read of the medium: 1 transfer, 8192 bytes\n"
            "written back first: 1 transfer, 4096 bytes\n"
            "read ahead: 1 transfer, 16384 bytes\n");
  EXPECT_EQ(to_text(RouteCounts{}), "");
}

TEST(RouteCounters, ThreadsLoseNothing) {
  RouteCounters counters;
  std::vector<std::thread> threads;
  for (u32 i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (u32 j = 0; j < 10'000; ++j) counters.count(Route::engine, Reason::absent, 3);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counters.counts().total(Route::engine), (RouteCount{40'000, 120'000}));
}

}  // namespace
}  // namespace gpu4fs::route
