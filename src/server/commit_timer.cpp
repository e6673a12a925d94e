#include "server/commit_timer.hpp"

#include <chrono>

#include "base/host/log.hpp"
#include "base/mutant.hpp"
#include "fmt/format.h"

namespace gpu4fs::server {
namespace {

constexpr u32 trim_passes = 3;         // after a change: a region must be free for two
constexpr u64 trim_runs_at_once = 16;  // of up to 128 MiB each, or a chunk

}  // namespace

void CommitTimer::start(CommitPace pace) {
  thread_ = std::thread([this, pace] { run(pace); });
}

void CommitTimer::stop() {
  {
    const std::lock_guard guard(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

// Idle pools are left alone: without a command since the last test nothing can have changed. Memory that a checkpoint
// freed or an earlier mount left returns to the system, a little each time.
void CommitTimer::run(CommitPace pace) {
  u64 commands_seen = ~u64{0};
  u32 passes = pace.discards ? 1 : 0;
  const engine::EngineHost& engine = *mounted_.setup.host;
  const auto interval = std::chrono::seconds(pace.interval_s);
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, interval, [this] { return ends_; })) {
    lock.unlock();
    death_.report();
    const u64 commands = engine.counters().commands_completed;
    if (commands != commands_seen) {
      const Status status = host_.command(wire::Opcode::checkpoint, 0).status;
      // The checkpoint is a command itself. Others that have ended meanwhile may not be part of it.
      const u64 own = status == Status::engine_died ? 0 : 1;
      commands_seen = GPU4FS_MUTANT(change_beside_checkpoint, commands + own, engine.counters().commands_completed);
      if (status != Status::ok && !death_.is_reported()) {
        log(LogLevel::error, fmt::format("a checkpoint was not written: {}", status_text(status)));
      }
      passes = pace.discards ? trim_passes : 0;
    }
    if (passes != 0) {
      const maintenance::TrimReport report = trimmer_.trim(trim_runs_at_once);
      commands_seen += report.command_count;  // these change nothing
      passes -= report.is_complete ? 1 : 0;
    }
    lock.lock();
  }
}

}  // namespace gpu4fs::server
