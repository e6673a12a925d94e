#include "maintenance/growth/pool_grower.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.hpp"
#include "base/host/log.hpp"
#include "pool/chunk_shape.hpp"
#include "pool/pool_error.hpp"

namespace gpu4fs::maintenance {

// A part that a device lacks must not be written to the others as if the device had it: the tree, chunks, members.
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

// The tree is opened when it is first needed: most mounts never change it.
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

// The tree on the medium, on this number of replicas.
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

u64 PoolGrower::add_chunks(u64 count, u32 page_class) {
  const std::lock_guard guard(one_at_a_time_);
  require_all_devices();
  open_tree();
  if (!has_chunks(page_class)) throw pool::PoolError(Status::invalid_argument, "no chunk of this kind to go by");
  return make_chunks(pool::form_of_class(mounted_.pool, page_class), std::min(count, forecast()[page_class].chunks));
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
  u64 granules = 1;  // the first one belongs to no chunk
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

// Tells the engine which chunks it may ask for. A pool with a missing device does not grow.
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

// Does not open the tree, so a pool whose space is all in chunks pays only for this test.
void PoolGrower::tell_engine() {
  const std::lock_guard guard(one_at_a_time_);
  if (!free_) free_ = std::make_unique<pool::FreeGranules>(mounted_.pool);
  tell_of_room();
}

}  // namespace gpu4fs::maintenance
