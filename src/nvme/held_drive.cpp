#include "nvme/held_drive.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "base/access.hpp"
#include "base/mutant.hpp"
#include "nvme/vfio/vfio_drive.hpp"

namespace gpu4fs::nvme {
namespace {

// Of a drive: queues, and two buffers for each namespace that is open.
constexpr u64 own_memory_bytes = u64{16} << 20;
constexpr u32 buffer_count = 2;
// The first one is the host's, the others are those of a drive with four queues (device/drives/drive_types.hpp): what
// somebody waits for comes first, and pages that are written behind come last.
constexpr u32 queue_count = 5;
constexpr u32 queue_depth = 256;
constexpr u64 command_timeout_ns = 30000000000;

ControllerOptions controller_options() {
  ControllerOptions options;
  options.queue_count = queue_count;
  options.queue_depth = queue_depth;
  options.command_timeout_ns = command_timeout_ns;
  options.admin_timeout_ns = command_timeout_ns;
  options.priorities = {QueuePriority::high, QueuePriority::high, QueuePriority::medium, QueuePriority::medium,
                        QueuePriority::low};
  return options;
}

template <class Make>
auto with_name(const std::string& name, Make&& make) {
  try {
    return make();
  } catch (const DriveOpenError&) {
    throw;
  } catch (const std::runtime_error& error) {
    throw DriveOpenError(Status::io_error, fmt::format("{}: {}", name, error.what()));
  }
}

struct Held {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<HeldDrive>> drives;
  std::map<std::string, std::weak_ptr<HeldNamespace>> namespaces;
  DriveOpener opener = [](const std::string& address) {
    return std::make_unique<VfioDrive>(address, own_memory_bytes);
  };
};

Held& held() {
  static Held all;
  return all;
}

}  // namespace

HeldDrive::HeldDrive(std::string address, std::unique_ptr<DriveAccess> access)
    : address_(std::move(address)),
      access_(std::move(access)),
      controller_(access_->registers(), access_->memory(), controller_options()),
      session_(controller_, GPU4FS_MUTANT(host_uses_engine_queues, 1u, 0u)) {}

bool HeldDrive::has_engine_commands() {
  for (u32 i = 0; i < engine_queue_count(); ++i) {
    const VirtualQueue& queue = engine_queue(i);
    // A command that was stopped frees no place of a queue, so tickets alone do not tell.
    if (failure() == Failure::none) {
      const u32 completed = load<Order::acquire, Scope::engine>(&queue.completed);
      if (load<Order::acquire, Scope::engine>(&queue.next_ticket) != completed) return true;
      continue;
    }
    for (u32 id = 0; id < queue.depth; ++id) {
      if ((load<Order::acquire, Scope::engine>(&queue.slots[id].state) & 1) != 0) return true;
    }
  }
  return false;
}

void HeldDrive::attach(const EngineMemory& memory) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (is_given_up() || failure() != Failure::none) {
    throw std::runtime_error("the drive has failed; unmount and mount the pool again");
  }
  if (engine_queue_count() == 0) throw std::runtime_error("the controller grants one queue, and two are needed");
  if (attached_ == 0) {
    access_->map(memory.pages, memory.bytes, memory.bus_address);
    session_.share_queues(true);
  }
  ++attached_;
}

void HeldDrive::detach(const EngineMemory& memory) {
  bool is_left = false;
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (--attached_ != 0) return;
    is_left = has_engine_commands() || failure() != Failure::none;
  }
  if (is_left) return give_up();
  if (GPU4FS_MUTANT(bus_reach_kept, true, false)) access_->unmap(memory.bus_address, memory.bytes);
  session_.share_queues(false);
}

void HeldDrive::look() {
  if (is_given_up()) return;
  pollfd wish{access_->removal_descriptor(), POLLIN, 0};
  if (wish.fd >= 0 && ::poll(&wish, 1, 0) > 0) return fail(controller_.state(), Failure::absent);
  session_.look();
}

bool HeldDrive::renew(u64 life) {
  const std::lock_guard<std::mutex> guard(mutex_);
  return !is_given_up() && session_.reset(life);
}

void HeldDrive::give_up_if_unused() {
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (attached_ != 0) return;
  }
  give_up();
}

void HeldDrive::give_up() {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (is_given_up()) return;
  if (failure() == Failure::none) {
    controller_.shut_down();
  } else {
    session_.quiesce();
  }
  access_->release();
  store<Order::release, Scope::engine>(&is_given_up_, 1u);
}

HeldNamespace::HeldNamespace(std::shared_ptr<HeldDrive> drive, u32 namespace_id, const std::string& name)
    : drive_(std::move(drive)), io_(drive_->session(), drive_->access().memory(), namespace_id, buffer_count) {
  if (size_bytes() == 0) throw std::runtime_error("the namespace has no page of 4096 bytes");
  stand_in_ = ::memfd_create(("gpu4fs " + name).c_str(), MFD_CLOEXEC);
  if (stand_in_ < 0) throw std::runtime_error(std::strerror(errno));
}

HeldNamespace::~HeldNamespace() {
  ::close(stand_in_);
}

int HeldNamespace::open_stand_in(bool read_only) const {
  const std::string link = fmt::format("/proc/self/fd/{}", stand_in_);
  return ::open(link.c_str(), (read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC);
}

Status HeldNamespace::read(u64 offset, void* memory, u64 bytes) {
  if (offset > size_bytes() || bytes > size_bytes() - offset) return Status::out_of_range;
  const u64 block = block_bytes();
  u8* const to = static_cast<u8*>(memory);
  if (bytes == 0) return Status::ok;
  if (offset % block == 0 && bytes % block == 0) return io_.read(offset, {to, bytes});
  const u64 begin = align_down(offset, block);
  std::vector<u8> blocks(align_up(offset + bytes, block) - begin);
  GPU4FS_TRY(io_.read(begin, blocks));
  std::memcpy(to, blocks.data() + (offset - begin), bytes);
  return Status::ok;
}

Status HeldNamespace::write(u64 offset, const void* memory, u64 bytes) {
  if (offset > size_bytes() || bytes > size_bytes() - offset) return Status::out_of_range;
  const u64 block = block_bytes();
  const u8* const from = static_cast<const u8*>(memory);
  if (bytes == 0) return Status::ok;
  if (offset % block == 0 && bytes % block == 0) return io_.write(offset, {from, bytes});
  const std::lock_guard<std::mutex> guard(partial_);
  const u64 begin = align_down(offset, block);
  std::vector<u8> blocks(align_up(offset + bytes, block) - begin);
  GPU4FS_TRY(io_.read(begin, blocks));
  std::memcpy(blocks.data() + (offset - begin), from, bytes);
  return io_.write(begin, blocks);
}

Status HeldNamespace::discard(u64 offset, u64 bytes) {
  constexpr u64 piece = u64{1} << 30;
  for (u64 done = 0; done < bytes; done += piece) {
    const BlockIo::Range range{offset + done, std::min(piece, bytes - done)};
    GPU4FS_TRY(io_.deallocate({&range, 1}));
  }
  return Status::ok;
}

Status HeldNamespace::write_zeroes(u64 offset, u64 bytes) {
  const Status status = io_.write_zeroes(offset, bytes, false);
  if (status != Status::not_supported) return status;
  const std::vector<u8> zeros(std::min(bytes, u64{1} << 20));
  for (u64 done = 0; done < bytes; done += zeros.size()) {
    GPU4FS_TRY(io_.write(offset + done, std::span<const u8>(zeros).first(std::min<u64>(zeros.size(), bytes - done))));
  }
  return Status::ok;
}

std::shared_ptr<HeldNamespace> open_drive_namespace(const std::string& address, u32 namespace_id) {
  Held& all = held();
  const std::string name = fmt::format("nvme:{}/{}", address, namespace_id);
  const std::lock_guard<std::mutex> guard(all.mutex);
  std::shared_ptr<HeldNamespace> found = all.namespaces[name].lock();
  if (found != nullptr && !found->drive()->is_given_up()) return found;
  return with_name(name, [&] {
    std::shared_ptr<HeldDrive> drive = all.drives[address].lock();
    if (drive == nullptr || drive->is_given_up()) drive = std::make_shared<HeldDrive>(address, all.opener(address));
    auto opened = std::make_shared<HeldNamespace>(drive, namespace_id, name);
    all.drives[address] = drive;
    all.namespaces[name] = opened;
    return opened;
  });
}

DriveOpener exchange_drive_opener(DriveOpener opener) {
  Held& all = held();
  const std::lock_guard<std::mutex> guard(all.mutex);
  return std::exchange(all.opener, std::move(opener));
}

}  // namespace gpu4fs::nvme
