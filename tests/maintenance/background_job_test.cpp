// The states of a background job, with work whose steps the test controls.
#include "maintenance/background_job.hpp"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/host/json_value.hpp"
#include "base/limits.hpp"

namespace gpu4fs::maintenance {
namespace {

constexpr u64 step_pages = 10;

// Permits for steps.
class Steps {
 public:
  void allow(u64 count) {
    const std::lock_guard guard(mutex_);
    count_ += count;
    changed_.notify_all();
  }
  void take() {
    std::unique_lock lock(mutex_);
    is_awaited_ = true;
    changed_.wait(lock, [this] { return all_ || count_ != 0; });
    is_awaited_ = false;
    if (!all_) --count_;
  }
  // The work waits for a permit, or is just taking one.
  bool is_awaited() const {
    const std::lock_guard guard(mutex_);
    return is_awaited_;
  }
  void allow_all() {
    const std::lock_guard guard(mutex_);
    all_ = true;
    changed_.notify_all();
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  u64 count_ = 0;
  bool all_ = false;
  bool is_awaited_ = false;
};

class SteppedWork final : private JobWork {
 public:
  explicit SteppedWork(JobTraits traits = {}, JobReport former = {})
      : report_(std::move(former)), job_(*this, report_, traits) {}
  ~SteppedWork() {
    steps_.allow_all();
    job_.stop();
  }

  BackgroundJob& job() { return job_; }
  JobReport report() const {
    return job_.locked([this] { return report_; });
  }
  std::string start(u64 rate_limit = 0) {
    return job_.start(rate_limit, [this] { report_ = {}; });
  }
  void allow_steps(u64 count) { steps_.allow(count); }
  void allow_all_steps() { steps_.allow_all(); }
  // The run ends with the next step.
  void finish() { ends_with("", true); }
  void fail(const std::string& problem) { ends_with(problem, false); }
  void throw_next(const std::string& what) {
    job_.locked([&] { thrown_ = what; });
    allow_steps(1);
  }
  void rest_next(const std::string& problem) {
    job_.locked([&] { rest_ = problem; });
    allow_steps(1);
  }

  JobReport await(JobState state) const {
    while (report().state != state) std::this_thread::yield();
    return report();
  }
  void await_pages(u64 count) const {
    while (report().page_count < count) std::this_thread::yield();
  }
  // This number of runs has begun, and the newest one executes or awaits a step.
  void await_run(u64 count) const {
    while (job_.locked([this] { return run_count_; }) < count) std::this_thread::yield();
  }
  // It stays there until the test allows a step.
  void await_step() const {
    while (!steps_.is_awaited()) std::this_thread::yield();
  }
  void await_end() const {
    while (job_.locked([this] { return is_running_; })) std::this_thread::yield();
  }
  std::vector<JobState> kept() const {
    return job_.locked([this] { return kept_; });
  }

 private:
  void ends_with(const std::string& problem, bool is_done) {
    job_.locked([&] {
      outcome_ = {is_done, problem};
      is_last_ = true;
    });
    allow_steps(1);
  }
  JobOutcome run() override {
    job_.locked([this] {
      EXPECT_FALSE(is_running_) << "two runs at once";
      ++run_count_;
      is_running_ = true;
      is_last_ = false;
    });
    JobOutcome outcome;
    const struct Running {
      SteppedWork& work;
      ~Running() {
        work.job_.locked([this] { work.is_running_ = false; });
      }
    } running{*this};
    while (job_.goes_on(0)) {
      steps_.take();
      std::string thrown;
      std::string rest;
      const bool is_last = job_.locked([&] {
        thrown.swap(thrown_);
        rest.swap(rest_);
        outcome = outcome_;
        return is_last_;
      });
      if (!thrown.empty()) throw std::runtime_error(thrown);
      if (!rest.empty()) job_.rest(rest);
      if (is_last) return outcome;
      if (!job_.goes_on(step_pages)) break;
    }
    return {};
  }
  void keep(bool /*durably*/) override {
    job_.locked([this] { kept_.push_back(report_.state); });
  }
  JobWords words() const override {
    return {"work", "runs", "is paused", "none runs", "none is paused", "none to cancel"};
  }

  Steps steps_;
  JobOutcome outcome_;
  bool is_last_ = false;
  bool is_running_ = false;
  u64 run_count_ = 0;
  std::string thrown_;
  std::string rest_;
  std::vector<JobState> kept_;
  JobReport report_;
  BackgroundJob job_;
};

TEST(BackgroundJobTest, RunsToItsEnd) {
  SteppedWork work;
  EXPECT_EQ(work.report().state, JobState::never);
  EXPECT_FALSE(work.job().is_busy());
  EXPECT_EQ(work.start(), "");
  EXPECT_TRUE(work.job().is_busy());
  work.await_run(1);
  work.allow_steps(2);
  work.await_pages(2 * step_pages);
  work.finish();
  const JobReport report = work.await(JobState::finished);
  EXPECT_EQ(report.page_count, 2 * step_pages);
  EXPECT_EQ(report.problem, "");
  EXPECT_NE(report.started_s, 0);
  EXPECT_NE(report.ended_s, 0);
}

TEST(BackgroundJobTest, RequestsThatDoNotFitTheStateAreRefused) {
  SteppedWork work;
  EXPECT_EQ(work.job().pause(), "none runs");
  EXPECT_EQ(work.job().resume(), "none is paused");
  EXPECT_EQ(work.job().cancel(), "none to cancel");
  EXPECT_EQ(work.job().set_rate(5), "none runs");
  EXPECT_EQ(work.start(), "");
  EXPECT_EQ(work.start(), "runs");
  EXPECT_EQ(work.job().resume(), "none is paused");
  EXPECT_EQ(work.job().pause(), "");
  EXPECT_EQ(work.job().pause(), "none runs");
  EXPECT_EQ(work.start(), "is paused");
  EXPECT_EQ(work.job().set_rate(5), "");
  EXPECT_EQ(work.report().rate_limit, 5u);
}

TEST(BackgroundJobTest, APausedJobTakesNoStepUntilItIsResumed) {
  SteppedWork work;
  ASSERT_EQ(work.start(), "");
  work.await_run(1);
  work.allow_steps(1);
  work.await_pages(step_pages);
  ASSERT_EQ(work.job().pause(), "");
  // The step that it may be executing is its last one.
  work.allow_steps(100);
  const u64 paused_at = work.report().page_count;
  for (int i = 0; i < 1000; ++i) std::this_thread::yield();
  EXPECT_LE(work.report().page_count, paused_at + step_pages);
  EXPECT_EQ(work.report().state, JobState::paused);
  ASSERT_EQ(work.job().resume(), "");
  work.await_pages(50 * step_pages);
  EXPECT_EQ(work.report().state, JobState::running);
}

TEST(BackgroundJobTest, APausedJobCanBeCancelledAndStartedAnew) {
  SteppedWork work;
  ASSERT_EQ(work.start(), "");
  work.await_run(1);
  ASSERT_EQ(work.job().pause(), "");
  ASSERT_EQ(work.job().cancel(), "");
  EXPECT_EQ(work.report().state, JobState::cancelled);
  EXPECT_NE(work.report().ended_s, 0);
  EXPECT_EQ(work.job().cancel(), "none to cancel");
  work.allow_steps(1);  // in which it may have been
  work.await_end();
  while (work.start() == "runs") std::this_thread::yield();
  work.await_run(2);
  EXPECT_EQ(work.report().state, JobState::running);
  work.finish();
  work.await(JobState::finished);
}

// The thread is in a step that it has to complete first.
TEST(BackgroundJobTest, WhatWasCancelledEndsBeforeTheNextBegins) {
  SteppedWork work;
  ASSERT_EQ(work.start(), "");
  work.await_step();
  ASSERT_EQ(work.job().cancel(), "");
  EXPECT_TRUE(work.job().is_to_end());
  EXPECT_EQ(work.start(), "runs");
  work.allow_steps(1);
  work.await_end();
  while (work.start() == "runs") std::this_thread::yield();
  work.await_run(2);
  EXPECT_EQ(work.report().state, JobState::running);
}

TEST(BackgroundJobTest, ACancelledJobMayStillComeToItsEnd) {
  SteppedWork work({.is_cancelled_at_once = false});
  ASSERT_EQ(work.start(), "");
  work.await_run(1);
  work.allow_steps(1);
  work.await_pages(step_pages);
  ASSERT_EQ(work.job().pause(), "");
  ASSERT_EQ(work.job().cancel(), "");
  work.finish();
  while (work.job().is_busy()) std::this_thread::yield();
  const JobState state = work.report().state;
  EXPECT_TRUE(state == JobState::cancelled || state == JobState::finished);
  EXPECT_EQ(work.start(), "");
}

TEST(BackgroundJobTest, AJobThatIsCancelledBeforeItBeginsEnds) {
  for (int i = 0; i < 100; ++i) {
    SteppedWork work({.is_cancelled_at_once = false});
    ASSERT_EQ(work.start(), "");
    ASSERT_EQ(work.job().pause(), "");
    ASSERT_EQ(work.job().cancel(), "");
    work.allow_steps(1);
    work.await(JobState::cancelled);
  }
}

TEST(BackgroundJobTest, AFailureEndsItAndIsReported) {
  SteppedWork work;
  ASSERT_EQ(work.start(), "");
  work.await_run(1);
  work.fail("no good");
  EXPECT_EQ(work.await(JobState::failed).problem, "no good");
  EXPECT_EQ(work.job().resume(), "none is paused");
  ASSERT_EQ(work.start(), "");
  EXPECT_EQ(work.report().problem, "");
  work.await_run(2);
  work.throw_next("thrown");
  EXPECT_EQ(work.await(JobState::failed).problem, "thrown");
}

TEST(BackgroundJobTest, WorkThatRestsIsResumed) {
  SteppedWork work;
  ASSERT_EQ(work.start(), "");
  work.await_run(1);
  work.rest_next("not now");
  EXPECT_EQ(work.await(JobState::paused).problem, "not now");
  ASSERT_EQ(work.job().resume(), "");
  work.finish();
  work.await(JobState::finished);
}

// However long the limit makes it wait.
TEST(BackgroundJobTest, ALimitedJobHearsOfEverything) {
  constexpr u64 slowest = 1;  // byte/s: a step lasts hours
  SteppedWork work;
  ASSERT_EQ(work.start(slowest), "");
  work.allow_steps(1);
  work.await_pages(step_pages);
  ASSERT_EQ(work.job().set_rate(0), "");
  work.allow_steps(1);
  work.await_pages(2 * step_pages);
  ASSERT_EQ(work.job().set_rate(slowest), "");
  work.allow_steps(1);
  work.await_pages(3 * step_pages);
  ASSERT_EQ(work.job().cancel(), "");
  work.allow_steps(1);
  work.await_end();
}

TEST(BackgroundJobTest, StepsOfALimitedJobAreSmall) {
  SteppedWork work;
  EXPECT_EQ(work.job().command_pages(64, 4096), 4096u);
  ASSERT_EQ(work.start(1), "");
  EXPECT_EQ(work.job().command_pages(64, 4096), 64u);
  ASSERT_EQ(work.job().set_rate(20 * 100 * page_size), "");
  EXPECT_EQ(work.job().command_pages(64, 4096), 100u);
  ASSERT_EQ(work.job().set_rate(~u64{0}), "");
  EXPECT_EQ(work.job().command_pages(64, 4096), 4096u);
}

TEST(BackgroundJobTest, StoppingEndsWhatRunsAndLeavesItsState) {
  SteppedWork work;
  ASSERT_EQ(work.start(), "");
  work.await_run(1);
  work.allow_all_steps();
  work.job().stop();
  EXPECT_EQ(work.report().state, JobState::running);
  EXPECT_TRUE(work.job().is_to_end());
  work.job().stop();
}

TEST(BackgroundJobTest, StoppingEndsWhatIsPausedOrLimited) {
  {
    SteppedWork work;
    ASSERT_EQ(work.start(1), "");
    work.allow_steps(1);
    work.await_pages(step_pages);
    work.job().stop();
  }
  SteppedWork work;
  ASSERT_EQ(work.start(), "");
  ASSERT_EQ(work.job().pause(), "");
  work.allow_steps(1);
  work.job().stop();
  EXPECT_EQ(work.report().state, JobState::paused);
}

TEST(BackgroundJobTest, RequestsAreAnsweredWhenTheNewStateIsKept) {
  SteppedWork work({.keeps_state = true});
  ASSERT_EQ(work.start(), "");
  EXPECT_EQ(work.kept(), std::vector<JobState>({JobState::running}));
  // The answers come between steps, so the work must not wait for permits.
  work.allow_all_steps();
  ASSERT_EQ(work.job().pause(), "");
  EXPECT_EQ(work.kept().back(), JobState::paused);
  ASSERT_EQ(work.job().resume(), "");
  EXPECT_EQ(work.kept().back(), JobState::running);
  ASSERT_EQ(work.job().cancel(), "");
  EXPECT_EQ(work.kept().back(), JobState::cancelled);
  // It has ended, so the next one can begin at once.
  ASSERT_EQ(work.start(), "");
  work.await_run(2);
  work.job().stop();
  EXPECT_EQ(work.kept().back(), JobState::running) << "for the next mount";
  EXPECT_EQ(work.job().resume(), "none is paused");
  EXPECT_EQ(work.job().pause(), "the pool is being unmounted");
}

TEST(BackgroundJobTest, AFormerMountsWorkGoesOn) {
  JobReport running;
  running.state = JobState::running;
  running.page_count = 7;
  SteppedWork work({.keeps_state = true}, running);
  work.await_run(1);
  work.allow_steps(1);
  work.await_pages(7 + step_pages);
  JobReport paused;
  paused.state = JobState::paused;
  SteppedWork other({.keeps_state = true}, paused);
  EXPECT_EQ(other.start(), "is paused");
  ASSERT_EQ(other.job().resume(), "");
  other.await_run(1);
  other.finish();
  other.await(JobState::finished);
}

TEST(JobReportTest, TimeLeftIsReckonedByPagesOrFiles) {
  JobReport report;
  EXPECT_EQ(report.rate(), 0);
  EXPECT_FALSE(report.seconds_left());
  report.state = JobState::running;
  report.page_total = 300;
  report.page_count = 100;
  report.active_ms = 2000;
  EXPECT_DOUBLE_EQ(report.rate(), 50.0 * page_size);
  EXPECT_DOUBLE_EQ(report.seconds_left().value(), 4);
  report.page_total = 50;
  EXPECT_DOUBLE_EQ(report.seconds_left().value(), 0) << "more than was expected";
  report.file_total = 10;
  EXPECT_FALSE(report.seconds_left());
  report.file_count = 1;
  EXPECT_DOUBLE_EQ(report.seconds_left().value(), 18);
  report.state = JobState::finished;
  EXPECT_FALSE(report.seconds_left());
}

TEST(JobReportTest, Json) {
  JobReport report;
  report.state = JobState::paused;
  report.rate_limit = 9;
  report.active_ms = 1500;
  report.problem = "a \"word\"";
  JsonWriter json(JsonLayout::one_line);
  json.begin_object();
  begin_job(json, "job", report);
  add_pace(json, report);
  json.end();
  json.end();
  const JsonValue value = parse_json(json.text());
  EXPECT_EQ(value["job"]["state"].text, "paused");
  EXPECT_EQ(value["job"]["rate_limit"].number, 9);
  EXPECT_EQ(value["job"]["active_seconds"].number, 1.5);
  EXPECT_EQ(value["job"]["seconds_left"].kind, JsonValue::Kind::null);
  EXPECT_EQ(value["job"]["problem"].text, "a \"word\"");
}

}  // namespace
}  // namespace gpu4fs::maintenance
