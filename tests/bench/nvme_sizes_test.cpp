// The parts `sizes` and `size-latency` of gpu4fs bench nvme: rows, units, limits of the same run, and what is compared,
// on a machine that only counts and on threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>

#include "base/bits.hpp"
#include "bench/nvme_parts.hpp"

namespace gpu4fs::bench {
namespace {

// Run n takes so long that the rates of all runs differ.
class CountingMachine : public NvmeMachine {
 public:
  NvmeMeasured run(const NvmePoint& point) override {
    points.push_back(point);
    if (points.size() > runs_max) throw std::runtime_error("3 lanes saw a fault");
    NvmeMeasured measured;
    measured.commands = 1000000;
    measured.seconds = 1.0 + static_cast<double>(points.size());
    if (point.latencies_max != 0) {
      // Not in order: 1 to 100.
      for (u32 i = 1; i <= 100; ++i) measured.latencies_us.push_back(i * 37 % 101);
    }
    return measured;
  }
  NvmeMeasured bare(const NvmePoint& point) override {
    bare_points.push_back(point);
    NvmeMeasured measured;
    measured.commands = 1000000;
    measured.seconds = bare_seconds * (point.writes ? 2 : 1);
    return measured;
  }
  NvmeCacheMeasured cache(const NvmeCachePoint& /*point*/) override { throw std::runtime_error("no cache"); }
  double clock_step_ns() override { return 1; }

  std::vector<NvmePoint> points;
  std::vector<NvmePoint> bare_points;
  std::size_t runs_max = ~std::size_t{0};
  double bare_seconds = 0.5;
};

NvmeScale tiny_scale(bool on_gpu) {
  NvmeScale scale = on_gpu ? NvmeScale::gpu(true) : NvmeScale::threads(true);
  scale.sizes.block_bytes = {512, 65536, nvme_transfer_bytes_max};
  scale.sizes.repeats = 1;
  scale.sizes.run_ns = 2000000;
  return scale;
}

std::set<std::string> names_of(const BenchResult& result) {
  std::set<std::string> names;
  for (const BenchRow& row : result.rows) EXPECT_TRUE(names.insert(row.name).second) << row.name;
  return names;
}

const std::set<std::string>& size_names() {
  static const std::set<std::string> names = [] {
    std::set<std::string> made;
    for (const std::string verb : {"read", "write"}) {
      for (const std::string pattern : {"random", "sequential"}) {
        const std::string start = "nvme-sizes-" + verb + "-" + pattern;
        // 256 MiB have room for 256 lanes with 1 MiB each, which are eight warps.
        for (const char* end : {"-mapped-24-512", "-mapped-24-65536", "-mapped-8-1048576", "-raw-24-512",
                                "-raw-24-65536", "-shared-1-512", "-shared-1-65536", "-shared-1-1048576"}) {
          made.insert(start + end);
        }
      }
    }
    return made;
  }();
  return names;
}

TEST(NvmeSizes, RowsAreInBytesPerSecondAndComparedWithCopiesOfTheSameRun) {
  const NvmeScale scale = tiny_scale(true);
  for (const double bare_seconds : {0.5, 0.25}) {
    CountingMachine machine;
    machine.bare_seconds = bare_seconds;
    BenchResult result = new_result("nvme", "cuda", true);
    NvmeContext context{machine, scale, true, result};
    bench_sizes(context);
    EXPECT_EQ(names_of(result), size_names());
    // Each row has a run that warms up, and one that counts.
    ASSERT_EQ(machine.points.size(), 2 * result.rows.size());
    for (std::size_t i = 0; i < result.rows.size(); ++i) {
      const BenchRow& row = result.rows[i];
      const NvmePoint& point = machine.points[2 * i + 1];
      EXPECT_EQ(row.unit, "GB/s");
      EXPECT_EQ(row.limit_what, "bare copies of 4 KiB");
      EXPECT_TRUE(row.name.ends_with("-" + std::to_string(point.block_bytes))) << row.name;
      EXPECT_EQ(row.name.find("-write-") != std::string::npos, point.writes) << row.name;
      EXPECT_EQ(row.name.find("-sequential-") != std::string::npos, point.is_sequential) << row.name;
      EXPECT_EQ(row.name.find("-raw-") != std::string::npos, point.use == NvmeUse::raw) << row.name;
      EXPECT_DOUBLE_EQ(row.value, 1e-3 * point.block_bytes / (2.0 * static_cast<double>(i) + 3.0)) << row.name;
      EXPECT_DOUBLE_EQ(row.limit, 4.096 / (bare_seconds * (point.writes ? 2 : 1))) << row.name;
      EXPECT_DOUBLE_EQ(row.judged(), row.value / row.limit);
    }
    for (const NvmePoint& point : machine.bare_points) {
      EXPECT_EQ(point.block_bytes, 4096u);
      EXPECT_EQ(point.medium, machine.points[0].medium);
    }
  }
}

// All lanes have blocks and buffers of their own. All reads are compared, on a GPU in part where few warps compare.
TEST(NvmeSizes, PointsFitAndAreCompared) {
  for (const bool on_gpu : {false, true}) {
    CountingMachine machine;
    const NvmeScale scale = on_gpu ? NvmeScale::gpu(false) : NvmeScale::threads(false);
    BenchResult result = new_result("nvme", on_gpu ? "cuda" : "cpu", false);
    NvmeContext context{machine, scale, on_gpu, result};
    bench_sizes(context);
    bench_size_latency(context);
    EXPECT_EQ(scale.sizes.block_bytes.size(), 12u);
    EXPECT_EQ(scale.sizes.block_bytes.back(), nvme_transfer_bytes_max);
    for (const NvmePoint& point : machine.points) {
      EXPECT_LE(u64{point.lane_count} * point.block_bytes, scale.sizes.lane_bytes_max);
      EXPECT_TRUE(is_power_of_two(u64{point.lane_count}));
      EXPECT_EQ(point.logical_block_bytes, 512u);
      const bool is_compared_in_part = on_gpu && (point.use == NvmeUse::raw || point.block_bytes > 65536);
      EXPECT_EQ(point.compare_every, is_compared_in_part ? 8u : 1u);
      // A queue without the driver has a batch of a warp at least, and room for it.
      const u32 window = point.lane_count / point.queue_count;
      const bool is_raw = point.use == NvmeUse::raw;
      EXPECT_TRUE(!is_raw || (window >= (on_gpu ? 32u : 1u) && window < point.queue_depth)) << point.block_bytes;
    }
  }
}

TEST(NvmeSizes, LatenciesAreComparedWithTheDriveOfTheSameRun) {
  const NvmeScale scale = tiny_scale(true);
  CountingMachine machine;
  BenchResult result = new_result("nvme", "cuda", true);
  NvmeContext context{machine, scale, true, result};
  bench_size_latency(context);
  std::set<std::string> expected;
  for (const std::string verb : {"read", "write"}) {
    for (const std::string size : {"512", "65536", "1048576"}) {
      const std::string start = "nvme-size-latency-" + verb;
      for (const char* percent : {"-p25", "-p50", "-p75", "-p99"}) expected.insert(start + "-many-" + size + percent);
      for (const char* percent : {"-p50", "-p99"}) {
        expected.insert(start + "-one-" + size + percent);
        expected.insert(start + "-raw-" + size + percent);
      }
    }
  }
  EXPECT_EQ(names_of(result), expected);
  for (const NvmePoint& point : machine.points) EXPECT_EQ(point.latency_ns, point.writes ? 15000u : 50000u);
  for (const BenchRow& row : result.rows) {
    EXPECT_EQ(row.unit, "us");
    EXPECT_EQ(row.value, std::stoi(row.name.substr(row.name.rfind('p') + 1))) << row.name;
    EXPECT_EQ(row.least, 1);
    EXPECT_EQ(row.greatest, 100);
    EXPECT_EQ(row.sample_count, 100u);
    EXPECT_EQ(row.limit, row.name.find("-write-") != std::string::npos ? 15 : 50);
    EXPECT_EQ(row.limit_what, "the drive's latency");
  }
}

// A run with wrong bytes has no row, and ends its part.
TEST(NvmeSizes, FaultsEndAPart) {
  const NvmeScale scale = tiny_scale(true);
  CountingMachine machine;
  machine.runs_max = 7;
  BenchResult result = new_result("nvme", "cuda", true);
  NvmeContext context{machine, scale, true, result};
  EXPECT_THROW(bench_sizes(context), std::runtime_error);
  EXPECT_EQ(result.rows.size(), 3u);
  machine.points.clear();
  machine.runs_max = 0;
  EXPECT_THROW(bench_size_latency(context), std::runtime_error);
  EXPECT_EQ(result.rows.size(), 3u);
}

TEST(NvmeSizes, BothPartsOnThreads) {
  const NvmeScale scale = tiny_scale(false);
  const std::unique_ptr<NvmeMachine> machine = new_thread_machine();
  BenchResult result = new_result("nvme", "cpu", true);
  NvmeContext context{*machine, scale, false, result};
  bench_sizes(context);
  bench_size_latency(context);
  EXPECT_EQ(names_of(result).size(), 4u * 8 + 2u * 3 * 8);
  for (const BenchRow& row : result.rows) {
    EXPECT_GT(row.value, 0) << row.name;
    EXPECT_GT(row.limit, 0) << row.name;
    // No command can be faster than the drive.
    if (row.unit == "us") {
      EXPECT_GE(row.least, row.limit) << row.name;
    }
  }
}

}  // namespace
}  // namespace gpu4fs::bench
