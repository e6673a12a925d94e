// The plan of one read: read-ahead, schedule and steps together (P-router of SPIN, section 4.2). Host only.
#pragma once

#include <vector>

#include "route/page_run.hpp"
#include "route/read_ahead.hpp"
#include "route/schedule.hpp"
#include "route/transfer_steps.hpp"

namespace gpu4fs::route {

struct FileRoutes {
  ScheduleCosts costs;
  bool has_medium = true;  // false: everything comes through the page cache
  TransferLimits limits;
};

struct ReadPlan {
  std::vector<TransferStep> steps;    // in order, for RouteCounters::count() too
  std::vector<ByteRange> prefetches;  // begin them after the steps; ReadAhead::begin_prefetch() wants their residency
  double completion_ns = 0;           // estimate of the steps
};

// Plans a read of `bytes` of a file of `file_size` bytes; what is behind the end of the file is not read. `runs` is the
// residency of the range.
//
// Throws RouteError if the limits are not what transfer_steps.hpp says.
ReadPlan plan_read(ReadAhead& ahead, ByteRange bytes, u64 file_size, const ReadRuns& runs, const FileRoutes& routes);

}  // namespace gpu4fs::route
