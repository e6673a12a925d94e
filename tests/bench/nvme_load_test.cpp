// The load of the benchmark of the NVMe driver: all uses run on threads and on emulated warps, and wrong bytes are
// found.
#include "bench/nvme_load.hpp"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "base/emulated_warp.hpp"
#include "bench/nvme_machine.hpp"
#include "bench/nvme_raw.hpp"
#include "device/nvme/drive/connected_queues.hpp"
#include "device/nvme/drive/service.hpp"

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

struct Piece {
  explicit Piece(u64 bytes) : memory(static_cast<u8*>(std::aligned_alloc(page_size, align_up(bytes, page_size)))) {
    std::memset(memory, 0, bytes);
  }
  ~Piece() { std::free(memory); }
  Piece(const Piece&) = delete;
  Piece& operator=(const Piece&) = delete;
  u8* memory;
};

// A drive of 256 blocks that a warp serves, and a load that warps execute.
class WarpLoad {
 public:
  static constexpr u32 queue_count = 2;
  static constexpr u32 lane_count = 2 * warp_size;
  static constexpr u32 block_count = 256;

  WarpLoad(u32 block_bytes, bool writes, u32 logical_block_bytes = 0)
      : medium_(u64{block_count} * block_bytes),
        buffers_(u64{lane_count} * block_bytes),
        lists_(u64{lane_count} * page_size),
        queues_(nvme::lay_out_queues(nullptr, queue_count, 64).bytes),
        set_(nvme::lay_out_queues(queues_.memory, queue_count, 64)),
        versions_(block_count),
        outcomes_(lane_count) {
    nvme::MemoryDrive drive{};
    drive.memory.windows[0] = {u64{1} << 40, u64{lane_count} * block_bytes, buffers_.memory};
    drive.memory.windows[1] = {u64{2} << 40, u64{lane_count} * page_size, lists_.memory};
    drive.memory.window_count = 2;
    load.logical_block_bytes = logical_block_bytes != 0 ? logical_block_bytes : block_bytes;
    drive.namespaces[0] = {{1, load.logical_block_bytes, u64{block_count} * block_bytes / load.logical_block_bytes},
                           medium_.memory};
    drive.batch_max = nvme_batch_max(block_bytes);
    drive.namespace_count = 1;
    nvme::place_drive(set_, drive);
    for (u32 i = 0; i < queue_count; ++i) nvme::connect_queue(set_, i);
    load.queues = set_.queues;
    load.queue_count = queue_count;
    load.worker_count = 2;
    load.lane_count = lane_count;
    load.window = warp_size;
    load.outcomes = outcomes_.data();
    load.buffers = buffers_.memory;
    load.buffers_address = u64{1} << 40;
    load.lists = lists_.memory;
    load.lists_address = u64{2} << 40;
    load.medium = medium_.memory;
    load.versions = versions_.data();
    load.block_bytes = block_bytes;
    load.namespace_id = 1;
    load.block_count = block_count;
    load.writes = writes;
    load.compare_every = 1;
    load.run_ns = 30000000;
    load.limit_ns = 60000000000;
    load.counts = &counts;
    load.stop = &set_.drive->is_stopping;
    fill_medium(Lane{}, load, 0, 1);
  }

  // The whole load with the drive beside it.
  template <class Work>
  void run(Work&& work) {
    std::thread drive(
        [this] { run_emulated_warp([this](EmulatedWarp g) { nvme::run_drive(g, *set_.drive, 0, 1, ~u64{0}); }); });
    run_emulated_warps(load.worker_count, [&](EmulatedWarp g, u32 worker) { work(g, worker); });
    drive.join();
    EXPECT_EQ(set_.drive->complaint, 0u);
    EXPECT_EQ(nvme::failure_of(*set_.controller), nvme::Failure::none);
  }

  NvmeLoad load{};
  NvmeCounts counts{};

 private:
  Piece medium_;
  Piece buffers_;
  Piece lists_;
  Piece queues_;
  nvme::ConnectedQueues set_;
  std::vector<u32> versions_;
  std::vector<u32> outcomes_;
};

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
