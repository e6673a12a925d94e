#include "route/read_ahead.hpp"

#include <algorithm>

#include "base/bits.hpp"
#include "base/mutant.hpp"

namespace gpu4fs::route {

namespace {

u64 page_up(u64 offset) {
  return align_up(offset, page_size);
}

}  // namespace

// What is in the partition must be able to stay until it is read, so half of it at most is ahead of the reader.
u64 ReadAhead::window_bytes_max() const {
  const u64 wanted = limits_.window_bytes_max * (advice_ == Advice::sequential ? 2 : 1);
  return std::min(wanted, partition_.page_count_max() / 2 * page_size);
}

void ReadAhead::end_window() {
  window_bytes_ = 0;
  ahead_end_ = 0;
}

void ReadAhead::advise(Advice advice) {
  advice_ = advice;
  if (advice == Advice::random) end_window();
}

ReadDecision ReadAhead::decide(ByteRange bytes, std::span<const PageRun> runs, u64 file_size) {
  const bool is_sequential = bytes.offset == last_end_;
  last_end_ = bytes.end();
  partition_.use({file_, pages_of(bytes)});
  const u64 window_max = window_bytes_max();
  const bool is_off = GPU4FS_MUTANT(route_advice_ignored, advice_ == Advice::random, false) || window_max == 0;
  ReadDecision decision;
  if (is_off || !is_sequential || bytes.length == 0) {
    end_window();
    return decision;
  }
  if (bytes.length > window_max && !is_resident(runs)) {
    end_window();
    decision.source = ReadSource::medium;
    decision.reason = Reason::above_window;
    return decision;
  }
  decision.source = ReadSource::page_cache;
  decision.reason = Reason::read_ahead;
  prefetch(bytes.end(), file_size, decision);
  return decision;
}

void ReadAhead::prefetch(u64 end, u64 file_size, ReadDecision& decision) {
  const u64 begin = page_up(std::max(end, ahead_end_));
  const u64 ahead_bytes = begin - std::min(begin, end);
  if (window_bytes_ != 0 && ahead_bytes >= window_bytes_ / 2) return;
  const u64 window_max = window_bytes_max();
  window_bytes_ =
      window_bytes_ == 0 ? std::min(limits_.window_bytes_min, window_max) : std::min(2 * window_bytes_, window_max);
  // The last page of the file may be a part of one.
  const u64 stop = std::min(page_up(file_size), page_up(end) + window_bytes_);
  for (u64 offset = begin; offset < stop;) {
    const u64 length = std::min(limits_.request_bytes_max, stop - offset);
    decision.prefetches.push_back({offset, length});
    offset += length;
  }
  ahead_end_ = std::max(begin, stop);
}

std::vector<FilePages> ReadAhead::begin_prefetch(std::span<const PageRun> runs) {
  std::vector<FilePages> leaving;
  for (const PageRun& run : runs) {
    if (is_resident(run.state)) continue;
    const std::vector<FilePages> some = partition_.add({file_, {run.first_page, run.page_count}});
    leaving.insert(leaving.end(), some.begin(), some.end());
  }
  return leaving;
}

}  // namespace gpu4fs::route
