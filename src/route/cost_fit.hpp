// Costs from measured transfers, by least squares (SPIN, section 4.3.1, "Parameter fitting"). Host only.
#pragma once

#include <span>

#include "base/types.hpp"
#include "route/transfer_cost.hpp"

namespace gpu4fs::route {

struct CostSample {
  u64 bytes = 0;
  double ns = 0;
};

// Whose squares are least: of differences in nanoseconds, as in the paper, or in shares of the measured times. Long
// transfers decide the first one alone. It can have an R² near 1 while it is wrong by a factor for short transfers,
// whose times decide between one transfer and several.
enum class FitError : u8 { absolute, relative };

struct FittedCost {
  TransferCost cost;
  // Coefficient of determination: the part of the variance of the times that the model explains. 1 is a perfect fit. At
  // 0 the average of the times would do as well, below 0 better.
  double r_squared = 0;
  double relative_error = 0;  // average of |predicted - measured| / measured
  u32 sample_count = 0;
};

// What a fit needs at least. A line through two sizes always fits, so its R² says nothing.
inline constexpr u32 fit_sizes_min = 3;
inline constexpr u32 fit_samples_min = 3;

// A line: cutoff_bytes is 0. If the best line has a negative latency, the best one through the origin is taken.
//
// Throws RouteError: too few samples or sizes, times that are not positive numbers, times that are all equal, or times
// that do not grow with the size.
FittedCost fit_line(std::span<const CostSample> samples, FitError error);

// Equation 1: constant up to a cutoff and a line behind it. The cutoff is that of the least squared error, with at
// least two sizes above it. It is 0 if no other is better.
//
// Throws like fit_line().
FittedCost fit_with_cutoff(std::span<const CostSample> samples, FitError error);

}  // namespace gpu4fs::route
