// The drive that a kernel executes, with the driver in another kernel: every use of the benchmark's load, on shallow
// and deep queues, with media in GPU memory and in host memory, and a page cache in front of it. Each run compares all
// bytes. Prints "N passed, N failed" and exits non-zero on any failure.
#include "bench/nvme_machine.hpp"
#include "bench/result.hpp"
#include "gpu_report.hpp"

namespace gpu4fs::test {
namespace {

using bench::NvmeMedium;
using bench::NvmePoint;
using bench::NvmeUse;

const char* name_of(NvmeUse use) {
  switch (use) {
    case NvmeUse::shared:
      return "shared";
    case NvmeUse::shared_lane:
      return "shared, one lane";
    case NvmeUse::raw:
      return "raw";
    case NvmeUse::raw_lane:
      return "raw, one lane";
    case NvmeUse::mapped:
      return "mapped";
    default:
      return "classes";
  }
}

void check_run(bench::NvmeMachine& machine, const NvmePoint& point) {
  const std::string what = std::string(name_of(point.use)) + ", " + std::to_string(point.queue_count) +
                           " queues of depth " + std::to_string(point.queue_depth) + ", blocks of " +
                           std::to_string(point.block_bytes) + (point.writes ? ", write" : ", read");
  try {
    const bench::NvmeMeasured measured = machine.run(point);
    check(measured.commands > 0, what);
    std::printf("%-70s %8.3f million/s\n", what.c_str(), measured.millions_per_s());
  } catch (const std::exception& error) {
    check(false, what + ": " + error.what());
  }
}

// Lanes of warps bring pages in and write them, through queues that have room for all of them or for few.
void check_cache(bench::NvmeMachine& machine, bench::NvmeMedium medium, u32 queue_depth) {
  bench::NvmeCachePoint point;
  point.page_count = 16384;
  point.frame_count = 8192;
  point.rounds_min = 4;
  point.latencies_max = 16;
  point.load.use = NvmeUse::mapped;
  point.load.medium = medium;
  point.load.queue_count = 3;
  point.load.queue_depth = queue_depth;
  point.load.lane_count = 2048;
  point.load.latency_ns = 20000;
  point.load.run_ns = 20000000;
  const std::string what = "page cache, queues of depth " + std::to_string(queue_depth);
  try {
    const bench::NvmeCacheMeasured measured = machine.cache(point);
    for (u32 kind = 0; kind < bench::cache_kind_count; ++kind) {
      const bench::NvmeCacheMeasured::Kind& found = measured.kinds[kind];
      check(found.operations > 0 && !found.latencies_us.empty(), what + ", kind " + std::to_string(kind));
      std::printf("%-70s %8llu operations\n", what.c_str(), static_cast<unsigned long long>(found.operations));
    }
  } catch (const std::exception& error) {
    check(false, what + ": " + error.what());
  }
}

void run_all_uses() {
  const double began = bench::now_seconds();
  const std::unique_ptr<bench::NvmeMachine> machine = bench::new_gpu_machine();
  for (const NvmeUse use : {NvmeUse::shared, NvmeUse::shared_lane, NvmeUse::raw, NvmeUse::raw_lane, NvmeUse::mapped,
                            NvmeUse::log_classes}) {
    for (const u32 block_bytes : {512u, 4096u}) {
      for (const bool writes : {false, true}) {
        NvmePoint point;
        point.use = use;
        point.block_bytes = block_bytes;
        point.writes = writes;
        point.medium = writes ? NvmeMedium::host : NvmeMedium::device;
        point.queue_count = 4;
        point.queue_depth = 256;
        point.lane_count = 512;
        point.run_ns = 10000000;
        check_run(*machine, point);
      }
    }
  }
  // Lanes wait for room; batches come back from their end; a drive with a latency.
  NvmePoint point;
  point.queue_count = 3;
  point.lane_count = 2048;
  point.run_ns = 10000000;
  for (const u32 depth : {2u, 16u, 64u}) {
    point.queue_depth = depth;
    for (point.reverses_batches = false;; point.reverses_batches = true) {
      check_run(*machine, point);
      if (point.reverses_batches) break;
    }
  }
  point.latency_ns = 100000;
  check_run(*machine, point);
  check_cache(*machine, NvmeMedium::host, 1024);
  check_cache(*machine, NvmeMedium::device, 64);
  std::printf("%.1f s\n", bench::now_seconds() - began);
}

}  // namespace
}  // namespace gpu4fs::test

int main() {
  return gpu4fs::test::run_on_gpu(gpu4fs::test::run_all_uses);
}
