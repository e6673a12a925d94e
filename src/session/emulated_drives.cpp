#include "session/emulated_drives.hpp"

#include <linux/magic.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "base/access.hpp"
#include "base/atomics.hpp"
#include "base/check.hpp"
#include "base/copy.hpp"
#include "base/group.hpp"
#include "base/mutant.hpp"
#include "base/racy_access.hpp"
#include "device/drives/drive_commands.hpp"
#include "device/drives/drive_requests.hpp"
#include "device/medium_file.hpp"
#include "device/nvme/drive/io_commands.hpp"
#include "device/queue/io_consumer.hpp"
#include "fmt/format.h"

namespace gpu4fs::session {

namespace {

using nvme::StatusCode;

constexpr u32 block_bytes = 4096;
static_assert(block_bytes == page_size);
constexpr u32 processors_per_thread = 4;
// Looks of a thread that finds nothing, before it sleeps. It yields in between.
constexpr u32 short_looks = 64;
// A sleeping thread looks after the engine this often while something is in flight.
constexpr int watch_ms = 50;
// Looks for completions of drives on the bus, whose commands take longer.
constexpr std::chrono::microseconds bus_look_interval{20};

StatusCode code_of(Status status) {
  switch (status) {
    case Status::ok:
      return StatusCode::success;
    case Status::medium_error:
      return StatusCode::unrecovered_read_error;
    case Status::out_of_range:
      return StatusCode::lba_out_of_range;
    case Status::not_supported:
      return StatusCode::invalid_opcode;
    case Status::read_only:
      return StatusCode::access_denied;
    case Status::device_failed:
      return StatusCode::namespace_not_ready;
    default:
      return StatusCode::internal_error;
  }
}

bool is_memory(const block::BlockMedium& medium) {
  struct statfs state {};
  return ::fstatfs(medium.descriptor(), &state) == 0 && state.f_type == TMPFS_MAGIC;
}

// One large piece of memory in parts. What is allocated here is as large as the drives need it.
class Pieces final : public EngineAllocator {
 public:
  Pieces(EngineAllocator& from, u64 bytes) : from_(from) {
    next_ = static_cast<u8*>(from.allocate(bytes, page_size));
    end_ = next_ + bytes;
  }
  void* allocate(u64 bytes, u64 /*alignment*/) override {
    const u64 length = align_up(bytes, page_size);
    GPU4FS_CHECK_LE(length, static_cast<u64>(end_ - next_));
    u8* const piece = next_;
    next_ += length;
    return piece;
  }
  void copy_in(void* destination, const void* source, u64 bytes) override { from_.copy_in(destination, source, bytes); }
  void zero(void* destination, u64 bytes) override { from_.zero(destination, bytes); }

 private:
  EngineAllocator& from_;
  u8* next_;
  u8* end_;
};

u64 shared_bytes_of_drive(const EmulatedDriveOptions& options) {
  const u64 submissions = align_up(u64{options.queue_depth} * sizeof(nvme::SubmissionEntry), page_size);
  const u64 completions = align_up(u64{options.queue_depth} * sizeof(nvme::CompletionEntry), page_size);
  return page_size + options.queue_count * (submissions + completions + page_size);
}

}  // namespace

// Carries out commands: a drive for device/nvme/drive/io_commands.hpp. One thread.
struct EmulatedDrives::Medium {
  // The engine's addresses are the bus addresses, or differ by this from them.
  struct Bus {
    u64 offset;
    u8* at(u64 bus_address, u64 /*bytes*/) const { return reinterpret_cast<u8*>(bus_address - offset); }
  };

  Medium(std::atomic<block::Controller*>& backend, u32 device, const block::BlockMedium& medium, u64 bus_offset)
      : backend_(backend), bus_{bus_offset}, device_(device), block_count_(medium.size_bytes() / block_bytes) {
    limits_.has_zeroes = true;
    limits_.has_deallocate = medium.can_discard();
    // Files on disk and disks are accessed by calls: a page that cannot be read is an error then, and not a signal.
    if (!is_memory(medium) || medium.read_only() || medium.stack() != nullptr) return;
    void* const mapped =
        ::mmap(nullptr, medium.size_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, medium.descriptor(), 0);
    if (mapped == MAP_FAILED) return;
    base_ = static_cast<u8*>(mapped);
    length_ = medium.size_bytes();
  }
  Medium(const Medium&) = delete;
  Medium& operator=(const Medium&) = delete;
  ~Medium() {
    if (base_ != nullptr) ::munmap(base_, length_);
  }

  const nvme::IoLimits& limits() const { return limits_; }
  Bus bus() const { return bus_; }
  bool find(u32 id, nvme::DriveNamespace& space) const {
    space = {1, block_bytes, block_count_};
    return id == 1;
  }
  template <class Group>
  void read(Group g, u32, u64 offset, u8* memory, u64 bytes) {
    if (base_ != nullptr) return copy_bytes(g, memory, base_ + offset, bytes);
    call(device::IoOperation::read, offset, bytes, memory);
  }
  // Somebody may be storing into the pages (device/staged/medium_io.hpp).
  template <class Group>
  void write(Group g, u32, u64 offset, u8* memory, u64 bytes, bool /*is_durable*/) {
    if (base_ == nullptr) return call(device::IoOperation::write, offset, bytes, memory);
    for (u64 at = 0; at < bytes; at += page_size) (void)load_racy_page(g, memory + at, base_ + offset + at);
  }
  template <class Group>
  void write_zeroes(Group, u32, u64 offset, u64 bytes) {
    call(is_deallocation_ ? device::IoOperation::discard : device::IoOperation::write_zeroes, offset, bytes, nullptr);
  }
  template <class Group>
  void flush(Group, u32) {
    call(device::IoOperation::flush, 0, 0, nullptr);
  }
  void complain(nvme::DriveComplaint) {}

  StatusCode carry_out(const nvme::SubmissionEntry& entry) {
    status_ = Status::ok;
    is_deallocation_ = entry.opcode == static_cast<u8>(nvme::IoOpcode::dataset_management);
    const StatusCode code = nvme::carry_out(Lane{}, *this, entry);
    return code == StatusCode::success ? code_of(status_) : code;
  }

 private:
  void call(device::IoOperation operation, u64 offset, u64 bytes, u8* memory) {
    if (status_ != Status::ok) return;
    block::Controller* const backend = backend_.load(std::memory_order_acquire);
    const device::IoRequest request{operation, device_, offset, static_cast<u32>(bytes), 0, memory};
    status_ = backend != nullptr ? backend->carry_out_now(request) : Status::device_failed;
  }

  std::atomic<block::Controller*>& backend_;
  Bus bus_;
  u32 device_;
  u64 block_count_;
  nvme::IoLimits limits_{};
  u8* base_ = nullptr;
  u64 length_ = 0;
  Status status_ = Status::ok;
  bool is_deallocation_ = false;
};

struct EmulatedDrives::Bay {
  device::BuiltDrive built;
  std::unique_ptr<nvme::ServedDrive> drive;
  std::unique_ptr<Medium> medium;  // null: no device has the drive
  // A drive on the bus in place of the emulated one, which is not used then.
  std::shared_ptr<nvme::HeldDrive> held;
  nvme::NamespaceInfo space;
  bool read_only = false;
  bool is_attached = false;
  u64 seen_late = 0;  // of whoever serves it: the word of the signal that was answered
  u64 life = 0;       // of `held`, whose queues the engine knows
  // What the engine knows of later lives. It is on the host.
  struct Life {
    device::DriveSignal signal;
    device::Drive drive;
  };
  std::vector<std::unique_ptr<Life>> lives;
  std::atomic<u64> next_look_ns{0};
};

bool choose_drives(const std::string& text, EmulatedDriveOptions* options) {
  const std::optional<nvme::DriveProfile> profile = nvme::find_profile(text);
  if (!profile) return false;
  options->name = text;
  options->profile = *profile;
  return true;
}

const char* emulated_drive_names() {
  return nvme::profile_names;
}

EmulatedDrives::EmulatedDrives(const DriveMemorySource& memory, const ServedIoQueue& queue, u32 device_count,
                               EmulatedDriveOptions options)
    : allocator_(memory.allocator), is_host_(memory.is_host), options_(std::move(options)), queue_(queue.queue) {
  if (memory.bus != nullptr) bus_ = *memory.bus;
  const u32 processors = std::max(1u, std::thread::hardware_concurrency());
  thread_count_ = std::min(
      {std::max(1u, processors / processors_per_thread), std::max(1u, device_count), u32{device::io_consumer_max}});
  const u32 drive_count = device_count + options_.spare_count;
  Pieces pieces(memory.shared, shared_bytes(device_count, options_));
  device::DriveSetup setup;
  setup.has_zeroes = true;
  setup.command_timeout_ns = options_.command_timeout_ns;
  setup.can_abort = options_.answers_aborts;
  for (u32 i = 0; i < drive_count; ++i) {
    auto bay = std::make_unique<Bay>();
    bay->built = device::build_drive(allocator_, pieces, setup, options_.queue_count, options_.queue_depth);
    std::vector<nvme::ServedQueue> queues;
    for (const device::DriveQueueEntries& entries : bay->built.entries) {
      queues.push_back({entries.submissions, entries.completions, entries.submission_doorbell,
                        entries.completion_doorbell, options_.queue_depth, static_cast<u16>(queues.size() + 1)});
    }
    bay->drive = std::make_unique<nvme::ServedDrive>(queues, options_.profile, nullptr, options_.order_seed);
    free_.push_back(bay.get());
    bays_.push_back(std::move(bay));
  }
  // Everything that the engine names has a bus address; frames and pages of workers are what it names.
  device::DriveMemory reached{nullptr, ~u64{0}, 0};
  if (bus_) reached = {bus_->pages, bus_->bytes, bus_->bus_address};
  device::DriveSet image = device::drive_set_image(memory.shared, queue.slot_count, {reached});
  image.lists_bus_address =
      device::detail::bus_address_of(image, image.lists, queue.slot_count * device::drive_list_bytes);
  void* const place = allocator_.allocate(sizeof(device::DriveSet), cache_line);
  allocator_.copy_in(place, &image, sizeof(image));
  set_ = static_cast<device::DriveSet*>(place);
  allocator_.copy_in(&queue.queue->drives, &set_, sizeof(set_));
}

// Drives on the bus reach no memory of the engine any more when it is given back.
EmulatedDrives::~EmulatedDrives() {
  for (const auto& bay : bays_) {
    if (bay->is_attached) bay->held->detach(*bus_);
  }
}

u64 EmulatedDrives::shared_bytes(u32 device_count, const EmulatedDriveOptions& options) {
  return u64{device_count + options.spare_count} * shared_bytes_of_drive(options);
}

void EmulatedDrives::publish(u32 device, device::Drive* drive) {
  connected_ |= u64{1} << device;
  if (is_host_) {
    store<Order::release, Scope::engine>(&set_->drives[device], drive);
    store<Order::release, Scope::engine>(&set_->connected, connected_);
  } else {
    allocator_.copy_in(&set_->drives[device], &drive, sizeof(drive));
    allocator_.copy_in(&set_->connected, &connected_, sizeof(connected_));
  }
}

void EmulatedDrives::require_one(const std::string& path) const {
  const std::lock_guard guard(free_mutex_);
  if (!free_.empty()) return;
  device::fail_medium(
      path,
      fmt::format("there is no emulated drive left for it: this mount has {}; mount the pool again", bays_.size()), 0);
}

EmulatedDrives::FreeBay EmulatedDrives::take(u32 device, const block::BlockMedium& medium) {
  GPU4FS_CHECK_LT(device, device_count_max);
  const u64 bus_offset = bus_ ? bus_->bus_address - reinterpret_cast<u64>(bus_->pages) : 0;
  auto carried = medium.drive() == nullptr ? std::make_unique<Medium>(backend_, device, medium, bus_offset) : nullptr;
  FreeBay bay(nullptr, GiveBack{this});
  while (bay == nullptr) {
    require_one(medium.path());
    const std::lock_guard guard(free_mutex_);
    if (free_.empty()) continue;
    bay.reset(free_.back());
    free_.pop_back();
  }
  if (carried == nullptr) {
    attach(*bay, medium);
    return bay;
  }
  // Nobody uses the drive before the engine knows it.
  device::Drive* const drive = bay->built.drive;
  const u64 block_count = medium.size_bytes() / block_bytes;
  const u32 has_deallocate = medium.can_discard() ? 1 : 0;
  allocator_.copy_in(&drive->block_count, &block_count, sizeof(block_count));
  allocator_.copy_in(&drive->has_deallocate, &has_deallocate, sizeof(has_deallocate));
  bay->drive->set_carry_out(
      [this, device, carried = carried.get()](const nvme::SubmissionEntry& entry) -> std::optional<StatusCode> {
        if (options_.is_lost && options_.is_lost(device, entry)) return std::nullopt;
        return carried->carry_out(entry);
      });
  bay->medium = std::move(carried);
  return bay;
}

void EmulatedDrives::attach(Bay& bay, const block::BlockMedium& medium) {
  const auto* const space = dynamic_cast<const nvme::HeldNamespace*>(medium.drive().get());
  if (space == nullptr || !bus_) {
    device::fail_medium(medium.path(), "this mount has no drives that gpu4fs drives itself, and cannot get one", 0);
  }
  try {
    space->drive()->attach(*bus_);
  } catch (const std::runtime_error& error) {
    device::fail_medium(medium.path(), error.what(), 0);
  }
  bay.held = space->drive();
  bay.space = space->info();
  bay.read_only = medium.read_only();
  bay.is_attached = true;
}

// The engine does not know the drive yet.
void EmulatedDrives::place_on_bus(Bay& bay) {
  nvme::Controller& controller = bay.held->controller();
  device::DriveSetup setup;
  setup.block_count = bay.space.block_count;
  setup.namespace_id = bay.space.id;
  setup.block_bytes = bay.space.block_bytes;
  setup.transfer_bytes_max = controller.info().transfer_bytes_max;
  setup.has_zeroes = controller.info().has_write_zeroes;
  setup.has_deallocate = controller.info().has_dataset_management;
  setup.read_only = bay.read_only;
  setup.command_timeout_ns = options_.command_timeout_ns;
  setup.can_abort = true;
  device::Drive image = device::drive_image(setup);
  bay.life = bay.held->life();
  image.controller = &controller.state();
  image.signal = bay.built.signal;
  image.queue_count = std::min(bay.held->engine_queue_count(), device::drive_queue_max);
  for (u32 i = 0; i < image.queue_count; ++i) image.queues[i] = &bay.held->engine_queue(i);
  allocator_.copy_in(bay.built.drive, &image, sizeof(image));
}

void EmulatedDrives::give_back(Bay* bay) noexcept {
  if (bay->is_attached) bay->held->detach(*bus_);
  bay->is_attached = false;
  // Threads look whether there is one, while a device has the bay.
  if (bay->held != nullptr) bay->held.reset();
  bay->drive->set_carry_out(nullptr);
  if (GPU4FS_MUTANT(drive_medium_kept, true, false)) bay->medium.reset();
  const std::lock_guard guard(free_mutex_);
  free_.push_back(bay);  // there is room for all
}

void EmulatedDrives::connect(u32 device, FreeBay bay) {
  GPU4FS_CHECK_LT(device, device_count_max);
  GPU4FS_CHECK(bay != nullptr && by_device_[device].load(std::memory_order_relaxed) == nullptr);
  Bay* const connected = bay.release();
  if (connected->held != nullptr) place_on_bus(*connected);
  by_device_[device].store(connected, std::memory_order_release);
  publish(device, connected->built.drive);
}

void EmulatedDrives::disconnect(u32 device) {
  GPU4FS_CHECK_LT(device, device_count_max);
  Bay* const bay = by_device_[device].load(std::memory_order_relaxed);
  if (bay == nullptr) return;
  const bool failed = has_failed(device);
  publish(device, nullptr);
  by_device_[device].store(nullptr, std::memory_order_release);
  if (bay->held != nullptr) {
    // Its queues stay, because somebody may be looking at them.
    bay->is_attached = false;
    bay->held->detach(*bus_);
    return bay->held->give_up_if_unused();
  }
  if (!failed) return give_back(bay);
  // It never works again.
  bay->drive->stop();
  bay->drive->set_carry_out(nullptr);
  bay->medium.reset();
}

bool EmulatedDrives::has_failed(u32 device) const {
  const Bay* const bay = by_device_[device].load(std::memory_order_acquire);
  if (bay == nullptr) return false;
  if (bay->held != nullptr) return bay->held->failure() != nvme::Failure::none;
  return load<Order::acquire, Scope::system>(&bay->built.signal->failure) != 0;
}

void EmulatedDrives::start(device::IoQueueShared& shared, block::Controller& backend, EngineWatch watch) {
  shared_ = &shared;
  watch_ = std::move(watch);
  backend_.store(&backend, std::memory_order_release);
  if (!is_host_ || !watch_.wake) return;
  set_->context = &watch_;
  set_->on_reports = [](void* context) { static_cast<EngineWatch*>(context)->wake(); };
}

std::string EmulatedDrives::describe() const {
  if (bus_) {
    return fmt::format("NVMe drives driven by this engine, watched by {} host thread{}", thread_count(),
                       thread_count() == 1 ? "" : "s");
  }
  return fmt::format("emulated NVMe drives ({}), {} queues of {} each, served by {} host thread{}", options_.name,
                     options_.queue_count, options_.queue_depth, thread_count(), thread_count() == 1 ? "" : "s");
}

void EmulatedDrives::announce() {
  device::announce_completions(*shared_);
  if (watch_.wake) watch_.wake();
}

// The engine waits too long for a command. If the drive ends it, the engine repeats the request.
void EmulatedDrives::abort_late(Bay& bay) {
  const u64 word = load<Order::acquire, Scope::system>(&bay.built.signal->late);
  if (word == bay.seen_late) return;
  bay.seen_late = word;
  const device::LateCommand late = device::LateCommand::of(word);
  if (bay.held != nullptr) {
    bay.held->abort(late.queue, late.command_id);
  } else if (options_.answers_aborts) {
    (void)bay.drive->abort(late.queue, late.command_id);
  }
}

// The engine gave the drive up: it gets its memory back.
void EmulatedDrives::answer_failure(Bay& bay) {
  device::DriveSignal& signal = *bay.built.signal;
  if (load<Order::acquire, Scope::system>(&signal.failure) == 0) return;
  if (load<Order::relaxed, Scope::system>(&signal.is_quiet) != 0) return;
  bay.drive->stop();
  store<Order::release, Scope::system>(&signal.is_quiet, 1u);
  announce();
}

// A drive that may return is reset. The engine repeats what it had asked for.
void EmulatedDrives::answer_failure_on_bus(u32 device, Bay& bay) {
  device::DriveSignal& signal = *bay.built.signal;
  if (load<Order::relaxed, Scope::system>(&signal.is_quiet) != 0) return;
  if (bay.held->life() != bay.life) return begin_next_life(device, bay);
  const nvme::Failure failure = bay.held->failure();
  if (failure == nvme::Failure::none) return;
  if (bay.held->renew(bay.life)) return begin_next_life(device, bay);
  store<Order::relaxed, Scope::system>(&signal.failure, static_cast<u32>(failure));
  bay.held->give_up();
  store<Order::release, Scope::system>(&signal.is_quiet, 1u);
  announce();
}

// Lanes may be reading the drive that they know, so it stays as it is.
void EmulatedDrives::begin_next_life(u32 device, Bay& bay) {
  device::Drive* before = bay.built.drive;
  bay.lives.push_back(std::make_unique<Bay::Life>());
  Bay::Life& life = *bay.lives.back();
  bay.built.drive = &life.drive;
  bay.built.signal = &life.signal;
  bay.seen_late = 0;
  place_on_bus(bay);
  // The specification says that a reset keeps the cache, but not every controller is known to.
  life.drive.loses_next_flush = bay.held->controller().info().has_write_cache ? 1 : 0;
  // Unless the device has lost its drive meanwhile.
  (void)compare_exchange<Order::release, Scope::engine>(&set_->drives[device], before, bay.built.drive);
  end_left_commands(bay);
}

// Somebody may have submitted the last one when the drive was quiet already.
void EmulatedDrives::end_left_commands(Bay& bay) {
  u32 count = 0;
  bay.held->session().for_each_former([&](nvme::VirtualQueue& queue) {
    count += GPU4FS_MUTANT(left_commands_forgotten, device::end_left_commands(*queue_, queue), 0u);
  });
  if (count != 0) announce();
}

void EmulatedDrives::look_after(Bay& bay) {
  const u64 now_ns = now_monotonic_ns();
  if (now_ns < bay.next_look_ns.load(std::memory_order_relaxed)) return;
  bay.next_look_ns.store(now_ns + watch_ms * u64{1000000}, std::memory_order_relaxed);
  bay.held->look();
  end_left_commands(bay);
}

// True: completions were taken.
bool EmulatedDrives::serve_on_bus(u32 device, Bay& bay) {
  const bool found = bay.held->has_engine_commands() && device::poll_drives(Lane{}, *queue_, true) != 0;
  look_after(bay);
  abort_late(bay);
  answer_failure_on_bus(device, bay);
  return found;
}

bool EmulatedDrives::serve_once(u32 thread) {
  bool found = false;
  const u32 step = thread_count_;
  for (u32 device = thread; device < device_count_max; device += step) {
    Bay* const bay = by_device_[device].load(std::memory_order_acquire);
    if (bay == nullptr) continue;
    if (bay->held != nullptr) {
      found |= serve_on_bus(device, *bay);
      continue;
    }
    const nvme::ServedDrive::Step done = bay->drive->step();
    found |= done.taken + done.completed != 0;
    if (done.completed != 0) announce();
    abort_late(*bay);
    answer_failure(*bay);
  }
  return found;
}

bool EmulatedDrives::is_idle(u32 thread) const {
  for (u32 device = thread; device < device_count_max; device += thread_count_) {
    const Bay* const bay = by_device_[device].load(std::memory_order_acquire);
    if (bay == nullptr) continue;
    if (bay->held != nullptr ? bay->held->has_engine_commands() : !bay->drive->is_idle()) return false;
  }
  return true;
}

// A doorbell wakes one thread, which may be another than the one that serves the drive.
void EmulatedDrives::wake_others(u32 thread) {
  for (u32 other = 0; other < thread_count_; ++other) {
    if (other != thread && !is_idle(other)) device::wake_consumer(*shared_, other);
  }
}

// Until a doorbell rings. While something is in flight, it also looks after the engine from time to time: workers that
// sleep do not notice that a drive is silent.
void EmulatedDrives::sleep(u32 thread) {
  if (!device::may_sleep(*shared_, thread)) return;
  if (!is_idle(thread) || is_stopping_.load(std::memory_order_acquire)) {
    device::end_sleep(*shared_, thread);
    // The doorbell may have meant it when it already slept, for a drive of another one.
    return wake_others(thread);
  }
  std::vector<pollfd> waited{{shared_->doorbells[thread], POLLIN, 0}};
  bool is_in_use = watch_.has_requests && watch_.has_requests();
  for (u32 device = thread; device < device_count_max; device += thread_count_) {
    const Bay* const bay = by_device_[device].load(std::memory_order_acquire);
    if (bay == nullptr) continue;
    is_in_use |= bay->held != nullptr ? bay->held->has_engine_commands() : bay->drive->is_in_use();
    // The system wants to take it away.
    if (bay->held != nullptr && !bay->held->is_given_up())
      waited.push_back({bay->held->access().removal_descriptor(), POLLIN, 0});
  }
  const int woken = ::poll(waited.data(), waited.size(), is_in_use ? watch_ms : -1);
  device::end_sleep(*shared_, thread);
  u64 count = 0;
  if (waited[0].revents != 0) (void)!::read(shared_->doorbells[thread], &count, sizeof(count));
  if (woken > 0) wake_others(thread);
  if (woken == 0) announce();
}

void EmulatedDrives::serve(u32 thread) {
  for (u32 looks = 0;;) {
    if (serve_once(thread)) {
      looks = 0;
      continue;
    }
    if (!is_idle(thread)) {
      // Nobody waits for this thread if drives on the bus have work, but workers that sleep.
      if (bus_) {
        std::this_thread::sleep_for(bus_look_interval);
      } else {
        backoff(1000);
      }
      continue;
    }
    if (is_stopping_.load(std::memory_order_acquire)) return;
    if (++looks < short_looks) {
      backoff(1000);
    } else {
      looks = 0;
      sleep(thread);
    }
  }
}

}  // namespace gpu4fs::session
