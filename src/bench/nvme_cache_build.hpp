// Memory of the part `cache` of `gpu4fs bench nvme`, and what is read of it. Host only.
#pragma once

#include <vector>

#include "base/bits.hpp"
#include "bench/nvme_cache.hpp"
#include "bench/nvme_machine.hpp"
#include "cache/cache_build.hpp"

namespace gpu4fs::bench {

// Of the table, the guards and the counts, in one piece that begins at a cache line. All of it is zero at first.
inline u64 cache_bytes(const NvmeCachePoint& point) {
  return cache::table_bytes(point.frame_count) + point.page_count * sizeof(u32) + sizeof(CacheCounts);
}

// `io` is the load of point.load, and its buffers are the frames. The addresses are not dereferenced. `latencies_ns`
// has room for latencies_max of each lane and kind.
inline CacheLoad cache_load(const NvmeCachePoint& point, const NvmeLoad& io, u8* memory, u32* latencies_ns,
                            u32 latencies_max) {
  CacheLoad load{};
  load.io = io;
  load.io.writes = false;
  load.io.block_count = point.page_count;
  load.io.worker_count = io.lane_count;
  load.table = cache::place_cache(memory, io.buffers, point.frame_count);
  load.cold_count = point.frame_count / 2;
  load.rounds_min = point.rounds_min;
  u8* const counts = memory + cache::table_bytes(point.frame_count);
  load.counts = reinterpret_cast<CacheCounts*>(counts);
  load.guards = reinterpret_cast<u32*>(counts + sizeof(CacheCounts));
  load.latencies_ns = latencies_ns;
  load.latencies_max = latencies_max;
  return load;
}

// `latencies_ns` as in CacheLoad. Zeros were not reached.
inline NvmeCacheMeasured cache_measured(const CacheCounts& counts, const std::vector<u32>& latencies_ns) {
  NvmeCacheMeasured measured;
  const u64 each = latencies_ns.size() / cache_kind_count;
  for (u32 i = 0; i < cache_kind_count; ++i) {
    measured.kinds[i].operations = counts.operations[i];
    for (u64 at = i * each; at < (i + 1) * each; ++at) {
      if (latencies_ns[at] != 0) measured.kinds[i].latencies_us.push_back((latencies_ns[at] - 1) / 1e3);
    }
  }
  return measured;
}

}  // namespace gpu4fs::bench
