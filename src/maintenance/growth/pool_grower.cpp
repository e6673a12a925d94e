#include "maintenance/growth/pool_grower.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/host/log.hpp"
#include "base/limits.hpp"
#include "pool/chunk_shape.hpp"
#include "pool/growth/new_device.hpp"
#include "pool/pool_error.hpp"
#include "pool/pool_layout.hpp"
#include "raid/levels/levels.hpp"

namespace gpu4fs::maintenance {

// What a device lacks must not be written to the others as if it had it: the tree, chunks, members.
void PoolGrower::require_all_devices() {
  if (held_ == 0 && mounted_.pool.absent_devices() == 0 && mounted_.lost_devices() == 0) return;
  throw pool::PoolError(Status::busy,
                        "a pool does not grow while one of its devices is missing, stale or being filled");
}

void PoolGrower::hold() {
  const std::lock_guard guard(one_at_a_time_);
  ++held_;
  tree_.reset();
  store_.reset();
  tree_devices_.clear();
  free_.reset();
}

void PoolGrower::release() {
  {
    const std::lock_guard guard(one_at_a_time_);
    GPU4FS_CHECK_GT(held_, 0u);
    --held_;
  }
  tell_engine();
}

// The tree is opened when it is needed first: most mounts never change it.
void PoolGrower::open_tree() {
  if (failed_) throw pool::PoolError(Status::io_error, "an earlier checkpoint could not be written");
  if (tree_) return;
  if (mounted_.pool.read_only || mounted_.setup.growth == nullptr) {
    throw pool::PoolError(Status::read_only, "the pool is mounted read-only");
  }
  for (pool::OpenedDevice& device : mounted_.pool.devices) tree_devices_.push_back({&device.file, device.part});
  open_store(mounted_.pool.superblock.tree_replica_count);
  free_ = std::make_unique<pool::FreeGranules>(mounted_.pool);
}

// The tree as the medium has it, on so many replicas.
void PoolGrower::open_store(u32 replica_count) {
  tree_.reset();
  store_ = std::make_unique<pool::DeviceNodeStore>(tree_devices_, replica_count, true);
  tree_ = std::make_unique<pool::ChunkTree>(*store_, pool::tree_root_of(mounted_.pool.superblock),
                                            mounted_.setup.host->durable_epoch());
}

bool PoolGrower::may_hold_columns(u32 device) const {
  return mounted_.pool.devices[device].is_here() && (avoided_ >> device & 1) == 0;
}

void PoolGrower::avoid_device(u32 device, bool avoids) {
  const std::lock_guard guard(one_at_a_time_);
  avoided_ &= ~(u64{1} << device);
  if (avoids) avoided_ |= u64{1} << device;
  if (!free_) free_ = std::make_unique<pool::FreeGranules>(mounted_.pool);
  tell_of_room();
}

// Where a chunk may begin: behind the last one, or, when the space is used up, in the first gap.
std::optional<u64> PoolGrower::find_base(u64 size_bytes, const Plan& plan) const {
  const raid::LogicalSpace& space = mounted_.setup.space;
  const u64 limit = space.granule_count << space.granule_shift;
  std::vector<std::pair<u64, u64>> taken{{0, mounted_.pool.superblock.chunk_size_bytes}};
  for (const std::vector<pool::OpenedChunk>* chunks :
       {static_cast<const std::vector<pool::OpenedChunk>*>(&mounted_.pool.chunks), &plan.chunks}) {
    for (const pool::OpenedChunk& chunk : *chunks) {
      if (!chunk.is_erased()) taken.emplace_back(chunk.descriptor.base_address, chunk.end());
    }
  }
  u64 last = 0;
  for (const auto& [begin, end] : taken) last = std::max(last, end);
  if (last + size_bytes <= limit) return last;
  std::sort(taken.begin(), taken.end());
  u64 gap = 0;
  for (const auto& [begin, end] : taken) {
    if (begin >= gap + size_bytes) return gap;
    gap = end;
  }
  return std::nullopt;
}

// A number for a chunk more.
std::optional<u32> PoolGrower::find_slot(const Plan& plan) const {
  const std::vector<pool::OpenedChunk>& chunks = mounted_.pool.chunks;
  const auto is_planned = [&](u32 slot) {
    return std::find(plan.slots.begin(), plan.slots.end(), slot) != plan.slots.end();
  };
  for (u32 slot = first_new_slot_; slot < chunks.size(); ++slot) {
    if (chunks[slot].is_erased() && !is_planned(slot)) return slot;
  }
  for (u32 slot = static_cast<u32>(chunks.size()); slot < mounted_.setup.space.chunk_capacity; ++slot) {
    if (!is_planned(slot)) return slot;
  }
  return std::nullopt;
}

std::optional<pool::OpenedChunk> PoolGrower::plan_chunk(const pool::ChunkForm& form, u64 base_address) {
  std::vector<u32> devices;
  for (u32 i = 0; i < mounted_.pool.devices.size(); ++i) {
    if (may_hold_columns(i) && form.may_lie_on(i)) devices.push_back(i);
  }
  std::stable_sort(devices.begin(), devices.end(),
                   [this](u32 a, u32 b) { return free_->free_count(a) > free_->free_count(b); });
  for (u64 count = std::min<u64>(form.columns_wanted, devices.size()); count >= form.columns_least; --count) {
    pool::OpenedChunk chunk;
    chunk.descriptor = pool::describe_grown(form, static_cast<u32>(count), mounted_.pool.superblock.chunk_size_bytes);
    chunk.descriptor.base_address = base_address;
    chunk.descriptor.epoch_created = mounted_.setup.host->durable_epoch();
    const u64 granules = pool::granules_per_column(chunk.descriptor);
    for (const u32 device : devices) {
      if (chunk.columns.size() == count) break;
      const std::optional<u64> first = free_->find(device, granules);
      if (!first) continue;
      const format::DevicePart& part = mounted_.pool.devices[device].part;
      chunk.columns.push_back(
          format::ColumnAddress::make(device, part.chunk_area_offset + *first * format::physical_granule_bytes));
    }
    if (chunk.columns.size() == count) return chunk;
  }
  return std::nullopt;
}

// False: there is no more room.
bool PoolGrower::add_to_plan(Plan& plan, const pool::ChunkForm& form) {
  const std::optional<u32> slot = find_slot(plan);
  std::optional<pool::OpenedChunk> chunk = slot ? plan_chunk(form, 0) : std::nullopt;
  if (!chunk) return false;
  const std::optional<u64> base = find_base(chunk->descriptor.size_bytes, plan);
  if (!base) return false;
  chunk->descriptor.base_address = *base;
  try {
    tree_->insert(*chunk);
  } catch (const pool::PoolError& error) {
    if (error.status() == Status::no_space && !plan.chunks.empty()) return false;
    forget(plan);
    throw;
  }
  free_->mark(*chunk, true);
  plan.maps_changed |= chunk->devices();
  plan.chunks.push_back(std::move(*chunk));
  plan.slots.push_back(*slot);
  return true;
}

u64 PoolGrower::make_chunks(const pool::ChunkForm& form, u64 count) {
  u64 made = 0;
  while (made < count) {
    Plan plan;
    plan.tree_replica_count = mounted_.pool.superblock.tree_replica_count;
    while (plan.chunks.size() < std::min<u64>(count - made, space::growth_chunks_max) && add_to_plan(plan, form)) {
    }
    if (plan.chunks.empty()) break;
    const u64 planned = plan.chunks.size();
    make_durable(std::move(plan));
    made += planned;
  }
  tell_of_room();
  return made;
}

u64 PoolGrower::add_chunks(u64 count, u32 page_class) {
  const std::lock_guard guard(one_at_a_time_);
  require_all_devices();
  open_tree();
  if (!has_chunks(page_class)) throw pool::PoolError(Status::invalid_argument, "no chunk of this kind to go by");
  return make_chunks(pool::form_of_class(mounted_.pool, page_class), std::min(count, forecast()[page_class].chunks));
}

pool::ChunkForm PoolGrower::form_like(const pool::OpenedChunk& chunk) const {
  pool::ChunkForm form = pool::form_of_class(mounted_.pool, pool::page_class_of(chunk.descriptor));
  form.like = chunk.descriptor;
  return form;
}

u64 PoolGrower::replace_chunk(u32 chunk) {
  const std::lock_guard guard(one_at_a_time_);
  require_all_devices();
  open_tree();
  if (chunk >= mounted_.pool.chunks.size() || mounted_.pool.chunks[chunk].is_erased()) {
    throw pool::PoolError(Status::not_found, fmt::format("there is no chunk {}", chunk));
  }
  return make_chunks(form_like(mounted_.pool.chunks[chunk]), 1);
}

bool PoolGrower::has_chunks(u32 page_class) const {
  const std::vector<pool::OpenedChunk>& chunks = mounted_.pool.chunks;
  return std::any_of(chunks.begin(), chunks.end(), [page_class](const pool::OpenedChunk& chunk) {
    return !chunk.is_erased() && pool::page_class_of(chunk.descriptor) == page_class;
  });
}

std::array<pool::GrowthForecast, format::profile_max> PoolGrower::forecast() const {
  const raid::LogicalSpace& space = mounted_.setup.space;
  const std::vector<pool::OpenedChunk>& chunks = mounted_.pool.chunks;
  pool::GrowthLimits limits;
  limits.avoided_devices = avoided_;
  limits.chunks = space.chunk_capacity - chunks.size();
  u64 granules = 1;  // the first one is nobody's
  for (u32 slot = 0; slot < chunks.size(); ++slot) {
    if (chunks[slot].is_erased()) {
      limits.chunks += slot >= first_new_slot_ ? 1 : 0;
    } else {
      granules += chunks[slot].descriptor.size_bytes >> space.granule_shift;
    }
  }
  limits.granules = space.granule_count - std::min(granules, space.granule_count);
  return pool::forecast_growth(mounted_.pool, *free_, limits);
}

// What chunks the engine may ask for. A pool without one of its devices does not grow.
void PoolGrower::tell_of_room() noexcept {
  std::array<pool::GrowthForecast, format::profile_max> classes{};
  try {
    if (held_ == 0 && !failed_ && mounted_.lost_devices() == 0) classes = forecast();
  } catch (const std::exception& error) {
    log(LogLevel::error, fmt::format("no chunks are made: {}", error.what()));
  }
  for (u32 i = 0; i < format::profile_max; ++i) {
    if (has_chunks(i)) set_unallocated(i, classes[i].pages);
  }
}

void PoolGrower::set_unallocated(u32 page_class, u64 page_count) {
  wire::Command request{};
  request.opcode = wire::Opcode::grow;
  request.mask = wire::grow_room;
  request.mode = page_class;
  request.offset = page_count;
  (void)host_.call(request);
}

// Without opening the tree, so that a pool whose space is all in chunks pays one look.
void PoolGrower::tell_engine() {
  const std::lock_guard guard(one_at_a_time_);
  if (!free_) free_ = std::make_unique<pool::FreeGranules>(mounted_.pool);
  tell_of_room();
}

// The first without a device.
u32 PoolGrower::index_of_new_device() const {
  const std::vector<pool::OpenedDevice>& devices = mounted_.pool.devices;
  const auto vacant = std::find_if(devices.begin(), devices.end(), [](const pool::OpenedDevice& device) {
    return device.state == pool::MemberState::removed;
  });
  return static_cast<u32>(vacant - devices.begin());
}

u32 PoolGrower::add_device(const std::string& path, bool force) {
  const std::lock_guard guard(one_at_a_time_);
  require_all_devices();
  open_tree();
  pool::OpenedPool& pool = mounted_.pool;
  const u32 index = index_of_new_device();
  pool::NewDevice prepared = pool::prepare_new_device(pool, index, path, force);
  session::EngineSetup& setup = mounted_.setup;
  if (setup.gpu != nullptr) {
    const device::GpuRegistration registration = prepared.file.gpu_registration();
    if (!registration.possible)
      throw pool::PoolError(Status::gpu_error, fmt::format("{}: {}", path, registration.reason));
    const format::DevicePart& part = prepared.opened.part;
    const Status mapped = setup.host->map_memory(prepared.file.base(), part.chunk_area_offset);
    if (mapped != Status::ok) throw pool::PoolError(mapped, path + ": cannot be registered with the GPU");
  }
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

}  // namespace gpu4fs::maintenance
