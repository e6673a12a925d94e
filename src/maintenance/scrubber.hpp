// Scrubs a mounted pool in the background: every page in use is verified by the engine, a range at a time.
//
//   Scrubber scrubber(setup);   // goes on with a scrub that a former mount left running
//   scrubber.start(rate);  ... pause, resume, cancel, progress ...
//   scrubber.stop();            // before the engine stops; what runs stays "running" for the next mount
//
// Pages that do not match are suspects at first; at the end of the scrub they become damage with an owner
// (maintenance/damage_owners.hpp). Progress is kept durably (scrub_progress.hpp) when the state changes and every some
// seconds; a scrub that was cut off begins again at the first suspect, so counts of pages verified are a little too
// high then, and no damage is forgotten. All functions but the constructor are for any thread. Host only.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "maintenance/damage_owners.hpp"
#include "maintenance/scrub_progress.hpp"
#include "pool/page_runs.hpp"
#include "session/pool_inspector.hpp"

namespace gpu4fs::maintenance {

struct ScrubSetup {
  engine::EngineHost& host;
  std::mutex& open_close;  // of the engine's sessions
  std::vector<session::ChunkRange> chunks;
  bool data_has_checksums = true;
  bool keeps_progress = true;  // false: the pool is mounted read-only
};

struct ScrubReport {
  ScrubProgress progress;
  bool looks_for_owners = false;   // all is verified, the files are being looked for
  u64 suspect_count = 0;           // pages that did not match and are yet to be judged
  std::vector<DamagedFile> files;  // found by this scrub since the mount, a bounded number
  std::string problem;             // what went wrong last, "" if nothing did
};

class Scrubber {
 public:
  // PoolError when no session is left.
  explicit Scrubber(ScrubSetup setup);
  ~Scrubber();
  Scrubber(const Scrubber&) = delete;
  Scrubber& operator=(const Scrubber&) = delete;

  // "" or why not. They answer when the new state is durable.
  std::string start(u64 rate_limit);
  std::string pause();
  std::string resume();
  std::string cancel();

  [[nodiscard]] ScrubReport report() const;
  void stop();

 private:
  static constexpr u64 file_max = 1000;

  void run();
  void verify_next(std::unique_lock<std::mutex>& lock);
  void take_suspects(u32 chunk, u64 first, u64 count);
  void finish(std::unique_lock<std::mutex>& lock);
  void pace(std::unique_lock<std::mutex>& lock, u64 page_count);
  void keep(std::unique_lock<std::mutex>& lock, bool durably);
  std::string change(ScrubState to);
  std::string await_kept(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] bool is_at_work() const { return progress_.state == ScrubState::running && !ending_; }

  ScrubSetup setup_;
  session::PoolInspector inspector_;  // of the thread
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Under the mutex:
  ScrubProgress progress_;
  pool::PageRuns suspects_;
  std::vector<DamagedFile> files_;
  std::string problem_;
  bool looks_for_owners_ = false;
  bool begins_ = false;     // the thread has yet to set the numbers of a new scrub
  bool ending_ = false;
  u64 changes_ = 0;         // of the state, asked for
  u64 changes_kept_ = 0;    // and durable
  double next_range_s_ = 0; // with a rate limit: when the next range may begin
  double kept_s_ = 0;       // when progress was last kept
  std::thread thread_;
};

}  // namespace gpu4fs::maintenance
