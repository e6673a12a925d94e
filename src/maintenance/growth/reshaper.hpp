// Empties devices and evens out how full they are, in the background (`gpu4fs device remove`, `gpu4fs balance`).
//
//   Reshaper reshaper(setup);
//   reshaper.start_removal(2, rate);   // or start_balance(rate): one at a time
//   ... pause, resume, set_rate, cancel, report ...
//   reshaper.stop();                   // before the engine stops; what is not done then stays as it is
//
// Both move whole chunks: a new one is made where most is free, if the others have no room for what the old one holds,
// the old one is emptied and deleted. Every step is durable by itself, so that ending anywhere leaves a pool that is
// right. All functions but the constructor are for any thread. Host only.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "maintenance/growth/pool_grower.hpp"
#include "maintenance/relocator.hpp"

namespace gpu4fs::maintenance {

enum class ReshapeKind { removal, balance };
enum class ReshapeState { never, running, paused, finished, cancelled, failed };

const char* reshape_kind_name(ReshapeKind kind);
const char* reshape_state_name(ReshapeState state);

struct ReshapeReport {
  ReshapeState state = ReshapeState::never;
  ReshapeKind kind = ReshapeKind::removal;
  u32 device = 0;         // of a removal
  std::string path;
  u64 chunk_total = 0;    // that are to go, as far as is known
  u64 chunk_count = 0;    // of these, gone
  u64 page_total = 0;     // in use in them
  u64 page_count = 0;     // moved
  u64 stayed_count = 0;   // pages that cannot be read anywhere
  u64 rate_limit = 0;     // bytes/s, 0: none
  i64 started_s = 0;      // since 1970
  i64 ended_s = 0;
  u64 active_ms = 0;
  std::string problem;

  // Bytes moved a second, 0: unknown.
  [[nodiscard]] double rate() const;
  [[nodiscard]] std::optional<double> seconds_left() const;
};

// Freezes chunks and moves all that they hold into others; false of the second: it is to end.
using EmptyChunks =
    std::function<RelocationResult(const std::vector<u32>& chunks, const RelocationGoesOn& goes_on)>;

struct ReshaperSetup {
  PoolGrower& grower;
  EmptyChunks empty_chunks;
  std::function<std::string(u32 device)> path_of;
};

class Reshaper {
 public:
  explicit Reshaper(ReshaperSetup setup);
  ~Reshaper();
  Reshaper(const Reshaper&) = delete;
  Reshaper& operator=(const Reshaper&) = delete;

  // "" or why not.
  std::string start_removal(u32 device, u64 rate_limit);
  std::string start_balance(u64 rate_limit);
  std::string pause();
  std::string resume();
  std::string cancel();
  std::string set_rate(u64 rate_limit);
  [[nodiscard]] ReshapeReport report() const;
  void stop();

 private:
  void run();
  std::string start(ReshapeReport report);
  struct Outcome {
    std::string problem;  // "" if nothing went wrong
    bool is_done = false;
  };
  // Without the lock.
  Outcome remove();
  Outcome balance();
  std::string move_chunk(const ChunkUsage& chunk);
  std::string drop_surplus();
  bool goes_on(const RelocationProgress& progress);
  bool is_to_end();
  void count_chunk();
  [[nodiscard]] bool is_busy() const { return report_.state == ReshapeState::running || report_.state == ReshapeState::paused; }

  ReshaperSetup setup_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Under the mutex:
  ReshapeReport report_;
  bool begins_ = false;  // the thread has yet to take up the job
  bool cancelled_ = false;
  bool ending_ = false;
  double active_since_s_ = 0;
  RelocationProgress seen_;      // of the chunk that is being emptied
  double next_move_s_ = 0;     // with a rate limit: when the next page may move
  std::thread thread_;
};

}  // namespace gpu4fs::maintenance
