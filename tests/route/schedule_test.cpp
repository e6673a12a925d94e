// Schedules against those found by trying, and the heuristic against the optimum as in section 4.3.1 of SPIN.
#include <gtest/gtest.h>

#include <cstdio>

#include "route/schedule.hpp"
#include "route/schedule_oracles.hpp"
#include "route/schedule_weights.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::route {
namespace {

constexpr Overlap overlaps[] = {Overlap::none, Overlap::routes};
constexpr u64 vector_pages = 2048;  // 8 MiB, as in the paper

PageRun absent(u64 first, u64 count) {
  return {first, count, PageState::absent};
}
PageRun clean(u64 first, u64 count) {
  return {first, count, PageState::clean};
}

std::vector<Route> routes_of(const Schedule& schedule) {
  std::vector<Route> routes;
  for (const SchedulePiece& piece : schedule.pieces) routes.push_back(piece.route);
  return routes;
}

// How near completion times are to the least ones: 1 is the optimum.
struct Quality {
  double sum = 0;
  double worst = 1;
  double best = 0;
  u32 count = 0;

  void add(double least, double ns) {
    sum += least / ns;
    worst = std::min(worst, least / ns);
    best = std::max(best, least / ns);
    ++count;
  }
  double average() const { return sum / count; }
  void print(const char* name) const {
    std::printf("%s: %.3f %% of the optimum on average of %u reads, at worst %.2f %%\n", name, 100 * average(), count,
                100 * worst);
  }
};

void expect_covers(const Schedule& schedule, const std::vector<ReadRuns>& reads) {
  std::size_t at = 0;
  for (u32 request = 0; request < reads.size(); ++request) {
    for (const PageRun& run : reads[request]) {
      ASSERT_LT(at, schedule.pieces.size());
      const SchedulePiece& piece = schedule.pieces[at++];
      EXPECT_EQ(piece.request, request);
      EXPECT_EQ(piece.pages, (PageRange{run.first_page, run.page_count}));
      if (run.state == PageState::absent) {
        EXPECT_NE(piece.route, Route::cached);
      }
    }
  }
  EXPECT_EQ(at, schedule.pieces.size());
}

// The five pages of section 4.3.1: the second and the fourth are cached. One transfer beats three.
TEST(Schedule, FewCachedPagesBetweenOthersComeFromTheMedium) {
  const std::vector<ReadRuns> reads = {{absent(0, 1), clean(1, 1), absent(2, 1), clean(3, 1), absent(4, 1)}};
  for (const Overlap overlap : overlaps) {
    const Schedule schedule = greedy_schedule(reads, oracle::paper_costs(overlap));
    EXPECT_EQ(routes_of(schedule), std::vector<Route>(5, Route::direct));
    EXPECT_EQ(schedule.pieces[1].reason, Reason::merged);
    EXPECT_EQ(schedule.pieces[2].reason, Reason::absent);
    EXPECT_DOUBLE_EQ(schedule.completion_ns, 584'000);
  }
}

TEST(Schedule, WhatIsAllCachedComesFromTheCache) {
  const std::vector<ReadRuns> reads = {{clean(0, vector_pages)}};
  const Schedule schedule = greedy_schedule(reads, oracle::paper_costs(Overlap::none));
  EXPECT_EQ(routes_of(schedule), std::vector<Route>{Route::cached});
  EXPECT_EQ(schedule.pieces[0].reason, Reason::resident);
}

TEST(Schedule, LongCachedRunsComeFromTheCacheAndTimesAreOfTheirRoutes) {
  const std::vector<ReadRuns> reads = {{absent(0, 256), clean(256, 1536), absent(1792, 256)}};
  const ScheduleCosts costs = oracle::paper_costs(Overlap::none);
  const Schedule sum = greedy_schedule(reads, costs);
  EXPECT_EQ(routes_of(sum), (std::vector<Route>{Route::direct, Route::cached, Route::direct}));
  EXPECT_DOUBLE_EQ(sum.medium_ns, 2 * costs.medium.ns(256 * page_size));
  EXPECT_DOUBLE_EQ(sum.cached_ns, costs.cached.ns(1536 * page_size));
  EXPECT_DOUBLE_EQ(sum.completion_ns, sum.medium_ns + sum.cached_ns);
  const Schedule longer = greedy_schedule(reads, oracle::paper_costs(Overlap::routes));
  EXPECT_DOUBLE_EQ(longer.completion_ns, std::max(sum.medium_ns, sum.cached_ns));
}

TEST(Schedule, WriteBackIsAPartOfTheMediumsTime) {
  std::vector<ReadRuns> reads = {{absent(0, 1), {1, 1, PageState::dirty}, absent(2, 1)}};
  ScheduleCosts costs = oracle::paper_costs(Overlap::none);
  EXPECT_EQ(routes_of(greedy_schedule(reads, costs)), std::vector<Route>(3, Route::direct));
  costs.write_back.latency_ns = 600'000;
  const Schedule apart = greedy_schedule(reads, costs);
  EXPECT_EQ(apart.pieces[1].route, Route::cached);
  EXPECT_EQ(apart.pieces[1].reason, Reason::dirty);
  reads[0][1].state = PageState::resident;  // perhaps dirty
  EXPECT_EQ(greedy_schedule(reads, costs).pieces[1].route, Route::cached);
}

TEST(Schedule, ReadsAreNotMergedWithEachOther) {
  const std::vector<ReadRuns> reads = {{absent(0, 1)}, {clean(1, 1)}, {absent(2, 1), clean(3, 1), absent(4, 1)}, {}};
  const ScheduleCosts costs = oracle::paper_costs(Overlap::none);
  for (const Schedule& schedule : {greedy_schedule(reads, costs), optimal_schedule(reads, costs)}) {
    expect_covers(schedule, reads);
    EXPECT_EQ(schedule.pieces[1].route, Route::cached);
    EXPECT_DOUBLE_EQ(schedule.medium_ns, 2 * 584'000.0);
  }
  EXPECT_TRUE(greedy_schedule(std::vector<ReadRuns>{}, costs).pieces.empty());
}

TEST(Schedule, TheRouteOfTheMediumIsTheCallers) {
  const std::vector<ReadRuns> reads = {{absent(0, 4)}};
  ScheduleCosts costs = oracle::paper_costs(Overlap::routes);
  costs.medium_route = Route::engine;
  EXPECT_EQ(greedy_schedule(reads, costs).pieces[0].route, Route::engine);
  const Schedule medium = all_from_medium(reads, costs, Reason::above_window);
  EXPECT_EQ(medium.pieces[0].route, Route::engine);
  EXPECT_EQ(medium.pieces[0].reason, Reason::above_window);
  const Schedule cached = all_through_cache(reads, costs, Reason::unavailable);
  EXPECT_EQ(cached.pieces[0].route, Route::cached);
  EXPECT_GT(cached.completion_ns, medium.completion_ns);
}

// One read or several, few runs, random costs.
TEST(Schedule, OptimumIsTheLeastOfAllChoices) {
  std::mt19937_64 random(1);
  for (u32 round = 0; round < test::scaled(2000); ++round) {
    std::vector<ReadRuns> reads;
    for (u64 count = 1 + random() % 3; count != 0; --count) {
      ReadRuns runs = oracle::random_runs(1 + random() % 400, true, random);
      runs.resize(std::min<std::size_t>(runs.size(), 7));
      reads.push_back(runs);
    }
    ScheduleCosts costs = oracle::paper_costs(Overlap::none);
    costs.medium = {static_cast<double>(random() % 600'000), static_cast<double>(random() % 1000) / 500,
                    static_cast<double>(random() % (1 << 20))};
    costs.cached = {static_cast<double>(random() % 20'000), static_cast<double>(random() % 1000) / 1000, 0};
    costs.write_back.latency_ns = static_cast<double>(random() % 200'000);
    const Schedule optimal = optimal_schedule(reads, costs);
    expect_covers(optimal, reads);
    const double least = oracle::least_by_trying(reads, costs);
    ASSERT_NEAR(optimal.completion_ns, least, 1e-9 * least) << round;
    ASSERT_NEAR(optimal.completion_ns, oracle::completion_of(optimal.pieces, reads, costs), 1e-9 * least) << round;
  }
}

// Also with costs that no drive has, for which the heuristic was not made.
TEST(Schedule, GreedyIsNeverWorseThanASingleRoute) {
  std::mt19937_64 random(6);
  for (u32 round = 0; round < 5000; ++round) {
    const std::vector<ReadRuns> reads = {oracle::random_runs(1 + random() % 300, true, random)};
    ScheduleCosts costs;
    costs.medium = {static_cast<double>(random() % 100'000), static_cast<double>(random() % 1000) / 100,
                    static_cast<double>(random() % (1 << 20))};
    costs.cached = {static_cast<double>(random() % 100'000), static_cast<double>(random() % 1000) / 100, 0};
    costs.write_back = {static_cast<double>(random() % 100'000), 0, 0};
    costs.overlap = overlaps[round % 2];
    const double medium = all_from_medium(reads, costs, Reason::absent).completion_ns;
    const double cached = all_through_cache(reads, costs, Reason::absent).completion_ns;
    ASSERT_LE(greedy_schedule(reads, costs).completion_ns, std::min(medium, cached) * (1 + 1e-12)) << round;
  }
}

TEST(Schedule, OptimumOfLongReadsIsThatOfTheQuadraticProgram) {
  std::mt19937_64 random(2);
  for (u32 round = 0; round < test::scaled(200); ++round) {
    const std::vector<ReadRuns> reads = {oracle::random_runs(vector_pages, round % 2 == 0, random)};
    const ScheduleCosts costs =
        round % 4 < 2 ? oracle::paper_costs(Overlap::none) : oracle::recent_costs(Overlap::none);
    const double least = 2 * oracle::least_sum(reads[0], costs, 0.5);
    ASSERT_NEAR(optimal_schedule(reads, costs).completion_ns, least, 1e-9 * least) << round;
  }
}

// With routes that overlap: against all choices, so for few runs.
TEST(Schedule, OverlappingRoutesAreNearTheLeastOfAllChoices) {
  std::mt19937_64 random(3);
  Quality quality;
  for (u32 round = 0; round < test::scaled(2000); ++round) {
    std::vector<ReadRuns> reads;
    for (u64 count = 1 + random() % 2; count != 0; --count) {
      ReadRuns runs = oracle::random_runs(1 + random() % vector_pages, true, random);
      runs.resize(std::min<std::size_t>(runs.size(), 10));
      reads.push_back(runs);
    }
    const ScheduleCosts costs =
        round % 2 == 0 ? oracle::paper_costs(Overlap::routes) : oracle::recent_costs(Overlap::routes);
    const Schedule greedy = greedy_schedule(reads, costs);
    expect_covers(greedy, reads);
    const double least = oracle::least_by_trying(reads, costs);
    ASSERT_NEAR(greedy.completion_ns, oracle::completion_of(greedy.pieces, reads, costs), 1e-9 * least) << round;
    ASSERT_GE(greedy.completion_ns, least * (1 - 1e-9));
    quality.add(least, greedy.completion_ns);
  }
  quality.print("overlapping routes, few runs");
  EXPECT_GE(quality.average(), 0.989);
}

// What no schedule with overlapping routes can be below: the longer of two times is at least each weighted average.
double least_overlapped(const std::vector<ReadRuns>& reads, ScheduleCosts costs) {
  double bound = 0;
  double low = 0, high = 1;
  const ScheduleCosts plain = costs;
  costs.overlap = Overlap::none;
  for (u32 step = 0; step < 12; ++step) {
    const double weight = (low + high) / 2;
    // The same sum with weights in the costs.
    const auto weighted = [](TransferCost cost, double factor) {
      return TransferCost{cost.latency_ns * factor, cost.ns_per_byte * factor, cost.cutoff_bytes};
    };
    costs.medium = weighted(plain.medium, weight);
    costs.write_back = weighted(plain.write_back, weight);
    costs.cached = weighted(plain.cached, 1 - weight);
    const Schedule schedule = optimal_schedule(reads, costs);
    bound = std::max(bound, schedule.completion_ns);
    (schedule.medium_ns / weight > schedule.cached_ns / (1 - weight) ? low : high) = weight;
  }
  return bound;
}

// Instrumented code runs many times slower.
u32 round_count(u32 vectors) {
  return test::scaled(vectors) / (test::is_short() ? 10 : 1);
}

double heuristic_alone(const std::vector<ReadRuns>& reads, const ScheduleCosts& costs) {
  const std::vector<detail::CostedRun> runs = detail::costed_runs(reads, costs);
  return detail::route_times(runs, detail::greedy_choices(runs, costs, {}), costs).completion_ns(costs.overlap);
}

// The evaluation of section 4.3.1: 200,000 vectors of 8 MiB, for which the paper has 98.9 % on average.
void compare_with_optimum(ScheduleCosts (*costs_of)(Overlap), const char* name, u32 vectors) {
  std::mt19937_64 random(4);
  const ScheduleCosts costs = costs_of(Overlap::none);
  Quality quality, alone;
  for (u32 round = 0; round < round_count(vectors); ++round) {
    const std::vector<ReadRuns> reads = {oracle::random_runs(vector_pages, round % 4 == 0, random)};
    const double greedy = greedy_schedule(reads, costs).completion_ns;
    const double optimal = optimal_schedule(reads, costs).completion_ns;
    quality.add(optimal, greedy);
    alone.add(optimal, heuristic_alone(reads, costs));
    const double medium = all_from_medium(reads, costs, Reason::absent).completion_ns;
    const double cached = all_through_cache(reads, costs, Reason::absent).completion_ns;
    ASSERT_LE(greedy, std::min(medium, cached) * (1 + 1e-12)) << round;
    ASSERT_GE(greedy, optimal * (1 - 1e-12)) << round;
  }
  quality.print(name);
  alone.print("  the heuristic alone");
  EXPECT_GE(quality.average(), 0.989);
  EXPECT_GE(quality.worst, 0.8);
}

// The same for routes that overlap, against a bound instead of the optimum.
void compare_overlapped(ScheduleCosts (*costs_of)(Overlap), const char* name, u32 vectors) {
  std::mt19937_64 random(5);
  const ScheduleCosts costs = costs_of(Overlap::routes);
  Quality quality;
  for (u32 round = 0; round < round_count(vectors); ++round) {
    const std::vector<ReadRuns> reads = {oracle::random_runs(vector_pages, round % 4 == 0, random)};
    const double greedy = greedy_schedule(reads, costs).completion_ns;
    quality.add(least_overlapped(reads, costs), greedy);
    const double medium = all_from_medium(reads, costs, Reason::absent).completion_ns;
    const double cached = all_through_cache(reads, costs, Reason::absent).completion_ns;
    ASSERT_LE(greedy, std::min(medium, cached) * (1 + 1e-12)) << round;
  }
  quality.print(name);
  EXPECT_GE(quality.average(), 0.989);
  EXPECT_LE(quality.best, 1 + 1e-9);
}

TEST(ScheduleQuality, OfThePapersDrive) {
  compare_with_optimum(oracle::paper_costs, "drive of the paper", 200'000);
}

TEST(ScheduleQuality, OfARecentDrive) {
  compare_with_optimum(oracle::recent_costs, "recent drive", 50'000);
}

TEST(ScheduleQuality, OfOverlappingRoutes) {
  compare_overlapped(oracle::paper_costs, "drive of the paper, overlapping routes, at least", 10'000);
  compare_overlapped(oracle::recent_costs, "recent drive, overlapping routes, at least", 10'000);
}

}  // namespace
}  // namespace gpu4fs::route
