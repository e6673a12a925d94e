// A thread for operations that io_uring cannot carry out, or only by a thread of the kernel: discards and writes of
// zeros. It starts with the first one. Host only.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "block/request_batch.hpp"

namespace gpu4fs::block {

class BlockingWorker {
 public:
  using Work = std::function<void(RequestGroup*)>;

  // `work` carries out a group and completes it.
  explicit BlockingWorker(Work work) : work_(std::move(work)) {}
  // Waits until all groups are done.
  ~BlockingWorker() { finish(); }
  BlockingWorker(const BlockingWorker&) = delete;
  BlockingWorker& operator=(const BlockingWorker&) = delete;

  // Any thread.
  void add(RequestGroup group) {
    const std::lock_guard lock(mutex_);
    groups_.push_back(std::move(group));
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    changed_.notify_one();
  }
  // Nobody adds afterwards.
  void finish() {
    {
      const std::lock_guard lock(mutex_);
      is_stopping_ = true;
      changed_.notify_one();
    }
    if (thread_.joinable()) thread_.join();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return is_stopping_ || !groups_.empty(); });
      if (groups_.empty()) return;
      RequestGroup group = std::move(groups_.front());
      groups_.pop_front();
      lock.unlock();
      work_(&group);
      lock.lock();
    }
  }

  Work work_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<RequestGroup> groups_;
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace gpu4fs::block
