// Small requests through FUSE, with one engine or with both. Private to `gpu4fs bench fuse`.
#pragma once

#include <string>
#include <vector>

#include "bench/result.hpp"

namespace gpu4fs::bench {

struct FuseEnginesOptions {
  std::vector<std::string> engines;  // "cpu", "cuda"
  std::string folder;                // for pools and mount points
  bool quick = false;
};

// Rows "fuse-stat-ENGINE" and "fuse-direct-4k-ENGINE": requests per second of one process that sends one at a time. The
// GPU engine's rows have the CPU engine's as their limit if both are measured. Throws if an operation fails or a wrong
// byte is read.
void bench_fuse_engines(const FuseEnginesOptions& options, BenchResult& result);

}  // namespace gpu4fs::bench
