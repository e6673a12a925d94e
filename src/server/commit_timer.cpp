#include "server/commit_timer.hpp"

#include <chrono>

#include "base/host/log.hpp"
#include "base/mutant.hpp"
#include "fmt/format.h"

namespace gpu4fs::server {

void CommitTimer::start(unsigned interval_s) {
  thread_ = std::thread([this, interval_s] { run(interval_s); });
}

void CommitTimer::stop() {
  {
    const std::lock_guard guard(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

// Those of the trimmer change nothing. It counts a command before the engine does, so the number may be too low for a
// moment and is never too high.
u64 CommitTimer::commands_of_others() const {
  const u64 own = trimmer_.command_count();
  return mounted_.setup.host->counters().commands_completed - own;
}

// Idle pools are left alone: without a command since the last test nothing can have changed.
void CommitTimer::run(unsigned interval_s) {
  bool is_first = true;
  i64 commands_seen = 0;
  const auto interval = std::chrono::seconds(interval_s);
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, interval, [this] { return ends_; })) {
    lock.unlock();
    death_.report();
    const i64 commands = static_cast<i64>(commands_of_others());
    if (is_first || commands > commands_seen) {
      is_first = false;
      const Status status = host_.command(wire::Opcode::checkpoint, 0).status;
      // The checkpoint is a command itself. Others that have ended meanwhile may not be part of it.
      const i64 own = status == Status::engine_died ? 0 : 1;
      commands_seen = GPU4FS_MUTANT(change_beside_checkpoint, commands + own, static_cast<i64>(commands_of_others()));
      if (status != Status::ok && !death_.is_reported()) {
        log(LogLevel::error, fmt::format("a checkpoint was not written: {}", status_text(status)));
      }
      // Also if it was not written: the engine gives out only what is free for the durable one.
      discarder_.begin_passes();
    }
    lock.lock();
  }
}

}  // namespace gpu4fs::server
