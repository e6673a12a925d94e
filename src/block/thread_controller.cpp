#include "block/thread_controller.hpp"

#include <unistd.h>

#include <system_error>
#include <utility>

#include "base/access.hpp"
#include "base/check.hpp"
#include "device/queue/io_consumer.hpp"

namespace gpu4fs::block {

namespace {

constexpr u32 default_thread_count = 16;

}  // namespace

ThreadController::ThreadController(device::IoQueueShared& shared, const std::vector<const BlockMedium*>& mediums,
                                   ControllerOptions options, std::string reason)
    : Controller(shared, mediums, std::move(options)),
      reason_(std::move(reason)),
      batch_(this->options().merge_bytes_max) {
  const u32 count = this->options().thread_count == 0 ? default_thread_count : this->options().thread_count;
  open_doorbells(count);
  try {
    for (u32 i = 0; i < count; ++i) threads_.emplace_back([this, i] { run(i); });
  } catch (const std::system_error& error) {
    ThreadController::stop();
    throw DeviceError(std::string("cannot start a thread for I/O: ") + error.what(), error.code().value());
  }
}

ThreadController::~ThreadController() {
  ThreadController::stop();
}

void ThreadController::stop() {
  begin_stop();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

std::string ThreadController::describe() const {
  return std::to_string(threads_.size()) + " threads with preadv and pwritev (" + reason_ + ")";
}

// All threads share one batch, so that requests which follow each other meet in it.
bool ThreadController::take_group(RequestGroup* group) {
  const std::lock_guard lock(mutex_);
  if (batch_.size() < Controller::batch_max) take_requests(&batch_, Controller::batch_max - batch_.size());
  const bool has_group = batch_.next(group);
  batch_size_.store(batch_.size(), std::memory_order_release);
  return has_group;
}

bool ThreadController::has_work() const {
  return batch_size_.load(std::memory_order_acquire) != 0 || has_requests();
}

void ThreadController::run(u32 number) {
  const ThreadTimes::Scope time(thread_times());
  for (RequestGroup group;;) {
    if (take_group(&group)) {
      // This thread is busy now. Another one takes the rest, or polls.
      if (has_work() || device::must_poll(shared())) device::wake_consumer(shared());
      serve(&group);
      announce();
    } else if (is_stopping() && !has_work()) {
      return;
    } else {
      wait(number);
    }
  }
}

// While kernels produce, one thread polls for all of them.
void ThreadController::wait(u32 number) {
  if (device::must_poll(shared()) && !has_poller_.exchange(true)) {
    wait_for_kernels();
    has_poller_.store(false);
    return;
  }
  if (!may_sleep(number, false)) return;
  const bool nobody_polls = device::must_poll(shared()) && !has_poller_.load();
  if (batch_size_.load(std::memory_order_acquire) == 0 && !nobody_polls) {
    u64 value = 0;
    // It fails only if it is interrupted, and then the caller looks again.
    (void)!::read(shared().doorbells[number], &value, sizeof(value));
  }
  device::end_sleep(shared(), number);
}

void ThreadController::wait_for_kernels() {
  for (u32 looks = 0; device::must_poll(shared()) && !is_stopping() && !has_work(); ++looks) {
    if (looks < Controller::short_looks) {
      cpu_relax();
    } else {
      ::usleep(20);
    }
  }
}

}  // namespace gpu4fs::block
