#include "pool/page_runs.hpp"

#include <algorithm>

#include "base/limits.hpp"

namespace gpu4fs::pool {

void PageRuns::add(u64 address, u64 page_count) {
  if (page_count == 0) return;
  u64 begin = address;
  u64 end = address + page_count * page_size;
  auto at = ends_.upper_bound(begin);
  if (at != ends_.begin() && std::prev(at)->second >= begin) --at;
  while (at != ends_.end() && at->first <= end) {
    begin = std::min(begin, at->first);
    end = std::max(end, at->second);
    at = ends_.erase(at);
  }
  ends_[begin] = end;
}

void PageRuns::remove(u64 address, u64 page_count) {
  const u64 end = address + page_count * page_size;
  for (const PageRun& run : within(address, page_count)) {
    const auto at = std::prev(ends_.upper_bound(run.address));
    const u64 old_begin = at->first;
    const u64 old_end = at->second;
    ends_.erase(at);
    if (old_begin < address) ends_[old_begin] = address;
    if (old_end > end) ends_[end] = old_end;
  }
}

std::vector<PageRun> PageRuns::within(u64 address, u64 page_count) const {
  std::vector<PageRun> found;
  const u64 end = address + page_count * page_size;
  auto at = ends_.upper_bound(address);
  if (at != ends_.begin()) --at;
  for (; at != ends_.end() && at->first < end; ++at) {
    const u64 from = std::max(at->first, address);
    const u64 to = std::min(at->second, end);
    if (from < to) found.push_back({from, (to - from) / page_size});
  }
  return found;
}

std::vector<PageRun> PageRuns::all() const {
  std::vector<PageRun> runs;
  for (const auto& [begin, end] : ends_) runs.push_back({begin, (end - begin) / page_size});
  return runs;
}

u64 PageRuns::page_count() const {
  u64 sum = 0;
  for (const auto& [begin, end] : ends_) sum += (end - begin) / page_size;
  return sum;
}

}  // namespace gpu4fs::pool
