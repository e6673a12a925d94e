// Costs that follow observed transfers, slowly.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "route/cost_correction.hpp"

namespace gpu4fs::route {
namespace {

constexpr TransferCost calibrated = {80'000, 0.15, 64 << 10};

u64 random_size(std::mt19937_64& random) {
  return u64{4096} << random() % 13;
}

TEST(CostCorrection, TimesAsPredictedChangeNothing) {
  CorrectedCost corrected(calibrated);
  for (u64 bytes = 4096; bytes <= u64{16} << 20; bytes *= 2) corrected.observe(bytes, calibrated.ns(bytes));
  EXPECT_EQ(corrected.cost(), calibrated);
  EXPECT_EQ(corrected.observation_count(), 13u);
  EXPECT_EQ(corrected.outlier_count(), 0u);
}

TEST(CostCorrection, FollowsADriveThatHasChanged) {
  for (const TransferCost& real : {TransferCost{160'000, 0.15, 64 << 10}, TransferCost{80'000, 0.4, 64 << 10},
                                   TransferCost{50'000, 0.25, 64 << 10}}) {
    CorrectedCost corrected(calibrated);
    std::mt19937_64 random(1);
    std::normal_distribution<double> normal(0, 1);
    for (u32 i = 0; i < 4000; ++i) {
      const u64 bytes = random_size(random);
      corrected.observe(bytes, real.ns(bytes) * std::max(0.1, 1 + 0.1 * normal(random)));
    }
    for (u64 bytes = 4096; bytes <= u64{16} << 20; bytes *= 2) {
      EXPECT_NEAR(corrected.cost().ns(bytes) / real.ns(bytes), 1, 0.08) << bytes;
    }
  }
}

TEST(CostCorrection, OneObservationMovesThePredictionByAStepAtMost) {
  for (const double factor : {1e-6, 0.3, 1.5, 3.0, 1e9}) {
    for (const u64 bytes : {u64{4096}, u64{1} << 20, u64{16} << 20}) {
      CorrectedCost corrected(calibrated);
      corrected.observe(bytes, factor * calibrated.ns(bytes));
      const double change = corrected.cost().ns(bytes) / calibrated.ns(bytes) - 1;
      EXPECT_LE(std::abs(change), 1.0 / 16 + 1e-12) << factor;
      EXPECT_GT(change * (factor - 1), 0) << factor;
    }
  }
}

// One transfer of a hundred takes a thousand times as long.
TEST(CostCorrection, RareOutliersHardlyCount) {
  CorrectedCost corrected(calibrated);
  std::mt19937_64 random(2);
  double worst = 1;
  for (u32 i = 0; i < 20'000; ++i) {
    const u64 bytes = random_size(random);
    corrected.observe(bytes, calibrated.ns(bytes) * (i % 100 == 99 ? 1000 : 1));
    worst = std::max(worst, corrected.cost().ns(bytes) / calibrated.ns(bytes));
  }
  EXPECT_EQ(corrected.outlier_count(), 200u);
  EXPECT_LT(worst, 1.15);
}

TEST(CostCorrection, StaysNearTheCalibration) {
  CorrectedCost slower(calibrated), faster(calibrated);
  for (u32 i = 0; i < 10'000; ++i) {
    slower.observe(i % 2 == 0 ? 4096 : 16 << 20, 1e15);
    faster.observe(i % 2 == 0 ? 4096 : 16 << 20, 1e-3);
  }
  EXPECT_DOUBLE_EQ(slower.cost().latency_ns, 8 * calibrated.latency_ns);
  EXPECT_DOUBLE_EQ(slower.cost().ns_per_byte, 8 * calibrated.ns_per_byte);
  EXPECT_DOUBLE_EQ(faster.cost().latency_ns, calibrated.latency_ns / 8);
  EXPECT_DOUBLE_EQ(faster.cost().ns_per_byte, calibrated.ns_per_byte / 8);
}

TEST(CostCorrection, WhatIsNoTimeIsIgnored) {
  CorrectedCost corrected(calibrated);
  for (const double ns : {0.0, -1.0, std::nan(""), HUGE_VAL}) corrected.observe(4096, ns);
  corrected.observe(0, 100);
  EXPECT_EQ(corrected.cost(), calibrated);
  EXPECT_EQ(corrected.observation_count(), 0u);
}

}  // namespace
}  // namespace gpu4fs::route
