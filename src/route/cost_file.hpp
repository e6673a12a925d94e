// The costs of a device's routes in a file, where calibration leaves them. Host only.
//
// JSON: {"version", "devices": [{"device", "date", "routes": {"<route>": {"latency_ns", "ns_per_byte", "cutoff_bytes",
// "r_squared", "relative_error", "sample_count"}}}]}. Numbers have six digits.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "route/cost_fit.hpp"
#include "route/routes.hpp"

namespace gpu4fs::route {

inline constexpr u32 cost_file_version = 1;

struct DeviceCosts {
  std::string device;  // what the caller names devices by, for example the ID of a disk
  std::string date;    // of the calibration, YYYY-MM-DD
  std::array<std::optional<FittedCost>, route_count> routes;  // those that were calibrated

  const std::optional<FittedCost>& of(Route route) const { return routes[static_cast<u32>(route)]; }
  std::optional<FittedCost>& of(Route route) { return routes[static_cast<u32>(route)]; }
};

struct CostFile {
  std::vector<DeviceCosts> devices;

  const DeviceCosts* find(std::string_view device) const;  // nullptr if it was never calibrated
  void put(DeviceCosts costs);                             // replaces those of the same device
};

std::string to_json(const CostFile& file);

// Throws RouteError: not JSON, another version, or a member that is missing or that no calibration writes.
CostFile cost_file_from_json(std::string_view text);

// A file that does not exist is empty. Throws RouteError with the path.
CostFile load_cost_file(const std::string& path);

// Replaces the file in one step, so a reader sees the old or the new one. Throws RouteError with the path.
void save_cost_file(const std::string& path, const CostFile& file);

}  // namespace gpu4fs::route
