#include "replay/page_trace.hpp"

#include <algorithm>

#include "base/bits.hpp"
#include "base/limits.hpp"

namespace gpu4fs::replay {

namespace {

// Pages [first, last) of a device.
struct PageSpan {
  u32 device;
  u64 first;
  u64 last;
};

bool moves_data(AccessKind kind) {
  return kind == AccessKind::read || kind == AccessKind::write;
}

PageSpan touched(const Request& request) {
  return {request.device, request.offset / page_size, (request.offset + request.length + page_size - 1) / page_size};
}

// A discard of a part of a page leaves the page.
PageSpan covered(const Request& request) {
  const u64 first = (request.offset + page_size - 1) / page_size;
  return {request.device, first, std::max(first, (request.offset + request.length) / page_size)};
}

bool is_before(const cache::PageKey& a, const cache::PageKey& b) {
  return a.device != b.device ? a.device < b.device : a.page < b.page;
}

std::vector<cache::PageKey> footprint_of(const BlockTrace& trace) {
  std::vector<PageSpan> spans;
  for (const Request& request : trace.requests) {
    if (moves_data(request.kind)) spans.push_back(touched(request));
  }
  std::sort(spans.begin(), spans.end(), [](const PageSpan& a, const PageSpan& b) {
    return is_before({a.device, a.first}, {b.device, b.first});
  });
  std::vector<cache::PageKey> pages;
  for (const PageSpan& span : spans) {
    const bool continues = !pages.empty() && pages.back().device == span.device;
    const u64 first = continues ? std::max(span.first, pages.back().page + 1) : span.first;
    for (u64 page = first; page < span.last; ++page) pages.push_back({span.device, page});
  }
  return pages;
}

}  // namespace

PageTrace pages_of(const BlockTrace& trace) {
  PageTrace result;
  for (const Request& request : trace.requests) {
    if (!moves_data(request.kind)) continue;
    const PageSpan span = touched(request);
    result.access_count += span.last - span.first;
  }
  if (result.access_count == 0) throw TraceError("no request reads or writes anything");
  if (result.access_count > page_access_count_max) throw TraceError("the requests have more than 2^31 pages");
  result.pages = footprint_of(trace);
  const auto index_of = [&pages = result.pages](u32 device, u64 page) {
    return static_cast<u32>(std::lower_bound(pages.begin(), pages.end(), cache::PageKey{device, page}, is_before) -
                            pages.begin());
  };
  for (const Request& request : trace.requests) {
    PageRequest pages{0, 0, request.device, request.kind, false, false};
    if (request.kind != AccessKind::flush) {
      const PageSpan span = moves_data(request.kind) ? touched(request) : covered(request);
      pages.first = index_of(span.device, span.first);
      pages.count = index_of(span.device, span.last) - pages.first;
    }
    if (request.kind == AccessKind::write) {
      pages.is_first_partial = request.offset % page_size != 0;
      pages.is_last_partial = (request.offset + request.length) % page_size != 0;
    }
    result.requests.push_back(pages);
  }
  return result;
}

}  // namespace gpu4fs::replay
