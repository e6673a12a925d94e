// Schedules that are found by trying, their costs counted apart from the layer's own functions, and residency patterns.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "route/schedule.hpp"

namespace gpu4fs::route::oracle {

// The SSD of the paper (section 4.3.1): C = 584 us and S_cutoff = 512 KiB; 2.65 GB/s past the page cache and 10.13 GB/s
// from it (table 3).
inline ScheduleCosts paper_costs(Overlap overlap) {
  ScheduleCosts costs;
  costs.medium = {584'000, 1 / 2.65, 512 << 10};
  costs.cached = {0, 1 / 10.13, 0};
  costs.write_back = {100'000, 1 / 1.9, 0};
  costs.overlap = overlap;
  return costs;
}

// A drive and a bus of today: 80 us, 6.5 GB/s, and copies of 25 GB/s that begin after 6 us.
inline ScheduleCosts recent_costs(Overlap overlap) {
  ScheduleCosts costs;
  costs.medium = {80'000, 1 / 6.5, 64 << 10};
  costs.cached = {6'000, 1 / 25.0, 0};
  costs.write_back = {30'000, 1 / 4.0, 0};
  costs.overlap = overlap;
  return costs;
}

inline double cost_ns(const TransferCost& cost, double bytes) {
  if (bytes == 0) return 0;
  return cost.latency_ns + std::max(0.0, bytes - cost.cutoff_bytes) * cost.ns_per_byte;
}

inline double write_back_cost_ns(const PageRun& run, const ScheduleCosts& costs) {
  if (run.state == PageState::dirty) return cost_ns(costs.write_back, static_cast<double>(run.page_count * page_size));
  return run.state == PageState::resident ? costs.write_back.latency_ns : 0;
}

// The completion time of a schedule by its pieces: neighbours of one read from the medium are one transfer.
inline double completion_of(const std::vector<SchedulePiece>& pieces, const std::vector<ReadRuns>& reads,
                            const ScheduleCosts& costs) {
  double cached = 0, medium = 0;
  std::size_t index = 0, last_request = ~std::size_t{0};
  double open = 0;
  for (std::size_t request = 0; request < reads.size(); ++request) {
    for (const PageRun& run : reads[request]) {
      const bool from_medium = pieces[index++].route != Route::cached;
      const double bytes = static_cast<double>(run.page_count * page_size);
      if (!from_medium || request != last_request) {
        medium += cost_ns(costs.medium, open);
        open = 0;
      }
      last_request = request;
      if (from_medium) {
        open += bytes;
        medium += write_back_cost_ns(run, costs);
      } else {
        cached += cost_ns(costs.cached, bytes);
      }
    }
  }
  medium += cost_ns(costs.medium, open);
  return costs.overlap == Overlap::none ? cached + medium : std::max(cached, medium);
}

// The least completion time over all choices of routes for the resident runs, of which there are few.
inline double least_by_trying(const std::vector<ReadRuns>& reads, const ScheduleCosts& costs) {
  std::vector<SchedulePiece> pieces;
  std::vector<std::size_t> free;
  for (const ReadRuns& runs : reads) {
    for (const PageRun& run : runs) {
      if (is_resident(run.state)) free.push_back(pieces.size());
      pieces.push_back({0, {}, Route::direct, Reason::absent});
    }
  }
  double least = std::numeric_limits<double>::infinity();
  for (u64 choice = 0; choice < u64{1} << free.size(); ++choice) {
    for (std::size_t i = 0; i < free.size(); ++i) {
      pieces[free[i]].route = (choice >> i & 1) != 0 ? Route::cached : Route::direct;
    }
    least = std::min(least, completion_of(pieces, reads, costs));
  }
  return least;
}

// The least sum of one read by dynamic programming over all transfers, in quadratic time: for any cost. `weight` is
// that of the medium's time, and 1 - weight that of the page cache's.
inline double least_sum(const ReadRuns& runs, const ScheduleCosts& costs, double weight) {
  constexpr double unreachable = std::numeric_limits<double>::infinity();
  const std::size_t count = runs.size();
  std::vector<double> cached(count + 1, unreachable), medium(count + 1, unreachable);
  cached[0] = 0;
  for (std::size_t end = 1; end <= count; ++end) {
    const PageRun& last = runs[end - 1];
    if (is_resident(last.state)) {
      const double ns = cost_ns(costs.cached, static_cast<double>(last.page_count * page_size));
      cached[end] = std::min(cached[end - 1], medium[end - 1]) + (1 - weight) * ns;
    }
    double bytes = 0, written = 0;
    for (std::size_t begin = end; begin-- > 0;) {
      bytes += static_cast<double>(runs[begin].page_count * page_size);
      written += write_back_cost_ns(runs[begin], costs);
      const double ns = cost_ns(costs.medium, bytes) + written;
      medium[end] = std::min(medium[end], cached[begin] + weight * ns);
    }
  }
  return std::min(cached[count], medium[count]);
}

// Random residency of consecutive pages: independent pages, runs of two average lengths, or a few cuts at any places.
inline ReadRuns random_runs(u64 page_count, bool with_dirty, std::mt19937_64& random) {
  const auto uniform = [&] { return std::uniform_real_distribution<double>(0, 1)(random); };
  std::vector<bool> resident(page_count);
  const u64 kind = random() % 3;
  if (kind == 0) {
    const double share = uniform();
    for (u64 i = 0; i < page_count; ++i) resident[i] = uniform() < share;
  } else if (kind == 1) {
    const double lengths[2] = {std::pow(512, uniform()), std::pow(512, uniform())};
    bool state = uniform() < 0.5;
    for (u64 i = 0; i < page_count; ++i) {
      resident[i] = state;
      if (uniform() < 1 / lengths[state]) state = !state;
    }
  } else {
    for (u64 cuts = 1 + random() % 12; cuts != 0; --cuts) {
      for (u64 i = random() % page_count; i < page_count; ++i) resident[i] = !resident[i];
    }
  }
  ReadRuns runs;
  bool is_dirty = false;
  for (u64 i = 0; i < page_count; ++i) {
    if (with_dirty && (i == 0 || random() % 8 == 0)) is_dirty = random() % 4 == 0;
    const PageState state = !resident[i] ? PageState::absent : is_dirty ? PageState::dirty : PageState::clean;
    append_run(runs, {i, 1, state});
  }
  return runs;
}

}  // namespace gpu4fs::route::oracle
