// A small load of the benchmark of the NVMe driver, and the drive that serves it, both in the memory of a test.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "base/emulated_warp.hpp"
#include "bench/nvme_load.hpp"
#include "bench/nvme_machine.hpp"
#include "device/nvme/drive/connected_queues.hpp"
#include "device/nvme/drive/service.hpp"

namespace gpu4fs::bench {

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
    nvme::place_mapper(mapper_, set_.queues, queue_count, mapper_table_,
                       {queue_count * mapper_slots_per_queue, 1, nvme::MapperPolicy::two_choices});
    load.mapper = &mapper_;
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
    serve([&] { run_emulated_warps(load.worker_count, [&](EmulatedWarp g, u32 worker) { work(g, worker); }); });
  }
  // Calls use() with the drive beside it. The last worker of the load ends the drive.
  template <class Use>
  void serve(Use&& use) {
    counts.finished = 0;
    set_.drive->is_stopping = 0;
    std::thread drive(
        [this] { run_emulated_warp([this](EmulatedWarp g) { nvme::run_drive(g, *set_.drive, 0, 1, ~u64{0}); }); });
    use();
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
  nvme::QueueMapper mapper_{};
  u32 mapper_table_[queue_count * (1 + mapper_slots_per_queue)];
  std::vector<u32> versions_;
  std::vector<u32> outcomes_;
};

}  // namespace gpu4fs::bench
