#include "nvme/block_io.hpp"

#include <algorithm>
#include <cstring>

#include "base/access.hpp"
#include "base/mutant.hpp"
#include "device/nvme/prp.hpp"
#include "device/nvme/submit.hpp"

namespace gpu4fs::nvme {
namespace {

// An outcome on its way from the lane that polls to the one that waits.
struct Awaited {
  Outcome outcome{};
  u32 is_done = 0;
};

Status status_of(const Outcome& outcome) {
  switch (static_cast<StatusCode>(outcome.status)) {
    case StatusCode::success:
      return Status::ok;
    case StatusCode::unrecovered_read_error:
      return Status::medium_error;
    case StatusCode::lba_out_of_range:
      return Status::out_of_range;
    case StatusCode::invalid_opcode:
      return Status::not_supported;
    default:
      return Status::io_error;
  }
}

// Memory of a drive behind VFIO lasts for more of them.
constexpr u32 resets_anew_max = 4;

bool is_curable(Failure failure) {
  return failure == Failure::timed_out || failure == Failure::fatal_status || failure == Failure::resetting;
}

}  // namespace

// False: the command was left without an answer.
bool ControllerSession::execute_once(u32 queue_index, const SubmissionEntry& command, Outcome& outcome) {
  const std::shared_lock<std::shared_mutex> guard(in_use_);
  VirtualQueue& queue = controller_.queue(queue_index);
  ControllerState& state = controller_.state();
  Awaited own;
  const auto visit = [](const Outcome& found) {
    Awaited& awaited = *reinterpret_cast<Awaited*>(found.cookie);
    awaited.outcome = found;
    store<Order::release, Scope::engine>(&awaited.is_done, 1);
  };
  u32 waits = 0;
  const auto wait = [&] {
    backoff(++waits < 200 ? 200 : 1000);
    if (waits % 256 != 0 || failure_of(state) != Failure::none) return;
    look_for_late_commands(queue);
    if (waits % 4096 == 0) {
      const Failure shown = controller_.look_at_status();
      if (shown != Failure::none) fail(state, shown);
    }
  };
  const u64 cookie = reinterpret_cast<u64>(&own);
  if (submit(Lane{}, queue, {command, cookie}, visit, wait) != SubmitResult::submitted) return false;
  while (load<Order::acquire, Scope::engine>(&own.is_done) == 0) {
    if (poll(Lane{}, queue, visit) > 0) continue;
    if (load<Order::acquire, Scope::engine>(&own.is_done) != 0) break;
    if (failure_of(state) != Failure::none && load<Order::acquire, Scope::engine>(&state.is_quiet) == 0) {
      // The first who comes ends the controller's DMA. Its time is bounded.
      quiesce_once();
      continue;
    }
    wait();
  }
  outcome = own.outcome;
  return outcome.end == CommandEnd::answered;
}

// Late commands are aborted one by one. If that does not end one either, the controller has failed.
void ControllerSession::look_for_late_commands(VirtualQueue& queue) {
  const ControllerOptions& options = controller_.options();
  const u64 now_ns = now_monotonic_ns();
  if (now_ns <= options.command_timeout_ns) return;
  const u64 before_ns = now_ns - options.command_timeout_ns;
  const LateCommand late = take_late_command(queue, before_ns);
  if (late.is_found) {
    if (controller_.abort(queue.queue_id, late.command_id)) fetch_add<Order::relaxed, Scope::engine>(&abort_count_, 1);
    return;
  }
  if (before_ns > options.abort_timeout_ns && expired(Lane{}, queue, before_ns - options.abort_timeout_ns)) {
    fail(controller_.state(), Failure::timed_out);
  }
}

void ControllerSession::quiesce_once() {
  const std::lock_guard<std::mutex> guard(quiescing_);
  if (load<Order::acquire, Scope::engine>(&controller_.state().is_quiet) == 0) controller_.quiesce();
}

bool ControllerSession::recover(u64 seen, bool may_reset) {
  const std::unique_lock<std::shared_mutex> guard(in_use_);
  if (lost_because() != Failure::none) return false;
  // Somebody else has made it new.
  if (reset_count() != seen && may_reset) return true;
  quiesce_once();
  ControllerState& before = controller_.state();
  if (restart(may_reset)) {
    store<Order::release, Scope::engine>(&reset_count_, reset_count_ + 1);
    return true;
  }
  // What is left is not repeated.
  store<Order::relaxed, Scope::engine>(&before.may_return, 0u);
  store<Order::release, Scope::engine>(&before.is_renewed, 0u);
  store<Order::release, Scope::engine>(&lost_because_, static_cast<u32>(failure_of(controller_.state())));
  return false;
}

bool ControllerSession::restart(bool may_reset) {
  if (!may_reset || !is_curable(failure_of(controller_.state()))) return false;
  const bool are_shared = load<Order::acquire, Scope::engine>(&are_shared_) != 0;
  if (are_shared && anew_count_ == resets_anew_max) return false;
  try {
    if (!are_shared) {
      controller_.restart();
    } else {
      ++anew_count_;
      controller_.restart_anew();
    }
    tell_return();
    return true;
  } catch (const std::runtime_error&) {
    // It is failed and quiet, or there is no memory for other queues.
    return false;
  }
}

// Under the exclusive lock, or before anything can fail.
void ControllerSession::tell_return() {
  const bool may_return = load<Order::acquire, Scope::engine>(&are_shared_) != 0 && anew_count_ < resets_anew_max;
  store<Order::relaxed, Scope::engine>(&controller_.state().may_return, may_return ? 1u : 0u);
}

void ControllerSession::share_queues(bool are_shared) {
  const std::unique_lock<std::shared_mutex> guard(in_use_);
  store<Order::release, Scope::engine>(&are_shared_, are_shared ? 1u : 0u);
  tell_return();
}

void ControllerSession::abort(u16 queue_id, u16 command_id) {
  const std::shared_lock<std::shared_mutex> guard(in_use_, std::try_to_lock);
  if (!guard.owns_lock() || failure_of(controller_.state()) != Failure::none) return;
  if (controller_.abort(queue_id, command_id)) fetch_add<Order::relaxed, Scope::engine>(&abort_count_, 1);
}

void ControllerSession::look() {
  const std::shared_lock<std::shared_mutex> guard(in_use_, std::try_to_lock);
  if (!guard.owns_lock()) return;
  Failure found = controller_.look_at_status();
  // It has forgotten its queues.
  if (found == Failure::none && !controller_.is_ready()) found = Failure::reset_by_others;
  if (found != Failure::none) fail(controller_.state(), found);
}

Status ControllerSession::execute(u32 queue_index, const SubmissionEntry& command) {
  u32 aborted = 0;
  u32 left = 0;
  for (;;) {
    const u64 seen = reset_count();
    if (lost_because() != Failure::none) return Status::device_failed;
    Outcome outcome;
    if (execute_once(queue_index, command, outcome)) {
      const bool is_aborted = outcome.status == static_cast<u32>(StatusCode::abort_requested);
      if (!GPU4FS_MUTANT(nvme_aborted_not_repeated, is_aborted, false)) return status_of(outcome);
      // Once more, as behind a reset. A controller that is late again needs one.
      if (++aborted % 2 == 1) continue;
      fail(controller_.state(), Failure::timed_out);
    }
    if (!recover(seen, left++ == 0)) return Status::device_failed;
  }
}

// A buffer for the length of a call.
class BlockIo::Borrowed {
 public:
  explicit Borrowed(BlockIo& owner) : owner_(owner) {
    std::unique_lock<std::mutex> guard(owner_.mutex_);
    owner_.returned_.wait(guard, [this] { return !owner_.free_.empty(); });
    buffer_ = owner_.free_.back();
    owner_.free_.pop_back();
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  ~Borrowed() {
    const std::lock_guard<std::mutex> guard(owner_.mutex_);
    owner_.free_.push_back(buffer_);
    owner_.returned_.notify_one();
  }
  const Buffer& operator*() const { return buffer_; }
  const Buffer* operator->() const { return &buffer_; }

 private:
  BlockIo& owner_;
  Buffer buffer_;
};

BlockIo::BlockIo(ControllerSession& session, DmaMemory& memory, u32 namespace_id, u32 buffer_count)
    : session_(session) {
  for (const NamespaceInfo& info : session_.controller().namespaces()) {
    if (info.id == namespace_id) info_ = info;
  }
  if (info_.id == 0) throw ControllerError(Failure::refused, "NVMe controller: no namespace of this number");
  if (!info_.unusable_because.empty()) {
    throw ControllerError(Failure::refused, "NVMe namespace: " + info_.unusable_because);
  }
  const u64 transfer_bytes = session_.controller().info().transfer_bytes_max;
  for (u32 i = 0; i < std::max(1u, buffer_count); ++i) {
    free_.push_back({memory.allocate(transfer_bytes), memory.allocate(page_size)});
  }
}

Status BlockIo::check_range(u64 offset, u64 length) const {
  if (offset % info_.block_bytes != 0 || length % info_.block_bytes != 0) return Status::unaligned;
  return offset <= size_bytes() && length <= size_bytes() - offset ? Status::ok : Status::out_of_range;
}

SubmissionEntry BlockIo::command(IoOpcode opcode, u64 offset, u64 length) const {
  SubmissionEntry entry{};
  entry.opcode = static_cast<u8>(opcode);
  entry.namespace_id = info_.id;
  if (length == 0) return entry;
  const u64 first = offset / info_.block_bytes;
  entry.dword10 = static_cast<u32>(first);
  entry.dword11 = static_cast<u32>(first >> 32);
  entry.dword12 = static_cast<u32>(length / info_.block_bytes - 1);
  return entry;
}

u32 BlockIo::next_queue() {
  return fetch_add<Order::relaxed, Scope::engine>(&turn_, 1) % session_.queue_count();
}

Status BlockIo::transfer(IoOpcode opcode, const Buffer& buffer, u64 offset, u64 length, u32 flags) {
  SubmissionEntry entry = command(opcode, offset, length);
  entry.dword12 |= flags;
  const ListPages list{buffer.list.memory, buffer.list.bus_address, 1};
  entry.data = build_prp(Lane{}, list, 0, length, [&](u64 i) { return buffer.data.bus_address + i * page_size; });
  return session_.execute(next_queue(), entry);
}

Status BlockIo::read(u64 offset, std::span<u8> bytes) {
  GPU4FS_TRY(check_range(offset, bytes.size()));
  const Borrowed buffer(*this);
  for (u64 done = 0; done < bytes.size();) {
    const u64 length = std::min<u64>(buffer->data.bytes, bytes.size() - done);
    GPU4FS_TRY(transfer(IoOpcode::read, *buffer, offset + done, length, 0));
    std::memcpy(bytes.data() + done, buffer->data.memory, length);
    done += length;
  }
  return Status::ok;
}

Status BlockIo::write(u64 offset, std::span<const u8> bytes, bool force_unit_access) {
  GPU4FS_TRY(check_range(offset, bytes.size()));
  const Borrowed buffer(*this);
  for (u64 done = 0; done < bytes.size();) {
    const u64 length = std::min<u64>(buffer->data.bytes, bytes.size() - done);
    std::memcpy(buffer->data.memory, bytes.data() + done, length);
    GPU4FS_TRY(transfer(IoOpcode::write, *buffer, offset + done, length, force_unit_access ? io_force_unit_access : 0));
    done += length;
  }
  return Status::ok;
}

Status BlockIo::write_zeroes(u64 offset, u64 length, bool may_deallocate) {
  GPU4FS_TRY(check_range(offset, length));
  if (!session_.controller().info().has_write_zeroes) return Status::not_supported;
  for (u64 done = 0; done < length;) {
    const u64 part = std::min(u64{io_blocks_max} * info_.block_bytes, length - done);
    SubmissionEntry entry = command(IoOpcode::write_zeroes, offset + done, part);
    if (may_deallocate) entry.dword12 |= zeroes_deallocate;
    GPU4FS_TRY(session_.execute(next_queue(), entry));
    done += part;
  }
  return Status::ok;
}

Status BlockIo::deallocate(std::span<const Range> ranges) {
  if (!session_.controller().info().has_dataset_management) return Status::not_supported;
  for (const Range& range : ranges) {
    GPU4FS_TRY(check_range(range.offset, range.length));
    if (range.length / info_.block_bytes > 0xffffffffu) return Status::out_of_range;
  }
  const Borrowed buffer(*this);
  for (u64 done = 0; done < ranges.size();) {
    const u64 count = std::min<u64>(dataset_ranges_max, ranges.size() - done);
    for (u64 i = 0; i < count; ++i) {
      const DatasetRange range{0, static_cast<u32>(ranges[done + i].length / info_.block_bytes),
                               ranges[done + i].offset / info_.block_bytes};
      std::memcpy(buffer->data.memory + i * sizeof(range), &range, sizeof(range));
    }
    SubmissionEntry entry = command(IoOpcode::dataset_management, 0, 0);
    entry.dword10 = static_cast<u32>(count - 1);
    entry.dword11 = dataset_deallocate;
    entry.data.prp = {buffer->data.bus_address, 0};
    GPU4FS_TRY(session_.execute(next_queue(), entry));
    done += count;
  }
  return Status::ok;
}

Status BlockIo::flush() {
  const bool has_cache = session_.controller().info().has_write_cache;
  if (session_.lost_because() != Failure::none) return Status::device_failed;
  if (!has_cache) return Status::ok;
  GPU4FS_TRY(session_.execute(next_queue(), command(IoOpcode::flush, 0, 0)));
  // What the resets before this flush may have lost is told once.
  const u64 resets = session_.reset_count();
  return exchange<Order::acq_rel, Scope::engine>(&flushed_resets_, resets) == resets ? Status::ok : Status::io_error;
}

}  // namespace gpu4fs::nvme
