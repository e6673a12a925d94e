// Writes files through rings into pools with redundancy, compared with threads that write the same files into btrfs of
// the same level and number of devices; both make them durable. Private to the tools.
#pragma once

#include <string>

#include "bench/result.hpp"

namespace gpu4fs::bench {

// Rows "btrfs-ring-...", for each engine that works on this machine. btrfs has its devices in `folder`, the pools in
// /dev/shm. If btrfs is not available, the rows have no limit, and result.left_out says why.
void measure_rings_and_btrfs(const std::string& folder, bool is_quick, BenchResult& result);

}  // namespace gpu4fs::bench
