#include "route/cost_fit.hpp"

#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <set>
#include <vector>

#include "base/mutant.hpp"
#include "route/route_error.hpp"

namespace gpu4fs::route {

namespace {

using Samples = std::span<const CostSample>;

std::set<u64> sizes_of(Samples samples) {
  std::set<u64> sizes;
  for (const CostSample& sample : samples) sizes.insert(sample.bytes);
  return sizes;
}

double average_ns(Samples samples) {
  double sum = 0;
  for (const CostSample& sample : samples) sum += sample.ns;
  return sum / static_cast<double>(samples.size());
}

void check_samples(Samples samples) {
  if (samples.size() < fit_samples_min) {
    throw RouteError(fmt::format("cost model: {} samples, at least {} are needed", samples.size(), fit_samples_min));
  }
  bool differ = false;
  for (const CostSample& sample : samples) {
    if (!std::isfinite(sample.ns) || sample.ns <= 0) {
      throw RouteError(fmt::format("cost model: a sample of {} bytes took {} ns", sample.bytes, sample.ns));
    }
    if (sample.bytes == 0) throw RouteError("cost model: a sample without bytes");
    differ = differ || sample.ns != samples.front().ns;
  }
  const std::size_t size_count = sizes_of(samples).size();
  if (GPU4FS_MUTANT(route_fit_one_size, size_count < fit_sizes_min, false)) {
    throw RouteError(
        fmt::format("cost model: samples of {} different sizes, at least {} are needed", size_count, fit_sizes_min));
  }
  if (!differ) throw RouteError("cost model: all samples took the same time, so there is nothing to fit");
}

double weight_of(const CostSample& sample, FitError error) {
  return error == FitError::absolute ? 1 : 1 / (sample.ns * sample.ns);
}

double squared_error(Samples samples, const TransferCost& cost, FitError error) {
  double sum = 0;
  for (const CostSample& sample : samples) {
    const double difference = sample.ns - cost.ns(sample.bytes);
    sum += weight_of(sample, error) * difference * difference;
  }
  return sum;
}

double relative_error_of(Samples samples, const TransferCost& cost) {
  double sum = 0;
  for (const CostSample& sample : samples) sum += std::abs(cost.ns(sample.bytes) / sample.ns - 1);
  return sum / static_cast<double>(samples.size());
}

double r_squared_of(Samples samples, const TransferCost& cost) {
  const double centre = GPU4FS_MUTANT(route_fit_flattered, average_ns(samples), 0.0);
  double variance = 0;
  for (const CostSample& sample : samples) variance += (sample.ns - centre) * (sample.ns - centre);
  return 1 - squared_error(samples, cost, FitError::absolute) / variance;
}

// The best constant.
double level_of(Samples samples, FitError error) {
  double weights = 0, sum = 0;
  for (const CostSample& sample : samples) {
    weights += weight_of(sample, error);
    sum += weight_of(sample, error) * sample.ns;
  }
  return sum / weights;
}

// The best line over the bytes above `cutoff`, with a latency of at least 0. None if it does not grow.
std::optional<TransferCost> line_above(Samples samples, double cutoff, FitError error) {
  const auto above = [cutoff](const CostSample& sample) {
    return std::max(0.0, static_cast<double>(sample.bytes) - cutoff);
  };
  double weights = 0, x_average = 0;
  for (const CostSample& sample : samples) {
    weights += weight_of(sample, error);
    x_average += weight_of(sample, error) * above(sample);
  }
  x_average /= weights;
  const double y_average = level_of(samples, error);
  // Sums of differences from the averages: squares of sizes alone would lose the digits of the times.
  double xx = 0, xy = 0, xx_origin = 0, xy_origin = 0;
  for (const CostSample& sample : samples) {
    const double weight = weight_of(sample, error), x = above(sample);
    xx += weight * (x - x_average) * (x - x_average);
    xy += weight * (x - x_average) * (sample.ns - y_average);
    xx_origin += weight * x * x;
    xy_origin += weight * x * sample.ns;
  }
  if (xx <= 0 || xy <= 0) return std::nullopt;
  const double slope = xy / xx;
  const double latency = y_average - slope * x_average;
  if (latency < 0) return TransferCost{0, xy_origin / xx_origin, cutoff};
  return TransferCost{latency, slope, cutoff};
}

// Cutoffs that can be the best one: sizes, and for each split into short and long transfers the place where the line of
// the long ones comes down to the average of the short ones.
std::vector<double> possible_cutoffs(Samples samples, FitError error) {
  const std::set<u64> size_set = sizes_of(samples);
  const std::vector<u64> sizes(size_set.begin(), size_set.end());
  std::vector<double> cutoffs;
  for (std::size_t i = 0; i + 2 < sizes.size(); ++i) {
    if (i != 0) cutoffs.push_back(static_cast<double>(sizes[i]));  // the first one is a plain line
    std::vector<CostSample> shorter, longer;
    for (const CostSample& sample : samples) (sample.bytes <= sizes[i] ? shorter : longer).push_back(sample);
    const double least = level_of(shorter, error);
    const double x0 = static_cast<double>(sizes[i + 1]);
    // As a line over the bytes above the first long size, whose latency is positive for data that fits.
    const std::optional<TransferCost> line = line_above(longer, x0, error);
    if (!line) continue;
    const double cutoff = x0 - (line->latency_ns - least) / line->ns_per_byte;
    if (cutoff > static_cast<double>(sizes[i]) && cutoff < x0) cutoffs.push_back(cutoff);
  }
  return cutoffs;
}

FittedCost fitted(Samples samples, const TransferCost& cost) {
  return {cost, r_squared_of(samples, cost), relative_error_of(samples, cost), static_cast<u32>(samples.size())};
}

}  // namespace

FittedCost fit_line(std::span<const CostSample> samples, FitError error) {
  check_samples(samples);
  const std::optional<TransferCost> line = line_above(samples, 0, error);
  if (!line) throw RouteError("cost model: the times do not grow with the size");
  return fitted(samples, *line);
}

FittedCost fit_with_cutoff(std::span<const CostSample> samples, FitError error) {
  TransferCost best = fit_line(samples, error).cost;
  double least = squared_error(samples, best, error);
  // A line needs no cutoff because of rounding.
  const double rounding = 1e-12 * squared_error(samples, TransferCost{}, error);
  for (const double cutoff : possible_cutoffs(samples, error)) {
    const std::optional<TransferCost> cost = line_above(samples, cutoff, error);
    if (!cost) continue;
    const double sum = squared_error(samples, *cost, error);
    if (sum + rounding < least) {
      least = sum;
      best = *cost;
    }
  }
  return fitted(samples, best);
}

}  // namespace gpu4fs::route
