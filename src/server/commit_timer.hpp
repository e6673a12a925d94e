// The thread that requests checkpoints, which make changes durable, and tells who gives free space back.
//
//   CommitTimer timer(mounted, host, trimmer, discarder, death);
//   timer.start(5);
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
#include "server/discarder.hpp"
#include "server/engine_death.hpp"

namespace gpu4fs::server {

class CommitTimer {
 public:
  // Everything outlives it.
  CommitTimer(maintenance::MountedPool& mounted, maintenance::PoolHost& host, maintenance::PoolTrimmer& trimmer,
              Discarder& discarder, EngineDeath& death)
      : mounted_(mounted), host_(host), trimmer_(trimmer), discarder_(discarder), death_(death) {}
  CommitTimer(const CommitTimer&) = delete;
  CommitTimer& operator=(const CommitTimer&) = delete;

  void start(unsigned interval_s);
  // Does nothing if it was not started.
  void stop();

 private:
  void run(unsigned interval_s);
  [[nodiscard]] u64 commands_of_others() const;

  maintenance::MountedPool& mounted_;
  maintenance::PoolHost& host_;
  const maintenance::PoolTrimmer& trimmer_;
  Discarder& discarder_;
  EngineDeath& death_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;  // under mutex_
  std::thread thread_;
};

}  // namespace gpu4fs::server
