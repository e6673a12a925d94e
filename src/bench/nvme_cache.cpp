// The page cache under load: the latency of acquisitions by kind, as in section 6.3 of the thesis on the driver, whose
// figure 6.9 is drawn by bench/plots/nvme.py.
#include <fmt/format.h>

#include <stdexcept>

#include "bench/nvme_parts.hpp"
#include "nvme/emulated/profile.hpp"

namespace gpu4fs::bench {

namespace {

struct KindText {
  CacheKind kind;
  const char* name;
  const char* what;
};
constexpr KindText kind_texts[] = {
    {CacheKind::hit, "hit", "hit"},
    {CacheKind::loading, "loading", "hit on the way"},
    {CacheKind::cold, "cold", "cold miss"},
    {CacheKind::miss, "miss", "miss"},
    {CacheKind::write_back, "write-back", "miss with write-back"},
};
static_assert(std::size(kind_texts) == cache_kind_count);

NvmeCachePoint cache_point(const NvmeContext& context) {
  const NvmeCacheScale& scale = context.scale.cache;
  NvmeCachePoint point;
  point.page_count = scale.page_count;
  point.frame_count = scale.frame_count;
  point.rounds_min = scale.rounds_min;
  point.latencies_max = scale.latencies_max;
  point.load.use = NvmeUse::mapped;
  point.load.medium = context.on_gpu ? NvmeMedium::host : NvmeMedium::device;
  point.load.block_bytes = page_size;
  point.load.queue_count = scale.queue_count;
  point.load.lane_count = scale.lane_count;
  // The drive has one latency for all commands: that of reads, which all misses have.
  point.load.latency_ns = nvme::profile_980_pro.read_latency_ns;
  point.load.run_ns = scale.run_ns;
  point.load.compare_every = scale.compare_every;
  return point;
}

}  // namespace

NvmeCacheScale NvmeCacheScale::gpu(bool is_quick) {
  return {.page_count = 65536,
          .frame_count = 32768,
          .lane_count = 8192,
          .queue_count = 24,
          .run_ns = is_quick ? 30000000u : 100000000u,
          .rounds_min = 16,
          .compare_every = 8,
          .latencies_max = 100};
}

// So few pages that threads meet at some of them.
NvmeCacheScale NvmeCacheScale::threads(bool is_quick) {
  return {.page_count = is_quick ? 512u : 2048u,
          .frame_count = is_quick ? 256u : 1024u,
          .lane_count = 8,
          .queue_count = 2,
          .run_ns = is_quick ? 100000000u : 1000000000u,
          .rounds_min = 200,
          .compare_every = 1,
          .latencies_max = 20000};
}

void bench_cache(NvmeContext& context) {
  const NvmeCachePoint point = cache_point(context);
  report_part("nvme-cache");
  NvmeCacheMeasured measured = context.machine.cache(point);
  const double drive_us = static_cast<double>(point.load.latency_ns) / 1e3;
  for (const KindText& text : kind_texts) {
    NvmeCacheMeasured::Kind& found = measured.kinds[static_cast<u32>(text.kind)];
    if (found.latencies_us.empty()) throw std::runtime_error(fmt::format("there was no {}", text.what));
    LatencyRun run;
    run.name = fmt::format("nvme-cache-{}", text.name);
    run.what = fmt::format("page cache, {}, {} lanes on {} queues, drive of {:.0f} us", text.what,
                           point.load.lane_count, point.load.queue_count, drive_us);
    run.latencies_us.swap(found.latencies_us);
    // Whoever comes later waits for less than a whole command.
    const bool is_miss = text.kind != CacheKind::hit && text.kind != CacheKind::loading;
    run.drive_us = is_miss ? drive_us : 0;
    run.remark = fmt::format("{} operations of this kind", found.operations);
    add_latency_rows(context, run, {25, 50, 75, 99});
  }
}

}  // namespace gpu4fs::bench
