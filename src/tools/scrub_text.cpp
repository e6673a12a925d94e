#include "tools/scrub_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "base/host/size_text.hpp"
#include "base/limits.hpp"
#include "base/types.hpp"
#include "format/format_text.hpp"

namespace gpu4fs::tools {
namespace {

u64 count_of(const JsonValue& value) { return value.number > 0 ? static_cast<u64>(value.number) : 0; }

std::string moment_text(double seconds_since_1970) {
  const auto moment = static_cast<std::time_t>(seconds_since_1970);
  std::tm parts{};
  ::gmtime_r(&moment, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text;
}

}  // namespace

std::string duration_text(double seconds) {
  const u64 whole = static_cast<u64>(std::clamp(seconds, 0.0, 1e12) + 0.5);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{}:{:02} min", whole / 60, whole % 60);
  return fmt::format("{}:{:02} h", whole / 3600, whole / 60 % 60);
}

std::string scrub_text(const JsonValue& scrub) {
  const std::string& state = scrub["state"].text;
  if (state == "never") return "scrub       never\n";
  const u64 total = std::max(count_of(scrub["pages_total"]), count_of(scrub["pages_verified"]));
  const u64 verified = count_of(scrub["pages_verified"]);
  std::string text = fmt::format("scrub       {}, began {}", state, moment_text(scrub["started"].number));
  if (scrub["ended"].number > 0) text += fmt::format(", ended {}", moment_text(scrub["ended"].number));
  if (scrub["looks_for_owners"].boolean) text += ", looks for damaged files";
  text += fmt::format("\nverified    {} of {} ({:.1f} %)", size_text(verified * page_size), size_text(total * page_size),
                      total == 0 ? 100.0 : 100.0 * static_cast<double>(verified) / static_cast<double>(total));
  if (scrub["rate"].number > 0) text += fmt::format(", {}/s", size_text(count_of(scrub["rate"])));
  if (scrub["rate_limit"].number > 0) text += fmt::format(" (at most {}/s)", size_text(count_of(scrub["rate_limit"])));
  if (scrub["seconds_left"].kind == JsonValue::Kind::number) {
    text += fmt::format(", {} left", duration_text(scrub["seconds_left"].number));
  }
  text += fmt::format("\ndamaged     {} pages", count_of(scrub["pages_damaged"]));
  if (count_of(scrub["pages_without_owner"]) != 0) {
    text += fmt::format(", {} of them of no file that could be found", count_of(scrub["pages_without_owner"]));
  }
  if (count_of(scrub["pages_suspect"]) != 0) {
    text += fmt::format(", {} more to be looked at again", count_of(scrub["pages_suspect"]));
  }
  text += '\n';
  for (const JsonValue& file : scrub["damaged_files"].elements) {
    text += fmt::format("  {} pages of {}\n", count_of(file["pages"]), format::escape_name(file["path"].text));
  }
  if (count_of(scrub["pages_unreached"]) != 0) {
    text += fmt::format("unreached   {} pages\n", count_of(scrub["pages_unreached"]));
  }
  if (!scrub["problem"].text.empty()) text += fmt::format("problem     {}\n", scrub["problem"].text);
  return text;
}

}  // namespace gpu4fs::tools
