#include "route/cost_correction.hpp"

#include <algorithm>
#include <cmath>

#include "base/mutant.hpp"

namespace gpu4fs::route {

CorrectedCost::CorrectedCost(const TransferCost& calibrated, const CorrectionLimits& limits)
    : calibrated_(calibrated), cost_(calibrated), limits_(limits) {}

void CorrectedCost::observe(u64 bytes, double ns) {
  const double predicted = cost_.ns(bytes);
  if (!std::isfinite(ns) || ns <= 0 || predicted <= 0) return;
  ++observation_count_;
  const double error = ns / predicted - 1;
  const double damped = std::clamp(error, -limits_.faster_max, limits_.slower_max);
  if (damped != error) ++outlier_count_;
  const double counted = GPU4FS_MUTANT(route_outliers_count, damped, error);
  const double latency_share = cost_.latency_ns / predicted;
  const auto corrected = [&](double value, double share, double calibrated) {
    return std::clamp(value * (1 + limits_.step_max * share * counted), calibrated / limits_.drift_max,
                      calibrated * limits_.drift_max);
  };
  cost_.latency_ns = corrected(cost_.latency_ns, latency_share, calibrated_.latency_ns);
  cost_.ns_per_byte = corrected(cost_.ns_per_byte, 1 - latency_share, calibrated_.ns_per_byte);
}

}  // namespace gpu4fs::route
