// A thread of a device for work that io_uring cannot do, or only by a thread of the kernel: discards, writes of zeros,
// media with stacks, and requests that are tried alone. It starts with the first one. Host only.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "block/thread_times.hpp"

namespace gpu4fs::block {

class BlockingWorker {
 public:
  using Work = std::function<void()>;

  explicit BlockingWorker(ThreadTimes& times) : times_(times) {}
  // Waits until all work is done.
  ~BlockingWorker() { finish(); }
  BlockingWorker(const BlockingWorker&) = delete;
  BlockingWorker& operator=(const BlockingWorker&) = delete;

  // Any thread.
  void add(Work work) {
    const std::lock_guard lock(mutex_);
    works_.push_back(std::move(work));
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
    const ThreadTimes::Scope time(times_);
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return is_stopping_ || !works_.empty(); });
      if (works_.empty()) return;
      const Work work = std::move(works_.front());
      works_.pop_front();
      lock.unlock();
      work();
      lock.lock();
    }
  }

  ThreadTimes& times_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> works_;
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace gpu4fs::block
