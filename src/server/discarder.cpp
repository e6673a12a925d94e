#include "server/discarder.hpp"

#include <chrono>

namespace gpu4fs::server {
namespace {

constexpr u32 passes_of_change = 3;    // a region must be free for two
constexpr u64 trim_runs_at_once = 16;  // of up to 128 MiB each, or a chunk

}  // namespace

void Discarder::start(unsigned interval_s) {
  thread_ = std::thread([this, interval_s] { run(interval_s); });
}

void Discarder::begin_passes() {
  const std::lock_guard guard(mutex_);
  passes_ = passes_of_change;
  ++begin_count_;
  changed_.notify_all();
}

void Discarder::stop() {
  trimmer_.stop();
  {
    const std::lock_guard guard(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void Discarder::run(unsigned interval_s) {
  const auto interval = std::chrono::seconds(interval_s);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ends_ || passes_ != 0; });
    if (ends_) return;
    const u64 begun = begin_count_;
    lock.unlock();
    const bool is_complete = trimmer_.trim(trim_runs_at_once).is_complete;
    lock.lock();
    // A pass that began before the last change is none of those after it.
    if (is_complete && begun == begin_count_) --passes_;
    changed_.wait_for(lock, interval, [this] { return ends_; });
  }
}

}  // namespace gpu4fs::server
