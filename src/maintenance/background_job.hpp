// One job of a mounted pool that goes on in the background: its thread, its state, its pace. What it does is a JobWork.
//
//   class Scrubber final : private JobWork {
//     ScrubReport report_;   // a JobReport and more; under the job's lock
//     BackgroundJob job_;    // the last member: its thread uses the others
//   };
//
//   never, finished, cancelled, failed --start--> running --pause--> paused --resume--> running
//   running or paused --cancel--> cancelled;   running --the work ends--> finished or failed
//
// Between its commands the work calls goes_on(). There it waits while it is paused or ahead of its rate limit, and
// hears that it is to end: cancelled, or the pool is unmounted. After stop() the state stays what it was. Host only.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "maintenance/job_report.hpp"

namespace gpu4fs::maintenance {

// What is said when a request is refused, and where a failure is logged.
struct JobWords {
  std::string name;          // before the problem in the log
  std::string running;       // it cannot start: it runs
  std::string paused;        // it cannot start: it is paused
  std::string none_running;  // it cannot be paused, nor get another rate
  std::string none_paused;   // it cannot be resumed
  std::string none_to_cancel;
};

struct JobTraits {
  bool can_cancel = true;
  bool can_change_rate = true;
  bool is_cancelled_at_once = true;  // false: when the work has ended, which may have come to its end meanwhile
  bool keeps_state = false;          // requests are answered when keep() has made the new state durable
};

struct JobOutcome {
  bool is_done = false;
  std::string problem;  // "" if nothing went wrong
};

class JobWork {
 public:
  // From where it stands to its end, or until goes_on() says no. What it throws is its problem. In the job's thread.
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
  // All outlive the job. A report that says running or paused is one of a former mount: the work goes on.
  BackgroundJob(JobWork& work, JobReport& report, JobTraits traits);
  ~BackgroundJob() { stop(); }
  BackgroundJob(const BackgroundJob&) = delete;
  BackgroundJob& operator=(const BackgroundJob&) = delete;

  // Any thread; "" or why not. `prepare` makes the report a new one, under the lock.
  std::string start(u64 rate_limit, const std::function<void()>& prepare);
  std::string pause();
  std::string resume();
  std::string cancel();
  std::string set_rate(u64 rate_limit);
  [[nodiscard]] bool is_busy() const;
  [[nodiscard]] const JobTraits& traits() const { return traits_; }
  // The work ends soon, and the thread. Again does nothing.
  void stop();

  // Access to the report, and to what the work guards by the same lock.
  template <class Access>
  decltype(auto) locked(Access&& access) const {
    const std::lock_guard guard(mutex_);
    return access();
  }

  // By the work. After `page_count` pages more; false: it is to end.
  bool goes_on(u64 page_count);
  // The same at once, whether it is paused or not.
  [[nodiscard]] bool is_to_end() const;
  // Pauses until somebody resumes it.
  void rest(const std::string& problem);
  // Returns early if it is to end.
  void wait_for(std::chrono::milliseconds duration);
  [[nodiscard]] u64 rate_limit() const;
  // Of one command, so that a limited job goes in small steps.
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
  JobReport& report_;  // under the mutex, as all that follows
  const JobTraits traits_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool is_wanted_;  // the thread has yet to take the work up
  bool is_at_work_ = false;
  bool cancelled_ = false;
  bool ending_ = false;
  u64 change_count_ = 0;       // of the state
  u64 kept_count_ = 0;         // of these, kept
  double next_command_s_ = 0;  // with a rate limit: when the next command may begin
  double active_s_;
  double active_since_s_ = 0;
  std::thread thread_;
};

}  // namespace gpu4fs::maintenance
