// How far a job in the background is: what scrub, rebuild, relocation and reshaping have in common. Host only.
#pragma once

#include <optional>
#include <string>

#include "base/host/json.hpp"
#include "base/types.hpp"

namespace gpu4fs::maintenance {

enum class JobState { never, running, paused, finished, cancelled, failed };

const char* job_state_name(JobState state);

// Each kind of work adds counts of its own.
struct JobReport {
  JobState state = JobState::never;
  u64 page_total = 0;  // that are to be dealt with, as far as is known
  u64 page_count = 0;  // of these, dealt with
  u64 file_total = 0;  // the same in files, where these are counted; else 0
  u64 file_count = 0;
  u64 rate_limit = 0;   // bytes/s, 0: none
  i64 started_s = 0;    // since 1970
  i64 ended_s = 0;      // 0: it has not
  u64 active_ms = 0;    // time spent, pauses excluded
  std::string problem;  // what went wrong last, "" if nothing did

  [[nodiscard]] bool is_busy() const { return state == JobState::running || state == JobState::paused; }
  // Bytes dealt with a second, 0: unknown.
  [[nodiscard]] double rate() const;
  // Seconds that the rest will take, nothing while that is unknown.
  [[nodiscard]] std::optional<double> seconds_left() const;
};

// The object of a job in an answer: it begins with the state, then come counts of the kind of work, then limit, pace,
// times and problem. The caller ends the object.
void begin_job(JsonWriter& json, const char* name, const JobReport& report);
void add_pace(JsonWriter& json, const JobReport& report);

}  // namespace gpu4fs::maintenance
