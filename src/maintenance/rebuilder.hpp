// Fills a device of a mounted pool again, in the background (engine/handlers/rebuild_ops.hpp).
//
//   Rebuilder rebuilder(mounted, grower, host);
//   rebuilder.start(job);   // the engine already writes the device
//   ... pause, resume, set_rate, report ...
//   rebuilder.job().stop();   // before the engine stops; restart an unfinished rebuild after the next mount
//
// Commands fill pieces of chunks, several at a time. A round over all chunks skips pages that are not in a durable
// checkpoint yet, so a checkpoint and another round follow until nothing is left. The last checkpoint makes the device
// a full member. All functions except the constructor are for any thread. Host only.
#pragma once

#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "maintenance/background_job.hpp"
#include "maintenance/growth/pool_grower.hpp"
#include "maintenance/mounted_pool.hpp"
#include "maintenance/pool_host.hpp"
#include "session/pool_inspector.hpp"

namespace gpu4fs::maintenance {

struct RebuildReport : JobReport {
  u32 device = 0;
  std::string path;
  u64 written_count = 0;     // pages and parities that were written
  u64 unverified_count = 0;  // pages that nowhere match their checksum: preallocated, or damaged before
  u64 unreadable_count = 0;  // pages that could not be read anywhere
};

struct RebuildJob {
  u32 device = 0;
  std::string path;
  bool is_fresh = false;  // it has no content, so it is not read first
  u64 page_total = 0;
  u64 rate_limit = 0;
};

class Rebuilder final : private JobWork {
 public:
  // Everything outlives it. PoolError if no session is left.
  Rebuilder(MountedPool& mounted, PoolGrower& grower, PoolHost& host);

  // "" or why not.
  std::string start(const RebuildJob& rebuild);
  BackgroundJob& job() { return job_; }
  [[nodiscard]] bool is_busy() const { return job_.is_busy(); }
  [[nodiscard]] RebuildReport report() const;

  // Executes a command of the engine's `rebuild` with data, for the threads that start a rebuild.
  ring::Completion call(wire::Command command, const void* data, u64 bytes);

 private:
  struct Piece {
    u32 chunk;
    u64 first;
    u64 count;
    u64 position;  // in the session's ring
  };

  JobOutcome run() override;
  [[nodiscard]] JobWords words() const override;
  std::string run_round();
  bool next_piece(Piece* piece);
  bool send_piece(Piece piece);
  std::string await_piece(u64* page_count);
  void drain();
  std::string end_round(bool* is_done);
  Status look_at_health(session::PoolHealth* health);
  void make_member(u32 device);

  MountedPool& mounted_;
  PoolGrower& grower_;
  PoolHost& host_;
  session::ServerSession session_;  // used by the thread
  std::mutex call_mutex_;
  session::ServerSession call_session_;
  RebuildReport report_;  // under the job's lock
  // Set before the work begins, then used by the thread:
  std::vector<session::ChunkRange> chunks_;
  bool is_fresh_ = false;
  u32 round_ = 0;
  u32 chunk_ = 0;  // of the next piece
  u64 page_ = 0;
  std::deque<Piece> in_flight_;
  BackgroundJob job_;
};

}  // namespace gpu4fs::maintenance
