// Empties devices and balances their free space, in the background (`gpu4fs device remove`, `gpu4fs balance`).
//
//   Reshaper reshaper(mounted, grower, relocator);
//   reshaper.start_removal(2, rate);   // or start_balance(rate): one at a time
//   ... pause, resume, set_rate, cancel of its job, report ...
//   reshaper.job().stop();             // before the engine stops; unfinished work stays unfinished
//
// Both move whole chunks: a new one is created where most is free if the others have no room for the content of the old
// one; then the old one is emptied and deleted. Every step is durable by itself, so the pool is consistent wherever the
// job ends. All functions except the constructor are for any thread. Host only.
#pragma once

#include <string>
#include <vector>

#include "maintenance/background_job.hpp"
#include "maintenance/growth/pool_grower.hpp"
#include "maintenance/mounted_pool.hpp"
#include "maintenance/relocator.hpp"

namespace gpu4fs::maintenance {

enum class ReshapeKind { removal, balance };

const char* reshape_kind_name(ReshapeKind kind);

struct ReshapeReport : JobReport {
  ReshapeKind kind = ReshapeKind::removal;
  u32 device = 0;  // of a removal
  std::string path;
  u64 chunk_total = 0;   // that have to be deleted, as far as is known
  u64 chunk_count = 0;   // those of them that are deleted
  u64 stayed_count = 0;  // pages that cannot be read anywhere
};

class Reshaper final : private JobWork {
 public:
  // Everything outlives it.
  Reshaper(MountedPool& mounted, PoolGrower& grower, Relocator& relocator);

  // "" or why not.
  std::string start_removal(u32 device, u64 rate_limit);
  std::string start_balance(u64 rate_limit);
  BackgroundJob& job() { return job_; }
  [[nodiscard]] ReshapeReport report() const;

 private:
  JobOutcome run() override;
  [[nodiscard]] JobWords words() const override;
  JobOutcome remove();
  JobOutcome balance();
  std::string move_chunk(const ChunkUsage& chunk);
  std::string drop_surplus();
  [[nodiscard]] std::string path_of(u32 device) const;
  bool goes_on(const RelocationProgress& progress);
  void count_chunk();

  MountedPool& mounted_;
  PoolGrower& grower_;
  Relocator& relocator_;
  ReshapeReport report_;     // under the job's lock
  RelocationProgress seen_;  // of the chunk that is being emptied; used by the thread
  BackgroundJob job_;
};

}  // namespace gpu4fs::maintenance
