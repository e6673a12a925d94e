#include "maintenance/scrub_progress.hpp"

#include <algorithm>
#include <charconv>

#include "base/limits.hpp"
#include "fmt/format.h"

namespace gpu4fs::maintenance {
namespace {

constexpr std::string_view version_word = "v1";
constexpr u64 number_max = u64{1} << 62;
constexpr const char* state_names[] = {"never", "running", "paused", "finished", "cancelled"};

bool read_number(std::string_view text, u64* number) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *number);
  return error == std::errc{} && stop == end && *number < number_max;
}

bool read_word(ScrubProgress& progress, std::string_view name, std::string_view value) {
  if (name == "state") {
    const auto* const found = std::find(std::begin(state_names), std::end(state_names), value);
    if (found == std::end(state_names)) return false;
    progress.state = static_cast<ScrubState>(found - std::begin(state_names));
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
    u64 ScrubProgress::*member;
  };
  constexpr Field fields[] = {
      {"total", &ScrubProgress::page_total},         {"pages", &ScrubProgress::page_count},
      {"damaged", &ScrubProgress::damaged_count},    {"ownerless", &ScrubProgress::ownerless_count},
      {"unreached", &ScrubProgress::unreached_count}, {"rate_limit", &ScrubProgress::rate_limit},
      {"active_ms", &ScrubProgress::active_ms},
  };
  for (const Field& field : fields) {
    if (field.name != name) continue;
    progress.*field.member = number;
    return true;
  }
  return false;
}

}  // namespace

const char* scrub_state_name(ScrubState state) { return state_names[static_cast<u32>(state)]; }

double ScrubProgress::rate() const {
  if (active_ms == 0) return 0;
  return static_cast<double>(page_count * page_size) * 1000 / static_cast<double>(active_ms);
}

std::optional<double> ScrubProgress::seconds_left() const {
  if (rate() <= 0 || (state != ScrubState::running && state != ScrubState::paused)) return std::nullopt;
  const u64 left = page_total > page_count ? page_total - page_count : 0;
  return static_cast<double>(left * page_size) / rate();
}

std::string to_attribute(const ScrubProgress& p) {
  return fmt::format(
      "{} state={} position={} total={} pages={} damaged={} ownerless={} unreached={} rate_limit={} started={} "
      "ended={} active_ms={}",
      version_word, scrub_state_name(p.state), p.position, p.page_total, p.page_count, p.damaged_count,
      p.ownerless_count, p.unreached_count, p.rate_limit, p.started_s, p.ended_s, p.active_ms);
}

std::optional<ScrubProgress> from_attribute(std::string_view text) {
  ScrubProgress progress;
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
