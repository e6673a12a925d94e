// The file of costs: what is stored comes back, and what nobody stored is refused.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "route/cost_file.hpp"
#include "route/route_error.hpp"

namespace gpu4fs::route {
namespace {

DeviceCosts example(const std::string& device) {
  DeviceCosts costs;
  costs.device = device;
  costs.date = "2026-11-28";
  costs.of(Route::cached) = FittedCost{{1'500, 0.0987, 0}, 0.9987, 0.0625, 130};
  costs.of(Route::direct) = FittedCost{{584'000, 0.377358, 524'288}, 0.995, 0.04, 130};
  return costs;
}

void expect_equal(const DeviceCosts& one, const DeviceCosts& other) {
  EXPECT_EQ(one.device, other.device);
  EXPECT_EQ(one.date, other.date);
  for (u32 i = 0; i < route_count; ++i) {
    ASSERT_EQ(one.routes[i].has_value(), other.routes[i].has_value());
    if (!one.routes[i]) continue;
    EXPECT_EQ(one.routes[i]->cost, other.routes[i]->cost);
    EXPECT_DOUBLE_EQ(one.routes[i]->r_squared, other.routes[i]->r_squared);
    EXPECT_DOUBLE_EQ(one.routes[i]->relative_error, other.routes[i]->relative_error);
    EXPECT_EQ(one.routes[i]->sample_count, other.routes[i]->sample_count);
  }
}

std::string text_fault(const std::string& text) {
  try {
    cost_file_from_json(text);
  } catch (const RouteError& error) {
    return error.what();
  }
  return "";
}

TEST(CostFile, TextHasEverything) {
  CostFile file;
  file.put(example("nvme-eui.1"));
  file.put(example("a \"name\"\n"));
  const CostFile read = cost_file_from_json(to_json(file));
  ASSERT_EQ(read.devices.size(), 2u);
  expect_equal(read.devices[0], file.devices[0]);
  expect_equal(read.devices[1], file.devices[1]);
  EXPECT_EQ(read.find("nvme-eui.2"), nullptr);
  EXPECT_EQ(read.find("nvme-eui.1"), &read.devices[0]);
}

TEST(CostFile, ANewCalibrationReplacesTheOldOne) {
  CostFile file;
  file.put(example("a"));
  DeviceCosts again = example("a");
  again.date = "2026-11-29";
  file.put(again);
  ASSERT_EQ(file.devices.size(), 1u);
  EXPECT_EQ(file.devices[0].date, "2026-11-29");
}

TEST(CostFile, IsReplacedInOneStep) {
  std::string folder = "route_costs_XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/costs.json";
  EXPECT_TRUE(load_cost_file(path).devices.empty());
  CostFile file;
  file.put(example("a"));
  save_cost_file(path, file);
  file.put(example("b"));
  save_cost_file(path, file);
  EXPECT_EQ(load_cost_file(path).devices.size(), 2u);
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  EXPECT_EQ(count, 1u);

  std::ofstream(path) << "{";
  try {
    load_cost_file(path);
    ADD_FAILURE() << "half a file was read";
  } catch (const RouteError& error) {
    EXPECT_EQ(std::string(error.what()).find(path + ": cost file: not JSON"), 0u) << error.what();
  }
  EXPECT_THROW(save_cost_file(folder + "/none/costs.json", file), RouteError);
  EXPECT_THROW(save_cost_file(folder, file), RouteError);
  EXPECT_FALSE(std::filesystem::exists(folder + "." + std::to_string(::getpid())));
  std::filesystem::remove_all(folder);
}

TEST(CostFile, OtherTextsAreRefused) {
  CostFile file;
  file.put(example("a"));
  const std::string good = to_json(file);
  const auto with = [&](const std::string& what, const std::string& instead) {
    std::string text = good;
    const std::size_t at = text.find(what);
    EXPECT_NE(at, std::string::npos) << what;
    return text_fault(text.replace(at, what.size(), instead));
  };
  EXPECT_EQ(with("\"version\": 1", "\"version\": 1"), "");
  EXPECT_NE(with("\"version\": 1", "\"version\": 2").find("version 2"), std::string::npos);
  EXPECT_NE(with("\"version\"", "\"edition\"").find("'version' is missing"), std::string::npos);
  EXPECT_NE(with("\"latency_ns\": 1500", "\"latency_ns\": -1").find("'latency_ns' is -1"), std::string::npos);
  EXPECT_NE(with("\"ns_per_byte\": 0.0987", "\"ns_per_byte\": \"x\"").find("'ns_per_byte'"), std::string::npos);
  EXPECT_NE(with("\"r_squared\": 0.9987", "\"r_squared\": 1.5").find("more than 1"), std::string::npos);
  EXPECT_NE(with("\"relative_error\": 0.0625", "\"relative_error\": -1").find("'relative_error'"), std::string::npos);
  EXPECT_NE(with("\"sample_count\": 130", "\"sample_count\": 2").find("'sample_count' is 2"), std::string::npos);
  EXPECT_NE(with("\"cached\"", "\"cash\"").find("not known"), std::string::npos);
  EXPECT_NE(with("\"device\": \"a\"", "\"device\": \"\"").find("'device'"), std::string::npos);
  EXPECT_NE(text_fault("{\"version\": 1, \"devices\": [{\"device\": \"a\", \"date\": \"b\"}]}").find("no route"),
            std::string::npos);
  EXPECT_NE(text_fault("[1, 2]").find("'version'"), std::string::npos);
}

}  // namespace
}  // namespace gpu4fs::route
