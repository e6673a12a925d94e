#include "block/controller.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "base/check.hpp"
#include "base/mutant.hpp"
#include "block/result_status.hpp"
#include "block/stacked_medium.hpp"
#include "block/thread_controller.hpp"
#include "block/uring_controller.hpp"
#include "device/queue/io_consumer.hpp"

namespace gpu4fs::block {

using device::IoOperation;
using device::IoQueueShared;
using device::IoRequest;

Controller::Controller(IoQueueShared& shared, const std::vector<const BlockMedium*>& mediums, ControllerOptions options)
    : shared_(shared), options_(std::move(options)) {
  GPU4FS_CHECK_LE(mediums.size(), u64{device_count_max});
  GPU4FS_CHECK_GE(options_.transfer_bytes_max, page_size);
  for (u32 i = 0; i < device_count_max; ++i) mediums_[i].store(i < mediums.size() ? mediums[i] : nullptr);
  if (options_.faults != nullptr) options_.faults->set_wake([this] { device::wake_consumer(shared_); });
}

Controller::~Controller() {
  if (options_.faults != nullptr) options_.faults->set_wake(nullptr);
  for (u32 i = 0; i < doorbell_count_; ++i) {
    ::close(shared_.doorbells[i]);
    shared_.doorbells[i] = -1;
  }
}

void Controller::set_medium(u32 device, const BlockMedium* medium) {
  GPU4FS_CHECK_LT(device, device_count_max);
  refuses_discards_[device].store(false, std::memory_order_release);
  refuses_writes_[device].store(false, std::memory_order_release);
  mediums_[device].store(medium, std::memory_order_release);
}

void Controller::open_doorbells(u32 count) {
  GPU4FS_CHECK_LE(count, device::io_consumer_max);
  for (; doorbell_count_ < count; ++doorbell_count_) {
    const int descriptor = ::eventfd(0, EFD_CLOEXEC);
    if (descriptor < 0) {
      throw DeviceError(std::string("cannot make an eventfd for I/O: ") + std::strerror(errno), errno);
    }
    shared_.doorbells[doorbell_count_] = descriptor;
  }
}

void Controller::begin_stop() {
  is_stopping_.store(true, std::memory_order_release);
  if (options_.faults != nullptr) options_.faults->release_all();
  for (u32 i = 0; i < doorbell_count_; ++i) device::write_doorbell(shared_, i);
}

bool Controller::has_requests() const {
  if (options_.faults != nullptr && options_.faults->has_released()) return true;
  return !device::looks_empty(shared_);
}

bool Controller::may_sleep(u32 consumer, bool polls) const {
  if (!device::may_sleep(shared_, consumer, polls)) return false;
  if (options_.faults == nullptr || !options_.faults->has_released()) return true;
  device::end_sleep(shared_, consumer);
  return false;
}

void Controller::take_requests(RequestBatch* batch, u64 count, RequestBatch* background) {
  u32 slot = 0;
  for (u64 i = 0; i < count; ++i) {
    if (options_.faults != nullptr && options_.faults->take_released(&slot)) {
      take_one(batch, background, slot, true);
    } else if (device::take(shared_, &slot)) {
      take_one(batch, background, slot, false);
    } else {
      return;
    }
  }
}

void Controller::take_one(RequestBatch* batch, RequestBatch* background, u32 slot, bool is_released) {
  // The producer does not change it before it has completed.
  const IoRequest& request = device::request_of(shared_, slot);
  Status status = unusable(request);
  if (status == Status::ok && options_.faults != nullptr && !is_released) {
    const RequestFaults::Verdict verdict = options_.faults->judge(slot, request);
    if (verdict.fate == RequestFaults::Fate::held) return;
    if (verdict.fate == RequestFaults::Fate::fails) {
      status = verdict.status;
      note_text(request.device,
                place_text(medium(request.device)->path(), request.operation, request.offset, request.length) +
                    "a fault of a test");
    }
  }
  if (status == Status::ok) {
    return (background != nullptr && is_background(request) ? background : batch)->add(slot, request);
  }
  counters_.add(request.operation, 1, 0, true);
  complete(slot, status);
  announce();
}

void Controller::complete(u32 slot, Status status) {
  if (device::complete(shared_, slot, status)) has_reports_.store(true, std::memory_order_release);
}

void Controller::announce() {
  device::announce_completions(shared_);
  if (options_.on_reports && has_reports_.exchange(false, std::memory_order_acq_rel)) options_.on_reports();
}

Status Controller::unusable(const IoRequest& request) const {
  GPU4FS_CHECK_LT(request.device, device_count_max);
  const BlockMedium* const used = medium(request.device);
  if (used == nullptr) return Status::device_failed;
  if (used->read_only() && request.operation != IoOperation::read && request.operation != IoOperation::flush) {
    return Status::read_only;
  }
  const u64 size = used->size_bytes();
  if (request.offset > size || request.length > size - request.offset) return Status::out_of_range;
  return Status::ok;
}

Status Controller::account(const RequestGroup& group, u64 request_count, int error) {
  if (error != 0) note_error(group, error);
  counters_.add(group.operation, request_count, group.length, error != 0);
  if (error != error_of_end) return status_of_error(group.operation, error);
  return GPU4FS_MUTANT(end_of_medium_is_no_error, Status::medium_error, Status::ok);
}

void Controller::finish(const RequestGroup& group, int error) {
  const Status status = account(group, group.slots.size(), error);
  if (group.operation == IoOperation::write && error == 0 && refuses_writes_[group.device].load()) {
    refuses_writes_[group.device].store(false, std::memory_order_release);
  }
  for (const u32 slot : group.slots) complete(slot, status);
}

Status Controller::carry_out_now(const IoRequest& request) {
  GPU4FS_CHECK(carries_out_now());
  const Status status = unusable(request);
  if (status != Status::ok) {
    counters_.add(request.operation, 1, 0, true);
    return status;
  }
  // Its vectors keep their memory.
  static thread_local RequestGroup group;
  group.operation = request.operation;
  group.device = request.device;
  group.offset = request.offset;
  group.length = request.length;
  group.parts.clear();
  if (device::moves_bytes(request.operation)) group.parts.push_back({request.memory, request.length});
  const int error = carry_out(&group);
  return account(group, 1, error);
}

bool Controller::is_tried_apart(const RequestGroup& group, int error) const {
  if (group.operation == IoOperation::flush) return false;
  if (group.operation == IoOperation::write && refuses_writes_[group.device].load(std::memory_order_acquire)) {
    return false;
  }
  return GPU4FS_MUTANT(neighbours_fail_too, error != 0 && group.slots.size() > 1, false);
}

void Controller::serve(RequestGroup* group) {
  const int error = carry_out(group);
  if (is_tried_apart(*group, error)) return carry_out_apart(*group);
  finish(*group, error);
}

// An error of a drive may take many seconds. So once a write has failed alone, those that are left are tried together.
// If they fail as well, more than a bad sector is wrong with the medium.
void Controller::carry_out_apart(const RequestGroup& group) {
  RequestBatch batch(options_.merge_bytes_max);
  RequestGroup part;
  bool has_failed = false;
  for (u64 i = 0; i < group.slots.size() && !has_failed; ++i) {
    batch.add(group.slots[i], device::request_of(shared_, group.slots[i]));
    GPU4FS_CHECK(batch.next(&part));
    has_failed = try_alone(&part) && GPU4FS_MUTANT(errors_of_all_awaited, true, false);
    if (!has_failed) continue;
    for (const u32 slot : std::span(group.slots).subspan(i + 1)) batch.add(slot, device::request_of(shared_, slot));
    while (batch.next(&part)) {
      if (try_alone(&part)) refuses_writes_[group.device].store(true, std::memory_order_release);
    }
  }
}

// True: it is a write, and the medium has failed to do it.
bool Controller::try_alone(RequestGroup* group) {
  const int error = carry_out(group);
  finish(*group, error);
  return group->operation == IoOperation::write && status_of_error(group->operation, error) == Status::device_failed;
}

void Controller::note_error(const RequestGroup& group, int error) {
  const BlockMedium* const used = medium(group.device);
  if (used == nullptr) return;
  note_text(group.device, place_text(used->path(), group.operation, group.offset, group.length) +
                              (error == error_of_end ? "the medium ends before" : std::strerror(error)));
}

void Controller::note_text(u32 device, const std::string& text) {
  const std::lock_guard lock(error_mutex_);
  if (first_errors_[device].empty()) first_errors_[device] = text;
}

std::string Controller::first_error(u32 device) const {
  GPU4FS_CHECK_LT(device, device_count_max);
  const std::lock_guard lock(error_mutex_);
  return first_errors_[device];
}

i32 Controller::seen_result(const RequestGroup& group, i32 result) const {
  if (options_.faults == nullptr) return result;
  return options_.faults->result_of(device::request_of(shared_, group.slots.front()), result);
}

void Controller::advance(RequestGroup* group, u64 done, u64* first_part) {
  while (done != 0) {
    iovec& part = group->parts[*first_part];
    const u64 count = std::min<u64>(done, part.iov_len);
    part.iov_base = static_cast<u8*>(part.iov_base) + count;
    part.iov_len -= count;
    done -= count;
    if (part.iov_len == 0) ++*first_part;
  }
}

u32 Controller::parts_of_call(const RequestGroup& group, u64 first_part, u64* bytes) const {
  *bytes = std::min<u64>(group.parts[first_part].iov_len, options_.transfer_bytes_max);
  u32 count = 1;
  for (u64 i = first_part + 1; i < group.parts.size(); ++i) {
    if (*bytes + group.parts[i].iov_len > options_.transfer_bytes_max) break;
    *bytes += group.parts[i].iov_len;
    ++count;
  }
  return count;
}

int Controller::transfer(RequestGroup* group, const BlockMedium& used) {
  u64 first_part = 0;
  for (u64 done = 0; done < group->length;) {
    u64 bytes = 0;
    const u32 count = parts_of_call(*group, first_part, &bytes);
    iovec cut{group->parts[first_part].iov_base, bytes};
    const iovec* const parts = count == 1 ? &cut : &group->parts[first_part];
    const off_t offset = static_cast<off_t>(group->offset + done);
    const bool is_read = group->operation == IoOperation::read;
    const ssize_t moved = is_read ? ::preadv(used.descriptor(), parts, static_cast<int>(count), offset)
                                  : ::pwritev(used.descriptor(), parts, static_cast<int>(count), offset);
    const i32 result = seen_result(*group, static_cast<i32>(moved < 0 ? -errno : moved));
    if (result == -EINTR || result == -EAGAIN) continue;
    if (result < 0) return -result;
    if (result == 0) return is_read ? error_of_end : ENOSPC;
    advance(group, static_cast<u64>(result), &first_part);
    done += static_cast<u64>(result);
  }
  return 0;
}

// Of a drive that this process drives itself.
int Controller::transfer_by_drive(const RequestGroup& group, device::HostDrive& drive) {
  u64 offset = group.offset;
  for (const iovec& part : group.parts) {
    const Status status = group.operation == IoOperation::read ? drive.read(offset, part.iov_base, part.iov_len)
                                                               : drive.write(offset, part.iov_base, part.iov_len);
    if (status != Status::ok) return to_errno(status);
    offset += part.iov_len;
  }
  return 0;
}

int Controller::carry_out(RequestGroup* group) {
  const BlockMedium* const used = medium(group->device);
  GPU4FS_CHECK(used != nullptr);
  if (used->stack() != nullptr) return carry_out_stacked(*group, *used);
  if (device::moves_bytes(group->operation)) {
    return used->drive() != nullptr ? transfer_by_drive(*group, *used->drive()) : transfer(group, *used);
  }
  int error = 0;
  switch (group->operation) {
    case IoOperation::flush:
      error = used->flush();
      break;
    case IoOperation::discard:
      error = used->discard(group->offset, group->length);
      break;
    case IoOperation::write_zeroes:
      error = used->write_zeroes(group->offset, group->length);
      break;
    case IoOperation::read:
    case IoOperation::write:
      GPU4FS_UNREACHABLE("moves bytes");
  }
  return -seen_result(*group, -error);
}

bool Controller::can_discard(u32 device) const {
  GPU4FS_CHECK_LT(device, device_count_max);
  const BlockMedium* const used = medium(device);
  return used != nullptr && used->can_discard() && !refuses_discards_[device].load(std::memory_order_acquire);
}

Controller::Discarded Controller::discard(u32 device, u64 offset, u64 length) {
  constexpr IoOperation operation = IoOperation::discard;
  const IoRequest request{operation, device, offset, static_cast<u32>(length), 0, nullptr};
  GPU4FS_CHECK_EQ(u64{request.length}, length);
  const Status refused = unusable(request);
  if (refused != Status::ok) return {refused, 0};
  const BlockMedium& used = *medium(device);
  const ByteRange range = used.discardable(offset, length);
  if (range.length == 0) return {Status::ok, 0};
  const RequestGroup group{operation, device, range.offset, range.length, {}, {}};
  int error = used.stack() != nullptr ? carry_out_stacked(group, used) : used.discard(range.offset, range.length);
  if (options_.faults != nullptr) error = -options_.faults->result_of(request, -error);
  if (error == EOPNOTSUPP) refuses_discards_[device].store(true, std::memory_order_release);
  if (error != 0) note_error(group, error);
  counters_.add(operation, 1, range.length, error != 0);
  return {status_of_error(operation, error), error != 0 ? 0 : range.length};
}

std::unique_ptr<Controller> start_controller(IoQueueShared& shared, const std::vector<const BlockMedium*>& mediums,
                                             ControllerOptions options) {
  std::string reason = "asked for";
  if (options.kind != ControllerKind::threads) {
    try {
      return std::make_unique<UringController>(shared, mediums, options);
    } catch (const DeviceError& error) {
      if (options.kind == ControllerKind::uring) throw;
      reason = error.what();
    }
  }
  return std::make_unique<ThreadController>(shared, mediums, options, reason);
}

}  // namespace gpu4fs::block
