#include "route/schedule.hpp"

#include "base/mutant.hpp"
#include "route/schedule_weights.hpp"

namespace gpu4fs::route {

namespace {

using detail::Choices;
using detail::CostedRun;
using detail::RouteTimes;
using detail::RouteWeights;

// After so many halvings of the range of weights both routes differ by less than a run in nearly all cases.
constexpr u32 weight_steps = 8;

class BestChoices {
 public:
  BestChoices(const std::vector<CostedRun>& runs, const ScheduleCosts& costs) : runs_(runs), costs_(costs) {}

  RouteTimes offer(const Choices& choices) {
    const RouteTimes times = detail::route_times(runs_, choices, costs_);
    if (best_.empty() || times.completion_ns(costs_.overlap) < times_.completion_ns(costs_.overlap)) {
      best_ = choices;
      times_ = times;
    }
    return times;
  }

  // The best choices so far with another route for run i. Returns whether they are better.
  bool offer_change(std::size_t i) {
    if (!is_resident(runs_[i].run.state)) return false;
    Choices changed = best_;
    changed[i] = !changed[i];
    const double before = times_.completion_ns(costs_.overlap);
    offer(changed);
    return times_.completion_ns(costs_.overlap) < before;
  }

  Schedule schedule() const {
    Schedule result;
    result.cached_ns = times_.cached_ns;
    result.medium_ns = times_.medium_ns;
    result.completion_ns = times_.completion_ns(costs_.overlap);
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      const PageRun& run = runs_[i].run;
      const Route route = best_[i] ? costs_.medium_route : Route::cached;
      Reason reason = Reason::absent;
      if (is_resident(run.state)) {
        reason = best_[i] ? Reason::merged : run.state == PageState::dirty ? Reason::dirty : Reason::resident;
      }
      result.pieces.push_back({runs_[i].request, {run.first_page, run.page_count}, route, reason});
    }
    return result;
  }

 private:
  const std::vector<CostedRun>& runs_;
  const ScheduleCosts& costs_;
  Choices best_;
  RouteTimes times_;
};

// Offers the choices of `choose` for the plain sum, and with overlapping routes for weights that balance them.
template <class Choose>
void offer_weighted(BestChoices& best, Overlap overlap, Choose&& choose) {
  RouteWeights weights;
  double low = 0, high = 1;  // of the medium's weight
  for (u32 step = 0; step < (overlap == Overlap::none ? 1 : weight_steps); ++step) {
    const RouteTimes times = best.offer(choose(weights));
    (times.medium_ns > times.cached_ns ? low : high) = weights.medium;
    weights.medium = (low + high) / 2;
    weights.cached = 1 - weights.medium;
  }
}

// Weighted sums miss some schedules of few long runs, for which no weight balances the routes. Changes of single runs
// find most of them. With many runs the routes are balanced anyway, and trying all would take quadratic time.
void offer_changes(BestChoices& best, std::size_t run_count) {
  constexpr std::size_t run_count_max = 64;
  constexpr u32 passes_max = 4;
  if (run_count > run_count_max) return;
  bool is_better = true;
  for (u32 pass = 0; pass < passes_max && is_better; ++pass) {
    is_better = false;
    for (std::size_t i = 0; i < run_count; ++i) is_better = best.offer_change(i) || is_better;
  }
}

Choices resident_from_cache(const std::vector<CostedRun>& runs) {
  Choices choices(runs.size());
  for (std::size_t i = 0; i < runs.size(); ++i) choices[i] = !is_resident(runs[i].run.state);
  return choices;
}

template <class Choose>
Schedule weighted_schedule(std::span<const ReadRuns> reads, const ScheduleCosts& costs, Choose&& choose) {
  const std::vector<CostedRun> runs = detail::costed_runs(reads, costs);
  if (runs.empty()) return {};
  BestChoices best(runs, costs);
  offer_weighted(best, costs.overlap, [&](RouteWeights weights) { return choose(runs, costs, weights); });
  if (GPU4FS_MUTANT(route_single_not_compared, true, false)) {
    best.offer(Choices(runs.size(), true));
    best.offer(resident_from_cache(runs));
  }
  if (costs.overlap == Overlap::routes) offer_changes(best, runs.size());
  return best.schedule();
}

}  // namespace

Schedule greedy_schedule(std::span<const ReadRuns> reads, const ScheduleCosts& costs) {
  return weighted_schedule(reads, costs, detail::greedy_choices);
}

Schedule optimal_schedule(std::span<const ReadRuns> reads, const ScheduleCosts& costs) {
  return weighted_schedule(reads, costs, detail::cheapest_choices);
}

Schedule all_from_medium(std::span<const ReadRuns> reads, const ScheduleCosts& costs, Reason reason) {
  const std::vector<CostedRun> runs = detail::costed_runs(reads, costs);
  BestChoices best(runs, costs);
  best.offer(Choices(runs.size(), true));
  Schedule result = best.schedule();
  for (SchedulePiece& piece : result.pieces) piece.reason = reason;
  return result;
}

Schedule all_through_cache(std::span<const ReadRuns> reads, const ScheduleCosts& costs, Reason reason) {
  Schedule result;
  for (u32 request = 0; request < reads.size(); ++request) {
    for (const PageRun& run : reads[request]) {
      result.cached_ns += costs.cached.ns(run.byte_count());
      if (!is_resident(run.state)) result.medium_ns += costs.medium.ns(run.byte_count());
      result.pieces.push_back({request, {run.first_page, run.page_count}, Route::cached, reason});
    }
  }
  result.completion_ns = result.cached_ns + result.medium_ns;
  return result;
}

}  // namespace gpu4fs::route
