#include "base/host/size_text.hpp"

#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <stdexcept>

namespace gpu4fs {

namespace {

u64 unit_factor(std::string_view unit) {
  std::string lower;
  for (const char character : unit) {
    lower += static_cast<char>(std::tolower(static_cast<unsigned char>(character)));
  }
  if (lower.empty() || lower == "b") return 1;
  const std::size_t power = std::string_view("kmgt").find(lower[0]);
  if (power == std::string_view::npos) return 0;
  const std::string_view rest = std::string_view(lower).substr(1);
  if (!rest.empty() && rest != "ib" && rest != "b") return 0;
  u64 factor = 1;
  for (std::size_t i = 0; i <= power; ++i) factor *= rest == "b" ? 1000 : 1024;
  return factor;
}

}  // namespace

u64 parse_size(std::string_view text) {
  u64 number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  while (!unit.empty() && unit[0] == ' ') unit.remove_prefix(1);
  const u64 factor = error == std::errc() ? unit_factor(unit) : 0;
  if (factor == 0) {
    throw std::invalid_argument(fmt::format("'{}' is not a size (examples: 4096, 512M, 2GiB, 10GB)", text));
  }
  if (number > (~u64{0} >> 1) / factor) {
    throw std::invalid_argument(fmt::format("size '{}' is too large", text));
  }
  return number * factor;
}

std::string size_text(u64 bytes) {
  constexpr std::string_view units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(units)) {
    value /= 1024;
    ++unit;
  }
  std::string number = fmt::format("{:.2f}", value);
  while (number.back() == '0') number.pop_back();
  if (number.back() == '.') number.pop_back();
  return fmt::format("{} {}", number, units[unit]);
}

}  // namespace gpu4fs
