// The media of devices that are not mapped, with the threads that read and write them. Host only.
//
// The engine puts requests into an I/O queue (device/queue/io_queue_types.hpp), which a controller serves. Or each
// medium is behind a drive (session/emulated_drives.hpp), and the engine sends commands.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/host/engine_allocator.hpp"
#include "base/types.hpp"
#include "block/block_medium.hpp"
#include "block/controller.hpp"
#include "device/memory/mapped_file.hpp"
#include "device/queue/io_consumer.hpp"
#include "device/queue/io_queue_build.hpp"
#include "session/emulated_drives.hpp"

namespace gpu4fs::session {

class DirectMedia {
 public:
  using Medium = block::BlockMedium;

  static constexpr u32 slot_count = 8192;  // of the queue

  // `memory`: of the queue, device::io_queue_shared_bytes(slot_count); it outlives the object.
  DirectMedia(EngineAllocator& allocator, device::IoQueueMemory memory, bool producer_can_wake);
  DirectMedia(const DirectMedia&) = delete;
  DirectMedia& operator=(const DirectMedia&) = delete;

  // Before the first medium: all media will be behind drives of this kind. `shared`: memory that threads of the host
  // access too; `device_count`: how many there are now; `bus`: of `shared`, if some devices are drives on the bus.
  void use_drives(EngineAllocator& allocator, EngineAllocator& shared, u32 device_count, EmulatedDriveOptions options,
                  const nvme::EngineMemory* bus = nullptr);

  // Why a drive on the bus at `path` cannot become a device if has_bus() is false.
  static std::string no_bus_text(const std::string& path);
  // DeviceError: the file is a drive on the bus, and `media` (null: none) cannot use it.
  static void refuse_drive(const device::MappedFile& file, const DirectMedia* media);

  // Whether a controller accesses the medium. `everywhere`: files on tmpfs too. hugetlbfs has no calls that write, and
  // anonymous memory has no file.
  static bool serves(const device::MappedFile& file, bool everywhere);

  // Unmaps the file, which becomes the medium of a device that nobody accesses yet. All descriptors of the same open
  // file access it directly afterwards (pool::DeviceFile::leave_locked_file()). DeviceError: see prepare().
  void set(u32 device, device::MappedFile& file) { install(device, prepare(device, file)); }
  // Unmaps the file and opens it as a medium. DeviceError: it cannot be opened.
  static std::unique_ptr<Medium> open(device::MappedFile& file);

  // What a device gets, and does not use yet. It does not outlive the object.
  struct Prepared {
    std::unique_ptr<Medium> medium;  // null: the device keeps its own
    EmulatedDrives::FreeBay drive;   // if media are behind drives
  };
  // As open(). DeviceError too: no drive is left.
  Prepared prepare(u32 device, device::MappedFile& file);
  // If the device's drive has failed: another one with the same medium. DeviceError: none is left.
  std::optional<Prepared> prepare_renewal(u32 device);
  // DeviceError if no drive is left for the device at `path`.
  void require_room(const std::string& path) const;
  // The device gets it. Nothing is in flight for the medium before (await_quiet()), which stays open.
  void install(u32 device, Prepared prepared);

  // The device has left the pool: its medium and its drive are released, so that its disk can be taken away. Returns ""
  // or why the medium stays open: something was still in flight after this time, or io_uring does not release it.
  std::string close(u32 device, u64 timeout_ms);
  // Waits until nothing is in flight for a device for which no step begins requests any more: it is lost. False: after
  // this time something still is.
  bool await_quiet(u32 device, u64 timeout_ms) const;

  // Once, when media have been set. `memory`: of most requests. `watch.wake`: see block::ControllerOptions::on_reports.
  // DeviceError.
  void start(std::vector<block::MemoryRange> memory, EngineWatch watch);

  // Waits until nothing is in flight; requests that are submitted later are not carried out. Any thread.
  void stop() {
    if (controller_ != nullptr) controller_->stop();
  }

  // Whether a kernel produces, which cannot wake anybody: then a thread looks for requests all the time. Any thread.
  void set_must_poll(bool must_poll) { device::set_must_poll(*shared_, must_poll); }

  // See block::Controller; false also for devices that are mapped. Any thread.
  bool can_discard(u32 device) const { return controller_->can_discard(device); }
  block::Controller::Discarded discard(u32 device, u64 offset, u64 length) {
    return controller_->discard(device, offset, length);
  }

  device::IoQueue* queue() { return queue_; }  // engine memory
  // What serves the queue: one line for people.
  std::string describe() const { return controller_->describe() + remarks_; }
  bool has_drives() const { return drives_ != nullptr; }
  // Whether devices can be drives on the bus.
  bool has_bus() const { return has_bus_; }
  block::IoStatistics statistics() const { return controller_->statistics(); }
  // CPU time of the threads that serve the queue.
  double cpu_seconds() const { return controller_->cpu_seconds(); }
  // Of a device: what failed first, or "".
  std::string first_error(u32 device) const { return controller_->first_error(device); }

 private:
  bool may_be_pending(u32 device) const;

  device::IoQueue* queue_;
  device::IoQueueShared* shared_;
  EngineAllocator& allocator_;
  const device::IoSlot* private_slots_ = nullptr;  // engine memory; null: the slots are the host's
  bool producer_can_wake_;
  bool has_bus_ = false;
  std::vector<std::unique_ptr<block::BlockMedium>> media_;    // by device, null: it is mapped
  std::vector<std::unique_ptr<block::BlockMedium>> retired_;  // of devices that were replaced
  std::unique_ptr<EmulatedDrives> drives_;                    // null: the controller serves the queue
  std::unique_ptr<block::Controller> controller_;
  std::string remarks_;  // as of the start
};

}  // namespace gpu4fs::session
