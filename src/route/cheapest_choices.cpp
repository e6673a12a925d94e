#include <deque>
#include <limits>

#include "route/schedule_weights.hpp"

namespace gpu4fs::route::detail {

namespace {

constexpr double unreachable = std::numeric_limits<double>::infinity();

// The places j where a transfer from the medium can begin, with the cost of all before j. It is asked for the j of the
// least cost of a transfer from j to the current place i. That cost is
//
//   value[j] + latency                                         if j is less than the cutoff behind i
//   value[j] - slope * place[j] + latency + slope * (place[i] - cutoff)   otherwise
//
// so the near places need the minimum over a window that moves, and the far ones a minimum that only grows.
class TransferBegins {
 public:
  TransferBegins(const TransferCost& cost, double weight) : cost_(cost), weight_(weight) {}

  void clear() {
    near_.clear();
    candidates_.clear();
    far_ = {};
  }

  void add(std::size_t index, double place, double value) {
    while (!candidates_.empty() && candidates_.back().value >= value) candidates_.pop_back();
    candidates_.push_back({index, place, value});
    near_.push_back({index, place, value});
  }

  struct Best {
    std::size_t index = 0;
    double cost = unreachable;
  };

  // Places only grow from one question to the next.
  Best best_at(double place) {
    const double slope = weight_ * cost_.ns_per_byte;
    while (!near_.empty() && place - near_.front().place > cost_.cutoff_bytes) {
      const double value = near_.front().value - slope * near_.front().place;
      if (value < far_.value) far_ = {near_.front().index, 0, value};
      near_.pop_front();
    }
    while (!candidates_.empty() && place - candidates_.front().place > cost_.cutoff_bytes) candidates_.pop_front();
    Best best;
    const double latency = weight_ * cost_.latency_ns;
    if (!candidates_.empty()) best = {candidates_.front().index, candidates_.front().value + latency};
    const double far = far_.value + latency + slope * (place - cost_.cutoff_bytes);
    if (far < best.cost) best = {far_.index, far};
    return best;
  }

 private:
  struct Begin {
    std::size_t index = 0;
    double place = 0;
    double value = unreachable;
  };

  TransferCost cost_;
  double weight_;
  std::deque<Begin> near_;        // all places within the cutoff
  std::deque<Begin> candidates_;  // those of them that no later one beats; the least value is in front
  Begin far_;
};

}  // namespace

// `cached` and `medium` are the least costs of all runs so far, if the last of them comes from the page cache or from
// the medium. A transfer from the medium begins behind a cached run or with the read, so no two are neighbours.
Choices cheapest_choices(const std::vector<CostedRun>& runs, const ScheduleCosts& costs, RouteWeights weights) {
  std::vector<std::size_t> begins(runs.size() + 1);       // [i]: where the transfer that ends at i begins
  std::vector<bool> ends_cached(runs.size() + 1, false);  // [i]: the cheaper of both ways to reach i
  TransferBegins transfers(costs.medium, weights.medium);
  double cached = 0, medium = unreachable;
  double place = 0;       // in bytes of this read
  double written_ns = 0;  // weighted write-back of all runs so far, if they came from the medium
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const double before = std::min(cached, medium);
    ends_cached[i] = cached < medium;
    if (begins_read(runs, i)) {
      transfers.clear();
      place = written_ns = 0;
      transfers.add(i, 0, before);
    } else if (cached != unreachable) {
      transfers.add(i, place, cached - written_ns);
    }
    const CostedRun& run = runs[i];
    place += static_cast<double>(run.run.byte_count());
    written_ns += weights.medium * run.write_back_ns;
    const TransferBegins::Best best = transfers.best_at(place);
    cached = is_resident(run.run.state) ? before + weights.cached * run.cached_ns : unreachable;
    medium = best.cost + written_ns;
    begins[i + 1] = best.index;
  }
  ends_cached[runs.size()] = cached < medium;

  Choices from_medium(runs.size(), true);
  bool is_cached = ends_cached[runs.size()];
  for (std::size_t end = runs.size(); end != 0;) {
    if (is_cached) {
      from_medium[--end] = false;
      is_cached = ends_cached[end];
    } else {
      end = begins[end];
      // In the middle of a read it begins behind a cached run.
      is_cached = end != 0 && (!begins_read(runs, end) || ends_cached[end]);
    }
  }
  return from_medium;
}

}  // namespace gpu4fs::route::detail
