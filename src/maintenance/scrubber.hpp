// Scrubs a mounted pool in the background: the engine verifies every page in use, a range at a time.
//
//   Scrubber scrubber(setup);   // continues a scrub that an earlier mount left running
//   scrubber.start(rate);  ... pause, resume, cancel, report ...
//   scrubber.job().stop();      // before the engine stops; a running scrub stays "running" for the next mount
//
// Pages that do not match are suspects at first. At the end of the scrub they become damage with an owner
// (maintenance/damage_owners.hpp). Progress is stored durably (scrub_progress.hpp) when the state changes and every few
// seconds. An interrupted scrub continues at the first suspect. Then the number of verified pages is slightly too high,
// and no damage is forgotten. All functions except the constructor are for any thread. Host only.
#pragma once

#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "maintenance/background_job.hpp"
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

class Scrubber final : private JobWork {
 public:
  // PoolError if no session is left.
  explicit Scrubber(ScrubSetup setup);

  // "" or why not.
  std::string start(u64 rate_limit);
  BackgroundJob& job() { return job_; }
  [[nodiscard]] ScrubReport report() const;

 private:
  struct Range {
    u32 chunk;
    u64 first;
    u64 count;
  };

  JobOutcome run() override;
  void keep(bool durably) override;
  [[nodiscard]] JobWords words() const override;
  ScrubReport read_kept();
  void begin();
  [[nodiscard]] std::optional<Range> next_range() const;
  u64 verify(const Range& range);
  void take_suspects(const Range& range);
  bool judge_suspects();
  void drop_suspects();

  ScrubSetup setup_;
  session::PoolInspector inspector_;  // used by the thread
  // Under the job's lock:
  ScrubReport report_;
  pool::PageRuns suspects_;
  bool begins_ = false;                            // the numbers of a new scrub still have to be set
  std::chrono::steady_clock::time_point kept_at_;  // used by the thread: when progress was last kept
  BackgroundJob job_;
};

}  // namespace gpu4fs::maintenance
