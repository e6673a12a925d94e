// The NVMe driver over the size of a block: bandwidth and latency, as in sections 6.1 and 6.2 of the thesis on the
// driver, whose figures are drawn by bench/plots/nvme.py.
#include <fmt/format.h>

#include <algorithm>

#include "bench/nvme_parts.hpp"
#include "nvme/emulated/profile.hpp"

namespace gpu4fs::bench {

namespace {

constexpr u32 logical_block_bytes = 512;
// Of the drive of the thesis.
constexpr nvme::DriveProfile latency_profile = nvme::profile_980_pro;

std::vector<u32> measured_sizes(bool is_quick) {
  if (is_quick) return {512, 4096, 65536, nvme_transfer_bytes_max};
  std::vector<u32> sizes;
  for (u32 bytes = logical_block_bytes; bytes <= nvme_transfer_bytes_max; bytes *= 2) sizes.push_back(bytes);
  return sizes;
}

std::string size_text(u32 bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  return bytes < (1u << 20) ? fmt::format("{} KiB", bytes >> 10) : fmt::format("{} MiB", bytes >> 20);
}

const char* verb_of(bool writes) {
  return writes ? "write" : "read";
}

// A block of each lane, and all of them fit into buffers and medium.
NvmePoint lanes_point(const NvmeContext& context, u32 block_bytes, bool writes) {
  const NvmeSizesScale& scale = context.scale.sizes;
  NvmePoint point;
  point.use = NvmeUse::mapped;
  point.medium = context.on_gpu ? NvmeMedium::host : NvmeMedium::device;
  point.block_bytes = block_bytes;
  point.logical_block_bytes = logical_block_bytes;
  point.writes = writes;
  point.queue_count = scale.queue_count;
  point.lane_count = static_cast<u32>(std::min<u64>(scale.lane_count, scale.lane_bytes_max / block_bytes));
  // A queue of a GPU serves whole warps.
  if (context.on_gpu) point.queue_count = std::clamp(point.lane_count / warp_size, 1u, scale.queue_count);
  point.run_ns = scale.run_ns;
  if (block_bytes > scale.raw_block_bytes) point.compare_every = scale.compare_every;
  return point;
}

double gb_per_s(const NvmeMeasured& measured, u32 block_bytes) {
  return measured.millions_per_s() * block_bytes / 1e3;
}

// What the bus carries, or the memory of threads: the same for all sizes.
double measure_limit(NvmeContext& context, bool writes) {
  const NvmePoint point = lanes_point(context, 4096, writes);
  std::vector<double> rates;
  for (u32 i = 0; i < 3; ++i) rates.push_back(gb_per_s(context.machine.bare(point), point.block_bytes));
  return percentile(rates, 0.5);
}

const char* use_text(NvmeUse use) {
  return use == NvmeUse::mapped ? "mapped" : use == NvmeUse::shared ? "shared" : "raw";
}

void measure_size(NvmeContext& context, const NvmePoint& point, double limit_gb_per_s) {
  const char* const pattern = point.is_sequential ? "sequential" : "random";
  BenchRow row;
  row.name = fmt::format("nvme-sizes-{}-{}-{}-{}-{}", verb_of(point.writes), pattern, use_text(point.use),
                         point.queue_count, point.block_bytes);
  report_part(row.name);
  row.what = fmt::format("{} {} of {}, {} {} queue{}", pattern, verb_of(point.writes), size_text(point.block_bytes),
                         point.queue_count, use_text(point.use), point.queue_count == 1 ? "" : "s");
  row.unit = "GB/s";
  context.machine.run(point);  // warms up
  std::vector<double> rates;
  for (u32 i = 0; i < context.scale.sizes.repeats; ++i) {
    rates.push_back(gb_per_s(context.machine.run(point), point.block_bytes));
  }
  set_samples(row, rates);
  row.limit = limit_gb_per_s;
  row.limit_what = "bare copies of 4 KiB";
  row.remark = fmt::format("{:.3f} million/s, {} lanes", row.value * 1e3 / point.block_bytes, point.lane_count);
  context.result.rows.push_back(row);
}

void measure_size_latency(NvmeContext& context, NvmePoint point, const char* lanes) {
  const bool is_many = point.use == NvmeUse::mapped;
  LatencyRun run;
  run.name = fmt::format("nvme-size-latency-{}-{}-{}", verb_of(point.writes), lanes, point.block_bytes);
  report_part(run.name);
  point.latency_ns = point.writes ? latency_profile.write_latency_ns : latency_profile.read_latency_ns;
  point.latencies_max = is_many ? context.scale.sizes.lanes_calls : context.scale.sizes.lane_calls;
  run.drive_us = static_cast<double>(point.latency_ns) / 1e3;
  const std::string users = is_many ? fmt::format("{} lanes on {} queues", point.lane_count, point.queue_count)
                            : point.use == NvmeUse::raw_lane ? "one lane without the driver"
                                                             : "one lane";
  run.what = fmt::format("random {} of {}, {}, drive of {:.0f} us", verb_of(point.writes), size_text(point.block_bytes),
                         users, run.drive_us);
  const NvmeMeasured measured = context.machine.run(point);
  run.latencies_us = measured.latencies_us;
  run.remark = fmt::format("{:.2f} GB/s", gb_per_s(measured, point.block_bytes));
  add_latency_rows(context, run, is_many ? std::vector<u32>{25, 50, 75, 99} : std::vector<u32>{50, 99});
}

}  // namespace

void add_latency_rows(NvmeContext& context, LatencyRun& run, const std::vector<u32>& percents) {
  std::sort(run.latencies_us.begin(), run.latencies_us.end());
  for (const u32 percent : percents) {
    BenchRow row;
    row.name = fmt::format("{}-p{}", run.name, percent);
    row.what = fmt::format("{}, p{}", run.what, percent);
    row.unit = "us";
    row.value = percentile(run.latencies_us, percent / 100.0);
    row.least = run.latencies_us.front();
    row.greatest = run.latencies_us.back();
    row.sample_count = run.latencies_us.size();
    row.limit = run.drive_us;
    if (run.drive_us > 0) row.limit_what = "the drive's latency";
    row.remark = run.remark;
    context.result.rows.push_back(row);
  }
}

NvmeSizesScale NvmeSizesScale::gpu(bool is_quick) {
  return {.block_bytes = measured_sizes(is_quick),
          .repeats = is_quick ? 2u : 3u,
          .run_ns = is_quick ? 10000000u : 30000000u,
          .lane_count = 8192,
          .lane_bytes_max = u64{256} << 20,
          .queue_count = 24,
          .raw_block_bytes = 65536,
          .compare_every = 8,
          .lane_calls = 1000,
          .lanes_calls = 64};
}

NvmeSizesScale NvmeSizesScale::threads(bool is_quick) {
  return {.block_bytes = measured_sizes(is_quick),
          .repeats = is_quick ? 1u : 4u,
          .run_ns = is_quick ? 10000000u : 80000000u,
          .lane_count = 4,
          .lane_bytes_max = u64{16} << 20,
          .queue_count = 2,
          .raw_block_bytes = 65536,
          .compare_every = 1,
          .lane_calls = 1000,
          .lanes_calls = 1000};
}

void bench_sizes(NvmeContext& context) {
  const NvmeSizesScale& scale = context.scale.sizes;
  for (const bool writes : {false, true}) {
    const double limit = measure_limit(context, writes);
    for (const bool is_sequential : {false, true}) {
      for (const u32 block_bytes : scale.block_bytes) {
        NvmePoint point = lanes_point(context, block_bytes, writes);
        point.is_sequential = is_sequential;
        measure_size(context, point, limit);
        if (block_bytes <= scale.raw_block_bytes) {
          NvmePoint raw = point;
          raw.use = NvmeUse::raw;
          raw.compare_every = scale.compare_every;
          measure_size(context, raw, limit);
        }
        point.use = NvmeUse::shared;
        point.queue_count = 1;
        measure_size(context, point, limit);
      }
    }
  }
}

void bench_size_latency(NvmeContext& context) {
  for (const bool writes : {false, true}) {
    for (const u32 block_bytes : context.scale.sizes.block_bytes) {
      NvmePoint point = lanes_point(context, block_bytes, writes);
      measure_size_latency(context, point, "many");
      point.lane_count = 1;
      point.queue_count = 1;
      point.use = NvmeUse::shared_lane;
      measure_size_latency(context, point, "one");
      point.use = NvmeUse::raw_lane;
      measure_size_latency(context, point, "raw");
    }
  }
}

}  // namespace gpu4fs::bench
