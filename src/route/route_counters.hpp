// How often each route was taken, and why. Host only.
#pragma once

#include <array>
#include <atomic>
#include <span>
#include <string>

#include "route/routes.hpp"
#include "route/schedule.hpp"
#include "route/transfer_steps.hpp"

namespace gpu4fs::route {

struct RouteCount {
  u64 transfers = 0;
  u64 bytes = 0;

  friend bool operator==(const RouteCount&, const RouteCount&) = default;
};

// Values of one moment. Each number only grows; two of them may be of different moments.
struct RouteCounts {
  std::array<std::array<RouteCount, reason_count>, route_count> by_reason = {};
  RouteCount written_back;  // ranges that were written to the medium before it was read
  RouteCount prefetched;

  const RouteCount& of(Route route, Reason reason) const {
    return by_reason[static_cast<u32>(route)][static_cast<u32>(reason)];
  }
  RouteCount& of(Route route, Reason reason) { return by_reason[static_cast<u32>(route)][static_cast<u32>(reason)]; }
  RouteCount total(Route route) const;
};

// Any thread may count at any time.
class RouteCounters {
 public:
  void count(Route route, Reason reason, u64 bytes);
  void count_write_back(u64 bytes);
  void count_prefetch(u64 bytes);
  // All steps of a call.
  void count(std::span<const TransferStep> steps);

  RouteCounts counts() const;

 private:
  struct Cell {
    std::atomic<u64> transfers = 0;
    std::atomic<u64> bytes = 0;

    void add(u64 length);
    RouteCount value() const;
  };

  std::array<std::array<Cell, reason_count>, route_count> by_reason_;
  Cell written_back_;
  Cell prefetched_;
};

// A line for each route that was taken, and below it a line for each reason, with transfers and bytes. Empty if nothing
// was counted.
std::string to_text(const RouteCounts& counts);

}  // namespace gpu4fs::route
