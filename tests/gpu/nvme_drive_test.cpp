// The drive that a kernel executes, with the driver in another kernel: every use of the benchmark's load, on shallow
// and deep queues, with media in GPU memory and in host memory. Each run compares all bytes. Prints "N passed, N
// failed" and exits non-zero on any failure.
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
  std::printf("%.1f s\n", bench::now_seconds() - began);
}

}  // namespace
}  // namespace gpu4fs::test

int main() {
  return gpu4fs::test::run_on_gpu(gpu4fs::test::run_all_uses);
}
