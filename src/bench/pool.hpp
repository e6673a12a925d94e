// A pool of device files in memory for benchmarks. Private to the tools.
#pragma once

#include <string>
#include <vector>

#include "base/types.hpp"

namespace gpu4fs::bench {

struct MemoryPoolOptions {
  u64 device_bytes = 0;
  bool data_checksums = true;
  u32 device_count = 4;
  std::string profile = "single";
  bool is_sparse = false;  // memory is allocated at its first use
};

// Device files in a folder of their own in /dev/shm, removed at the end.
class MemoryPool {
 public:
  explicit MemoryPool(const MemoryPoolOptions& options);
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  const std::vector<std::string>& paths() const { return paths_; }
  const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
  std::vector<std::string> paths_;
};

}  // namespace gpu4fs::bench
