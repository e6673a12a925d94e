#include "route/read_plan.hpp"

#include <algorithm>
#include <utility>

namespace gpu4fs::route {

namespace {

Schedule schedule_of(const ReadDecision& decision, std::span<const ReadRuns> reads, const FileRoutes& routes) {
  if (!routes.has_medium) return all_through_cache(reads, routes.costs, Reason::unavailable);
  switch (decision.source) {
    case ReadSource::page_cache:
      return all_through_cache(reads, routes.costs, decision.reason);
    case ReadSource::medium:
      return all_from_medium(reads, routes.costs, decision.reason);
    case ReadSource::schedule:
      break;
  }
  return greedy_schedule(reads, routes.costs);
}

}  // namespace

ReadPlan plan_read(ReadAhead& ahead, ByteRange bytes, u64 file_size, const ReadRuns& runs, const FileRoutes& routes) {
  const u64 left = file_size - std::min(file_size, bytes.offset);
  const ByteRange existing = {bytes.offset, std::min(bytes.length, left)};
  ReadDecision decision = ahead.decide(existing, runs, file_size);
  const std::vector<ReadRuns> reads = {runs};
  const Schedule schedule = schedule_of(decision, reads, routes);
  ReadPlan plan;
  plan.steps = transfer_steps(std::vector<ByteRange>{existing}, reads, schedule, routes.limits);
  plan.prefetches = std::move(decision.prefetches);
  plan.completion_ns = schedule.completion_ns;
  return plan;
}

}  // namespace gpu4fs::route
