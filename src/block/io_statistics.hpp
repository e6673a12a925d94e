// What a controller has done. Host only.
#pragma once

#include <array>
#include <atomic>

#include "base/types.hpp"
#include "device/queue/io_request.hpp"

namespace gpu4fs::block {

struct OperationStatistics {
  u64 requests;    // that have completed
  u64 bytes;       // of them, if they succeeded
  u64 operations;  // of the medium, which carried them out; a short transfer and its rest count as one
  u64 merged;      // requests that shared an operation with one before them: requests - operations
  u64 errors;      // requests that failed
};

// By IoOperation.
using IoStatistics = std::array<OperationStatistics, device::io_operation_count>;

inline const OperationStatistics& of(const IoStatistics& statistics, device::IoOperation operation) {
  return statistics[static_cast<u32>(operation)];
}

// Any thread adds and reads; the numbers of one snapshot need not agree.
class IoCounters {
 public:
  void add(device::IoOperation operation, u64 requests, u64 bytes, bool has_failed) {
    Counters& counters = counters_[static_cast<u32>(operation)];
    counters.operations.fetch_add(1, std::memory_order_relaxed);
    counters.requests.fetch_add(requests, std::memory_order_relaxed);
    (has_failed ? counters.errors : counters.bytes).fetch_add(has_failed ? requests : bytes, std::memory_order_relaxed);
  }
  IoStatistics snapshot() const {
    IoStatistics statistics{};
    for (u32 i = 0; i < device::io_operation_count; ++i) {
      const u64 operations = counters_[i].operations.load(std::memory_order_relaxed);
      const u64 requests = counters_[i].requests.load(std::memory_order_relaxed);
      statistics[i] = {requests, counters_[i].bytes.load(std::memory_order_relaxed), operations,
                       requests > operations ? requests - operations : 0,
                       counters_[i].errors.load(std::memory_order_relaxed)};
    }
    return statistics;
  }

 private:
  struct Counters {
    std::atomic<u64> requests{0};
    std::atomic<u64> bytes{0};
    std::atomic<u64> operations{0};
    std::atomic<u64> errors{0};
  };
  std::array<Counters, device::io_operation_count> counters_;
};

}  // namespace gpu4fs::block
