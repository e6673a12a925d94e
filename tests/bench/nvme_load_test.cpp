// The load of the benchmark of the NVMe driver: all uses run on threads and on emulated warps, and wrong bytes are
// found.
#include "bench/nvme_load.hpp"

#include <gtest/gtest.h>

#include "base/emulated_warp.hpp"
#include "bench/nvme_machine.hpp"
#include "bench/nvme_raw.hpp"
#include "bench/warp_load.hpp"

namespace gpu4fs::bench {
namespace {

TEST(NvmeLoad, EveryUseOnThreads) {
  const std::unique_ptr<NvmeMachine> machine = new_thread_machine();
  for (const NvmeUse use : {NvmeUse::shared, NvmeUse::shared_lane, NvmeUse::raw, NvmeUse::raw_lane, NvmeUse::mapped,
                            NvmeUse::log_alone, NvmeUse::log_shared, NvmeUse::log_classes}) {
    for (const NvmeMedium medium : {NvmeMedium::host, NvmeMedium::device}) {
      // The emulated controller may complete in any order, which a queue without the driver cannot follow.
      if (medium == NvmeMedium::host && use != NvmeUse::shared) continue;
      for (const bool writes : {false, true}) {
        NvmePoint point{use, medium, writes ? 512u : 4096u, writes, 2, 16, 4};
        point.run_ns = 20000000;
        point.latencies_max = 1000;
        const NvmeMeasured measured = machine->run(point);
        EXPECT_GT(measured.commands, 0u);
        const bool has_latencies = use != NvmeUse::raw;
        EXPECT_EQ(measured.latencies_us.empty(), !has_latencies);
      }
    }
  }
}

// Blocks of several pages, which two entries or a list name, on both kinds of drives.
TEST(NvmeLoad, LargeBlocksOnThreads) {
  const std::unique_ptr<NvmeMachine> machine = new_thread_machine();
  for (const u32 block_bytes : {8192u, 65536u, nvme_transfer_bytes_max}) {
    for (const NvmeMedium medium : {NvmeMedium::host, NvmeMedium::device}) {
      for (const bool writes : {false, true}) {
        for (const bool is_sequential : {false, true}) {
          NvmePoint point{NvmeUse::shared, medium, block_bytes, writes, 2, 16, 4};
          point.run_ns = 10000000;
          point.logical_block_bytes = 512;
          point.is_sequential = is_sequential;
          EXPECT_GT(machine->run(point).commands, 0u);
        }
      }
    }
  }
}

// A drive takes no more than its MDTS.
TEST(NvmeLoad, TooLargeBlocksAreRefused) {
  NvmePoint point{NvmeUse::shared, NvmeMedium::device, 2 * nvme_transfer_bytes_max, false, 1, 16, 1};
  point.run_ns = 10000000;
  point.logical_block_bytes = 512;
  EXPECT_THROW(new_thread_machine()->run(point), std::runtime_error);
}

// In a row: each round of all lanes follows the one before, no lane touches a block of another one, and behind the last
// block comes the first one again.
TEST(NvmeLoad, SequentialBlocksAreInARow) {
  NvmeLoad load{};
  load.block_count = 64;
  load.is_sequential = true;
  for (const u32 lanes : {8u, 24u}) {
    load.lane_count = lanes;
    const u32 rounds = 64 / lanes;
    for (u32 round = 0; round < 2 * rounds; ++round) {
      for (u32 lane = 0; lane < lanes; ++lane) {
        EXPECT_EQ(choose_block(load, lane, round), round % rounds * lanes + lane);
      }
    }
  }
}

TEST(NvmeLoad, WarpsThatShareQueuesAndWarpsAlone) {
  for (const bool is_raw : {false, true}) {
    for (const bool writes : {false, true}) {
      WarpLoad warps(writes ? 4096 : 512, writes);
      warps.run([&](EmulatedWarp g, u32 worker) {
        if (is_raw) return run_raw(g, warps.load, worker);
        run_shared(g, warps.load, worker, FixedQueues{warps.load, worker});
      });
      EXPECT_EQ(warps.counts.faults, 0u);
      EXPECT_GT(warps.counts.commands, 0u);
      EXPECT_EQ(warps.counts.commands % warp_size, 0u);
      check_medium(Lane{}, warps.load, 0, 1);
      EXPECT_EQ(warps.counts.faults, 0u);
    }
  }
}

// One wrong bit is found: by those who read, and by the check of the medium.
TEST(NvmeLoad, WrongBytesAreFound) {
  for (const bool is_raw : {false, true}) {
    WarpLoad warps(512, false);
    for (u32 block = 0; block < WarpLoad::block_count; ++block) warps.load.medium[block * 512 + 500] ^= 4;
    warps.run([&](EmulatedWarp g, u32 worker) {
      if (is_raw) return run_raw(g, warps.load, worker);
      run_shared(g, warps.load, worker, FixedQueues{warps.load, worker});
    });
    EXPECT_GT(warps.counts.faults, 0u);
    warps.counts.faults = 0;
    check_medium(Lane{}, warps.load, 0, 1);
    EXPECT_EQ(warps.counts.faults, 1u);
  }
}

// Also in the last page of a block that a list names.
TEST(NvmeLoad, LargeBlocksOfWarps) {
  constexpr u32 block_bytes = 16384;
  for (const bool is_raw : {false, true}) {
    const auto run = [&](WarpLoad& warps) {
      warps.run([&](EmulatedWarp g, u32 worker) {
        if (is_raw) return run_raw(g, warps.load, worker);
        run_shared(g, warps.load, worker, FixedQueues{warps.load, worker});
      });
    };
    for (const bool writes : {false, true}) {
      WarpLoad warps(block_bytes, writes, 512);
      warps.load.is_sequential = is_raw;
      run(warps);
      check_medium(Lane{}, warps.load, 0, 1);
      EXPECT_EQ(warps.counts.faults, 0u);
      EXPECT_GT(warps.counts.commands, 0u);
    }
    WarpLoad warps(block_bytes, false, 512);
    warps.load.compare_every = 8;
    for (u32 block = 0; block < WarpLoad::block_count; ++block) {
      warps.load.medium[(block + 1) * block_bytes - 1] ^= 0x80;
    }
    run(warps);
    EXPECT_GT(warps.counts.faults, 0u);
  }
}

TEST(NvmeLoad, BareCopiesAreComparedToo) {
  for (const bool writes : {false, true}) {
    WarpLoad warps(4096, writes);
    run_emulated_warps(2, [&](EmulatedWarp g, u32 worker) { run_bare(g, warps.load, worker); });
    EXPECT_EQ(warps.counts.faults, 0u);
    EXPECT_GT(warps.counts.commands, 0u);
  }
  WarpLoad warps(4096, false);
  for (u32 block = 0; block < WarpLoad::block_count; ++block) warps.load.medium[block * 4096] ^= 1;
  run_emulated_warp([&](EmulatedWarp g) { run_bare(g, warps.load, 0); });
  EXPECT_GT(warps.counts.faults, 0u);
}

}  // namespace
}  // namespace gpu4fs::bench
