// Pages in the kernel's cache that a direct write makes stale.
//
// Before the kernel sends a write with O_DIRECT, it drops the cached pages in its range. Afterwards it does so again
// only if the caller waits in write(2). With asynchronous writes (libaio, io_uring) a buffered read in between brings
// the old content back, and nothing would drop it again: the cache is kept over opens and is not tied to the
// modification time. So the kernel is told to drop the range when the engine has the new content, before the write is
// answered.
//
// Dropping waits for pages that are being read or written back, and thus for requests that must be answered meanwhile.
// So a separate thread drops and answers. Files that are never read through the cache, such as those of databases, are
// not affected: a filter knows which inodes may have pages there.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "base/types.hpp"

namespace gpu4fs::frontend {

class CachedPages {
 public:
  // An answered write: the range that the kernel has to drop, and the request with its number of written bytes.
  struct DirectWrite {
    int device;
    u64 unique;
    u64 inode;
    u64 offset;
    u32 length;
  };

  CachedPages() = default;
  CachedPages(const CachedPages&) = delete;
  CachedPages& operator=(const CachedPages&) = delete;
  ~CachedPages() { stop(); }

  // The kernel will cache content of the inode; called before the engine is asked for the content.
  void note(u64 inode);
  // Notes all inodes: an earlier process of this mount may have noted any of them.
  void note_all();
  [[nodiscard]] bool may_hold(u64 inode) const;

  // Starts to accept work; `idle` is called when all accepted work is done.
  template <class Idle>
  void start(Idle idle) {
    stopping_ = false;
    thread_ = std::thread([this, idle] { answer_all(idle); });
  }
  // Answers the remaining writes and ends the thread.
  void stop();
  void answer(const DirectWrite& write);
  // Other work that drops pages before it answers a request.
  void run(std::function<void()> work);
  // Work is waiting; requests must be read and answered until there is none.
  [[nodiscard]] bool is_busy() const { return waiting_.load() != 0; }

 private:
  static constexpr u64 bit_count = u64{1} << 20;

  template <class Idle>
  void answer_all(const Idle& idle) {
    while (const std::function<void()> work = take()) {
      work();
      if (waiting_.fetch_sub(1) == 1) idle();
    }
  }
  std::function<void()> take();  // empty: it has to end

  std::array<std::atomic<u64>, bit_count / 64> bits_{};
  std::atomic<u64> waiting_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> works_;  // under mutex_
  bool stopping_ = false;                    // under mutex_
  std::thread thread_;
};

}  // namespace gpu4fs::frontend
