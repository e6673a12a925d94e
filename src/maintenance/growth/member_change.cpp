// Adds devices to the pool and removes them.
#include <fmt/format.h>

#include <algorithm>

#include "base/check.hpp"
#include "base/host/log.hpp"
#include "base/limits.hpp"
#include "format/format_text.hpp"
#include "maintenance/growth/pool_grower.hpp"
#include "pool/growth/new_device.hpp"
#include "pool/pool_error.hpp"
#include "pool/pool_layout.hpp"

namespace gpu4fs::maintenance {

namespace {

// The least number of devices for a chunk of its profile.
u32 devices_needed(const format::ChunkDescriptor& d) {
  const bool is_fixed = d.level == format::RaidLevel::single || d.level == format::RaidLevel::raid1;
  return is_fixed ? d.column_count : pool::column_count_least(d.level);
}

void clear_superblocks(pool::DeviceFile& file) {
  file.zero_range(format::superblock_offset_a, page_size);
  file.zero_range(format::superblock_offset_b, page_size);
  file.flush();
}

constexpr u64 removal_timeout_ms = 10000;

}  // namespace

// The first index without a device.
u32 PoolGrower::index_of_new_device() const {
  const std::vector<pool::OpenedDevice>& devices = mounted_.pool.devices;
  const auto vacant = std::find_if(devices.begin(), devices.end(), [](const pool::OpenedDevice& device) {
    return device.state == pool::MemberState::removed;
  });
  return static_cast<u32>(vacant - devices.begin());
}

void PoolGrower::prepare_access(u32 index, device::MappedFile& file) {
  try {
    mounted_.setup.prepare_access(index, file);
  } catch (const device::DeviceError& error) {
    throw pool::PoolError(Status::io_error, error.what());
  }
}

// Before the file is changed.
void PoolGrower::require_room(const std::string& path) const {
  session::DirectMedia* const direct = mounted_.setup.direct.get();
  if (pool::parse_device(path).is_drive() && (direct == nullptr || !direct->has_bus())) {
    throw pool::PoolError(Status::not_supported, session::DirectMedia::no_bus_text(path));
  }
  try {
    if (direct != nullptr) direct->require_room(path);
  } catch (const device::DeviceError& error) {
    throw pool::PoolError(Status::no_space, error.what());
  }
}

u32 PoolGrower::add_device(const std::string& path, bool force) {
  const std::lock_guard guard(one_at_a_time_);
  require_all_devices();
  open_tree();
  pool::OpenedPool& pool = mounted_.pool;
  const u32 index = index_of_new_device();
  require_room(path);
  pool::NewDevice prepared = pool::prepare_new_device(pool, index, path, force);
  session::EngineSetup& setup = mounted_.setup;
  if (setup.gpu != nullptr && !setup.accesses_directly(prepared.file)) {
    const device::GpuRegistration registration = prepared.file.gpu_registration();
    if (!registration.possible)
      throw pool::PoolError(Status::gpu_error, fmt::format("{}: {}", path, registration.reason));
    const format::DevicePart& part = prepared.opened.part;
    const Status mapped = setup.reach(prepared.file, 0, part.chunk_area_offset);
    if (mapped != Status::ok) throw pool::PoolError(mapped, path + ": cannot be registered with the GPU");
  }
  if (setup.accesses_directly(prepared.file)) prepared.opened.file.leave_locked_file();
  prepare_access(index, prepared.file);
  Plan plan;
  plan.joining = plan.maps_changed = u64{1} << index;
  const auto first = std::find_if(pool.chunks.begin(), pool.chunks.end(),
                                  [](const pool::OpenedChunk& chunk) { return !chunk.is_erased(); });
  GPU4FS_CHECK(first != pool.chunks.end());
  const u64 wanted = std::max<u64>(2, u64{first->descriptor.redundancy} + 1);
  plan.tree_replica_count = pool.superblock.tree_replica_count;
  if (plan.tree_replica_count == index && index < wanted) ++plan.tree_replica_count;
  host_.forget_errors(index);
  {
    const std::unique_lock lock(mounted_.tables);
    if (index == pool.devices.size()) {
      pool.devices.push_back(std::move(prepared.opened));
      setup.files.push_back(std::move(prepared.file));
    } else {
      pool.devices[index] = std::move(prepared.opened);
      std::swap(setup.files[index], prepared.file);
    }
    setup.file_numbers[index] = 0;
  }
  const pool::TreeDevice entry{&pool.devices[index].file, pool.devices[index].part};
  if (index == tree_devices_.size()) {
    tree_devices_.push_back(entry);
  } else {
    tree_devices_[index] = entry;
  }
  free_ = std::make_unique<pool::FreeGranules>(pool);
  make_durable(std::move(plan));
  {
    const std::unique_lock lock(mounted_.tables);
    host_.device_joined(path);
  }
  tell_of_room();
  return index;
}

std::string PoolGrower::removal_obstacle(u32 device) const {
  const std::shared_lock lock(mounted_.tables);
  const pool::OpenedPool& pool = mounted_.pool;
  if (device >= pool.devices.size() || !pool.devices[device].is_here()) {
    return fmt::format(
        "the pool has no device {} that works; 'device replace' puts another one in the place of one that does not",
        device);
  }
  u32 left = 0;
  for (u32 i = 0; i < pool.devices.size(); ++i) left += i != device && pool.devices[i].is_here() ? 1 : 0;
  for (const pool::OpenedChunk& chunk : pool.chunks) {
    if (chunk.is_erased()) continue;
    const u32 needed = devices_needed(chunk.descriptor);
    const format::Profile profile = format::profile_of(chunk.descriptor);
    if ((chunk.descriptor.flags & format::chunk_flag_physical) != 0 && chunk.descriptor.physical_device == device) {
      return fmt::format("profile {} lies on device {} only", format::profile_name(profile).text, device);
    }
    if (left >= needed) continue;
    return fmt::format("profile {} needs {} devices, without device {} the pool has {}",
                       format::profile_name(profile).text, needed, device, left);
  }
  if (device < pool.superblock.tree_replica_count) {
    return fmt::format(
        "device {} holds the chunk tree and the operation log, as devices 0 to {} do; 'device replace' puts "
        "another one in its place, or, without redundancy, a copy of it while the pool is not mounted",
        device, pool.superblock.tree_replica_count - 1);
  }
  return "";
}

void PoolGrower::remove_device(u32 device) {
  const std::string obstacle = removal_obstacle(device);
  if (!obstacle.empty()) throw pool::PoolError(Status::invalid_argument, obstacle);
  const std::lock_guard guard(one_at_a_time_);
  require_all_devices();
  open_tree();
  if (!chunks_on(device).empty()) {
    throw pool::PoolError(Status::busy, fmt::format("device {} still has columns of chunks", device));
  }
  const std::string path = mounted_.pool.devices[device].file.path();
  Plan plan;
  plan.tree_replica_count = mounted_.pool.superblock.tree_replica_count;
  plan.leaving = u64{1} << device;
  make_durable(std::move(plan));
  try {
    clear_superblocks(mounted_.pool.devices[device].file);
  } catch (const pool::PoolError& error) {
    log(LogLevel::warning,
        fmt::format("{}: is no member of the pool any more, but looks like one: {}", path, error.what()));
  }
  // The engine has forgotten its pages.
  if (mounted_.setup.direct != nullptr) {
    const std::string problem = mounted_.setup.direct->close(device, removal_timeout_ms);
    if (!problem.empty()) log(LogLevel::warning, fmt::format("{}: {}, so it stays open", path, problem));
  }
  {
    const std::unique_lock lock(mounted_.tables);
    close_removed(device);
    host_.device_left(path);
  }
  free_ = std::make_unique<pool::FreeGranules>(mounted_.pool);
  avoided_ &= ~(u64{1} << device);
  host_.forget_errors(device);
  log(LogLevel::info, fmt::format("device {} has left the pool: {}", device, path));
  tell_of_room();
}

// Under `tables`: no device has the index.
void PoolGrower::close_removed(u32 index) {
  pool::OpenedDevice& device = mounted_.pool.devices[index];
  session::EngineSetup& setup = mounted_.setup;
  const std::string name = fmt::format("device {}", index);
  device::MappedFile file = device::MappedFile::absent(name, false);
  std::swap(setup.files[index], file);
  // Memory that a GPU has registered stays mapped.
  if (setup.gpu != nullptr && file.is_mapped()) setup.retired_files.push_back(std::move(file));
  device = pool::OpenedDevice{pool::DeviceFile::absent(name), {}, false, pool::MemberState::removed, 0};
  device.part.device_index = index;
  tree_devices_[index] = {&device.file, device.part};
}

}  // namespace gpu4fs::maintenance
