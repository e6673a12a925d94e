// What a transfer costs (SPIN, section 4.3.1, equation 1). Host only.
#pragma once

#include "base/types.hpp"

namespace gpu4fs::route {

// The time of one transfer: latency_ns for up to cutoff_bytes, and ns_per_byte for each byte above. In terms of the
// paper latency_ns is C, cutoff_bytes is S_cutoff, and ns_per_byte is 1 / BW. A cutoff of 0 is a plain line.
struct TransferCost {
  double latency_ns = 0;
  double ns_per_byte = 0;
  double cutoff_bytes = 0;

  // 0 for no bytes: there is no transfer then.
  double ns(u64 bytes) const {
    if (bytes == 0) return 0;
    const double above = static_cast<double>(bytes) - cutoff_bytes;
    return latency_ns + (above > 0 ? above * ns_per_byte : 0);
  }

  friend bool operator==(const TransferCost&, const TransferCost&) = default;
};

}  // namespace gpu4fs::route
