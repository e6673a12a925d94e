#include "route/cost_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "base/host/json.hpp"
#include "base/host/json_value.hpp"
#include "route/route_error.hpp"

namespace gpu4fs::route {

namespace {

constexpr Route all_routes[] = {
#define GPU4FS_ROUTE_VALUE(name, text) Route::name,
    GPU4FS_ROUTE_LIST(GPU4FS_ROUTE_VALUE)
#undef GPU4FS_ROUTE_VALUE
};

[[noreturn]] void fail_format(const std::string& what) {
  throw RouteError("cost file: " + what);
}

double number_of(const JsonValue& object, const std::string& key, double least) {
  const JsonValue& value = object[key];
  if (value.kind != JsonValue::Kind::number) fail_format(fmt::format("'{}' is missing or no number", key));
  if (!std::isfinite(value.number) || value.number < least) {
    fail_format(fmt::format("'{}' is {}, which is no {}", key, value.number, key));
  }
  return value.number;
}

std::string member_text(const JsonValue& object, const std::string& key) {
  const JsonValue& value = object[key];
  if (value.kind != JsonValue::Kind::text || value.text.empty()) {
    fail_format(fmt::format("'{}' is missing or no text", key));
  }
  return value.text;
}

FittedCost fitted_cost_of(const JsonValue& object) {
  constexpr double any = -1e300;  // a bad fit has a negative R²
  FittedCost result;
  result.cost.latency_ns = number_of(object, "latency_ns", 0);
  result.cost.ns_per_byte = number_of(object, "ns_per_byte", 0);
  result.cost.cutoff_bytes = number_of(object, "cutoff_bytes", 0);
  result.r_squared = number_of(object, "r_squared", any);
  result.relative_error = number_of(object, "relative_error", 0);
  result.sample_count = static_cast<u32>(std::min(number_of(object, "sample_count", fit_samples_min), 4e9));
  if (result.r_squared > 1) fail_format(fmt::format("'r_squared' is {}, more than 1", result.r_squared));
  return result;
}

DeviceCosts device_costs_of(const JsonValue& object) {
  DeviceCosts result;
  result.device = member_text(object, "device");
  result.date = member_text(object, "date");
  u32 known = 0;
  for (const Route route : all_routes) {
    const JsonValue& member = object["routes"][std::string(to_text(route))];
    if (member.kind == JsonValue::Kind::null) continue;
    result.of(route) = fitted_cost_of(member);
    ++known;
  }
  if (known == 0 || known != object["routes"].members.size()) {
    fail_format(fmt::format("device '{}' has no route, or one that is not known", result.device));
  }
  return result;
}

[[noreturn]] void fail_file(const std::string& path, const char* what, int number) {
  throw RouteError(fmt::format("{}: {}: {}", path, what, std::strerror(number)));
}

// 0, or an errno. The file is durable then.
int write_file(const std::string& path, const std::string& text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return errno;
  int error = 0;
  for (std::size_t done = 0; done < text.size() && error == 0;) {
    const ssize_t count = ::write(fd, text.data() + done, text.size() - done);
    if (count >= 0) {
      done += static_cast<std::size_t>(count);
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  if (error == 0 && ::fsync(fd) != 0) error = errno;
  ::close(fd);
  return error;
}

}  // namespace

const DeviceCosts* CostFile::find(std::string_view device) const {
  const auto found =
      std::find_if(devices.begin(), devices.end(), [&](const auto& one) { return one.device == device; });
  return found == devices.end() ? nullptr : &*found;
}

void CostFile::put(DeviceCosts costs) {
  const auto found =
      std::find_if(devices.begin(), devices.end(), [&](const auto& one) { return one.device == costs.device; });
  if (found == devices.end()) {
    devices.push_back(std::move(costs));
  } else {
    *found = std::move(costs);
  }
}

std::string to_json(const CostFile& file) {
  JsonWriter json;
  json.begin_object();
  json.add("version", cost_file_version);
  json.begin_array("devices");
  for (const DeviceCosts& device : file.devices) {
    json.begin_object();
    json.add("device", device.device);
    json.add("date", device.date);
    json.begin_object("routes");
    for (const Route route : all_routes) {
      if (!device.of(route)) continue;
      const FittedCost& fit = *device.of(route);
      json.begin_object(to_text(route));
      json.add("latency_ns", fit.cost.latency_ns);
      json.add("ns_per_byte", fit.cost.ns_per_byte);
      json.add("cutoff_bytes", fit.cost.cutoff_bytes);
      json.add("r_squared", fit.r_squared);
      json.add("relative_error", fit.relative_error);
      json.add("sample_count", fit.sample_count);
      json.end();
    }
    json.end();
    json.end();
  }
  json.end();
  json.end();
  return json.text();
}

CostFile cost_file_from_json(std::string_view text) {
  JsonValue root;
  try {
    root = parse_json(text);
  } catch (const std::runtime_error& error) {
    fail_format(error.what());
  }
  const double version = number_of(root, "version", 0);
  if (version != cost_file_version) {
    fail_format(fmt::format("version {}, and this program knows {}", version, cost_file_version));
  }
  CostFile file;
  for (const JsonValue& device : root["devices"].elements) file.put(device_costs_of(device));
  return file;
}

CostFile load_cost_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) {
    if (errno == ENOENT) return {};
    fail_file(path, "cannot be opened", errno);
  }
  const std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  if (stream.bad()) fail_file(path, "cannot be read", errno);
  try {
    return cost_file_from_json(text);
  } catch (const RouteError& error) {
    throw RouteError(path + ": " + error.what());
  }
}

void save_cost_file(const std::string& path, const CostFile& file) {
  const std::string fresh = fmt::format("{}.{}", path, ::getpid());
  int error = write_file(fresh, to_json(file));
  if (error == 0 && ::rename(fresh.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return;
  ::unlink(fresh.c_str());
  fail_file(path, "cannot be written", error);
}

}  // namespace gpu4fs::route
