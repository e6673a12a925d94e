// A pool as a mounted directory.
//
// Every thread reads requests from its own clone of /dev/fuse into its own session's data area, executes them with one
// or a few commands and answers. The threads share only the table of lookups.
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
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "frontend/fuse/fuse_options.hpp"
#include "frontend/fuse/fuse_worker.hpp"
#include "pool/own_mounts.hpp"

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

  // Instead of mount(): continues a mount that another process has suspended. `device` is its device(). Inodes that the
  // engine does not have are lost, and the kernel is told to drop its caches. The engine must not have freed orphans.
  void resume(int device, const SavedMount& saved);

  enum class RunEnd { unmounted, suspended };
  // Serves until the kernel has ended the mount or stop() was called, then frees all orphans; or until suspend() was
  // called. The sessions are still open when it returns and are closed by the destructor.
  RunEnd run();

  // From any thread: run() returns when the accepted requests are answered; others wait in the kernel.
  void suspend();
  // After that, for resume().
  [[nodiscard]] SavedMount save() const;
  [[nodiscard]] int device() const;

  // From any thread, after run() was called: unmounts. A directory in use is detached from the tree at once, and its
  // last users get ENOTCONN. Returns before run() does.
  void stop();

  [[nodiscard]] unsigned thread_count() const { return thread_count_; }

 private:
  void open_sessions();
  void open_channel(const std::string& place);
  void restore(const SavedMount& saved);
  void check_inode(SavedInode& inode);
  void replay_init(const std::string& request);
  void tell_kernel();
  void unmount();
  void serve_all();
  [[nodiscard]] bool must_answer() const;
  void serve(FuseWorker& worker);
  int clone_device() const;

  FuseOptions options_;
  FuseShared shared_;
  unsigned thread_count_;
  fuse_session* fuse_ = nullptr;
  bool mounted_ = false;
  std::optional<pool::OwnMount> own_;
  bool is_resumed_ = false;
  bool names_are_told_ = false;
  std::vector<u64> told_inodes_;  // whose caches the kernel has to drop
  std::atomic<bool> stopping_{false};
  std::atomic<bool> telling_{false};  // the kernel is being told what to drop
  std::atomic<bool> suspending_{false};
  std::atomic<bool> unmounting_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  unsigned serving_ = 0;  // under mutex_
  std::vector<std::unique_ptr<FuseWorker>> workers_;
};

}  // namespace gpu4fs::frontend
