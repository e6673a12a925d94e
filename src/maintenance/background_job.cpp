#include "maintenance/background_job.hpp"

#include <algorithm>
#include <ctime>
#include <exception>

#include "base/host/log.hpp"
#include "base/limits.hpp"
#include "fmt/format.h"

namespace gpu4fs::maintenance {
namespace {

constexpr u64 job_commands_per_s = 20;  // with a rate limit
constexpr double catch_up_max_s = 0.1;  // limit of the lag that a limited job may catch up

double job_clock_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

BackgroundJob::BackgroundJob(JobWork& work, JobReport& report, JobTraits traits)
    : work_(work),
      report_(report),
      traits_(traits),
      is_wanted_(report.is_busy()),
      active_s_(static_cast<double>(report.active_ms) / 1000),
      thread_([this] { run(); }) {}

void BackgroundJob::stop() {
  {
    const std::lock_guard guard(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

std::string BackgroundJob::start(u64 rate_limit, const std::function<void()>& prepare) {
  std::unique_lock lock(mutex_);
  if (report_.state == JobState::paused) return work_.words().paused;
  // A cancelled job may not have ended yet.
  if (report_.state == JobState::running || is_at_work_) return work_.words().running;
  prepare();
  report_.state = JobState::running;
  report_.rate_limit = rate_limit;
  report_.started_s = std::time(nullptr);
  is_wanted_ = true;
  cancelled_ = false;
  next_command_s_ = 0;
  active_s_ = 0;
  return take_change(lock);
}

std::string BackgroundJob::pause() {
  std::unique_lock lock(mutex_);
  if (report_.state != JobState::running) return work_.words().none_running;
  report_.state = JobState::paused;
  return take_change(lock);
}

std::string BackgroundJob::resume() {
  std::unique_lock lock(mutex_);
  if (report_.state != JobState::paused) return work_.words().none_paused;
  report_.state = JobState::running;
  return take_change(lock);
}

std::string BackgroundJob::cancel() {
  std::unique_lock lock(mutex_);
  if (!report_.is_busy()) return work_.words().none_to_cancel;
  cancelled_ = true;
  if (traits_.is_cancelled_at_once) {
    report_.state = JobState::cancelled;
    report_.ended_s = std::time(nullptr);
    is_wanted_ = false;
  }
  return take_change(lock);
}

std::string BackgroundJob::set_rate(u64 rate_limit) {
  const std::lock_guard guard(mutex_);
  if (!report_.is_busy()) return work_.words().none_running;
  report_.rate_limit = rate_limit;
  next_command_s_ = 0;
  changed_.notify_all();
  return {};
}

// If the thread keeps the new state, the caller waits for it.
std::string BackgroundJob::take_change(std::unique_lock<std::mutex>& lock) {
  const u64 change = ++change_count_;
  changed_.notify_all();
  if (!traits_.keeps_state) return {};
  changed_.wait(lock, [&] { return kept_count_ >= change || ending_; });
  return kept_count_ >= change ? std::string() : "the pool is being unmounted";
}

bool BackgroundJob::is_busy() const {
  const std::lock_guard guard(mutex_);
  return report_.is_busy();
}

bool BackgroundJob::is_to_end() const {
  const std::lock_guard guard(mutex_);
  return ends();
}

u64 BackgroundJob::rate_limit() const {
  const std::lock_guard guard(mutex_);
  return report_.rate_limit;
}

u64 BackgroundJob::command_pages(u64 least, u64 most) const {
  const u64 limit = rate_limit();
  return limit == 0 ? most : std::clamp(limit / page_size / job_commands_per_s, least, most);
}

// A job that was cancelled before it began also ends in the thread.
bool BackgroundJob::is_work_due() const {
  return is_wanted_ && (report_.state == JobState::running || cancelled_);
}

void BackgroundJob::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ending_ || is_work_due() || is_keep_due(); });
    if (ending_) break;
    if (is_work_due()) {
      work(lock);
    } else {
      keep(lock, true);
    }
  }
  if (is_keep_due() || (traits_.keeps_state && report_.state == JobState::running)) keep(lock, false);
  changed_.notify_all();
}

void BackgroundJob::work(std::unique_lock<std::mutex>& lock) {
  is_wanted_ = false;
  is_at_work_ = true;
  active_since_s_ = job_clock_s();
  lock.unlock();
  JobOutcome outcome;
  try {
    outcome = work_.run();
  } catch (const std::exception& error) {
    outcome = {false, error.what()};
  }
  lock.lock();
  is_at_work_ = false;
  if (!outcome.problem.empty()) log(LogLevel::error, fmt::format("{}: {}", work_.words().name, outcome.problem));
  if (ending_ || !report_.is_busy()) return;
  report_.state = !outcome.problem.empty() ? JobState::failed
                  : outcome.is_done        ? JobState::finished
                                           : JobState::cancelled;
  report_.ended_s = std::time(nullptr);
  if (!outcome.problem.empty()) report_.problem = std::move(outcome.problem);
  ++change_count_;
}

void BackgroundJob::keep(std::unique_lock<std::mutex>& lock, bool durably) {
  const u64 change = change_count_;
  lock.unlock();
  work_.keep(durably);
  lock.lock();
  kept_count_ = std::max(kept_count_, change);
  changed_.notify_all();
}

// A cancelled job is kept when its work has ended: a client that sees this state may start the next one.
bool BackgroundJob::goes_on(u64 page_count) {
  std::unique_lock lock(mutex_);
  report_.page_count += page_count;
  wait_for_rate(lock, page_count);
  note_active_time();
  while (!ends() && (is_keep_due() || report_.state == JobState::paused)) {
    if (is_keep_due()) {
      keep(lock, true);
    } else {
      changed_.wait(lock);
    }
  }
  active_since_s_ = job_clock_s();
  return !ends();
}

void BackgroundJob::rest(const std::string& problem) {
  const std::lock_guard guard(mutex_);
  report_.problem = problem;
  if (report_.state == JobState::running) report_.state = JobState::paused;
}

void BackgroundJob::wait_for(std::chrono::milliseconds duration) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, duration, [this] { return ends(); });
}

void BackgroundJob::note_active_time() {
  const double now_s = job_clock_s();
  active_s_ += now_s - active_since_s_;
  active_since_s_ = now_s;
  report_.active_ms = static_cast<u64>(active_s_ * 1000 + 0.5);
}

void BackgroundJob::wait_for_rate(std::unique_lock<std::mutex>& lock, u64 page_count) {
  const u64 limit = report_.rate_limit;
  if (limit == 0 || page_count == 0) return;
  const double seconds = static_cast<double>(page_count * page_size) / static_cast<double>(limit);
  next_command_s_ = std::max(next_command_s_, job_clock_s() - catch_up_max_s) + seconds;
  const double wait_s = next_command_s_ - job_clock_s();
  if (wait_s <= 0) return;
  changed_.wait_for(lock, std::chrono::duration<double>(wait_s),
                    [&] { return ends() || report_.state != JobState::running || report_.rate_limit != limit; });
}

}  // namespace gpu4fs::maintenance
