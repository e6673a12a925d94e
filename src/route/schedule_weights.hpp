// Choices of routes for a weighted sum of the times of both routes. Host only.
//
// With routes that overlap, the longer one decides. A search for the weight at which both take about the same time
// turns this into a few schedules that minimise a sum.
#pragma once

#include "route/schedule_runs.hpp"

namespace gpu4fs::route::detail {

// What a nanosecond of each route counts. The paper's sum has equal weights.
struct RouteWeights {
  double cached = 0.5;
  double medium = 0.5;
};

// One pass over the runs, SPIN's greedy heuristic.
Choices greedy_choices(const std::vector<CostedRun>& runs, const ScheduleCosts& costs, RouteWeights weights);

// The least weighted sum, by dynamic programming in linear time.
Choices cheapest_choices(const std::vector<CostedRun>& runs, const ScheduleCosts& costs, RouteWeights weights);

}  // namespace gpu4fs::route::detail
