// gpu4fs calibrate: measures the routes of a file and keeps their costs for its device.
#include <fmt/format.h>

#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "base/host/size_text.hpp"
#include "route/calibration.hpp"
#include "route/cost_file.hpp"
#include "route/route_error.hpp"
#include "tools/verbs.hpp"

namespace gpu4fs::tools {
namespace {

constexpr int status_failure = 8;
constexpr int status_usage = 16;

struct Arguments {
  std::string file;
  std::string costs;
  std::string bytes_max;
  bool samples = false;
};
Arguments line;

void add_options(cli::CommandLine app) {
  line = {};
  line.bytes_max = "16M";
  app.option("file", line.file, "A file on the device, which is read").required();
  app.option("--costs", line.costs, "Keep the costs of the device in this file; its other devices stay");
  app.option("--max-size", line.bytes_max, "The longest read; a power of two (16M)");
  app.flag("--samples", line.samples, "Print the measured times");
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm date = {};
  ::gmtime_r(&now, &date);
  return fmt::format("{:04}-{:02}-{:02}", date.tm_year + 1900, date.tm_mon + 1, date.tm_mday);
}

void print_fit(route::Route route, const route::FittedCost& fit, const std::vector<route::CostSample>& samples) {
  fmt::print("{}: {:.1f} us, up to {}, then {:.2f} GB/s, R² {:.4f}, average error {:.0f} %\n", to_text(route),
             fit.cost.latency_ns / 1000, size_text(static_cast<u64>(fit.cost.cutoff_bytes)), 1 / fit.cost.ns_per_byte,
             fit.r_squared, 100 * fit.relative_error);
  if (!line.samples) return;
  for (const route::CostSample& sample : samples) {
    fmt::print("  {}: {:.1f} us, predicted {:.1f} us\n", size_text(sample.bytes), sample.ns / 1000,
               fit.cost.ns(sample.bytes) / 1000);
  }
}

int run() {
  route::CalibrationSizes sizes;
  sizes.bytes_max = parse_size(line.bytes_max);
  route::DeviceCosts costs;
  costs.device = route::device_name_of(line.file);
  costs.date = today();
  fmt::print("device {}\n", costs.device);
  int status = 0;
  bool is_measured = false;
  for (const route::Route route : {route::Route::cached, route::Route::direct}) {
    try {
      const std::vector<route::CostSample> samples = route::measure_route(line.file, route, sizes);
      const route::FittedCost fit = route::fit_with_cutoff(samples, route::FitError::relative);
      print_fit(route, fit, samples);
      costs.of(route) = fit;
      is_measured = true;
    } catch (const route::RouteError& error) {
      fmt::print(stderr, "gpu4fs calibrate: {}: {}\n", to_text(route), error.what());
      status = status_failure;
    }
  }
  if (!line.costs.empty() && is_measured) {
    route::CostFile file = route::load_cost_file(line.costs);
    file.put(std::move(costs));
    route::save_cost_file(line.costs, file);
  }
  return status;
}

}  // namespace

const cli::Verb calibrate_verb = {
    "calibrate", "measure how fast a file is read", nullptr, add_options, run, status_usage, status_failure};

}  // namespace gpu4fs::tools
