// Emulated NVMe drives as media of a pool's devices, with the threads that serve them. Host only.
//
// The engine puts commands into virtual queues (device/drives/drive_types.hpp). Threads of this process are the
// controllers: they carry the commands out on the files, and complete them when a drive of the profile would. They run
// beside either engine; with a GPU, queues and frames lie in pinned memory.
//
// Threads that find nothing to do sleep, unless kernels produce. The end of the object waits until nothing is shown to
// a drive any more; nobody submits meanwhile.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
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

namespace gpu4fs::session {

struct EmulatedDriveOptions {
  std::string name = "unlimited";  // of the profile, for people
  nvme::DriveProfile profile = nvme::profile_unlimited;
  u32 queue_count = 3;  // of each drive; the last one is of pages that are written behind
  u32 queue_depth = 256;
  u64 command_timeout_ns = device::drive_timeout_ns;
  u32 order_seed = 0;  // other than 0: completions come in random order
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
};

struct ServedIoQueue {
  device::IoQueue* queue;  // engine memory
  u32 slot_count;
};

class EmulatedDrives {
 public:
  // Gives the queue a set of drives. There is room for the drives of `device_count` devices and a few more.
  EmulatedDrives(const DriveMemorySource& memory, const ServedIoQueue& queue, u32 device_count,
                 EmulatedDriveOptions options);
  ~EmulatedDrives();
  EmulatedDrives(const EmulatedDrives&) = delete;
  EmulatedDrives& operator=(const EmulatedDrives&) = delete;

  // The device gets a new drive, whose medium this is; it outlives the object. Nothing is in flight for the drive
  // before. If there is no room for another one, all requests of the device end as device_failed.
  void connect(u32 device, const block::BlockMedium& medium);

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
  struct Connected {
    std::unique_ptr<Medium> medium;
    std::unique_ptr<nvme::ServedDrive> drive;
    device::DriveSignal* signal;
  };

  std::unique_ptr<Connected> serve_by(u32 device, const block::BlockMedium& medium, const device::BuiltDrive& built);
  void publish(u32 device, device::Drive* drive);
  bool serve_once(u32 thread);
  bool is_idle(u32 thread) const;
  void answer_failure(Connected& connected);
  void announce();
  void sleep(u32 thread);
  void wake_others(u32 thread);

  EngineAllocator& allocator_;
  bool is_host_;
  EmulatedDriveOptions options_;
  device::DriveSet* set_ = nullptr;  // engine memory
  u64 connected_ = 0;                // as in the set
  std::vector<device::BuiltDrive> spare_;
  std::vector<std::unique_ptr<Connected>> all_;
  std::array<std::atomic<Connected*>, device_count_max> by_device_{};
  device::IoQueueShared* shared_ = nullptr;
  std::atomic<block::Controller*> backend_{nullptr};
  EngineWatch watch_;
  u32 thread_count_ = 1;
  std::atomic<bool> is_stopping_{false};
};

}  // namespace gpu4fs::session
