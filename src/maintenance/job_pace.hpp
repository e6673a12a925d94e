// What the reports of jobs that move or fill pages have in common: pace, times and how they ended. Host only.
#pragma once

#include "base/host/json.hpp"

namespace gpu4fs::maintenance {

// Into the object that was begun.
template <class Report>
void add_pace(JsonWriter& json, const Report& report) {
  json.add("rate", report.rate());
  json.add("started", report.started_s);
  json.add("ended", report.ended_s);
  json.add("active_seconds", static_cast<double>(report.active_ms) / 1000);
  if (const auto left = report.seconds_left()) json.add("seconds_left", *left);
  json.add("problem", report.problem);
}

}  // namespace gpu4fs::maintenance
