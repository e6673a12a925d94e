// Finds runs of pages with the same state from counts of ranges. Host only.
#pragma once

#include <utility>
#include <vector>

#include "base/mutant.hpp"
#include "route/page_run.hpp"

namespace gpu4fs::route {

struct PageCounts {
  u64 cached = 0;
  u64 dirty = 0;  // with those that are being written back
};

namespace detail {

// Whether all pages of a range have one state, which is then in `state`.
inline bool has_one_state(PageCounts counts, u64 page_count, PageState& state) {
  if (counts.cached == 0) {
    state = PageState::absent;
    return true;
  }
  const bool is_whole = GPU4FS_MUTANT(route_hole_resident, counts.cached >= page_count, true);
  if (!is_whole) return false;
  state = GPU4FS_MUTANT(route_dirty_clean, counts.dirty, u64{0}) == 0 ? PageState::clean : PageState::dirty;
  return counts.dirty == 0 || counts.dirty >= page_count;
}

}  // namespace detail

// Appends the runs of `range` to `runs`, which are in order. `count_pages` returns the PageCounts of a PageRange. A
// range of several states is halved and both halves are counted: k runs take about 2 k log(n / k) counts. A half is
// not computed from the other one, because a page that becomes dirty between two counts would then pass for clean.
//
// Returns false if more than `count_limit` counts were needed; then `runs` is as it was.
template <class CountPages>
bool append_runs_by_counts(PageRange range, CountPages&& count_pages, u64 count_limit, std::vector<PageRun>& runs) {
  if (range.page_count == 0) return true;
  std::vector<PageRun> found;
  std::vector<PageRange> open = {range};  // the first range last
  for (u64 used = 0; !open.empty(); ++used) {
    if (used == count_limit) return false;
    const PageRange part = open.back();
    open.pop_back();
    const PageCounts counts = count_pages(part);
    PageState state = PageState::absent;
    if (detail::has_one_state(counts, part.page_count, state) || part.page_count == 1) {
      append_run(found, {part.first_page, part.page_count, state});
      continue;
    }
    const u64 half = part.page_count / 2;
    open.push_back({part.first_page + half, part.page_count - half});
    open.push_back({part.first_page, half});
  }
  for (const PageRun& run : found) append_run(runs, run);
  return true;
}

}  // namespace gpu4fs::route
