// The parts of `gpu4fs bench nvme` and what they have in common. Private to the benchmark.
#pragma once

#include <string>
#include <vector>

#include "bench/nvme_machine.hpp"
#include "bench/result.hpp"

namespace gpu4fs::bench {

// The parts `sizes` and `size-latency`.
struct NvmeSizesScale {
  std::vector<u32> block_bytes;  // powers of two
  u32 repeats;
  u64 run_ns;
  u32 lane_count;       // at most, a power of two
  u64 lane_bytes_max;   // of the buffers of all lanes: there are fewer lanes with larger blocks
  u32 queue_count;      // of many lanes
  u32 raw_block_bytes;  // the largest blocks of queues without the driver
  u32 compare_every;    // batches of such a queue, whose warp compares everything alone, and of larger blocks,
                        // which few warps compare
  u32 lane_calls;       // latencies that are noted of one lane
  u32 lanes_calls;      // and of each of many

  // Numbers of queues and of lanes, and the largest blocks without the driver, are those of the thesis on the driver
  // (section 6.2).
  static NvmeSizesScale gpu(bool is_quick);
  static NvmeSizesScale threads(bool is_quick);
};

// The part `cache`.
struct NvmeCacheScale {
  u64 page_count;
  u32 frame_count;
  u32 lane_count;
  u32 queue_count;
  u64 run_ns;         // of each phase that ends by time
  u32 rounds_min;     // of a lane in such a phase
  u32 compare_every;  // acquisitions of a lane
  u32 latencies_max;  // of a lane and kind

  // Numbers of lanes and queues are those of the thesis (section 6.3). Each lane pins one page, and there are as many
  // frames for each pin as a pool has (device/staged/staged_types.hpp).
  static NvmeCacheScale gpu(bool is_quick);
  static NvmeCacheScale threads(bool is_quick);
};

struct NvmeScale {
  u32 repeats;
  u64 run_ns;
  u32 lane_count;   // of the parts rate and sharing
  u32 rate_queues;  // of the part rate
  std::vector<u32> sharing_queues;
  u32 tail_lanes;
  u32 tail_queues;
  u32 latency_calls;
  NvmeSizesScale sizes;
  NvmeCacheScale cache;

  static NvmeScale gpu(bool is_quick) {
    const u32 repeats = is_quick ? 3 : 5;
    return {repeats,
            is_quick ? 30000000u : 100000000u,
            16384,
            32,
            {16, 24, 32},
            8192,
            24,
            is_quick ? 500u : 3000u,
            NvmeSizesScale::gpu(is_quick),
            NvmeCacheScale::gpu(is_quick)};
  }
  static NvmeScale threads(bool is_quick) {
    return {is_quick ? 2u : 5u,
            is_quick ? 50000000u : 300000000u,
            4,
            2,
            {2},
            4,
            2,
            is_quick ? 100u : 1000u,
            NvmeSizesScale::threads(is_quick),
            NvmeCacheScale::threads(is_quick)};
  }
};

struct NvmeContext {
  NvmeMachine& machine;
  const NvmeScale& scale;
  bool on_gpu;
  BenchResult& result;
};

// All latencies of one run, in us, and what its rows have in common.
struct LatencyRun {
  std::string name;
  std::string what;
  std::vector<double> latencies_us;
  double drive_us = 0;  // the latency of the drive; 0: the rows have no limit
  std::string remark;
};

// A row for each percentile. The least and the greatest are those of the run.
void add_latency_rows(NvmeContext& context, LatencyRun& run, const std::vector<u32>& percents);

// In GB/s, over the size of a block, compared with bare copies of 4 KiB in the same run.
void bench_sizes(NvmeContext& context);
// In us, over the size of a block, compared with the latency of the drive: one lane and many.
void bench_size_latency(NvmeContext& context);
// In us, by kind of an acquisition of a page, compared with the latency of the drive.
void bench_cache(NvmeContext& context);

}  // namespace gpu4fs::bench
