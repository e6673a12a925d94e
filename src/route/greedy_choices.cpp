#include "route/schedule_weights.hpp"

namespace gpu4fs::route::detail {

namespace {

// Resident runs between transfers of the medium: b of the paper.
struct CachedGroup {
  std::size_t end = 0;  // index behind its last run
  u64 bytes = 0;
  double cached_ns = 0;
  double write_back_ns = 0;
};

CachedGroup cached_group(const std::vector<CostedRun>& runs, std::size_t begin) {
  CachedGroup group;
  for (group.end = begin; group.end < runs.size(); ++group.end) {
    const CostedRun& run = runs[group.end];
    if (!is_resident(run.run.state) || run.request != runs[begin].request) break;
    group.bytes += run.run.byte_count();
    group.cached_ns += run.cached_ns;
    group.write_back_ns += run.write_back_ns;
  }
  return group;
}

// Absent bytes from run `begin` on: c of the paper.
u64 absent_bytes(const std::vector<CostedRun>& runs, std::size_t begin, u32 request) {
  u64 bytes = 0;
  for (std::size_t i = begin; i < runs.size() && runs[i].request == request; ++i) {
    if (is_resident(runs[i].run.state)) break;
    bytes += runs[i].run.byte_count();
  }
  return bytes;
}

}  // namespace

// Section 4.3.1, "Greedy heuristic": for consecutive ranges a, b and c of which b is cached, b comes from the medium if
// |a| + |b| < S_cutoff, or if T(|a| + |b| + |c|) < T(|a|) + T_pc(|b|) + T(|c|).
//
// The first condition is used only where the read has an a and nothing has to be written back: then b costs the medium
// no time. With nothing in front of b it would be wrong for a long c. It holds for the plain sum only.
Choices greedy_choices(const std::vector<CostedRun>& runs, const ScheduleCosts& costs, RouteWeights weights) {
  Choices from_medium(runs.size(), true);
  const bool is_sum = weights.cached == weights.medium;
  u64 a = 0;  // bytes of the transfer that ends at run i
  for (std::size_t i = 0; i < runs.size();) {
    if (begins_read(runs, i)) a = 0;
    if (!is_resident(runs[i].run.state)) {
      a += runs[i].run.byte_count();
      ++i;
      continue;
    }
    const CachedGroup b = cached_group(runs, i);
    const u64 c = absent_bytes(runs, b.end, runs[i].request);
    const bool is_free =
        is_sum && a != 0 && b.write_back_ns == 0 && static_cast<double>(a + b.bytes) < costs.medium.cutoff_bytes;
    const double more_ns = b.write_back_ns + costs.medium.ns(a + b.bytes + c) - costs.medium.ns(a) - costs.medium.ns(c);
    const bool is_merged = is_free || weights.medium * more_ns < weights.cached * b.cached_ns;
    for (; i < b.end; ++i) from_medium[i] = is_merged;
    a = is_merged ? a + b.bytes : 0;
  }
  return from_medium;
}

}  // namespace gpu4fs::route::detail
