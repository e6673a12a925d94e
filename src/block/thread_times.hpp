// CPU time of the threads of a controller. Host only; any thread.
#pragma once

#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace gpu4fs::block {

class ThreadTimes {
 public:
  // The calling thread counts, from its start, and still counts after the end of the object.
  class Scope {
   public:
    explicit Scope(ThreadTimes& times) : times_(times) {
      ::pthread_getcpuclockid(::pthread_self(), &clock_);
      const std::lock_guard lock(times_.mutex_);
      times_.running_.push_back(clock_);
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() {
      const std::lock_guard lock(times_.mutex_);
      times_.ended_s_ += seconds_of(clock_);
      times_.running_.erase(std::find(times_.running_.begin(), times_.running_.end(), clock_));
    }

   private:
    ThreadTimes& times_;
    clockid_t clock_{};
  };

  double seconds() const {
    const std::lock_guard lock(mutex_);
    double sum = ended_s_;
    for (const clockid_t clock : running_) sum += seconds_of(clock);
    return sum;
  }

 private:
  static double seconds_of(clockid_t clock) {
    timespec time{};
    ::clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
  }

  mutable std::mutex mutex_;
  std::vector<clockid_t> running_;
  double ended_s_ = 0;
};

}  // namespace gpu4fs::block
