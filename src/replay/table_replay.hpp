// Replays a trace against the table of the page cache (cache/cache_types.hpp), as one worker without frames. Host only.
#pragma once

#include "base/types.hpp"
#include "cache/cache_types.hpp"
#include "replay/page_trace.hpp"

namespace gpu4fs::replay {

// How pages were found. Each page of a read or write counts in one of the first four.
struct PageCounts {
  u64 hits = 0;
  u64 clean_misses = 0;       // a clean page was removed
  u64 write_back_misses = 0;  // a dirty page was written back and removed
  u64 cold_misses = 0;        // a line was free
  u64 loads = 0;              // misses that read the page from the device: all but writes of whole pages

  constexpr u64 misses() const { return clean_misses + write_back_misses + cold_misses; }
  constexpr u64 pages() const { return hits + misses(); }
};

struct TableCounts {
  PageCounts reads;
  PageCounts writes;
  u64 written_for_misses = 0;           // pages that were written back because a set had no clean line
  u64 written_for_flushes = 0;          // because of a flush
  cache::CacheStatistics statistics{};  // what the table itself has counted
};

// The lines of a table of about this many bytes of frames: whole sets, or one small set. At least one line.
u32 line_count_of(u64 cache_bytes);

// Reads pin for reading, writes of whole pages to overwrite, of parts to modify. A discard removes pages, dirty ones
// too. A flush writes back all dirty pages of its device. Nothing is written back before it must be. `line_count`: as
// line_count_of() answers.
TableCounts replay_on_table(const PageTrace& trace, u32 line_count);

}  // namespace gpu4fs::replay
