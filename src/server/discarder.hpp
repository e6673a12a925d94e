// The thread that gives free space back: memory to the system, and what disks and files need not keep to them. A device
// may take long for it, so neither checkpoints nor upcalls are in this thread.
//
//   Discarder discarder(trimmer);
//   discarder.start(5);
//   discarder.begin_passes();    // after a durable checkpoint with changes; any thread
//   discarder.stop();            // while the engine runs: waits for one unit at most
//
// Host only.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/types.hpp"
#include "maintenance/trim/pool_trimmer.hpp"

namespace gpu4fs::server {

class Discarder {
 public:
  // The trimmer outlives it.
  explicit Discarder(maintenance::PoolTrimmer& trimmer) : trimmer_(trimmer) {}
  Discarder(const Discarder&) = delete;
  Discarder& operator=(const Discarder&) = delete;

  // `interval_s`: between parts of a pass.
  void start(unsigned interval_s);
  // What became free before will be given back, a little each time. Does nothing if the thread was not started.
  void begin_passes();
  // Also ends whatever else uses the trimmer. Does nothing else if the thread was not started.
  void stop();

 private:
  void run(unsigned interval_s);

  maintenance::PoolTrimmer& trimmer_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;    // under mutex_
  u32 passes_ = 0;       // under mutex_: that are left
  u64 begin_count_ = 0;  // under mutex_: calls of begin_passes()
  std::thread thread_;
};

}  // namespace gpu4fs::server
