#include "session/direct_media.hpp"

#include <fcntl.h>

#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "base/check.hpp"
#include "base/host/log.hpp"
#include "base/limits.hpp"
#include "fmt/format.h"
#include "session/drive_backend.hpp"

namespace gpu4fs::session {
namespace {

// Of the same open file, which has the lock and the claim. Requests keep the file open, so what a killed process has in
// flight keeps others away.
int duplicate(const device::MappedFile& file) {
  const int descriptor = ::fcntl(file.descriptor(), F_DUPFD_CLOEXEC, 3);
  if (descriptor < 0) device::fail_medium(file.path(), "cannot be opened for direct access", errno);
  return descriptor;
}

// Its file system has no direct accesses.
bool is_buffered(const block::BlockMedium* medium) {
  return medium != nullptr && !medium->is_direct() && medium->stack() == nullptr;
}

}  // namespace

DirectMedia::DirectMedia(EngineAllocator& allocator, device::IoQueueMemory memory, bool producer_can_wake)
    : queue_(device::build_io_queue(allocator, slot_count, memory, producer_can_wake)),
      shared_(static_cast<device::IoQueueShared*>(memory.host)),
      allocator_(allocator),
      producer_can_wake_(producer_can_wake),
      media_(device_count_max) {}

void DirectMedia::use_drives(EngineAllocator& allocator, EngineAllocator& shared, u32 device_count,
                             EmulatedDriveOptions options, const nvme::EngineMemory* bus) {
  GPU4FS_CHECK(drives_ == nullptr && controller_ == nullptr);
  has_bus_ = bus != nullptr;
  // A kernel's own memory. Threads of this process look at the slots where they are.
  if (!producer_can_wake_) private_slots_ = device::keep_slots_private(allocator, queue_, slot_count);
  drives_ = std::make_unique<EmulatedDrives>(DriveMemorySource{allocator, shared, producer_can_wake_, bus},
                                             ServedIoQueue{queue_, slot_count}, device_count, std::move(options));
}

std::string DirectMedia::no_bus_text(const std::string& path) {
  return fmt::format(
      "{}: gpu4fs drives it itself; a mounted pool takes such a device only if it has one already, and with the CPU "
      "engine ('gpu4fs nvme give-back' makes it a disk)",
      path);
}

void DirectMedia::refuse_drive(const device::MappedFile& file, const DirectMedia* media) {
  if (file.drive() == nullptr || (media != nullptr && media->has_bus())) return;
  throw device::DeviceError(no_bus_text(file.path()), 0);
}

bool DirectMedia::serves(const device::MappedFile& file, bool everywhere) {
  if (file.is_absent() || file.descriptor() < 0) return false;
  switch (file.medium()) {
    case device::MediumKind::file:
    case device::MediumKind::block:
    case device::MediumKind::drive:
      return true;
    case device::MediumKind::tmpfs:
      return everywhere;
    default:
      return false;
  }
}

std::unique_ptr<DirectMedia::Medium> DirectMedia::open(device::MappedFile& file) {
  GPU4FS_CHECK(serves(file, true));
  auto medium = std::make_unique<block::BlockMedium>(block::BlockMedium::adopt(
      duplicate(file), file.path(),
      {.read_only = file.read_only(), .lock = false, .stack = file.stack(), .drive = file.drive()}));
  file.unmap();
  return medium;
}

bool DirectMedia::may_be_pending(u32 device) const {
  if (private_slots_ == nullptr) return device::may_be_pending(*shared_, device);
  std::vector<device::IoSlot> copies(slot_count);
  if (!allocator_.copy_out(copies.data(), private_slots_, slot_count * sizeof(device::IoSlot))) return true;
  return device::may_be_pending(copies.data(), slot_count, device);
}

bool DirectMedia::await_quiet(u32 device, u64 timeout_ms) const {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  while (may_be_pending(device)) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

void DirectMedia::require_room(const std::string& path) const {
  if (drives_ != nullptr) drives_->require_one(path);
}

DirectMedia::Prepared DirectMedia::prepare(u32 device, device::MappedFile& file) {
  refuse_drive(file, this);
  Prepared prepared{open(file), {nullptr, {drives_.get()}}};
  if (drives_ != nullptr) prepared.drive = drives_->take(device, *prepared.medium);
  return prepared;
}

std::optional<DirectMedia::Prepared> DirectMedia::prepare_renewal(u32 device) {
  GPU4FS_CHECK_LT(device, media_.size());
  if (drives_ == nullptr || media_[device] == nullptr || !drives_->has_failed(device)) return std::nullopt;
  return Prepared{nullptr, drives_->take(device, *media_[device])};
}

void DirectMedia::install(u32 device, Prepared prepared) {
  GPU4FS_CHECK_LT(device, media_.size());
  retired_.reserve(retired_.size() + 1);
  if (is_buffered(prepared.medium.get()) && controller_ != nullptr) {
    log(LogLevel::warning,
        fmt::format("{}: no direct access; the kernel's page cache is used", prepared.medium->path()));
  }
  // The drive before carries out nothing on the new medium, and the engine knows the new one when it works.
  if (drives_ != nullptr) drives_->disconnect(device);
  if (prepared.medium != nullptr) {
    if (controller_ != nullptr) controller_->set_medium(device, prepared.medium.get());
    std::swap(media_[device], prepared.medium);
    if (prepared.medium != nullptr) retired_.push_back(std::move(prepared.medium));
  }
  if (drives_ != nullptr) drives_->connect(device, std::move(prepared.drive));
}

std::string DirectMedia::close(u32 device, u64 timeout_ms) {
  GPU4FS_CHECK_LT(device, media_.size());
  if (media_[device] == nullptr) return "";
  if (!await_quiet(device, timeout_ms)) return "requests to it do not end";
  retired_.reserve(retired_.size() + 1);
  if (drives_ != nullptr) drives_->disconnect(device);
  const bool is_released = controller_->forget_medium(device);
  media_[device]->close();
  retired_.push_back(std::move(media_[device]));
  return is_released ? "" : "io_uring does not release it";
}

void DirectMedia::start(std::vector<block::MemoryRange> memory, EngineWatch watch) {
  GPU4FS_CHECK(controller_ == nullptr);
  std::vector<const block::BlockMedium*> media;
  for (const auto& medium : media_) {
    media.push_back(medium.get());
    if (is_buffered(medium.get()))
      remarks_ += fmt::format("; through the page cache of the kernel: {}", medium->path());
  }
  if (drives_ != nullptr) {
    controller_ = std::make_unique<DriveBackend>(*shared_, media, *drives_, std::move(watch));
    return;
  }
  block::ControllerOptions options;
  options.memory = std::move(memory);
  options.on_reports = std::move(watch.wake);
  controller_ = block::start_controller(*shared_, media, std::move(options));
  if (!producer_can_wake_ || !controller_->carries_out_now()) return;
  // Producers are threads of this process, so the queue is in its memory.
  queue_->controller = controller_.get();
  queue_->carry_out = [](void* controller, const device::IoRequest& request) {
    return static_cast<block::Controller*>(controller)->carry_out_now(request);
  };
}

}  // namespace gpu4fs::session
