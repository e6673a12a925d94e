// Where `gpu4fs bench nvme` measures: a GPU, or threads of this process. Host only.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/types.hpp"
#include "bench/nvme_cache_kinds.hpp"

namespace gpu4fs::bench {

enum class NvmeUse {
  shared,       // warps (or threads) share virtual queues
  shared_lane,  // one lane has a virtual queue
  raw,          // each queue has one warp (or thread) and no driver
  raw_lane,     // one lane has a queue and no driver
  mapped,       // as `shared`, queues by the mapper of queues
  log_alone,    // one warp (or thread) a queue is the log, and there is nobody else
  log_shared,   // the same with background from all other lanes, in one queue without classes
  log_classes,  // with classes
};

enum class NvmeMedium { host, device };

// One run. The drive has one namespace.
struct NvmePoint {
  NvmeUse use = NvmeUse::shared;
  NvmeMedium medium = NvmeMedium::device;
  u32 block_bytes = 4096;
  bool writes = false;
  u32 queue_count = 32;
  u32 queue_depth = 1024;
  u32 lane_count = 8192;          // shared: of all queues; raw: commands at once, of all queues
  u64 latency_ns = 0;             // of the drive
  bool reverses_batches = false;  // shared: the drive completes batches from their end
  u64 run_ns = 100000000;
  u32 compare_every = 1;  // batches that are read; a warp that compares everything alone may be slower than its queue
  u32 latencies_max = 0;  // that are noted of each lane, or of the log's
  u32 logical_block_bytes = 0;  // of the namespace; 0: those of a block, which is then one of 512 or 4096 bytes
  bool is_sequential = false;   // otherwise blocks are random

  u32 namespace_block_bytes() const { return logical_block_bytes != 0 ? logical_block_bytes : block_bytes; }
};

// The largest transfer of the drive (MDTS).
inline constexpr u32 nvme_transfer_bytes_max = 1u << 20;

// Commands that a group of the drive takes at once: together 128 KiB. So groups share large commands, which each of
// them moves one after the other.
constexpr u32 nvme_batch_max(u32 block_bytes) {
  return block_bytes < (128u << 10) ? (128u << 10) / block_bytes : 1;
}

struct NvmeMeasured {
  u64 commands = 0;
  double seconds = 0;  // between the host's start and the end of the last command
  std::vector<double> latencies_us;

  double millions_per_s() const { return static_cast<double>(commands) / 1e6 / seconds; }
};

// A page cache in front of the drive. Lanes acquire pages, each lane one at a time.
struct NvmeCachePoint {
  NvmePoint load;         // blocks are pages; writes and latencies_max do not count
  u64 page_count;         // of the medium, a power of two
  u32 frame_count;        // a power of two and less than the pages
  u32 rounds_min = 0;     // acquisitions of each lane in a phase that ends by time, however long they take
  u32 latencies_max = 0;  // that are noted of each lane and kind
};

struct NvmeCacheMeasured {
  struct Kind {
    u64 operations = 0;
    std::vector<double> latencies_us;  // the first ones of each lane
  };

  Kind kinds[cache_kind_count];  // by CacheKind
};

constexpr bool is_log(NvmeUse use) {
  return use == NvmeUse::log_alone || use == NvmeUse::log_shared || use == NvmeUse::log_classes;
}

// Commands in a queue beyond which the mapper moves slots away, and slots for each queue.
inline constexpr u32 mapper_threshold = 256;
inline constexpr u32 mapper_slots_per_queue = 2;

// Every run compares bytes, and throws std::runtime_error if something is wrong or takes too long.
class NvmeMachine {
 public:
  virtual ~NvmeMachine() = default;

  virtual NvmeMeasured run(const NvmePoint& point) = 0;
  // The same blocks without queues: copies by as many groups as reach the most. Afterwards all content is new. Blocks
  // have 4096 bytes at most.
  virtual NvmeMeasured bare(const NvmePoint& point) = 0;
  // Acquires pages of an empty cache in all phases (cache_phases), of which two take load.run_ns each.
  virtual NvmeCacheMeasured cache(const NvmeCachePoint& point) = 0;
  // The smallest step of the clock that latencies are measured with.
  virtual double clock_step_ns() = 0;
};

// Throws std::runtime_error without a GPU (bench/limits.hpp: gpu_problem()).
std::unique_ptr<NvmeMachine> new_gpu_machine();
// A thread serves the drive.
std::unique_ptr<NvmeMachine> new_thread_machine();

}  // namespace gpu4fs::bench
