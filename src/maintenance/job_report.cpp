#include "maintenance/job_report.hpp"

#include "base/limits.hpp"

namespace gpu4fs::maintenance {

const char* job_state_name(JobState state) {
  constexpr const char* names[] = {"never", "running", "paused", "finished", "cancelled", "failed"};
  return names[static_cast<u32>(state)];
}

double JobReport::rate() const {
  if (active_ms == 0) return 0;
  return static_cast<double>(page_count * page_size) * 1000 / static_cast<double>(active_ms);
}

std::optional<double> JobReport::seconds_left() const {
  const u64 total = file_total != 0 ? file_total : page_total;
  const u64 done = file_total != 0 ? file_count : page_count;
  if (!is_busy() || active_ms == 0 || done == 0) return std::nullopt;
  const u64 left = total > done ? total - done : 0;
  return static_cast<double>(active_ms) / 1000 * static_cast<double>(left) / static_cast<double>(done);
}

void begin_job(JsonWriter& json, const char* name, const JobReport& report) {
  json.begin_object(name);
  json.add("state", job_state_name(report.state));
}

void add_pace(JsonWriter& json, const JobReport& report) {
  json.add("rate_limit", report.rate_limit);
  json.add("rate", report.rate());
  json.add("started", report.started_s);
  json.add("ended", report.ended_s);
  json.add("active_seconds", static_cast<double>(report.active_ms) / 1000);
  if (const auto left = report.seconds_left()) json.add("seconds_left", *left);
  json.add("problem", report.problem);
}

}  // namespace gpu4fs::maintenance
