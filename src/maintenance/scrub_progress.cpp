#include "maintenance/scrub_progress.hpp"

#include <algorithm>
#include <charconv>

#include "base/limits.hpp"
#include "fmt/format.h"

namespace gpu4fs::maintenance {
namespace {

constexpr std::string_view version_word = "v1";
constexpr u64 number_max = u64{1} << 62;
constexpr JobState states[] = {JobState::never, JobState::running, JobState::paused, JobState::finished,
                               JobState::cancelled};

bool read_number(std::string_view text, u64* number) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *number);
  return error == std::errc{} && stop == end && *number < number_max;
}

bool read_word(ScrubReport& progress, std::string_view name, std::string_view value) {
  if (name == "state") {
    const auto* const found = std::find_if(std::begin(states), std::end(states),
                                           [value](JobState state) { return job_state_name(state) == value; });
    if (found == std::end(states)) return false;
    progress.state = *found;
    return true;
  }
  u64 number = 0;
  if (!read_number(value, &number)) return false;
  if (name == "position") {
    progress.position = number;
    return number % page_size == 0;
  }
  if (name == "started") return progress.started_s = static_cast<i64>(number), true;
  if (name == "ended") return progress.ended_s = static_cast<i64>(number), true;
  struct Field {
    std::string_view name;
    u64 ScrubReport::*member;
  };
  constexpr Field fields[] = {
      {"total", &ScrubReport::page_total},          {"pages", &ScrubReport::page_count},
      {"damaged", &ScrubReport::damaged_count},     {"ownerless", &ScrubReport::ownerless_count},
      {"unreached", &ScrubReport::unreached_count}, {"rate_limit", &ScrubReport::rate_limit},
      {"active_ms", &ScrubReport::active_ms},
  };
  for (const Field& field : fields) {
    if (field.name != name) continue;
    progress.*field.member = number;
    return true;
  }
  return false;
}

}  // namespace

std::string to_attribute(const ScrubReport& p) {
  return fmt::format(
      "{} state={} position={} total={} pages={} damaged={} ownerless={} unreached={} rate_limit={} started={} "
      "ended={} active_ms={}",
      version_word, job_state_name(p.state), p.position, p.page_total, p.page_count, p.damaged_count, p.ownerless_count,
      p.unreached_count, p.rate_limit, p.started_s, p.ended_s, p.active_ms);
}

std::optional<ScrubReport> from_attribute(std::string_view text) {
  ScrubReport progress;
  bool is_first = true;
  while (!text.empty()) {
    const std::size_t blank = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, blank);
    text.remove_prefix(std::min(blank + 1, text.size()));
    if (is_first) {
      if (word != version_word) return std::nullopt;
      is_first = false;
      continue;
    }
    const std::size_t equals = word.find('=');
    if (equals == std::string_view::npos) return std::nullopt;
    if (!read_word(progress, word.substr(0, equals), word.substr(equals + 1))) return std::nullopt;
  }
  if (is_first) return std::nullopt;
  return progress;
}

}  // namespace gpu4fs::maintenance
