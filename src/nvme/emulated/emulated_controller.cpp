// Registers, queues and the thread of an emulated controller. Its commands are in emulated_commands.cpp.
#include "nvme/emulated/emulated_controller.hpp"

#include <algorithm>
#include <cstring>

#include "base/access.hpp"
#include "device/nvme/spec/registers.hpp"

namespace gpu4fs::nvme {
namespace {

constexpr u32 reg(Register name) {
  return static_cast<u32>(name);
}

void replace_half(u64& value, bool is_high, u32 half) {
  const u64 mask = u64{0xffffffff} << (is_high ? 32 : 0);
  value = (value & ~mask) | u64{half} << (is_high ? 32 : 0);
}

}  // namespace

EmulatedController::EmulatedController(EmulatedBus& bus, EmulatedOptions options)
    : bus_(bus),
      options_(std::move(options)),
      doorbell_count_(2 * (options_.queues_max + 1) << options_.doorbell_stride_shift),
      doorbells_(reinterpret_cast<u32*>(bus.allocate(u64{doorbell_count_} * sizeof(u32)).memory)),
      submissions_(options_.queues_max + 1),
      completions_(options_.queues_max + 1),
      random_(options_.seed) {
  thread_ = std::thread([this] { work(); });
}

EmulatedController::~EmulatedController() {
  is_stopping_.store(true);
  thread_.join();
}

u64 EmulatedController::capabilities() const {
  const u64 cap = u64{options_.queue_entries_max - 1} | u64{1} << 16 | u64{2} << 24 |
                  u64{options_.doorbell_stride_shift} << 32 | u64{1} << 37 |
                  u64{options_.has_weighted_arbitration ? 1u : 0u} << 17;
  return cap ^ options_.capabilities_flipped;
}

u32 EmulatedController::read_32(u32 offset) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (is_gone_) return register_of_absent;
  switch (offset) {
    case reg(Register::cap):
      return static_cast<u32>(capabilities());
    case reg(Register::cap) + 4:
      return static_cast<u32>(capabilities() >> 32);
    case reg(Register::vs):
      return 0x00020000;
    case reg(Register::cc):
      return cc_;
    case reg(Register::csts):
      return csts_;
    case reg(Register::aqa):
      return aqa_;
    default:
      complain("it reads a register that is reserved or for writing only");
      return 0;
  }
}

void EmulatedController::write_32(u32 offset, u32 value) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (is_gone_) return;
  const bool is_enabled = (cc_ & cc_enable) != 0;
  switch (offset) {
    case reg(Register::cc):
      cc_ = value;
      if (!is_enabled && (value & cc_enable) != 0) enable();
      if ((value & cc_enable) == 0) reset();
      if ((value & cc_shutdown_mask) != 0) {
        for (const EmulatedNamespace& space : options_.namespaces) space.medium->flush();
        csts_ = (csts_ & ~csts_shutdown_mask) | csts_shutdown_complete;
      }
      break;
    case reg(Register::aqa):
      if (is_enabled) complain("it changes AQA of an enabled controller");
      aqa_ = value;
      break;
    case reg(Register::asq):
    case reg(Register::asq) + 4:
      replace_half(asq_, offset != reg(Register::asq), value);
      break;
    case reg(Register::acq):
    case reg(Register::acq) + 4:
      replace_half(acq_, offset != reg(Register::acq), value);
      break;
    default:
      complain("it writes a register that is reserved or read-only");
  }
}

u32* EmulatedController::doorbell(u32 offset) {
  const u32 index = (offset - reg(Register::doorbells)) / 4;
  // Queues that there are not have a doorbell that nobody looks at.
  return &doorbells_[index < doorbell_count_ ? index : doorbell_count_ - 1];
}

void EmulatedController::stop_dma() {
  const std::lock_guard<std::mutex> guard(mutex_);
  has_dma_ = false;
}
void EmulatedController::allow_dma() {
  const std::lock_guard<std::mutex> guard(mutex_);
  has_dma_ = true;
}
bool EmulatedController::is_dma_allowed() const {
  const std::lock_guard<std::mutex> guard(mutex_);
  return has_dma_;
}

void EmulatedController::remove() {
  const std::lock_guard<std::mutex> guard(mutex_);
  is_gone_ = true;
  pending_.clear();
  silent_.clear();
}

void EmulatedController::lose_power(PowerLoss how, u32 seed) {
  const std::lock_guard<std::mutex> guard(mutex_);
  for (const EmulatedNamespace& space : options_.namespaces) space.medium->lose_power(how, seed);
  cc_ = 0;
  reset();
  // As the driver sees it until it resets the controller.
  csts_ |= csts_fatal;
}

std::string EmulatedController::complaint() const {
  const std::lock_guard<std::mutex> guard(mutex_);
  return complaint_;
}

void EmulatedController::complain(const std::string& text) {
  if (complaint_.empty()) complaint_ = text;
}

void EmulatedController::reset() {
  csts_ = 0;
  pending_.clear();
  silent_.clear();
  for (Queue& queue : submissions_) queue = {};
  for (Queue& queue : completions_) queue = {};
  for (u32 i = 0; i < doorbell_count_; ++i) __atomic_store_n(&doorbells_[i], 0u, __ATOMIC_RELEASE);
}

void EmulatedController::enable() {
  if ((cc_ >> cc_submission_shift & 0xf) != 6 || (cc_ >> cc_completion_shift & 0xf) != 4) {
    complain("it enables the controller with wrong sizes of entries");
  }
  const u32 arbitration = cc_ >> cc_arbitration_shift & 7;
  if (arbitration != 0 && (arbitration != 1 || !options_.has_weighted_arbitration)) {
    complain("it enables an arbitration that the controller does not have");
  }
  if ((cc_ >> cc_page_shift & 0xf) != 0) complain("it enables the controller with pages that it does not have");
  if (asq_ % 4096 != 0 || acq_ % 4096 != 0) complain("an admin queue is not aligned to a page");
  csts_ &= ~csts_shutdown_mask;
  submissions_[0] = {true, asq_, (aqa_ & 0xfff) + 1, 0, 1, 0, {}};
  completions_[0] = {true, acq_, (aqa_ >> 16 & 0xfff) + 1, 0, 1, 0, {}};
  csts_ |= csts_ready;
}

u32 EmulatedController::doorbell_value(u32 queue, bool is_completion) {
  const u32 index = (2 * queue + (is_completion ? 1 : 0)) << options_.doorbell_stride_shift;
  return __atomic_load_n(&doorbells_[index], __ATOMIC_ACQUIRE);
}

void EmulatedController::work() {
  u32 idle = 0;
  while (!is_stopping_.load()) {
    bool did_something;
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      did_something = work_once();
    }
    if (did_something) idle = 0;
    backoff(++idle < 50 ? 100 : 1000);
  }
}

bool EmulatedController::work_once() {
  const bool works = !is_gone_ && has_dma_ && (csts_ & csts_ready) != 0 && (csts_ & csts_fatal) == 0;
  if (!works) return false;
  bool did_something = false;
  if ((cc_ & cc_arbitration_weighted) == 0) {
    for (u32 queue = 0; queue < submissions_.size(); ++queue) did_something |= fetch(queue);
    return complete_due() || did_something;
  }
  // Clause 3.4.4.2: the admin queue, then all urgent queues, then the others by their weights.
  did_something |= fetch(0);
  while (fetch_of_priority(QueuePriority::urgent, 1)) did_something = true;
  did_something |= fetch_of_priority(QueuePriority::high, (arbitration_ >> 24 & 0xff) + 1);
  did_something |= fetch_of_priority(QueuePriority::medium, (arbitration_ >> 16 & 0xff) + 1);
  did_something |= fetch_of_priority(QueuePriority::low, (arbitration_ >> 8 & 0xff) + 1);
  return complete_due() || did_something;
}

// Up to `count` commands of the queues of a priority, in turn.
bool EmulatedController::fetch_of_priority(QueuePriority priority, u32 count) {
  const u32 queue_count = static_cast<u32>(submissions_.size()) - 1;
  bool found = false;
  for (u32 misses = 0; count > 0 && misses < queue_count;) {
    const u32 queue = 1 + turn_++ % queue_count;
    const bool is_fetched = submissions_[queue].exists && submissions_[queue].priority == priority && fetch(queue);
    misses = is_fetched ? 0 : misses + 1;
    count -= is_fetched ? 1 : 0;
    found |= is_fetched;
  }
  return found;
}

// One command of the queue, if there is one.
bool EmulatedController::fetch(u32 number) {
  Queue& queue = submissions_[number];
  if (!queue.exists) return false;
  const u32 tail = doorbell_value(number, false);
  if (tail >= queue.depth) {
    complain("a tail is not in its queue");
    return false;
  }
  if (tail == queue.position) return false;
  u8* const place = bus_.at(queue.bus_address + u64{queue.position} * 64, 64);
  if (place == nullptr) {
    csts_ |= csts_fatal;
    return false;
  }
  SubmissionEntry entry;
  for (u32 at = 0; at < sizeof(entry); at += 16) {
    const Vector16 part = load_shared_16(place + at);
    std::memcpy(reinterpret_cast<u8*>(&entry) + at, &part, sizeof(part));
  }
  queue.position = (queue.position + 1) % queue.depth;
  for (const Pending& other : pending_) {
    if (other.queue == number && other.entry.command_id == entry.command_id) complain("two commands have one number");
  }
  if (entry.command_id == command_id_reserved) complain("a command has the reserved number");
  pending_.push_back({number, entry, due_of(entry, number)});
  return true;
}

u64 EmulatedController::due_of(const SubmissionEntry& entry, u32 queue) {
  const DriveProfile& profile = options_.profile;
  const u64 now_ns = now_monotonic_ns();
  if (queue == 0) return now_ns;
  const bool is_read = entry.opcode == static_cast<u8>(IoOpcode::read);
  const bool is_write = entry.opcode == static_cast<u8>(IoOpcode::write);
  if (!is_read && !is_write) return now_ns + profile.flush_latency_ns;
  const u64 bytes_per_s = is_read ? profile.read_bytes_per_s : profile.write_bytes_per_s;
  const Medium* const medium = medium_of(entry.namespace_id);
  if (bytes_per_s != 0 && medium != nullptr) {
    const u64 bytes = ((entry.dword12 & 0xffff) + 1) * u64{medium->block_bytes()};
    bandwidth_free_ns_ = std::max(bandwidth_free_ns_, now_ns) + bytes * 1000000000 / bytes_per_s;
  }
  return std::max(bandwidth_free_ns_, now_ns + (is_read ? profile.read_latency_ns : profile.write_latency_ns));
}

bool EmulatedController::complete_due() {
  const u64 now_ns = now_monotonic_ns();
  std::vector<u64> due;
  for (u64 i = 0; i < pending_.size(); ++i) {
    const bool is_due = pending_[i].due_ns <= now_ns && has_room(submissions_[pending_[i].queue].other);
    if (is_due) due.push_back(i);
  }
  if (due.empty()) return false;
  const u64 which = due[options_.in_random_order ? random_() % due.size() : 0];
  const Pending done = pending_[which];
  pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(which));
  u32 result = 0;
  if (done.queue == 0) {
    const StatusCode status = carry_out_admin(done.entry, result);
    post(0, done.entry, status, result);
    return true;
  }
  const Misbehaviour how = options_.misbehave ? options_.misbehave(done.entry) : Misbehaviour::none;
  if (how != Misbehaviour::none) {
    misbehave(how, done);
    return true;
  }
  const StatusCode injected = options_.inject ? options_.inject(done.entry) : StatusCode::success;
  post(done.queue, done.entry, injected != StatusCode::success ? injected : carry_out(done.entry), 0);
  return true;
}

bool EmulatedController::has_room(u32 number) {
  const Queue& queue = completions_[number];
  const u32 head = doorbell_value(number, true);
  if (head >= queue.depth) {
    complain("a completion head is not in its queue");
    return false;
  }
  return (queue.position + 1) % queue.depth != head;
}

void EmulatedController::post(u32 number, const SubmissionEntry& entry, StatusCode status, u32 result) {
  CompletionEntry completion{};
  completion.dword0 = result;
  completion.submission_head = static_cast<u16>(submissions_[number].position);
  completion.submission_queue = static_cast<u16>(number);
  completion.command_id = entry.command_id;
  completion.status = static_cast<u16>(static_cast<u32>(status) << 1);
  put_completion(submissions_[number].other, completion, false);
  completed_count_.fetch_add(1);
}

// The word with the phase comes last.
void EmulatedController::put_completion(u32 number, const CompletionEntry& entry, bool keeps_phase) {
  Queue& queue = completions_[number];
  u8* const place = bus_.at(queue.bus_address + u64{queue.position} * 16, 16);
  if (place == nullptr) {
    csts_ |= csts_fatal;
    return;
  }
  CompletionEntry with_phase = entry;
  const u32 phase = keeps_phase ? queue.phase ^ 1u : queue.phase;
  with_phase.status = static_cast<u16>((entry.status & ~1u) | phase);
  u32 words[4];
  std::memcpy(words, &with_phase, sizeof(words));
  u32* const target = reinterpret_cast<u32*>(place);
  for (u32 i = 0; i < 3; ++i) __atomic_store_n(&target[i], words[i], __ATOMIC_RELAXED);
  __atomic_store_n(&target[3], words[3], __ATOMIC_RELEASE);
  queue.position = (queue.position + 1) % queue.depth;
  if (queue.position == 0) queue.phase ^= 1;
}

void EmulatedController::misbehave(Misbehaviour how, const Pending& done) {
  const u32 depth = submissions_[done.queue].depth;
  CompletionEntry entry{};
  entry.submission_head = static_cast<u16>(submissions_[done.queue].position);
  entry.submission_queue = static_cast<u16>(done.queue);
  entry.command_id = done.entry.command_id;
  switch (how) {
    case Misbehaviour::unknown_id:
      entry.command_id = static_cast<u16>(entry.command_id ^ (1u << random_() % 16));
      break;
    case Misbehaviour::twice:
      put_completion(submissions_[done.queue].other, entry, false);
      break;
    case Misbehaviour::impossible_head:
      entry.submission_head = static_cast<u16>(depth + random_() % 100);
      break;
    case Misbehaviour::head_beyond_tail:
      entry.submission_head = static_cast<u16>((doorbell_value(done.queue, false) + 1) % depth);
      break;
    case Misbehaviour::wrong_queue:
      entry.submission_queue = static_cast<u16>(done.queue + 1);
      break;
    case Misbehaviour::random_entry:
      for (u32 i = 0; i < sizeof(entry); ++i) reinterpret_cast<u8*>(&entry)[i] = static_cast<u8>(random_());
      break;
    case Misbehaviour::silence:
      silent_.push_back(done);
      return;
    case Misbehaviour::fatal:
      csts_ |= csts_fatal;
      return;
    case Misbehaviour::vanishes:
      is_gone_ = true;
      return;
    default:
      break;
  }
  put_completion(submissions_[done.queue].other, entry, how == Misbehaviour::wrong_phase);
}

}  // namespace gpu4fs::nvme
