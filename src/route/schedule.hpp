// Which pages of a read come from the page cache and which from the medium (SPIN, section 4.3.1). Host only.
//
// The medium needs a fixed time for each transfer, so it pays to read cached pages that lie between pages of the medium
// along with these. A schedule chooses the route of each run; neighbouring runs from the medium are one transfer.
//
// The paper adds up the times of all transfers (`Overlap::none`). Two routes can also work at the same time
// (`Overlap::routes`), which is an addition: then the slower one decides, and the schedule balances them.
#pragma once

#include <span>
#include <vector>

#include "route/page_run.hpp"
#include "route/routes.hpp"
#include "route/transfer_cost.hpp"

namespace gpu4fs::route {

enum class Overlap : u8 {
  none,    // one transfer after the other: the completion time is the sum of both routes
  routes,  // the transfers of a route one after the other, beside those of the other: the longer of both
};

struct ScheduleCosts {
  TransferCost cached;      // a run from the page cache to the GPU
  TransferCost medium;      // a transfer from the medium to the GPU
  TransferCost write_back;  // of a dirty run, before the medium can be read; a part of the medium's time
  Route medium_route = Route::direct;
  Overlap overlap = Overlap::routes;
};

struct SchedulePiece {
  u32 request = 0;  // index of the read
  PageRange pages;
  Route route = Route::cached;
  Reason reason = Reason::resident;

  friend bool operator==(const SchedulePiece&, const SchedulePiece&) = default;
};

struct Schedule {
  std::vector<SchedulePiece> pieces;  // in the order of requests and pages; they cover all pages
  double cached_ns = 0;               // estimates
  double medium_ns = 0;
  double completion_ns = 0;
};

// The residency of one read: runs of consecutive pages.
using ReadRuns = std::vector<PageRun>;

// The heuristic of the paper in one pass over the runs, or with `Overlap::routes` in a fixed number of passes. It is
// never worse than all_from_medium(), or than reading what is cached from the page cache and the rest from the medium.
Schedule greedy_schedule(std::span<const ReadRuns> reads, const ScheduleCosts& costs);

// The least sum of both routes. With equation 1 as the cost, dynamic programming takes linear time; for other costs it
// would take quadratic time, which is why the paper has a heuristic. With `Overlap::routes` it is the best of the
// schedules that minimise a weighted sum, which is not always the optimum.
Schedule optimal_schedule(std::span<const ReadRuns> reads, const ScheduleCosts& costs);

// Single routes. Absent pages that are read through the page cache cost a transfer from the medium and then the copy.
Schedule all_from_medium(std::span<const ReadRuns> reads, const ScheduleCosts& costs, Reason reason);
Schedule all_through_cache(std::span<const ReadRuns> reads, const ScheduleCosts& costs, Reason reason);

}  // namespace gpu4fs::route
