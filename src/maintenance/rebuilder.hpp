// Fills a device of a mounted pool again, in the background (engine/handlers/rebuild_ops.hpp).
//
//   Rebuilder rebuilder(setup);
//   rebuilder.start(job);   // the engine writes the device already
//   ... pause, resume, set_rate, report ...
//   rebuilder.stop();       // before the engine stops; what is not done then is done anew after the next mount
//
// Pieces of chunks are filled by commands, several at a time. A round over all chunks leaves what
// was not in a durable checkpoint yet; so a checkpoint and another round follow, until nothing is
// left. The last checkpoint makes the device a full member. All functions but the constructor are
// for any thread. Host only.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "session/pool_inspector.hpp"

namespace gpu4fs::maintenance {

enum class RebuildState { never, running, paused, finished, failed };

const char* rebuild_state_name(RebuildState state);

struct RebuildReport {
  RebuildState state = RebuildState::never;
  u32 device = 0;
  std::string path;
  u64 page_total = 0;     // that the device might lack
  u64 page_count = 0;     // of these, dealt with
  u64 written_count = 0;  // pages and parities that were written
  u64 unverified_count =
      0;  // pages that match their checksum nowhere: preallocated, or damaged before
  u64 unreadable_count = 0;  // pages that could not be read anywhere
  u64 rate_limit = 0;        // bytes/s, 0: none
  i64 started_s = 0;         // since 1970
  i64 ended_s = 0;
  u64 active_ms = 0;
  std::string problem;

  // Bytes dealt with a second, 0: unknown.
  [[nodiscard]] double rate() const;
  [[nodiscard]] std::optional<double> seconds_left() const;
};

struct RebuildSetup {
  engine::EngineHost& host;
  std::mutex& open_close;  // of the engine's sessions
  std::function<std::vector<session::ChunkRange>()> list_chunks;  // as they are when a rebuild begins
  std::function<Status()> checkpoint;        // forced
  std::function<void(u32 device)> finished;  // the device is a full member again
};

struct RebuildJob {
  u32 device = 0;
  std::string path;
  bool is_fresh = false;  // it holds nothing, so that it is not looked at first
  u64 page_total = 0;
  u64 rate_limit = 0;
};

class Rebuilder {
 public:
  // PoolError when no session is left.
  explicit Rebuilder(RebuildSetup setup);
  ~Rebuilder();
  Rebuilder(const Rebuilder&) = delete;
  Rebuilder& operator=(const Rebuilder&) = delete;

  // "" or why not.
  std::string start(const RebuildJob& job);
  std::string pause();
  std::string resume();
  std::string set_rate(u64 rate_limit);
  [[nodiscard]] bool is_busy() const;
  [[nodiscard]] RebuildReport report() const;
  void stop();

  // A command of the engine's `rebuild` with data, by the threads that begin one.
  ring::Completion call(wire::Command command, const void* data, u64 bytes);

 private:
  struct Piece {
    u32 chunk;
    u64 first;
    u64 count;
    u64 position;  // in the session's ring
  };

  void run();
  void run_round(std::unique_lock<std::mutex>& lock);
  bool next_piece(Piece* piece);
  void await_piece(std::unique_lock<std::mutex>& lock);
  void end_round(std::unique_lock<std::mutex>& lock);
  Status look_at_health(session::PoolHealth* health);
  void fail(const std::string& why);
  void pace(std::unique_lock<std::mutex>& lock, u64 page_count);

  RebuildSetup setup_;
  session::ServerSession session_;  // of the thread
  std::mutex call_mutex_;
  session::ServerSession call_session_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Under the mutex:
  RebuildReport report_;
  std::vector<session::ChunkRange> chunks_;
  bool is_fresh_ = false;
  bool ending_ = false;
  u32 round_ = 0;
  u32 chunk_ = 0;  // of the next piece
  u64 page_ = 0;
  double next_piece_s_ = 0;
  std::deque<Piece> in_flight_;
  std::thread thread_;
};

}  // namespace gpu4fs::maintenance
