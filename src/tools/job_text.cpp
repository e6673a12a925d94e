#include "tools/job_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "base/host/size_text.hpp"
#include "base/limits.hpp"
#include "format/format_text.hpp"

namespace gpu4fs::tools {
namespace {

std::string moment_text(double seconds_since_1970) {
  const auto moment = static_cast<std::time_t>(seconds_since_1970);
  std::tm parts{};
  ::gmtime_r(&moment, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text;
}

std::string pages_text(u64 page_count) {
  return size_text(page_count * page_size);
}

// The amount of work can be greater than expected.
u64 total_of(const JsonValue& job, u64 done) {
  return std::max(count_of(job["pages_total"]), done);
}

std::string share_text(u64 done, u64 total) {
  const double percent = total == 0 ? 100.0 : 100.0 * static_cast<double>(done) / static_cast<double>(total);
  return fmt::format("{} of {} ({:.1f} %)", pages_text(done), pages_text(total), percent);
}

// The end of a line: the current rate, its limit, and the remaining time.
std::string pace_text(const JsonValue& job) {
  std::string text;
  if (job["rate"].number > 0) text += fmt::format(", {}/s", size_text(count_of(job["rate"])));
  if (job["rate_limit"].number > 0) text += fmt::format(" (at most {}/s)", size_text(count_of(job["rate_limit"])));
  if (job["seconds_left"].kind == JsonValue::Kind::number) {
    text += fmt::format(", {} left", duration_text(job["seconds_left"].number));
  }
  return text + '\n';
}

std::string problem_text(const JsonValue& job) {
  const std::string& problem = job["problem"].text;
  return problem.empty() ? "" : fmt::format("problem     {}\n", problem);
}

bool never_ran(const JsonValue& job) {
  return job["state"].text.empty() || job["state"].text == "never";
}

}  // namespace

u64 count_of(const JsonValue& value) {
  return value.number > 0 ? static_cast<u64>(value.number) : 0;
}

bool is_busy(const JsonValue& job) {
  return job["state"].text == "running" || job["state"].text == "paused";
}

std::string duration_text(double seconds) {
  const u64 whole = static_cast<u64>(std::clamp(seconds, 0.0, 1e12) + 0.5);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{}:{:02} min", whole / 60, whole % 60);
  return fmt::format("{}:{:02} h", whole / 3600, whole / 60 % 60);
}

std::string scrub_text(const JsonValue& scrub) {
  const std::string& state = scrub["state"].text;
  if (state == "never") return "scrub       never\n";
  const u64 verified = count_of(scrub["pages_verified"]);
  std::string text = fmt::format("scrub       {}, began {}", state, moment_text(scrub["started"].number));
  if (scrub["ended"].number > 0) text += fmt::format(", ended {}", moment_text(scrub["ended"].number));
  if (scrub["looks_for_owners"].boolean) text += ", looks for damaged files";
  text += fmt::format("\nverified    {}{}", share_text(verified, total_of(scrub, verified)), pace_text(scrub));
  text += fmt::format("damaged     {} pages", count_of(scrub["pages_damaged"]));
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
  return text + problem_text(scrub);
}

std::string rebuild_text(const JsonValue& rebuild) {
  if (never_ran(rebuild)) return "";
  const u64 done = count_of(rebuild["pages_done"]);
  return fmt::format("rebuild     of device {}, {}: {}\n", count_of(rebuild["device"]), rebuild["path"].text,
                     rebuild["state"].text) +
         fmt::format("rebuilt     {}, {} written{}", share_text(done, total_of(rebuild, done)),
                     pages_text(count_of(rebuild["pages_written"])), pace_text(rebuild)) +
         problem_text(rebuild);
}

std::string relocation_text(const JsonValue& relocation) {
  if (never_ran(relocation)) return "";
  std::string text = fmt::format("relocation  {} of inode {}: {}\n", relocation["kind"].text,
                                 count_of(relocation["inode"]), relocation["state"].text);
  text += fmt::format("moved       {}, {} of {} files{}", pages_text(count_of(relocation["pages_moved"])),
                      count_of(relocation["files_done"]), count_of(relocation["files_total"]), pace_text(relocation));
  if (count_of(relocation["pages_unreadable"]) != 0) {
    text += fmt::format("unreadable  {} pages stayed where they are\n", count_of(relocation["pages_unreadable"]));
  }
  return text + problem_text(relocation);
}

std::string reshape_text(const JsonValue& reshape) {
  if (never_ran(reshape)) return "neither a removal nor a balance since the mount\n";
  const std::string& state = reshape["state"].text;
  const bool is_removal = reshape["kind"].text == "remove";
  const u64 done = count_of(reshape["pages_done"]);
  return (is_removal ? fmt::format("removal     of device {}, {}: {}\n", count_of(reshape["device"]),
                                   reshape["path"].text, state)
                     : fmt::format("balance     {}\n", state)) +
         fmt::format("chunks      {} of {}, {} of {} moved{}", count_of(reshape["chunks_done"]),
                     count_of(reshape["chunks_total"]), pages_text(done), pages_text(total_of(reshape, done)),
                     pace_text(reshape)) +
         problem_text(reshape);
}

}  // namespace gpu4fs::tools
