// A block trace in pages, as caches of pages see it. Host only.
#pragma once

#include <span>
#include <vector>

#include "base/types.hpp"
#include "cache/line_word.hpp"
#include "replay/block_trace.hpp"

namespace gpu4fs::replay {

struct PageRequest {
  // In PageTrace::pages. Of a read or write: the pages it touches. Of a discard: the pages of the footprint that it
  // covers whole. Of a flush: nothing.
  u32 first;
  u32 count;
  u32 device;
  AccessKind kind;
  bool is_first_partial;  // of a write: the first, the last page is written in part
  bool is_last_partial;

  // Whether a write stores only a part of its page i.
  constexpr bool is_partial(u32 i) const { return (i == 0 && is_first_partial) || (i + 1 == count && is_last_partial); }
};

inline constexpr u64 page_access_count_max = u64{1} << 31;

struct PageTrace {
  // The footprint: every page that is read or written, by device and page. Equal order as in requests: the pages of a
  // request are neighbours here.
  std::vector<cache::PageKey> pages;
  std::vector<PageRequest> requests;
  u64 access_count = 0;  // pages of all reads and writes
};

// TraceError: no request reads or writes, or they have more than page_access_count_max pages.
PageTrace pages_of(const BlockTrace& trace);

// Calls read_or_write(request, page, i) for each page of reads and writes, discard(page) for each discarded one, and
// flush(device), in the order of the trace. Pages are indexes of PageTrace::pages.
template <class Access, class Discard, class Flush>
void walk(const PageTrace& trace, Access&& access, Discard&& discard, Flush&& flush) {
  for (const PageRequest& request : trace.requests) {
    if (request.kind == AccessKind::flush) {
      flush(request.device);
      continue;
    }
    for (u32 i = 0; i < request.count; ++i) {
      if (request.kind == AccessKind::discard) {
        discard(request.first + i);
      } else {
        access(request, request.first + i, i);
      }
    }
  }
}

}  // namespace gpu4fs::replay
