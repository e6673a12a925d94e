// Measures what the routes of a file cost (the calibration tool of SPIN, section 4.3.1). Host only.
//
// Reads into memory of the host: `cached` from the page cache, and `direct` with O_DIRECT, one read at a time. The copy
// from there to a GPU is not a part of the times.
#pragma once

#include <string>
#include <vector>

#include "route/cost_fit.hpp"
#include "route/routes.hpp"

namespace gpu4fs::route {

struct CalibrationSizes {
  u64 bytes_min = 4096;           // a power of two, at least page_size
  u64 bytes_max = u64{16} << 20;  // a power of two; the file has at least as many
  u32 repeat_count = 9;           // of each size, of which the median counts
};

// One sample for each power of two. Takes about repeat_count * 2 * bytes_max bytes of reading. Places are chosen by
// chance. `path` is a file; its pages are dropped from the page cache or brought into it.
//
// Throws RouteError with the path: it is not readable, too short, or its file system has no direct I/O; and for the
// route `engine`, which is not measured here.
std::vector<CostSample> measure_route(const std::string& path, Route route, const CalibrationSizes& sizes = {});

// A name for the device of a file that stays the same over restarts: the identification of the block device, or its
// name if it has none; for other file systems their number. Throws RouteError with the path.
std::string device_name_of(const std::string& path);

}  // namespace gpu4fs::route
