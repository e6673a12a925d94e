// A pool as a mounted directory.
//
// Every thread reads requests from its own clone of /dev/fuse into its own session's data area, carries
// them out with one command (or a few) and answers; the threads share nothing but the table of lookups.
//
//   FuseMount mount(options, source);   // throws FuseError
//   mount.mount();                      // throws FuseError; the directory is usable when run() runs
//   mount.run();                        // returns when the directory was unmounted or stop() was called
//   (destructor)                        // unmounts if still mounted
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "frontend/fuse/fuse_options.hpp"
#include "frontend/fuse/fuse_worker.hpp"

namespace gpu4fs::frontend {

struct FuseError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class FuseMount {
 public:
  FuseMount(FuseOptions options, SessionSource& source);
  ~FuseMount();
  FuseMount(const FuseMount&) = delete;
  FuseMount& operator=(const FuseMount&) = delete;

  void mount();

  // Serves until the kernel has ended the mount or stop() was called; then frees all orphans. The
  // sessions are still open when it returns and are closed by the destructor.
  void run();

  // From any thread, once run() was called: unmounts. A directory in use is taken out of the tree at
  // once and its last users get ENOTCONN. Returns before run() does.
  void stop();

  [[nodiscard]] unsigned thread_count() const { return thread_count_; }

 private:
  void open_sessions();
  void serve(FuseWorker& worker);
  int clone_device() const;

  FuseOptions options_;
  FuseShared shared_;
  unsigned thread_count_;
  fuse_session* fuse_ = nullptr;
  bool mounted_ = false;
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  unsigned serving_ = 0;  // under mutex_
  std::vector<std::unique_ptr<FuseWorker>> workers_;
};

}  // namespace gpu4fs::frontend
