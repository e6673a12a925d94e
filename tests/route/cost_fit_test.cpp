// Fits of times whose costs are known.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "route/cost_fit.hpp"
#include "route/route_error.hpp"

namespace gpu4fs::route {
namespace {

// Sizes of a calibration, 4 KiB to 16 MiB, with `noise` as the relative standard deviation.
std::vector<CostSample> samples_of(const TransferCost& cost, double noise = 0, u32 repeats = 1) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal(0, 1);
  std::vector<CostSample> samples;
  for (u64 bytes = 4096; bytes <= u64{16} << 20; bytes *= 2) {
    for (u32 i = 0; i < repeats; ++i) samples.push_back({bytes, cost.ns(bytes) * (1 + noise * normal(random))});
  }
  return samples;
}

std::string fit_fault(const std::vector<CostSample>& samples) {
  try {
    fit_with_cutoff(samples, FitError::absolute);
  } catch (const RouteError& error) {
    return error.what();
  }
  return "";
}

constexpr FitError fit_errors[] = {FitError::absolute, FitError::relative};

TEST(CostFit, LinesAreRecovered) {
  for (const TransferCost& cost :
       {TransferCost{80'000, 0.15, 0}, TransferCost{1'500, 0.02, 0}, TransferCost{0, 3, 0}}) {
    for (const FitError error : fit_errors) {
      const FittedCost fit = fit_line(samples_of(cost), error);
      EXPECT_NEAR(fit.cost.latency_ns, cost.latency_ns, 1e-6 * (cost.latency_ns + 1));
      EXPECT_NEAR(fit.cost.ns_per_byte, cost.ns_per_byte, 1e-9 * cost.ns_per_byte);
      EXPECT_NEAR(fit.r_squared, 1, 1e-9);
      EXPECT_NEAR(fit.relative_error, 0, 1e-6);
      EXPECT_EQ(fit.sample_count, 13u);
      EXPECT_EQ(fit.cost.cutoff_bytes, 0);
      EXPECT_EQ(fit_with_cutoff(samples_of(cost), error).cost.cutoff_bytes, 0);
    }
  }
}

TEST(CostFit, CutoffsAreRecovered) {
  // At a size, and between two sizes.
  for (const double cutoff : {512.0 * 1024, 600'000.0, 5'000.0, 3.5 * (1 << 20)}) {
    const TransferCost cost = {584'000, 1 / 2.65, cutoff};
    for (const FitError error : fit_errors) {
      const FittedCost fit = fit_with_cutoff(samples_of(cost), error);
      EXPECT_NEAR(fit.cost.latency_ns, cost.latency_ns, 1e-3 * cost.latency_ns) << cutoff;
      EXPECT_NEAR(fit.cost.ns_per_byte, cost.ns_per_byte, 1e-6 * cost.ns_per_byte) << cutoff;
      EXPECT_NEAR(fit.cost.cutoff_bytes, cutoff, 1e-3 * cutoff);
      EXPECT_NEAR(fit.r_squared, 1, 1e-9);
    }
  }
  // The cutoff explains more than a plain line does.
  const std::vector<CostSample> noisy = samples_of({584'000, 1 / 2.65, 512 << 10}, 0.03, 20);
  EXPECT_GT(fit_with_cutoff(noisy, FitError::absolute).r_squared, fit_line(noisy, FitError::absolute).r_squared);
}

TEST(CostFit, NoiseIsAveragedAndLowersRSquared) {
  const TransferCost cost = {80'000, 0.15, 0};
  double last = 1;
  for (const double noise : {0.02, 0.1, 0.3}) {
    const FittedCost fit = fit_line(samples_of(cost, noise, 200), FitError::absolute);
    EXPECT_NEAR(fit.cost.ns_per_byte, cost.ns_per_byte, noise * cost.ns_per_byte / 5);
    EXPECT_LT(fit.r_squared, last);
    EXPECT_GT(fit.r_squared, 1 - 4 * noise * noise);
    last = fit.r_squared;
  }
  // The paper's fit explains more than 99 % of the variance.
  for (const FitError error : fit_errors) {
    const FittedCost cut = fit_with_cutoff(samples_of({584'000, 1 / 2.65, 512 << 10}, 0.02, 200), error);
    EXPECT_NEAR(cut.cost.latency_ns, 584'000, 0.1 * 584'000);
    EXPECT_NEAR(cut.cost.cutoff_bytes, 512 << 10, 0.35 * (512 << 10));
    EXPECT_GT(cut.r_squared, 0.99);
    EXPECT_LT(cut.relative_error, 0.05);
  }
}

// Copies of which the short ones come from the processor's caches: measured on a machine. R² tells of long ones only.
TEST(CostFit, RelativeErrorsKeepShortTransfersRight) {
  const std::vector<CostSample> samples = {
      {4096, 1'000},      {8192, 1'400},        {16384, 2'100},       {32768, 4'000},     {65536, 13'400},
      {131072, 32'300},   {262144, 66'600},     {524288, 80'400},     {1 << 20, 126'200}, {2 << 20, 334'000},
      {4 << 20, 800'800}, {8 << 20, 2'443'300}, {16 << 20, 5'261'200}};
  const FittedCost absolute = fit_with_cutoff(samples, FitError::absolute);
  EXPECT_GT(absolute.r_squared, 0.99);
  EXPECT_GT(absolute.cost.ns(4096) / 1'000, 20);
  EXPECT_GT(absolute.relative_error, 1);
  const FittedCost relative = fit_with_cutoff(samples, FitError::relative);
  EXPECT_NEAR(relative.cost.ns(4096) / 1'000, 1, 0.5);
  EXPECT_LT(relative.relative_error, 0.4);
}

// Times that have little to do with the size, far from zero: the size explains next to nothing of them.
TEST(CostFit, RSquaredOfUnrelatedTimesIsNearZero) {
  std::mt19937_64 random(3);
  std::vector<CostSample> samples;
  for (u32 i = 0; i < 2000; ++i) {
    const u64 bytes = 4096 << (i % 8);
    samples.push_back({bytes, 1e6 + static_cast<double>(random() % 100'000) + static_cast<double>(bytes) * 1e-3});
  }
  EXPECT_LT(fit_line(samples, FitError::absolute).r_squared, 0.05);
  EXPECT_GT(fit_line(samples, FitError::absolute).r_squared, -0.01);
}

TEST(CostFit, RSquaredIsThatOfTheDefinition) {
  const std::vector<CostSample> samples = {{1000, 10}, {2000, 30}, {3000, 20}, {4000, 40}};
  const FittedCost fit = fit_line(samples, FitError::absolute);
  EXPECT_NEAR(fit.cost.ns_per_byte, 0.008, 1e-12);
  EXPECT_NEAR(fit.cost.latency_ns, 5, 1e-9);
  EXPECT_NEAR(fit.r_squared, 0.64, 1e-12);
}

TEST(CostFit, LatenciesAreNotNegative) {
  const FittedCost fit = fit_line(std::vector<CostSample>{{1000, 1}, {2000, 10}, {3000, 30}}, FitError::absolute);
  EXPECT_EQ(fit.cost.latency_ns, 0);
  EXPECT_NEAR(fit.cost.ns_per_byte, (1000.0 + 2000 * 10 + 3000 * 30) / 14e6, 1e-12);
}

TEST(CostFit, SamplesThatSayNothingAreRefused) {
  EXPECT_NE(fit_fault({}).find("0 samples, at least 3"), std::string::npos);
  EXPECT_NE(fit_fault({{4096, 1}, {8192, 2}}).find("2 samples, at least 3"), std::string::npos);
  EXPECT_NE(fit_fault({{4096, 1}, {8192, 2}, {8192, 3}, {4096, 2}}).find("2 different sizes"), std::string::npos);
  EXPECT_NE(fit_fault({{4096, 1}, {4096, 2}, {4096, 3}}).find("1 different sizes"), std::string::npos);
  EXPECT_NE(fit_fault({{4096, 7}, {8192, 7}, {16384, 7}}).find("the same time"), std::string::npos);
  EXPECT_NE(fit_fault({{4096, 9}, {8192, 8}, {16384, 7}}).find("do not grow"), std::string::npos);
  EXPECT_NE(fit_fault({{4096, 1}, {8192, 0}, {16384, 7}}).find("8192 bytes took 0 ns"), std::string::npos);
  EXPECT_NE(fit_fault({{4096, 1}, {8192, NAN}, {16384, 7}}).find("took nan ns"), std::string::npos);
  EXPECT_NE(fit_fault({{0, 1}, {8192, 2}, {16384, 7}}).find("without bytes"), std::string::npos);
}

}  // namespace
}  // namespace gpu4fs::route
