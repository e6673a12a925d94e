#include "nvme/emulated/profile.hpp"

#include <charconv>

namespace gpu4fs::nvme {

namespace {

constexpr u64 latency_ns_max = 10000000000;

u64 unit_ns(std::string_view unit) {
  if (unit == "ns") return 1;
  if (unit == "us") return 1000;
  if (unit == "ms") return 1000000;
  return 0;
}

}  // namespace

std::optional<DriveProfile> find_profile(std::string_view text) {
  if (text == "unlimited") return profile_unlimited;
  if (text == "p5800x") return profile_p5800x;
  if (text == "980pro") return profile_980_pro;
  if (text == "pm1735") return profile_pm1735;
  u64 number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  if (parsed.ec != std::errc{}) return std::nullopt;
  const u64 unit = unit_ns(text.substr(static_cast<std::size_t>(parsed.ptr - text.data())));
  if (unit == 0 || number > latency_ns_max / unit) return std::nullopt;
  DriveProfile profile;
  profile.read_latency_ns = profile.write_latency_ns = number * unit;
  return profile;
}

}  // namespace gpu4fs::nvme
