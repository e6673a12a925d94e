// Who writes and reads files in the part `raid` of `gpu4fs bench drives`: programs on a mount, or clients of a pool
// without one. Private to the tools.
#pragma once

#include <string>

#include "base/types.hpp"
#include "bench/drive_peer.hpp"
#include "bench/drive_pool.hpp"
#include "bench/mounts.hpp"

namespace gpu4fs::bench {

// The files have the same length, and each of them is written and read by a thread of its own, in steps of 1 MiB.
struct RaidLoad {
  u64 total_bytes;
  u32 file_count;  // a divisor of total_bytes / 1 MiB

  u64 file_bytes() const { return total_bytes / file_count; }
};

struct RaidRates {
  double write_gb_per_s = 0;  // each file's fsync included
  double read_gb_per_s = 0;
};

// Memory for the files of one load, which all mounts use in turn.
class RaidFiles {
 public:
  explicit RaidFiles(const RaidLoad& load) : load_(load), memory_(load.total_bytes) {}

  // Writes new files on a mount by calls of the system, mounts it anew so that nothing comes from a cache, reads them,
  // and compares the bytes. std::runtime_error; Interrupted.
  RaidRates run(Mount& mount);

 private:
  u8* memory(u32 file) { return memory_.data() + file * load_.file_bytes(); }
  // Of one file.
  void write(const std::string& path, u32 file);
  void read(const std::string& path, u32 file);
  template <class Work>
  double gb_per_s(const Work& work) const;

  RaidLoad load_;
  AlignedBytes memory_;
};

// The same in a new pool on these devices through rings, `depth` commands at once in each. The page cache of the pool
// is not emptied in between, and has to be small.
RaidRates run_on_rings(const DrivePoolOptions& options, const RaidLoad& load, u32 depth);

}  // namespace gpu4fs::bench
