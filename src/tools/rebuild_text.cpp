#include "tools/rebuild_text.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/host/size_text.hpp"
#include "base/limits.hpp"
#include "base/types.hpp"
#include "tools/scrub_text.hpp"

namespace gpu4fs::tools {
namespace {

u64 count_of(const JsonValue& value) {
  return value.number > 0 ? static_cast<u64>(value.number) : 0;
}

}  // namespace

std::string rebuild_text(const JsonValue& rebuild) {
  const std::string& state = rebuild["state"].text;
  if (state.empty() || state == "never") return "";
  const u64 done = count_of(rebuild["pages_done"]);
  const u64 total = std::max(count_of(rebuild["pages_total"]), done);
  std::string text = fmt::format("rebuild     of device {}, {}: {}\n", count_of(rebuild["device"]),
                                 rebuild["path"].text, state);
  text += fmt::format(
      "rebuilt     {} of {} ({:.1f} %), {} written", size_text(done * page_size),
      size_text(total * page_size),
      total == 0 ? 100.0 : 100.0 * static_cast<double>(done) / static_cast<double>(total),
      size_text(count_of(rebuild["pages_written"]) * page_size));
  if (rebuild["rate"].number > 0)
    text += fmt::format(", {}/s", size_text(count_of(rebuild["rate"])));
  if (rebuild["rate_limit"].number > 0)
    text += fmt::format(" (at most {}/s)", size_text(count_of(rebuild["rate_limit"])));
  if (rebuild["seconds_left"].kind == JsonValue::Kind::number) {
    text += fmt::format(", {} left", duration_text(rebuild["seconds_left"].number));
  }
  text += '\n';
  if (!rebuild["problem"].text.empty())
    text += fmt::format("problem     {}\n", rebuild["problem"].text);
  return text;
}

}  // namespace gpu4fs::tools
