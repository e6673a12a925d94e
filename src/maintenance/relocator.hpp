// Moves pages of a mounted pool while it is in use (engine/handlers/relocate_ops.hpp):
//
//   in the background, one job at a time: files get the profile that they ask for (`gpu4fs convert`), or are put
//   together (`gpu4fs defragment`); start, report, job()
//
//   at once, for whoever calls: chunks are emptied
//
// All functions are for any thread. Host only.
#pragma once

#include <string>
#include <vector>

#include "maintenance/background_job.hpp"
#include "maintenance/chunk_emptier.hpp"
#include "maintenance/mounted_pool.hpp"
#include "maintenance/page_mover.hpp"
#include "maintenance/pool_host.hpp"

namespace gpu4fs::maintenance {

enum class RelocationKind { convert, defragment };

struct RelocationJob {
  RelocationKind kind = RelocationKind::convert;
  u64 inode = 0;           // a regular file, or a directory
  bool recursive = false;  // everything below the directory
  u64 rate_limit = 0;      // bytes/s, 0: none
};

// `page_count` is what was moved, time left is reckoned by files; `file_total` is 0 while they are being looked for.
struct RelocationReport : JobReport {
  RelocationKind kind = RelocationKind::convert;
  u64 inode = 0;
  u64 stayed_count = 0;  // pages that cannot be read anywhere
};

class Relocator final : private JobWork {
 public:
  // Both outlive it.
  Relocator(MountedPool& mounted, PoolHost& host);

  // "" or why not.
  std::string start(const RelocationJob& relocation);
  BackgroundJob& job() { return job_; }
  [[nodiscard]] RelocationReport report() const;

  // Freezes the chunks and moves all that they hold; they stay frozen, unless they cannot all be frozen: then those
  // that this call has frozen are not. PoolError when no session is left.
  RelocationResult empty_chunks(const std::vector<u32>& chunks, const RelocationGoesOn& goes_on);
  // They give out pages again. PoolError.
  Status unfreeze_chunks(const std::vector<u32>& chunks);
  // By chunk: what is in use. PoolError.
  Status chunk_usage(std::vector<wire::ChunkUsage>* usage);

 private:
  JobOutcome run() override;
  [[nodiscard]] JobWords words() const override;
  Status collect_files(std::vector<u64>* files);
  Status move_files(const std::vector<u64>& files, PageMover& mover);
  bool goes_on(PageMover& mover, u64 page_count);

  MountedPool& mounted_;
  PoolHost& host_;
  RelocationReport report_;  // under the job's lock
  bool recursive_ = false;   // the same
  BackgroundJob job_;
};

}  // namespace gpu4fs::maintenance
