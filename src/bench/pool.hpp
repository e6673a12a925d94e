// A pool of device files in memory for benchmarks. Private to the tools.
#pragma once

#include <string>
#include <vector>

#include "base/types.hpp"

namespace gpu4fs::bench {

// Device files in a folder of their own in /dev/shm, removed at the end.
class MemoryPool {
 public:
  explicit MemoryPool(u64 device_bytes, bool data_checksums = true, u32 device_count = 4,
                      const std::string& profile = "single");
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  const std::vector<std::string>& paths() const { return paths_; }

 private:
  std::string folder_;
  std::vector<std::string> paths_;
};

}  // namespace gpu4fs::bench
