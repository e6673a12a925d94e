// Moves pages of a mounted pool while it is in use (engine/handlers/relocate_ops.hpp):
//
//   in the background, one job at a time: files get the profile that they ask for (`gpu4fs convert`), or are put together
//   (`gpu4fs defragment`); start, pause, resume, cancel, set_rate, report
//
//   at once, for whoever calls: chunks are emptied
//
// All functions are for any thread. Host only.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "maintenance/page_mover.hpp"

namespace gpu4fs::maintenance {

struct RelocationProgress {
  u64 page_total = 0;  // that are to move, as far as is known
  u64 moved_count = 0;
  u64 stayed_count = 0;  // pages that cannot be read anywhere
};
// False: it is to end.
using RelocationGoesOn = std::function<bool(const RelocationProgress&)>;

struct RelocationResult {
  // ok also if chunks are not empty because pages of them cannot be read; no_space: the other chunks have no room for what
  // these hold; cancelled; ...
  Status status = Status::ok;
  RelocationProgress progress;
  std::vector<u32> empty;      // of the chunks, those that hold nothing any more
  std::vector<u32> not_empty;
};

enum class RelocationState { never, running, paused, finished, cancelled, failed };

const char* relocation_state_name(RelocationState state);

enum class RelocationKind { convert, defragment };

struct RelocationJob {
  RelocationKind kind = RelocationKind::convert;
  u64 inode = 0;           // a regular file, or a directory
  bool recursive = false;  // everything below the directory
  u64 rate_limit = 0;      // bytes/s, 0: none
};

struct RelocationReport {
  RelocationState state = RelocationState::never;
  RelocationJob job;
  u64 file_total = 0;    // 0: they are being looked for
  u64 file_count = 0;    // of these, dealt with
  u64 moved_count = 0;   // pages
  u64 stayed_count = 0;
  i64 started_s = 0;     // since 1970
  i64 ended_s = 0;
  u64 active_ms = 0;
  std::string problem;

  // Bytes moved a second, 0: unknown.
  [[nodiscard]] double rate() const;
  [[nodiscard]] std::optional<double> seconds_left() const;
};

struct RelocatorSetup {
  engine::EngineHost& host;
  std::mutex& open_close;              // of the engine's sessions
  std::function<Status()> checkpoint;  // forced
};

class Relocator {
 public:
  explicit Relocator(RelocatorSetup setup);
  ~Relocator();
  Relocator(const Relocator&) = delete;
  Relocator& operator=(const Relocator&) = delete;

  // "" or why not.
  std::string start(const RelocationJob& job);
  std::string pause();
  std::string resume();
  std::string cancel();
  std::string set_rate(u64 rate_limit);
  [[nodiscard]] RelocationReport report() const;
  // Before the engine stops. What runs ends.
  void stop();

  // Freezes the chunks and moves all that they hold; they stay frozen, unless they cannot all be frozen: then those
  // that this call has frozen are not. PoolError when no session is left.
  RelocationResult empty_chunks(const std::vector<u32>& chunks, const RelocationGoesOn& goes_on);
  // They give out pages again. PoolError.
  Status unfreeze_chunks(const std::vector<u32>& chunks);
  // By chunk: what is in use. PoolError.
  Status chunk_usage(std::vector<wire::ChunkUsage>* usage);

 private:
  void run();
  void run_job(std::unique_lock<std::mutex>& lock);
  Status collect_files(std::vector<u64>* files);
  Status move_files(const std::vector<u64>& files, PageMover& mover);
  bool goes_on(PageMover& mover, u64 page_count);
  void wait_for_rate(std::unique_lock<std::mutex>& lock, u64 page_count);
  void note_active_time();

  RelocatorSetup setup_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Under the mutex:
  RelocationReport report_;
  bool begins_ = false;  // the thread has yet to take up the job
  bool ending_ = false;
  double next_command_s_ = 0;  // with a rate limit: when the next command may begin
  double active_s_ = 0;
  double active_since_s_ = 0;
  std::thread thread_;
};

}  // namespace gpu4fs::maintenance
