// A background job of a mounted pool: its thread, its state, its rate. A JobWork defines its work.
//
//   class Scrubber final : private JobWork {
//     ScrubReport report_;   // a JobReport and more; under the job's lock
//     BackgroundJob job_;    // the last member: its thread uses the others
//   };
//
//   never, finished, cancelled, failed --start--> running --pause--> paused --resume--> running
//   running or paused --cancel--> cancelled;   running --the work ends--> finished or failed
//
// Between its commands the work calls goes_on(). This call waits while the job is paused or ahead of its rate limit,
// and returns false if the work has to end: the job is cancelled, or the pool is unmounted. stop() does not change the
// state. Host only.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "maintenance/job_report.hpp"

namespace gpu4fs::maintenance {

// Texts for refused requests, and for failures in the log.
struct JobWords {
  std::string name;          // before the problem in the log
  std::string running;       // it cannot start because it runs
  std::string paused;        // it cannot start because it is paused
  std::string none_running;  // it cannot be paused or get another rate
  std::string none_paused;   // it cannot be resumed
  std::string none_to_cancel;
};

struct JobTraits {
  bool can_cancel = true;
  bool can_change_rate = true;
  bool is_cancelled_at_once = true;  // false: cancelled when the work has ended, which may have finished meanwhile
  bool keeps_state = false;          // requests are answered after keep() has made the new state durable
};

struct JobOutcome {
  bool is_done = false;
  std::string problem;  // "" if there was no error
};

class JobWork {
 public:
  // Runs to its end, or until goes_on() returns false. The text of an exception becomes its problem. In the job's
  // thread.
  virtual JobOutcome run() = 0;
  // Keeps the report for the next mount. In the job's thread.
  virtual void keep(bool /*durably*/) {}
  // Under the job's lock.
  [[nodiscard]] virtual JobWords words() const = 0;

 protected:
  ~JobWork() = default;
};

class BackgroundJob {
 public:
  // All outlive the job. A report in the state running or paused comes from an earlier mount: the work continues.
  BackgroundJob(JobWork& work, JobReport& report, JobTraits traits);
  ~BackgroundJob() { stop(); }
  BackgroundJob(const BackgroundJob&) = delete;
  BackgroundJob& operator=(const BackgroundJob&) = delete;

  // Any thread. Returns "" or why not. `prepare` resets the report, under the lock.
  std::string start(u64 rate_limit, const std::function<void()>& prepare);
  std::string pause();
  std::string resume();
  std::string cancel();
  std::string set_rate(u64 rate_limit);
  [[nodiscard]] bool is_busy() const;
  [[nodiscard]] const JobTraits& traits() const { return traits_; }
  // The work and the thread end soon. A repeated call does nothing.
  void stop();

  // Access to the report, and to data of the work under the same lock.
  template <class Access>
  decltype(auto) locked(Access&& access) const {
    const std::lock_guard guard(mutex_);
    return access();
  }

  // For the work, after it has processed `page_count` more pages; false: it has to end.
  bool goes_on(u64 page_count);
  // The same immediately, whether it is paused or not.
  [[nodiscard]] bool is_to_end() const;
  // Pauses until a client resumes it.
  void rest(const std::string& problem);
  // Returns early if the work has to end.
  void wait_for(std::chrono::milliseconds duration);
  [[nodiscard]] u64 rate_limit() const;
  // Pages of one command, so that a limited job advances in small steps.
  [[nodiscard]] u64 command_pages(u64 least, u64 most) const;

 private:
  void run();
  void work(std::unique_lock<std::mutex>& lock);
  void keep(std::unique_lock<std::mutex>& lock, bool durably);
  std::string take_change(std::unique_lock<std::mutex>& lock);
  void wait_for_rate(std::unique_lock<std::mutex>& lock, u64 page_count);
  void note_active_time();
  [[nodiscard]] bool ends() const { return ending_ || cancelled_; }
  [[nodiscard]] bool is_keep_due() const { return traits_.keeps_state && kept_count_ < change_count_; }
  [[nodiscard]] bool is_work_due() const;

  JobWork& work_;
  JobReport& report_;  // under the mutex, like all that follows
  const JobTraits traits_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool is_wanted_;  // the thread still has to take up the work
  bool is_at_work_ = false;
  bool cancelled_ = false;
  bool ending_ = false;
  u64 change_count_ = 0;       // of the state
  u64 kept_count_ = 0;         // those of them that were kept
  double next_command_s_ = 0;  // with a rate limit: the earliest start of the next command
  double active_s_;
  double active_since_s_ = 0;
  std::thread thread_;
};

}  // namespace gpu4fs::maintenance
