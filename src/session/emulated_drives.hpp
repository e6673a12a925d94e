// NVMe drives as media of a pool's devices, with the threads that serve them: emulated ones, and drives on the bus that
// this process drives itself. Host only.
//
// The engine puts commands into virtual queues (device/drives/drive_types.hpp). Threads of this process are the
// controllers: they carry the commands out on the files, and complete them when a drive of the profile would. They run
// beside either engine; with a GPU, queues and frames lie in pinned memory.
//
// A drive on the bus (nvme/held_drive.hpp) has its own queues, and nobody serves it. The threads take its completions
// while commands are in flight, since the engine's workers may sleep, and look whether it is still there. It reaches
// the memory of `shared` while a device has it; a failed one is given up. Only with an engine on the host.
//
// Threads that find nothing to do sleep, unless kernels produce. The end of the object waits until nothing is shown to
// a drive any more; nobody submits meanwhile.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/host/engine_allocator.hpp"
#include "base/limits.hpp"
#include "base/types.hpp"
#include "block/block_medium.hpp"
#include "block/controller.hpp"
#include "device/drives/drive_build.hpp"
#include "device/drives/drive_types.hpp"
#include "device/queue/io_queue_types.hpp"
#include "nvme/emulated/profile.hpp"
#include "nvme/emulated/served_drive.hpp"
#include "nvme/held_drive.hpp"

namespace gpu4fs::session {

struct EmulatedDriveOptions {
  std::string name = "unlimited";  // of the profile, for people
  nvme::DriveProfile profile = nvme::profile_unlimited;
  u32 queue_count = 4;  // of each drive (device::urgent_queue)
  u32 queue_depth = 256;
  u64 command_timeout_ns = device::drive_timeout_ns;
  u32 spare_count = 32;         // drives for devices that come later
  u32 order_seed = 0;           // other than 0: completions come in random order
  bool answers_aborts = false;  // of commands that it has lost
  // For tests: whether a command of the device is never answered.
  std::function<bool(u32 device, const nvme::SubmissionEntry& entry)> is_lost = nullptr;
};

// Sets name and profile. False: the text names none (nvme/emulated/profile.hpp).
bool choose_drives(const std::string& text, EmulatedDriveOptions* options);
// For messages.
const char* emulated_drive_names();

// What threads need from the engine.
struct EngineWatch {
  std::function<void()> wake;          // wakes a worker, if some sleep; null: none sleep
  std::function<bool()> has_requests;  // whether requests are in flight that nobody waits for; null: unknown
};

struct DriveMemorySource {
  EngineAllocator& allocator;  // of the engine
  EngineAllocator& shared;     // threads of the host access it too, at the same addresses
  bool is_host;                // the engine's memory is the host's
  // Of `shared` for drives on the bus; null: there are none.
  const nvme::EngineMemory* bus = nullptr;
};

struct ServedIoQueue {
  device::IoQueue* queue;  // engine memory
  u32 slot_count;
};

class EmulatedDrives {
 public:
  // A drive with what serves it.
  struct Bay;
  struct GiveBack {
    EmulatedDrives* drives;
    void operator()(Bay* bay) const noexcept { drives->give_back(bay); }
  };
  // Of no device yet.
  using FreeBay = std::unique_ptr<Bay, GiveBack>;

  // Gives the queue a set of drives: for `device_count` devices, and for some that come later.
  EmulatedDrives(const DriveMemorySource& memory, const ServedIoQueue& queue, u32 device_count,
                 EmulatedDriveOptions options);
  ~EmulatedDrives();
  EmulatedDrives(const EmulatedDrives&) = delete;
  EmulatedDrives& operator=(const EmulatedDrives&) = delete;

  // Bytes of `shared` that an object takes.
  static u64 shared_bytes(u32 device_count, const EmulatedDriveOptions& options);

  // A drive for the device, whose medium this is: that of the medium, or an emulated one. DeviceError: all drives are
  // taken, or that of the medium cannot be used. Any thread.
  FreeBay take(u32 device, const block::BlockMedium& medium);
  // DeviceError if take() would throw one. `path`: of the device, for the message. Any thread.
  void require_one(const std::string& path) const;
  // The device, which has no drive, gets this one.
  void connect(u32 device, FreeBay bay);
  // Nothing is in flight for the device, and afterwards nothing of its drive uses the medium. Requests for the device
  // end as device_failed. Another device may get the drive later, unless it has failed. Does nothing if there is none.
  void disconnect(u32 device);
  // Whether the engine has given the device's drive up. Any thread.
  bool has_failed(u32 device) const;

  // Once, when drives have been connected. Commands are carried out by calls of `backend`, which outlives the threads.
  void start(device::IoQueueShared& shared, block::Controller& backend, EngineWatch watch);
  // Of the threads that serve drives.
  u32 thread_count() const { return thread_count_; }
  // Called by the threads' owner: one of them serves its drives until the end.
  void serve(u32 thread);
  void begin_stop() { is_stopping_.store(true, std::memory_order_release); }

  std::string describe() const;

 private:
  struct Medium;

  void attach(Bay& bay, const block::BlockMedium& medium);
  void place_on_bus(Bay& bay);
  bool serve_on_bus(u32 device, Bay& bay);
  void look_after(Bay& bay);
  void answer_failure_on_bus(u32 device, Bay& bay);
  void begin_next_life(u32 device, Bay& bay);
  void end_left_commands(Bay& bay);
  void give_back(Bay* bay) noexcept;
  void publish(u32 device, device::Drive* drive);
  bool serve_once(u32 thread);
  bool is_idle(u32 thread) const;
  void answer_failure(Bay& bay);
  void abort_late(Bay& bay);
  void announce();
  void sleep(u32 thread);
  void wake_others(u32 thread);

  EngineAllocator& allocator_;
  bool is_host_;
  EmulatedDriveOptions options_;
  std::optional<nvme::EngineMemory> bus_;
  device::IoQueue* queue_;           // engine memory
  device::DriveSet* set_ = nullptr;  // engine memory
  u64 connected_ = 0;                // as in the set
  // Threads may look at a drive that a device had a moment ago, so all of them stay until the end.
  std::vector<std::unique_ptr<Bay>> bays_;
  mutable std::mutex free_mutex_;
  std::vector<Bay*> free_;
  std::array<std::atomic<Bay*>, device_count_max> by_device_{};
  device::IoQueueShared* shared_ = nullptr;
  std::atomic<block::Controller*> backend_{nullptr};
  EngineWatch watch_;
  u32 thread_count_ = 1;
  std::atomic<bool> is_stopping_{false};
};

}  // namespace gpu4fs::session
