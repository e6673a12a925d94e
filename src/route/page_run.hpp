// Pages of a file, and what the kernel's page cache has of them. Host only.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "base/limits.hpp"
#include "base/types.hpp"

namespace gpu4fs::route {

enum class PageState : u8 {
  absent,
  clean,     // in the page cache, equal to the medium
  dirty,     // in the page cache, and newer there, or being written back
  resident,  // in the page cache; whether it is dirty is not known
};

constexpr bool is_resident(PageState state) {
  return state != PageState::absent;
}

// Whether a read of the medium could miss bytes that were written.
constexpr bool may_be_dirty(PageState state) {
  return state == PageState::dirty || state == PageState::resident;
}

struct PageRange {
  u64 first_page = 0;
  u64 page_count = 0;

  u64 end_page() const { return first_page + page_count; }
  friend bool operator==(const PageRange&, const PageRange&) = default;
};

struct PageRun {
  u64 first_page = 0;
  u64 page_count = 0;
  PageState state = PageState::absent;

  u64 end_page() const { return first_page + page_count; }
  u64 byte_count() const { return page_count * page_size; }
  friend bool operator==(const PageRun&, const PageRun&) = default;
};

struct ByteRange {
  u64 offset = 0;
  u64 length = 0;

  u64 end() const { return offset + length; }
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

// The pages that the range touches. Its end must not exceed 2^63.
inline PageRange pages_of(ByteRange bytes) {
  if (bytes.length == 0) return {bytes.offset / page_size, 0};
  const u64 first = bytes.offset / page_size;
  return {first, (bytes.end() - 1) / page_size + 1 - first};
}

// Appends a run; one that continues the last run with the same state makes it longer.
inline void append_run(std::vector<PageRun>& runs, PageRun run) {
  if (run.page_count == 0) return;
  if (!runs.empty() && runs.back().state == run.state && runs.back().end_page() == run.first_page) {
    runs.back().page_count += run.page_count;
  } else {
    runs.push_back(run);
  }
}

inline bool is_resident(std::span<const PageRun> runs) {
  return std::all_of(runs.begin(), runs.end(), [](const PageRun& run) { return is_resident(run.state); });
}

}  // namespace gpu4fs::route
