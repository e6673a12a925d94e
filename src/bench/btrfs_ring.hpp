// Files written through rings into pools with redundancy, against threads that write the same into btrfs of the same
// level and number of devices; what makes it durable included. Private to the tools.
#pragma once

#include <string>

#include "bench/result.hpp"

namespace gpu4fs::bench {

// Rows "btrfs-ring-...", for each engine that works here. btrfs keeps its devices in `folder`, the pools in /dev/shm;
// where btrfs cannot be had the rows have no limit, and result.left_out says why.
void measure_rings_and_btrfs(const std::string& folder, bool is_quick, BenchResult& result);

}  // namespace gpu4fs::bench
