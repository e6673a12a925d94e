// Returns memory of free regions to the system: punches them out of the files of devices on tmpfs.
//
// The engine selects the regions (space/backing.hpp explains why, and their state until they are needed again); this
// code punches them, one run at a time. Memory that is registered with the GPU is pinned: a punch would free nothing
// and leave the GPU with pages that the file does not contain. So it is unregistered before, while no kernel runs.
//
// Any thread; one run at a time. Host only.
#pragma once

#include <mutex>

#include "maintenance/chunk_mapper.hpp"
#include "maintenance/mounted_pool.hpp"
#include "maintenance/pool_host.hpp"
#include "wire/ring_format.hpp"

namespace gpu4fs::maintenance {

struct TrimReport {
  u64 run_count = 0;
  u64 punch_count = 0;       // those of the runs that had memory
  u64 region_count = 0;      // 2 MiB of logical space each
  u64 byte_count = 0;        // of files, without holes
  u64 command_count = 0;     // that were sent to the engine
  bool is_complete = false;  // there is nothing more, or nothing at this time: `status`
  Status status = Status::ok;
};

class PoolTrimmer {
 public:
  // Everything outlives it.
  PoolTrimmer(MountedPool& mounted, ChunkMapper& mapper, PoolHost& host)
      : mounted_(mounted), mapper_(mapper), host_(host) {}

  // At most this number of runs with memory, and sixteen times as many that may have none, from the end of the last
  // call on, among regions that have been free for a whole pass. Does nothing while another thread trims.
  TrimReport trim(u64 runs_max);
  // Everything that is free after a checkpoint, in one pass over the pool.
  TrimReport trim_all();

 private:
  Status ask(wire::GrowMask mask, u64 chunk, u64 region, u32 mode, u64* result, TrimReport& report);
  [[nodiscard]] u64 kept_regions() const;
  bool has_memory_to_give();
  TrimReport trim_from_here(u64 runs_max, bool now);
  bool trim_run(TrimReport& report, bool now);
  void punch(const wire::TrimResult& run, TrimReport& report);

  MountedPool& mounted_;
  ChunkMapper& mapper_;
  PoolHost& host_;
  std::mutex one_at_a_time_;
  u64 next_chunk_ = 0;  // under one_at_a_time_: where the next search begins
  u64 next_region_ = 0;
};

}  // namespace gpu4fs::maintenance
