// The smallest scale of `gpu4fs bench drives`, for tests.
#pragma once

#include "bench/drives.hpp"

namespace gpu4fs::bench {

inline constexpr DrivesScale tiny_drives_scale{.file_bytes = u64{8} << 20,
                                               .random_bytes = u64{1} << 20,
                                               .page_cache_bytes = u64{4} << 20,
                                               .rounds = 2,
                                               .medium_s_max = 1000,
                                               .raid_s_max = 1000,
                                               .appends = 50,
                                               .idle_ms = 20,
                                               .hit_bytes = u64{1} << 20,
                                               .miss_reads = 20,
                                               .recovered_bytes = u64{2} << 20};

}  // namespace gpu4fs::bench
