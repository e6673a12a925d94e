// Moves pages of a mounted pool while it is in use (engine/handlers/relocate_ops.hpp):
//
//   in the background, one job at a time: moves files to their profile (`gpu4fs convert`), or joins their pieces
//   (`gpu4fs defragment`); start, report, job()
//
//   at once, for the caller: empties chunks
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

// `page_count` is the number of moved pages. The remaining time is calculated from files; `file_total` is 0 while they
// are being collected.
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

  // Freezes the chunks and moves all their pages. They stay frozen. If not all of them can be frozen, those that this
  // call froze are unfrozen. PoolError if no session is left.
  RelocationResult empty_chunks(const std::vector<u32>& chunks, const RelocationGoesOn& goes_on);
  // Pages are allocated in them again. PoolError.
  Status unfreeze_chunks(const std::vector<u32>& chunks);
  // By chunk: the pages in use. PoolError.
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
  bool recursive_ = false;   // also under the job's lock
  BackgroundJob job_;
};

}  // namespace gpu4fs::maintenance
