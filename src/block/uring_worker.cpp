#include "block/uring_worker.hpp"

#include <cerrno>
#include <exception>
#include <system_error>
#include <utility>

#include "base/access.hpp"
#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/mutant.hpp"
#include "device/queue/io_consumer.hpp"

namespace gpu4fs::block {

using device::IoOperation;

namespace {

constexpr u64 doorbell_data = ~u64{0};  // user_data of its read; of operations it is their index
constexpr long long long_look_ns = 20000;
constexpr u32 busy_in_flight = 16;  // with so many operations the next completion is near, and requests can wait for it

}  // namespace

UringWorker::UringWorker(UringController& controller, u32 number, std::vector<int> files)
    : controller_(controller),
      number_(number),
      batch_(controller.options().merge_bytes_max),
      background_(controller.options().merge_bytes_max),
      operations_(controller.options().depth) {
  for (u32 i = controller.options().depth; i != 0; --i) free_.push_back(i - 1);
  std::promise<void> started;
  // The thread that makes a ring is the one that uses it.
  try {
    thread_ = std::thread([&started, this, files = std::move(files)] {
      std::unique_ptr<Uring> ring;
      try {
        // One more for the doorbell.
        ring = std::make_unique<Uring>(controller_.options().depth + 1, controller_.options().memory, files);
        remarks_ = ring->remarks();
      } catch (...) {
        started.set_exception(std::current_exception());
        return;
      }
      const ThreadTimes::Scope time(controller_.thread_times());
      started.set_value();
      serve(*ring);
      ring.reset();
      const std::lock_guard lock(unregister_mutex_);
      has_ended_ = true;
      unregistered_.notify_all();
    });
  } catch (const std::system_error& error) {
    throw DeviceError(std::string("cannot start a thread for I/O: ") + error.what(), error.code().value());
  }
  try {
    started.get_future().get();
  } catch (...) {
    thread_.join();
    throw;
  }
}

UringWorker::~UringWorker() {
  join();
}

void UringWorker::join() {
  if (thread_.joinable()) thread_.join();
}

bool UringWorker::unregister_file(u32 device) {
  static_assert(device_count_max <= 64);
  const u64 bit = u64{1} << device;
  std::unique_lock lock(unregister_mutex_);
  kept_files_ &= ~bit;
  unregister_.fetch_or(bit);
  device::write_doorbell(controller_.shared(), number_);
  unregistered_.wait(lock, [&] { return has_ended_ || (unregister_.load() & bit) == 0; });
  return has_ended_ || (kept_files_ & bit) == 0;
}

// Only the thread of a ring may change it.
void UringWorker::unregister_files(Uring& ring) {
  const std::lock_guard lock(unregister_mutex_);
  for (u64 left = unregister_.exchange(0); left != 0; left &= left - 1) {
    const u32 device = count_trailing_zeros(left);
    if (!ring.unregister_file(device)) kept_files_ |= u64{1} << device;
  }
  unregistered_.notify_all();
}

void UringWorker::serve(Uring& ring) {
  for (;;) {
    if (unregister_.load() != 0) unregister_files(ring);
    issue_all(ring);
    const bool is_idle = in_flight() == 0 && batch_.size() == 0 && background_.size() == 0;
    const bool is_done = is_idle && !controller_.has_requests();
    if (controller_.is_stopping() && GPU4FS_MUTANT(end_leaves_requests, is_done, true)) return;
    wait(ring);
    reap(ring);
  }
}

void UringWorker::issue_all(Uring& ring) {
  if (free_.empty()) return;
  if (batch_.size() < Controller::batch_max) {
    controller_.take_requests(&batch_, Controller::batch_max - batch_.size(), &background_);
  }
  issue_from(ring, &batch_, false);
  issue_from(ring, &background_, true);
  // For other threads of this controller.
  if (controller_.has_requests()) device::wake_consumer(controller_.shared());
}

void UringWorker::issue_from(Uring& ring, RequestBatch* batch, bool is_background) {
  while (!free_.empty()) {
    if (is_background && background_in_flight_ >= controller_.options().background_depth) return;
    Operation& operation = operations_[free_.back()];
    if (!batch->next(&operation.group)) return;
    empty_looks_ = 0;
    if (needs_thread(operation.group)) {
      controller_.blocking(operation.group.device)
          .add([&controller = controller_, group = std::exchange(operation.group, {})]() mutable {
            controller.serve(&group);
            controller.announce();
          });
      continue;
    }
    operation.done = 0;
    operation.first_part = 0;
    operation.is_background = is_background;
    if (is_background) ++background_in_flight_;
    const u32 index = free_.back();
    free_.pop_back();
    issue(ring, index);
  }
}

// The ring has no operation for it.
bool UringWorker::needs_thread(const RequestGroup& group) const {
  if (group.operation == IoOperation::discard || group.operation == IoOperation::write_zeroes) return true;
  const BlockMedium* const medium = controller_.medium(group.device);
  return medium != nullptr && medium->stack() != nullptr;
}

void UringWorker::issue(Uring& ring, u32 index) {
  Operation& operation = operations_[index];
  io_uring_sqe* const entry = ring.next_entry();
  if (operation.group.operation == IoOperation::flush) {
    ::io_uring_prep_fsync(entry, -1, IORING_FSYNC_DATASYNC);
  } else {
    prepare_transfer(ring, entry, operation);
  }
  const BlockMedium* const medium = controller_.medium(operation.group.device);
  GPU4FS_CHECK(medium != nullptr);
  ring.set_file(entry, operation.group.device, medium->descriptor());
  ::io_uring_sqe_set_data64(entry, index);
}

void UringWorker::prepare_transfer(Uring& ring, io_uring_sqe* entry, Operation& operation) {
  const RequestGroup& group = operation.group;
  const bool is_read = group.operation == IoOperation::read;
  const u64 offset = group.offset + operation.done;
  u64 bytes = 0;
  const u32 count = controller_.parts_of_call(group, operation.first_part, &bytes);
  const iovec* const parts = &group.parts[operation.first_part];
  if (count > 1) {
    if (is_read) return ::io_uring_prep_readv(entry, -1, parts, count, offset);
    return ::io_uring_prep_writev(entry, -1, parts, count, offset);
  }
  const u32 length = static_cast<u32>(bytes);
  const int buffer = ring.buffer_of(parts->iov_base, bytes);
  if (buffer >= 0) {
    if (is_read) return ::io_uring_prep_read_fixed(entry, -1, parts->iov_base, length, offset, buffer);
    return ::io_uring_prep_write_fixed(entry, -1, parts->iov_base, length, offset, buffer);
  }
  if (is_read) return ::io_uring_prep_read(entry, -1, parts->iov_base, length, offset);
  ::io_uring_prep_write(entry, -1, parts->iov_base, length, offset);
}

void UringWorker::read_doorbell(Uring& ring) {
  if (is_reading_doorbell_) return;
  is_reading_doorbell_ = true;
  io_uring_sqe* const entry = ring.next_entry();
  ::io_uring_prep_read(entry, controller_.shared().doorbells[number_], &doorbell_value_, sizeof(doorbell_value_), 0);
  ::io_uring_sqe_set_data64(entry, doorbell_data);
}

// Sends what was prepared. Errors are those of an interrupted or crowded call; the caller comes back.
void UringWorker::wait(Uring& ring) {
  if (free_.empty()) {
    ::io_uring_submit_and_wait(ring.get(), 1);
    return;
  }
  // One thread polls for kernels, and wakes the others if there is much to do.
  const bool polls = number_ == 0;
  if (polls && device::must_poll(controller_.shared())) return wait_for_kernels(ring);
  if (batch_.size() != 0 || !controller_.may_sleep(number_, polls)) {
    ::io_uring_submit_and_get_events(ring.get());
    return;
  }
  read_doorbell(ring);
  ::io_uring_submit_and_wait(ring.get(), 1);
  device::end_sleep(controller_.shared(), number_);
}

void UringWorker::wait_for_kernels(Uring& ring) {
  if (empty_looks_ < Controller::short_looks && in_flight() < busy_in_flight) {
    ++empty_looks_;
    ::io_uring_submit_and_get_events(ring.get());
    cpu_relax();
    return;
  }
  __kernel_timespec limit{0, long_look_ns};
  io_uring_cqe* first = nullptr;
  ::io_uring_submit_and_wait_timeout(ring.get(), &first, 1, &limit, nullptr);
}

// One announcement for all that have completed: each may call the system.
void UringWorker::reap(Uring& ring) {
  const u32 in_flight_before = in_flight();
  for (;;) {
    io_uring_cqe* entries[64];
    const u32 count = ::io_uring_peek_batch_cqe(ring.get(), entries, 64);
    if (count == 0) break;
    for (u32 i = 0; i < count; ++i) {
      const u64 data = ::io_uring_cqe_get_data64(entries[i]);
      if (data == doorbell_data) {
        is_reading_doorbell_ = false;
      } else {
        handle(ring, static_cast<u32>(data), entries[i]->res);
      }
    }
    ::io_uring_cq_advance(ring.get(), count);
  }
  if (in_flight() != in_flight_before) controller_.announce();
}

void UringWorker::handle(Uring& ring, u32 index, i32 result) {
  Operation& operation = operations_[index];
  result = controller_.seen_result(operation.group, result);
  if (result == -EINTR || result == -EAGAIN) return issue(ring, index);
  if (result < 0) return end_operation(index, -result);
  if (operation.group.operation == IoOperation::flush) return end_operation(index, 0);
  if (result == 0) {
    return end_operation(index, operation.group.operation == IoOperation::read ? Controller::error_of_end : ENOSPC);
  }
  operation.done += static_cast<u64>(result);
  Controller::advance(&operation.group, static_cast<u64>(result), &operation.first_part);
  if (operation.done == operation.group.length) return end_operation(index, 0);
  issue(ring, index);
}

void UringWorker::end_operation(u32 index, int error) {
  if (operations_[index].is_background) --background_in_flight_;
  RequestGroup& group = operations_[index].group;
  if (controller_.is_tried_apart(group, error)) {
    controller_.blocking(group.device).add([&controller = controller_, apart = std::exchange(group, {})] {
      controller.carry_out_apart(apart);
      controller.announce();
    });
  } else {
    controller_.finish(group, error);
  }
  free_.push_back(index);
}

}  // namespace gpu4fs::block
