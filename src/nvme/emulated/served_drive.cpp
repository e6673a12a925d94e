#include "nvme/emulated/served_drive.hpp"

#include <algorithm>
#include <utility>

#include "base/access.hpp"
#include "base/atomics.hpp"
#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/mutant.hpp"
#include "device/nvme/drive/service.hpp"

namespace gpu4fs::nvme {

namespace {

// Commands of a queue that one step takes, and for how long it does. So what a slow medium has carried out completes
// early, and other queues and drives have their turn.
constexpr u32 take_max = 64;
constexpr u64 take_ns_max = 1000000;
// By how much a command of a drive with random order may be late.
constexpr u64 disorder_ns = 20000;

DriveQueue view_of(const ServedQueue& memory) {
  DriveQueue view{};
  place_drive_queue(
      view, {memory.submissions, memory.completions, memory.submission_doorbell, memory.completion_doorbell, nullptr},
      memory.depth, memory.id);
  return view;
}

}  // namespace

ServedDrive::ServedDrive(const std::vector<ServedQueue>& queues, const DriveProfile& profile, CarryOut carry_out,
                         u32 order_seed)
    : profile_(profile),
      carry_out_(std::move(carry_out)),
      is_random_(order_seed != 0),
      random_(order_seed),
      fetched_(queues.size()) {
  for (const ServedQueue& queue : queues) queues_.push_back({queue});
}

void ServedDrive::set_carry_out(CarryOut carry_out) {
  const std::lock_guard<std::mutex> guard(mutex_);
  carry_out_ = std::move(carry_out);
}

u64 ServedDrive::due_ns(const SubmissionEntry& entry, u64 now_ns) {
  const bool is_read = entry.opcode == static_cast<u8>(IoOpcode::read);
  const bool is_write = entry.opcode == static_cast<u8>(IoOpcode::write);
  const u64 disorder = is_random_ ? random_() % disorder_ns : 0;
  if (!is_read && !is_write) {
    return now_ns + disorder + (entry.opcode == static_cast<u8>(IoOpcode::flush) ? profile_.flush_latency_ns : 0);
  }
  const u64 bytes_per_s = is_read ? profile_.read_bytes_per_s : profile_.write_bytes_per_s;
  if (bytes_per_s != 0) {
    const u64 bytes = ((entry.dword12 & 0xffffu) + u64{1}) * 4096;
    bandwidth_free_ns_ = std::max(bandwidth_free_ns_, now_ns) + bytes * 1000000000 / bytes_per_s;
  }
  const u64 latency_ns = is_read ? profile_.read_latency_ns : profile_.write_latency_ns;
  return std::max(bandwidth_free_ns_, now_ns + latency_ns) + disorder;
}

u32 ServedDrive::take(u32 index) {
  Queue& queue = queues_[index];
  const u32 mask = queue.memory.depth - 1;
  const u32 tail = load<Order::acquire, Scope::system>(queue.memory.submission_doorbell);
  // A driver that rings so is ignored, and its commands are late.
  if (tail > mask) return 0;
  const DriveQueue view = view_of(queue.memory);
  u64 began_ns = 0;
  u32 count = 0;
  while (count < take_max && (queue.fetched & mask) != tail) {
    const u64 now_ns = now_monotonic_ns();
    if (count == 0) began_ns = now_ns;
    if (GPU4FS_MUTANT(drive_answers_kept, now_ns - began_ns >= take_ns_max, false)) break;
    const SubmissionEntry entry = detail::load_entry(view, queue.fetched);
    ++queue.fetched;
    ++count;
    fetched_[index].store(queue.fetched, std::memory_order_release);
    const std::optional<StatusCode> status = carry_out_ ? carry_out_(entry) : std::nullopt;
    if (!status) {
      unanswered_.emplace(index, entry.command_id);
      continue;
    }
    pending_.push({due_ns(entry, now_ns), ++number_, index, entry.command_id, *status});
    pending_count_.fetch_add(1, std::memory_order_relaxed);
  }
  return count;
}

u32 ServedDrive::post(u64 now_ns) {
  u32 count = 0;
  waiting_.clear();
  while (!pending_.empty() && pending_.top().due_ns <= now_ns) {
    const Pending done = pending_.top();
    pending_.pop();
    Queue& queue = queues_[done.queue];
    const u32 mask = queue.memory.depth - 1;
    const u32 head = load<Order::acquire, Scope::system>(queue.memory.completion_doorbell);
    if (((queue.posted - head) & mask) == mask) {
      waiting_.push_back(done);
      continue;
    }
    DriveQueue view = view_of(queue.memory);
    detail::post_completion(view, queue.posted, queue.fetched, done.command_id, done.status);
    ++queue.posted;
    ++count;
  }
  for (const Pending& done : waiting_) pending_.push(done);
  pending_count_.fetch_sub(count, std::memory_order_relaxed);
  return count;
}

ServedDrive::Step ServedDrive::step() {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (is_stopped_.load(std::memory_order_relaxed)) return {};
  Step step;
  for (u32 i = 0; i < queues_.size(); ++i) step.taken += take(i);
  step.completed = post(pending_.empty() ? 0 : now_monotonic_ns());
  return step;
}

bool ServedDrive::is_idle() const {
  if (is_stopped_.load(std::memory_order_acquire)) return true;
  if (pending_count_.load(std::memory_order_relaxed) != 0) return false;
  for (u32 i = 0; i < queues_.size(); ++i) {
    const ServedQueue& memory = queues_[i].memory;
    const u32 fetched = fetched_[i].load(std::memory_order_acquire);
    const u32 tail = load<Order::acquire, Scope::system>(memory.submission_doorbell);
    if (tail < memory.depth && tail != (fetched & (memory.depth - 1))) return false;
  }
  return true;
}

bool ServedDrive::is_in_use() const {
  if (is_stopped_.load(std::memory_order_acquire)) return false;
  for (const Queue& queue : queues_) {
    const u32 tail = load<Order::acquire, Scope::system>(queue.memory.submission_doorbell);
    if (tail != load<Order::acquire, Scope::system>(queue.memory.completion_doorbell)) return true;
  }
  return false;
}

bool ServedDrive::abort(u32 queue, u16 command_id) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (is_stopped_.load(std::memory_order_relaxed) || unanswered_.erase({queue, command_id}) == 0) return false;
  pending_.push({0, ++number_, queue, command_id, StatusCode::abort_requested});
  pending_count_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void ServedDrive::stop() {
  const std::lock_guard<std::mutex> guard(mutex_);
  unanswered_.clear();
  is_stopped_.store(true, std::memory_order_release);
  pending_ = {};
  pending_count_.store(0, std::memory_order_relaxed);
}

}  // namespace gpu4fs::nvme
