// Drives that this process has taken into use: one controller for all its namespaces, whoever opens them. Host only.
//
// Code of the host uses the first queue of the controller (nvme/block_io.hpp). The others are for an engine, whose
// memory the drive reaches while it is attached. A reset meanwhile begins another life of the drive, with other queues.
// A drive that is given up is quiet, reaches no memory, and is not this process's any more. Queues and registers of all
// lives stay where they are, because somebody may be looking at them.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "device/host_drive.hpp"
#include "nvme/block_io.hpp"
#include "nvme/controller.hpp"
#include "nvme/drive_access.hpp"

namespace gpu4fs::nvme {

// Memory of an engine, at the same bus address for all drives.
struct EngineMemory {
  u8* pages;
  u64 bytes;
  u64 bus_address;
};

class HeldDrive {
 public:
  // Brings the controller up. DriveOpenError.
  HeldDrive(std::string address, std::unique_ptr<DriveAccess> access);
  HeldDrive(const HeldDrive&) = delete;
  HeldDrive& operator=(const HeldDrive&) = delete;

  const std::string& address() const { return address_; }
  Controller& controller() { return controller_; }
  ControllerSession& session() { return session_; }
  DriveAccess& access() { return *access_; }

  // Of an engine. 0: the controller grants too few queues.
  u32 engine_queue_count() { return controller_.queue_count() - 1; }
  VirtualQueue& engine_queue(u32 index) { return controller_.queue(1 + index); }
  // Resets that have happened: the life whose queues engine_queue() names.
  u64 life() const { return session_.reset_count(); }
  // Ends life number `life`, which has failed, and begins the next one, unless somebody has. False: the drive stays
  // failed. Any thread.
  bool renew(u64 life);
  // Has the drive abort a command of a queue of the engine, and waits for its answer. Any thread.
  void abort(u32 index, u16 command_id) { session_.abort(engine_queue(index).queue_id, command_id); }
  // Whether a command of an engine has no outcome yet.
  bool has_engine_commands();

  // Each attach() has its detach(). Throws std::runtime_error, which does not name the drive. Any thread.
  void attach(const EngineMemory& memory);
  // The drive does not reach the memory when this returns, unless there were several. Nobody submits commands any more.
  // If some have no outcome, the drive is given up.
  void detach(const EngineMemory& memory);

  // Looks at the registers and for a wish of the system to take the drive away; the controller has failed if there is
  // something. Any thread.
  void look();
  Failure failure() { return failure_of(controller_.state()); }
  // The drive is quiet when this returns. A healthy one is shut down. Any thread.
  void give_up();
  // Unless an engine uses it.
  void give_up_if_unused();
  bool is_given_up() const { return load<Order::acquire, Scope::engine>(&is_given_up_) != 0; }

 private:
  std::string address_;
  std::unique_ptr<DriveAccess> access_;
  Controller controller_;
  ControllerSession session_;
  std::mutex mutex_;
  u32 attached_ = 0;
  u32 is_given_up_ = 0;  // atomic
};

// A namespace as a medium.
class HeldNamespace final : public device::HostDrive {
 public:
  // DriveOpenError. `name`: for messages.
  HeldNamespace(std::shared_ptr<HeldDrive> drive, u32 namespace_id, const std::string& name);
  ~HeldNamespace() override;
  HeldNamespace(const HeldNamespace&) = delete;
  HeldNamespace& operator=(const HeldNamespace&) = delete;

  const std::shared_ptr<HeldDrive>& drive() const { return drive_; }
  const NamespaceInfo& info() const { return io_.info(); }

  u64 size_bytes() const override { return align_down(io_.size_bytes(), u64{page_size}); }
  u32 block_bytes() const override { return io_.info().block_bytes; }
  bool can_discard() const override { return drive_->controller().info().has_dataset_management; }
  Status read(u64 offset, void* memory, u64 bytes) override;
  Status write(u64 offset, const void* memory, u64 bytes) override;
  Status discard(u64 offset, u64 bytes) override;
  Status write_zeroes(u64 offset, u64 bytes) override;
  Status flush() override { return io_.flush(); }
  int open_stand_in(bool read_only) const override;

 private:
  std::shared_ptr<HeldDrive> drive_;
  BlockIo io_;
  std::mutex partial_;  // of writes that read a block before
  int stand_in_ = -1;
};

// The namespace that a device name means (device/stack/stack_spec.hpp): the same object for all who have it now. Opens
// and resets the drive if nobody has it. DriveOpenError. Any thread.
std::shared_ptr<HeldNamespace> open_drive_namespace(const std::string& address, u32 namespace_id);

// How a drive at an address is opened; throws DriveOpenError. Returns the function before. The first one opens drives
// behind VFIO. For tests.
using DriveOpener = std::function<std::unique_ptr<DriveAccess>(const std::string& address)>;
DriveOpener exchange_drive_opener(DriveOpener opener);

}  // namespace gpu4fs::nvme
