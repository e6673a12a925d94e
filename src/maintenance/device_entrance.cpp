// How a device replaces another one in the pool: its kind, its memory, and the messages to the engine.
#include <fcntl.h>

#include <cerrno>
#include <cstring>

#include "base/check.hpp"
#include "base/random.hpp"
#include "fmt/format.h"
#include "maintenance/device_exchange.hpp"
#include "pool/pool_error.hpp"
#include "pool/pool_foreign.hpp"
#include "pool/pool_replace.hpp"

namespace gpu4fs::maintenance {

namespace {

constexpr u64 quiet_timeout_ms = 60000;

wire::Command exchange_command(wire::RebuildStep step, u32 device) {
  wire::Command command{};
  command.opcode = wire::Opcode::rebuild;
  command.mode = static_cast<u32>(step);
  command.inode = device;
  return command;
}

}  // namespace

void DeviceExchange::give_up(u32 device) {
  (void)rebuilder_.call(exchange_command(wire::RebuildStep::give_up, device), nullptr, 0);
}

// Afterwards the device is lost, if it was not before, and durable superblocks say so.
void DeviceExchange::make_stale(u32 device) {
  const ring::Completion lost = rebuilder_.call(exchange_command(wire::RebuildStep::give_up, device), nullptr, 0);
  if (lost.status == Status::busy) {
    throw pool::PoolError(
        Status::busy,
        fmt::format("the pool cannot do without device {} until another has taken its "
                    "place: some chunk has no redundancy left; while the pool is not mounted a copy of the "
                    "device can be made, which takes its place at the next mount",
                    device));
  }
  if (lost.status != Status::ok) throw pool::PoolError(lost.status, status_text(lost.status));
  const Status status = host_.checkpoint();
  if (status != Status::ok)
    throw pool::PoolError(status, fmt::format("a checkpoint was not written: {}", status_text(status)));
}

void DeviceExchange::refuse_member(const pool::DeviceFile& file) const {
  for (const pool::OpenedDevice& device : mounted_.pool.devices) {
    if (device.file.fd() < 0 || !device.file.is_same_file(file)) continue;
    throw pool::PoolError(Status::invalid_argument, fmt::format("{}: is a device of the pool", file.path()));
  }
}

DeviceExchange::Entrant DeviceExchange::open_new(u32 device, const std::string& path, bool force) const {
  refuse_member(pool::DeviceFile::open_joining(path));
  pool::DeviceFile file =
      pool::DeviceFile::open(path, pool::DeviceFile::Access::read_write, pool::DeviceFile::Locking::lock);
  // An interrupted replacement continues.
  try {
    const format::DevicePart part = pool::stale_part(mounted_.pool, device, file);
    return {std::move(file), part, false, false, path};
  } catch (const pool::PoolError&) {
    // The device stays as it is.
  }
  const std::string content = pool::describe_content(file);
  if (!content.empty() && !force) {
    throw pool::PoolError(Status::exists,
                          fmt::format("{}: holds {}; it is overwritten only by force", file.path(), content));
  }
  const format::DevicePart part = pool::plan_replacement(mounted_.pool, device, file.size_bytes(), random_uuid().bytes);
  return {std::move(file), part, true, content.empty(), path};
}

// Allocates the memory that will be needed. If the file is refused and was empty before, its blocks are freed again.
void DeviceExchange::map_file(u32 device, Entrant& entrant) const {
  const int descriptor = ::fcntl(entrant.file.fd(), F_DUPFD_CLOEXEC, 3);
  if (descriptor < 0)
    throw pool::PoolError(Status::io_error, fmt::format("{}: {}", entrant.file.path(), std::strerror(errno)));
  device::MappedFile mapped = device::MappedFile::adopt(
      descriptor, entrant.file.path(),
      {.read_only = false, .lock = true, .stack = entrant.file.stack(), .drive = entrant.file.drive()});
  const device::GpuRegistration registration = mapped.gpu_registration();
  const bool is_registered = mounted_.setup.gpu != nullptr && !mounted_.setup.accesses_directly(mapped);
  if (is_registered && !registration.possible) throw pool::PoolError(Status::gpu_error, registration.reason);
  const bool is_direct = mounted_.setup.accesses_directly(mapped);
  if (mapped.drive() != nullptr && (mounted_.setup.direct == nullptr || !mounted_.setup.direct->has_bus())) {
    throw pool::PoolError(Status::not_supported, session::DirectMedia::no_bus_text(mapped.path()));
  }
  try {
    if (is_direct) mounted_.setup.direct->require_room(mapped.path());
  } catch (const device::DeviceError& error) {
    throw pool::PoolError(Status::no_space, error.what());
  }
  if (!mapped.grows_with_use()) mapped.reserve_blocks();
  try {
    mapper_.prepare_memory(device, mapped, grower_.usage());
  } catch (const pool::PoolError&) {
    if (entrant.is_fresh) entrant.file.free_blocks();
    throw;
  }
  try {
    // The device may still be in use, and keeps its medium.
    if (is_direct) {
      entrant.file.leave_locked_file();
      entrant.prepared = mounted_.setup.direct->prepare(device, mapped);
    }
  } catch (const device::DeviceError& error) {
    if (entrant.is_fresh) entrant.file.free_blocks();
    throw pool::PoolError(Status::io_error, error.what());
  }
  entrant.mapped = std::move(mapped);
}

// What is in flight was meant for the medium before.
void DeviceExchange::await_quiet(u32 device) const {
  const session::DirectMedia* const direct = mounted_.setup.direct.get();
  if (direct == nullptr || direct->await_quiet(device, quiet_timeout_ms)) return;
  throw pool::PoolError(Status::busy, fmt::format("device {}: requests to it do not end", device));
}

// For a device that is filled again although its drive has failed.
std::optional<session::DirectMedia::Prepared> DeviceExchange::prepare_renewal(u32 device) const {
  try {
    if (mounted_.setup.direct != nullptr) return mounted_.setup.direct->prepare_renewal(device);
  } catch (const device::DeviceError& error) {
    throw pool::PoolError(Status::no_space, error.what());
  }
  return std::nullopt;
}

// Makes the file known to server and engine; nothing uses it yet.
void DeviceExchange::install_file(u32 device, Entrant& entrant) {
  GPU4FS_CHECK(entrant.mapped.has_value());
  device::MappedFile& mapped = *entrant.mapped;
  await_quiet(device);
  std::unique_lock lock(mounted_.tables, std::defer_lock);
  try {
    {
      const std::shared_lock looking(mounted_.tables);
      mapper_.map_device(device, mapped, entrant.part);
    }
    lock.lock();
    // Of chunks that became reachable meanwhile.
    mapper_.map_device(device, mapped, entrant.part);
  } catch (...) {
    // Memory that a GPU has registered stays mapped.
    if (!lock.owns_lock()) lock.lock();
    if (mounted_.setup.gpu != nullptr) mounted_.setup.retired_files.push_back(std::move(mapped));
    throw;
  }
  if (entrant.prepared) mounted_.setup.direct->install(device, std::move(*entrant.prepared));
  pool::OpenedDevice& opened = mounted_.pool.devices[device];
  session::EngineSetup& setup = mounted_.setup;
  std::swap(setup.files[device], mapped);
  setup.retired_files.push_back(std::move(mapped));
  setup.file_numbers[device] = ++setup.last_file_number;
  host_.device_replaced(opened.file.path(), entrant.spec);
  setup.retired_devices.push_back(std::move(opened.file));
  opened.file = std::move(entrant.file);
  opened.part = entrant.part;
  opened.state = pool::MemberState::stale;
}

u64 DeviceExchange::begin(u32 device, const format::DevicePart& part) {
  const device::Device as_seen = mounted_.setup.device(device);
  wire::RebuildTarget target{};
  target.part = part;
  target.base = reinterpret_cast<std::uintptr_t>(as_seen.base);
  target.mapped_bytes = as_seen.size_bytes;
  target.stack = reinterpret_cast<std::uintptr_t>(as_seen.stack);
  target.needs_flush = as_seen.needs_flush;
  target.device_kind = static_cast<std::uint32_t>(as_seen.kind);
  target.file_number = mounted_.setup.file_numbers[device];
  host_.forget_errors(device);
  const ring::Completion begun =
      rebuilder_.call(exchange_command(wire::RebuildStep::begin, device), &target, sizeof(target));
  if (begun.status != Status::ok)
    throw pool::PoolError(begun.status, fmt::format("the rebuild cannot begin: {}", status_text(begun.status)));
  return begun.result;
}

// Makes superblocks of the others that name the new device durable; then it gets its own.
void DeviceExchange::name_newcomer(u32 device, const format::DevicePart& part) {
  const Status status = host_.checkpoint();
  if (status != Status::ok)
    throw pool::PoolError(status, fmt::format("a checkpoint was not written: {}", status_text(status)));
  std::memcpy(mounted_.pool.superblock.device_uuids[device], part.device_uuid, sizeof(part.device_uuid));
  const u64 lost = mounted_.lost_devices();
  for (u32 i = 0; i < mounted_.pool.devices.size(); ++i) {
    const pool::OpenedDevice& other = mounted_.pool.devices[i];
    if (i == device || (lost >> i & 1) != 0 || !other.is_here()) continue;
    const pool::SuperblockProbe probe = pool::probe_superblocks(other.file);
    const format::Superblock* newest = probe.newest();
    if (newest == nullptr || newest->stale_since[device] == 0) continue;
    pool::write_stale_superblocks(mounted_.pool, mounted_.pool.devices[device].file, part, newest->stale_since[device]);
    return;
  }
  throw pool::PoolError(Status::io_error, "no device of the pool has a superblock that names the new one");
}

// Returns the pages that the device may lack.
u64 DeviceExchange::enter(u32 device, Entrant entrant) {
  const format::DevicePart part = entrant.part;
  const bool is_new = entrant.is_new;
  pool::prepare_replacement(mounted_.pool, entrant.file, part, is_new);
  install_file(device, entrant);
  try {
    const u64 page_total = begin(device, part);
    if (is_new) name_newcomer(device, part);
    return page_total;
  } catch (...) {
    give_up(device);
    throw;
  }
}

}  // namespace gpu4fs::maintenance
