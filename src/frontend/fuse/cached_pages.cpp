#include "frontend/fuse/cached_pages.hpp"

#include <utility>

#include "frontend/fuse/fuse_raw.hpp"

namespace gpu4fs::frontend {

// A thread that tests the bit after a change is ordered after the engine's change: if old content was read, its bit was
// set before.
void CachedPages::note(u64 inode) {
  const u64 index = inode % bit_count;
  std::atomic<u64>& word = bits_[index / 64];
  const u64 bit = u64{1} << (index % 64);
  if ((word.load() & bit) == 0) word.fetch_or(bit);
}

void CachedPages::note_all() {
  for (std::atomic<u64>& word : bits_) word = ~u64{0};
}

bool CachedPages::may_hold(u64 inode) const {
  const u64 index = inode % bit_count;
  return (bits_[index / 64].load() >> (index % 64) & 1) != 0;
}

void CachedPages::answer(const DirectWrite& write) {
  run([write] {
    notify_pages_changed(write.device, write.inode, write.offset, write.length);
    answer_write(write.device, write.unique, write.length);
  });
}

void CachedPages::run(std::function<void()> work) {
  waiting_.fetch_add(1);
  {
    const std::lock_guard guard(mutex_);
    works_.push_back(std::move(work));
  }
  changed_.notify_one();
}

std::function<void()> CachedPages::take() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return stopping_ || !works_.empty(); });
  if (works_.empty()) return {};
  std::function<void()> work = std::move(works_.front());
  works_.pop_front();
  return work;
}

void CachedPages::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard guard(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

}  // namespace gpu4fs::frontend
