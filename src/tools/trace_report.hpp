// The result of `gpu4fs trace replay`, as text and as JSON.
#pragma once

#include <string>
#include <vector>

#include "replay/block_trace.hpp"
#include "replay/ideal_caches.hpp"
#include "replay/page_trace.hpp"
#include "replay/table_replay.hpp"

namespace gpu4fs::tools {

struct CacheResult {
  u32 line_count;
  replay::TableCounts table;
  replay::IdealHits lru;
  replay::IdealHits optimal;
};

// The trace as a whole.
struct TraceSummary {
  u64 reads = 0;  // requests
  u64 writes = 0;
  u64 flushes = 0;
  u64 discards = 0;
  u64 device_count = 0;  // that are read or written
  u64 footprint_pages = 0;
};
TraceSummary summary_of(const replay::BlockTrace& trace, const replay::PageTrace& pages);

std::string trace_text(const replay::BlockTrace& trace, const TraceSummary& summary,
                       const std::vector<CacheResult>& results);
std::string trace_json(const std::vector<std::string>& files, const replay::BlockTrace& trace,
                       const TraceSummary& summary, const std::vector<CacheResult>& results);

}  // namespace gpu4fs::tools
