// The sides that the part `raid` of `gpu4fs bench drives` compares: what each does, and how a row follows from their
// samples. Private to the tools.
#pragma once

#include <string>
#include <vector>

#include "base/types.hpp"
#include "bench/mounts.hpp"
#include "bench/result.hpp"

namespace gpu4fs::bench {

struct RaidLevel {
  const char* profile;
  u32 device_count;
  u32 data_devices;  // whose bytes count for files
};
inline constexpr RaidLevel raid_levels[] = {{"raid1", 2, 1}, {"raid5", 3, 2}};

// Of each device, for a file of `file_bytes`: a half more, and room for metadata and logs.
u64 raid_device_bytes(const RaidLevel& level, u64 file_bytes);

// std::runtime_error if the file system of the folder has less free space than this and 64 MiB.
void check_free_space(const std::string& folder, u64 needed_bytes);

// The pool, or a peer of it.
struct RaidSide {
  std::string name;
  std::string problem;                // why it takes no part, "": it does
  std::vector<double> gb_per_s = {};  // one a round
};

// Writes a new file by calls of 1 MiB and an fsync, mounts it anew, so that nothing comes from a cache, and compares
// the bytes. Returns GB/s of the write, fsync included. `version` chooses the bytes. std::runtime_error.
double write_and_compare(Mount& mount, u64 length_bytes, u64 version);

// Compares `own`, which has samples, with the peer whose median is the greatest. The remark has the spread of the ratio
// by rounds, the rates of all peers, and the problems of those that took no part. Without them the row cannot be met,
// but it can be short.
BenchRow raid_row(std::string name, std::string what, const RaidSide& own, const std::vector<RaidSide>& peers);

}  // namespace gpu4fs::bench
