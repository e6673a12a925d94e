// What the part `raid` of `gpu4fs bench drives` needs, and how its rows follow from its samples. Private to the tools.
#pragma once

#include <string>
#include <vector>

#include "base/types.hpp"
#include "bench/result.hpp"

namespace gpu4fs::bench {

struct RaidLevel {
  const char* profile;
  u32 device_count;
  u32 data_devices;  // whose bytes count for files
};
inline constexpr RaidLevel raid_levels[] = {{"raid1", 2, 1}, {"raid5", 4, 3}};

// Of each device, for files of `file_bytes` in total: a half more, and room for metadata and logs.
u64 raid_device_bytes(const RaidLevel& level, u64 file_bytes);

// std::runtime_error if the file system of the folder has less room than devices of this size take, and 64 MiB.
void check_raid_space(const std::string& folder, u64 needed_bytes);

// The samples of a peer, or why there are none.
struct RaidPeer {
  std::string name;
  std::string problem;  // "": it takes part
  std::vector<double> gb_per_s;
};

// Compares `own` with the fastest peer. Peers without samples are in the remark with their problem. `is_required`: a
// share of at least 1 is.
BenchRow raid_row(std::string name, std::string what, const std::vector<double>& own,
                  const std::vector<RaidPeer>& peers, bool is_required);

}  // namespace gpu4fs::bench
