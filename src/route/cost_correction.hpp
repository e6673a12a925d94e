// A cost that corrects itself from transfers that were observed. Host only.
//
// SPIN calibrates once (section 4.3.1, "Generalization to other SSDs"). This is an addition: drives become slower with
// wear, heat and load.
#pragma once

#include "base/types.hpp"
#include "route/transfer_cost.hpp"

namespace gpu4fs::route {

// With one observation the predicted time changes by at most step_max of the relative error that counts, and an error
// counts as at most slower_max or faster_max: one transfer that was interrupted for a second moves the prediction as
// little as one that took double the time. All costs stay within drift_max of the calibrated ones.
struct CorrectionLimits {
  double step_max = 1.0 / 16;
  double slower_max = 1;    // twice the predicted time
  double faster_max = 0.5;  // half of the predicted time
  double drift_max = 8;     // a factor
};

class CorrectedCost {
 public:
  explicit CorrectedCost(const TransferCost& calibrated, const CorrectionLimits& limits = {});

  const TransferCost& cost() const { return cost_; }

  // A transfer of `bytes` took `ns`. Latency and time per byte change by their shares of the prediction, so short
  // transfers correct the one and long ones the other. The cutoff stays. Observations that are not positive numbers are
  // ignored.
  void observe(u64 bytes, double ns);

  u64 observation_count() const { return observation_count_; }
  u64 outlier_count() const { return outlier_count_; }  // whose errors counted less than they were

 private:
  TransferCost calibrated_;
  TransferCost cost_;
  CorrectionLimits limits_;
  u64 observation_count_ = 0;
  u64 outlier_count_ = 0;
};

}  // namespace gpu4fs::route
