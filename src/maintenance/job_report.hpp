// The progress of a background job: the part that scrub, rebuild, relocation and reshaping have in common. Host only.
#pragma once

#include <optional>
#include <string>

#include "base/host/json.hpp"
#include "base/types.hpp"

namespace gpu4fs::maintenance {

enum class JobState { never, running, paused, finished, cancelled, failed };

const char* job_state_name(JobState state);

// Each kind of work adds its own counts.
struct JobReport {
  JobState state = JobState::never;
  u64 page_total = 0;  // that have to be processed, as far as is known
  u64 page_count = 0;  // those of them that are processed
  u64 file_total = 0;  // the same in files if these are counted, otherwise 0
  u64 file_count = 0;
  u64 rate_limit = 0;   // bytes/s, 0: none
  i64 started_s = 0;    // since 1970
  i64 ended_s = 0;      // 0: it has not
  u64 active_ms = 0;    // time spent, pauses excluded
  std::string problem;  // the last error, "" if there was none

  [[nodiscard]] bool is_busy() const { return state == JobState::running || state == JobState::paused; }
  // Bytes processed a second, 0: unknown.
  [[nodiscard]] double rate() const;
  // Seconds for the remaining work; nothing while this is unknown.
  [[nodiscard]] std::optional<double> seconds_left() const;
};

// The object of a job in an answer: first the state, then counts of the kind of work, then limit, rate, times and
// problem. The caller ends the object.
void begin_job(JsonWriter& json, const char* name, const JobReport& report);
void add_pace(JsonWriter& json, const JobReport& report);

}  // namespace gpu4fs::maintenance
