// Which pages of a file are in the kernel's page cache (P-cache of SPIN, section 4.3.1). Host only.
//
// SPIN asks inside the kernel. A process has two calls:
//
//   cachestat  Linux 6.5. Counts of a range: pages in the cache, dirty ones, and those being written back. Runs are
//              found by halving (residency_search.hpp).
//   mincore    All pages of a mapping at once, but not which are dirty.
//
// Both tell only the owner of a file and those who may write it. For others cachestat fails, and mincore says that all
// pages are resident, so it is not asked.
//
// The answer is a hint: pages come and go at any time. A read that relies on the medium being current must have the
// range written back (transfer_steps.hpp).
#pragma once

#include <string_view>
#include <vector>

#include "route/page_run.hpp"

namespace gpu4fs::route {

enum class ResidencySource : u8 { automatic, cachestat, mincore };

std::string_view to_text(ResidencySource source);

struct Residency {
  // All pages of the range that the file has, in order. Neighbours differ in their states.
  std::vector<PageRun> runs;
  ResidencySource source = ResidencySource::automatic;  // what was asked, never `automatic`
  u32 call_count = 0;                                   // calls of the kernel that it took
};

// Residency of `bytes`, in whole pages. `fd` is a regular file that is open for reading.
//
// `automatic` asks cachestat. It asks mincore where cachestat is not available or not permitted, or if the range has so
// many runs that counts would take longer.
//
// Throws RouteError: not a regular file, a range beyond 2^63, or a source that the kernel does not have or does not
// permit. With `automatic` the message has the reasons of both sources.
Residency page_residency(int fd, ByteRange bytes, ResidencySource source = ResidencySource::automatic);

}  // namespace gpu4fs::route
