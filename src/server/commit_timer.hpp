// The thread that requests checkpoints, which make changes durable, and returns free memory to the system.
//
//   CommitTimer timer(mounted, host, trimmer, death);
//   timer.start({.interval_s = 5, .discards = true});
//   timer.stop();   // while the engine runs: waits for a running checkpoint
//
// It also reports the engine's death. Host only.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "maintenance/mounted_pool.hpp"
#include "maintenance/pool_host.hpp"
#include "maintenance/trim/pool_trimmer.hpp"
#include "server/engine_death.hpp"

namespace gpu4fs::server {

struct CommitPace {
  unsigned interval_s = 0;
  bool discards = false;  // memory of free regions returns to the system
};

class CommitTimer {
 public:
  // Everything outlives it.
  CommitTimer(maintenance::MountedPool& mounted, maintenance::PoolHost& host, maintenance::PoolTrimmer& trimmer,
              EngineDeath& death)
      : mounted_(mounted), host_(host), trimmer_(trimmer), death_(death) {}
  CommitTimer(const CommitTimer&) = delete;
  CommitTimer& operator=(const CommitTimer&) = delete;

  void start(CommitPace pace);
  // Does nothing if it was not started.
  void stop();

 private:
  void run(CommitPace pace);

  maintenance::MountedPool& mounted_;
  maintenance::PoolHost& host_;
  maintenance::PoolTrimmer& trimmer_;
  EngineDeath& death_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;  // under mutex_
  std::thread thread_;
};

}  // namespace gpu4fs::server
