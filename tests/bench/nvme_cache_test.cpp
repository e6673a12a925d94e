// The part `cache` of gpu4fs bench nvme: its phases on threads, its rows, and that wrong bytes, lost writes and counts
// that differ from the table's are found.
#include "bench/nvme_cache.hpp"

#include <gtest/gtest.h>

#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "bench/nvme_cache_build.hpp"
#include "bench/nvme_parts.hpp"
#include "bench/warp_load.hpp"

namespace gpu4fs::bench {
namespace {

// Four lanes, 256 pages, and 64 frames, which are the buffers of the load.
class SmallCache {
 public:
  static constexpr u32 frame_count = WarpLoad::lane_count;
  static constexpr u32 lane_count = 4;

  SmallCache() : memory_(cache_bytes(point())), latencies_ns_(u64{cache_kind_count} * lane_count * latencies_max) {
    warps.load.lane_count = lane_count;
    load = cache_load(point(), warps.load, memory_.memory, latencies_ns_.data(), latencies_max);
  }

  void run(CachePhase phase) {
    load.phase = phase;
    warps.serve([this] { run_lanes(); });
    check_cache(Lane{}, load);
  }
  void run_until(CachePhase last) {
    for (const CachePhase phase : cache_phases) {
      if (phase <= last) run(phase);
    }
  }
  void run_lanes() {
    std::vector<std::thread> lanes;
    for (u32 lane = 0; lane < lane_count; ++lane) lanes.emplace_back([this, lane] { run_cache(load, lane); });
    for (std::thread& lane : lanes) lane.join();
  }
  NvmeCacheMeasured measured() const { return cache_measured(*load.counts, latencies_ns_); }
  u32 faults() const { return warps.counts.faults; }

  WarpLoad warps{page_size, false};
  CacheLoad load{};

 private:
  static constexpr u32 latencies_max = 100;

  static NvmeCachePoint point() {
    NvmeCachePoint made;
    made.page_count = WarpLoad::block_count;
    made.frame_count = frame_count;
    made.rounds_min = 200;
    return made;
  }

  Piece memory_;
  std::vector<u32> latencies_ns_;
};

TEST(NvmeCache, PhasesHaveTheKindsThatTheyPromise) {
  SmallCache cache;
  cache.run_until(CachePhase::flush);
  check_medium(Lane{}, cache.load.io, 0, 1);
  EXPECT_EQ(cache.faults(), 0u);
  const NvmeCacheMeasured measured = cache.measured();
  EXPECT_EQ(measured.kinds[static_cast<u32>(CacheKind::cold)].operations, SmallCache::frame_count / 2);
  for (const CacheKind kind : {CacheKind::hit, CacheKind::cold, CacheKind::miss, CacheKind::write_back}) {
    const NvmeCacheMeasured::Kind& found = measured.kinds[static_cast<u32>(kind)];
    EXPECT_GT(found.operations, 0u) << static_cast<u32>(kind);
    EXPECT_GT(found.latencies_us.size(), 0u) << static_cast<u32>(kind);
    EXPECT_LE(found.latencies_us.size(), found.operations) << static_cast<u32>(kind);
  }
  u32 written = 0;
  for (u64 page = 0; page < WarpLoad::block_count; ++page) written += cache.load.io.versions[page] != 0 ? 1 : 0;
  EXPECT_GT(written, 0u);
}

TEST(NvmeCache, WrongBytesOfTheMediumAreFound) {
  SmallCache cache;
  for (u64 page = 0; page < WarpLoad::block_count; ++page) cache.load.io.medium[page * page_size + 4000] ^= 1;
  cache.run(CachePhase::cold);
  EXPECT_GT(cache.faults(), 0u);
}

TEST(NvmeCache, WrongBytesOfAFrameAreFound) {
  SmallCache cache;
  cache.run_until(CachePhase::fill);
  EXPECT_EQ(cache.faults(), 0u);
  for (u32 line = 0; line < SmallCache::frame_count; ++line) cache::frame_of(cache.load.table, line)[100] ^= 0x40;
  cache.run(CachePhase::reads);
  EXPECT_GT(cache.faults(), 0u);
}

// A write-back that writes nothing.
TEST(NvmeCache, LostWritesAreFound) {
  SmallCache cache;
  cache.run_until(CachePhase::writes);
  u32 lost = 0;
  for (u32 line = 0; line < SmallCache::frame_count; ++line) {
    if (cache::begin_write_back(cache.load.table, line).line == cache::no_line) continue;
    cache::finish_write_back(cache.load.table, line, true);
    ++lost;
  }
  ASSERT_GT(lost, 0u);
  cache.run(CachePhase::flush);
  EXPECT_EQ(cache.faults(), 0u);
  check_medium(Lane{}, cache.load.io, 0, 1);
  EXPECT_EQ(cache.faults(), 1u);
}

TEST(NvmeCache, PagesThatStayDirtyAreFound) {
  SmallCache cache;
  cache.run_until(CachePhase::writes);
  EXPECT_EQ(cache.faults(), 0u);
  cache.load.phase = CachePhase::flush;
  check_cache(Lane{}, cache.load);
  EXPECT_EQ(cache.faults(), 1u);
}

TEST(NvmeCache, CountsThatDifferAreFound) {
  SmallCache cache;
  cache.run_until(CachePhase::reads);
  EXPECT_EQ(cache.faults(), 0u);
  for (u64* const count : {&cache.load.counts->hits, &cache.load.counts->loads}) {
    ++*count;
    check_cache(Lane{}, cache.load);
    --*count;
  }
  EXPECT_EQ(cache.faults(), 2u);
  // A table with free frames is not full.
  SmallCache half;
  half.run(CachePhase::cold);
  half.load.phase = CachePhase::fill;
  check_cache(Lane{}, half.load);
  EXPECT_EQ(half.faults(), 1u);
}

// Without anybody who serves the drive.
TEST(NvmeCache, LanesEndAtTheDeadline) {
  SmallCache cache;
  cache.load.io.limit_ns = 20000000;
  cache.load.phase = CachePhase::cold;
  cache.run_lanes();
  EXPECT_EQ(cache.faults(), SmallCache::lane_count);
  EXPECT_EQ(nvme::failure_of(*cache.load.io.queues[0].controller), nvme::Failure::timed_out);
}

class FakeMachine : public NvmeMachine {
 public:
  NvmeMeasured run(const NvmePoint& /*point*/) override { return {}; }
  NvmeMeasured bare(const NvmePoint& /*point*/) override { return {}; }
  NvmeCacheMeasured cache(const NvmeCachePoint& point) override {
    points.push_back(point);
    NvmeCacheMeasured measured;
    for (u32 kind = 0; kind < cache_kind_count; ++kind) {
      if (kind == missing_kind) continue;
      measured.kinds[kind].operations = 1000 + kind;
      for (u32 i = 1; i <= 100; ++i) measured.kinds[kind].latencies_us.push_back(1000 * kind + i * 37 % 101);
    }
    return measured;
  }
  double clock_step_ns() override { return 1; }

  std::vector<NvmeCachePoint> points;
  u32 missing_kind = ~0u;
};

const char* const kind_names[cache_kind_count] = {"hit", "loading", "cold", "miss", "write-back"};

TEST(NvmeCache, EachKindHasItsRows) {
  for (const bool on_gpu : {false, true}) {
    FakeMachine machine;
    const NvmeScale scale = on_gpu ? NvmeScale::gpu(false) : NvmeScale::threads(false);
    BenchResult result = new_result("nvme", on_gpu ? "cuda" : "cpu", false);
    NvmeContext context{machine, scale, on_gpu, result};
    bench_cache(context);
    ASSERT_EQ(result.rows.size(), 4u * cache_kind_count);
    for (u32 i = 0; i < result.rows.size(); ++i) {
      const BenchRow& row = result.rows[i];
      const u32 kind = i / 4;
      const u32 percent = std::vector<u32>{25, 50, 75, 99}[i % 4];
      EXPECT_EQ(row.name, std::string("nvme-cache-") + kind_names[kind] + "-p" + std::to_string(percent));
      EXPECT_EQ(row.unit, "us");
      EXPECT_EQ(row.value, 1000 * kind + percent);
      EXPECT_EQ(row.least, 1000 * kind + 1);
      EXPECT_EQ(row.greatest, 1000 * kind + 100);
      EXPECT_EQ(row.limit, kind < 2 ? 0 : 50) << row.name;
      EXPECT_EQ(row.remark, std::to_string(1000 + kind) + " operations of this kind");
    }
    // As in the thesis; and the pins of all lanes find frames.
    ASSERT_EQ(machine.points.size(), 1u);
    const NvmeCachePoint& point = machine.points[0];
    EXPECT_EQ(point.load.lane_count, on_gpu ? 8192u : 8u);
    EXPECT_EQ(point.load.queue_count, on_gpu ? 24u : 2u);
    EXPECT_GE(point.frame_count, 4 * point.load.lane_count);
    EXPECT_GE(point.page_count, 2 * point.frame_count);
    EXPECT_TRUE(is_power_of_two(point.page_count) && is_power_of_two(u64{point.frame_count}));
  }
}

TEST(NvmeCache, AKindWithoutOperationsIsAFault) {
  FakeMachine machine;
  machine.missing_kind = 3;
  const NvmeScale scale = NvmeScale::threads(true);
  BenchResult result = new_result("nvme", "cpu", true);
  NvmeContext context{machine, scale, false, result};
  EXPECT_THROW(bench_cache(context), std::runtime_error);
}

TEST(NvmeCache, ThePartOnThreads) {
  const NvmeScale scale = NvmeScale::threads(true);
  const std::unique_ptr<NvmeMachine> machine = new_thread_machine();
  BenchResult result = new_result("nvme", "cpu", true);
  NvmeContext context{*machine, scale, false, result};
  bench_cache(context);
  EXPECT_EQ(result.rows.size(), 4u * cache_kind_count);
  for (const BenchRow& row : result.rows) {
    EXPECT_GT(row.value, 0) << row.name;
    // No miss can be faster than the drive.
    EXPECT_GE(row.least, row.limit) << row.name;
  }
}

}  // namespace
}  // namespace gpu4fs::bench
