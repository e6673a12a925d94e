// Runs of all reads in one list, and what a choice of routes for them costs. Host only.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "base/mutant.hpp"
#include "route/schedule.hpp"

namespace gpu4fs::route::detail {

struct CostedRun {
  PageRun run;
  u32 request = 0;
  double cached_ns = 0;      // from the page cache
  double write_back_ns = 0;  // before it can come from the medium
};

// [i]: whether run i comes from the medium. Absent runs always do.
using Choices = std::vector<bool>;

struct RouteTimes {
  double cached_ns = 0;
  double medium_ns = 0;

  double completion_ns(Overlap overlap) const {
    if (overlap == Overlap::none) return cached_ns + medium_ns;
    return std::max(cached_ns, GPU4FS_MUTANT(route_medium_forgotten, medium_ns, 0.0));
  }
};

// Of clean pages nothing is written. Where it is not known which pages are dirty, the call at least takes its time.
inline double write_back_ns(const PageRun& run, const ScheduleCosts& costs) {
  if (run.state == PageState::dirty) return costs.write_back.ns(run.byte_count());
  return run.state == PageState::resident ? costs.write_back.latency_ns : 0;
}

inline std::vector<CostedRun> costed_runs(std::span<const ReadRuns> reads, const ScheduleCosts& costs) {
  std::vector<CostedRun> result;
  for (u32 request = 0; request < reads.size(); ++request) {
    for (const PageRun& run : reads[request]) {
      const double cached_ns = is_resident(run.state) ? costs.cached.ns(run.byte_count()) : 0;
      result.push_back({run, request, cached_ns, write_back_ns(run, costs)});
    }
  }
  return result;
}

// Whether run i is of another read than the run before it.
inline bool begins_read(const std::vector<CostedRun>& runs, std::size_t i) {
  return i == 0 || runs[i].request != runs[i - 1].request;
}

inline RouteTimes route_times(const std::vector<CostedRun>& runs, const Choices& from_medium,
                              const ScheduleCosts& costs) {
  RouteTimes times;
  u64 open_bytes = 0;  // of the transfer from the medium that ends here
  const auto close = [&] {
    times.medium_ns += costs.medium.ns(open_bytes);
    open_bytes = 0;
  };
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (begins_read(runs, i)) close();
    if (from_medium[i]) {
      open_bytes += runs[i].run.byte_count();
      times.medium_ns += runs[i].write_back_ns;
    } else {
      close();
      times.cached_ns += runs[i].cached_ns;
    }
  }
  close();
  return times;
}

}  // namespace gpu4fs::route::detail
