#include "pool/logical_space/logical_space.hpp"

#include <algorithm>
#include <iterator>
#include <string>

#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/limits.hpp"
#include "pool/chunk_shape.hpp"
#include "pool/logical_space/chunk_memory.hpp"
#include "pool/logical_space/granule_map.hpp"
#include "pool/pool_error.hpp"
#include "raid/damage.hpp"
#include "raid/device_loss.hpp"
#include "raid/parity/parity_types.hpp"

namespace gpu4fs::pool {
namespace {

// The classes of data and metadata, and the cost of an allocation in them.
void set_classes(raid::LogicalSpace& space, const format::Superblock& superblock,
                 const std::vector<OpenedChunk>& chunks) {
  u64 all = 0;
  for (u32& cost : space.page_cost) cost = 1;
  for (const OpenedChunk& chunk : chunks) {
    const format::ChunkDescriptor& d = chunk.descriptor;
    const u32 page_class = page_class_of(d);
    all |= u64{1} << page_class;
    if ((d.flags & format::chunk_flag_data) != 0) space.data_classes |= u64{1} << page_class;
    if (stripe_count_of(d) != 0) space.striped_classes |= u64{1} << page_class;
    space.page_cost[page_class] = std::max(space.page_cost[page_class], page_cost_of(d));
  }
  space.data_class = space.metadata_class = page_class_of(chunks[0].descriptor);
  if ((superblock.feature_incompatible & format::feature_mixed_profiles) != 0) {
    space.data_class = u32{superblock.data_profile} - 1;
    space.metadata_class = u32{superblock.metadata_profile} - 1;
  } else if (all != u64{1} << space.data_class) {
    throw PoolError(Status::corrupt_structure, "chunks of several profiles in a pool that is said to have one");
  }
  for (const u32 needed : {space.data_class, space.metadata_class}) {
    if (needed >= format::profile_max || (all >> needed & 1) == 0) {
      throw PoolError(Status::corrupt_structure, "the pool has no chunk of profile " + std::to_string(needed + 1));
    }
  }
  space.data_classes |= u64{1} << space.data_class;
}

raid::DeviceHealth make_health(const format::Superblock& superblock, const std::vector<device::Device>& devices) {
  raid::DeviceHealth health{};
  for (u32 i = 0; i < devices.size(); ++i) {
    if (!format::has_device(superblock, i)) continue;
    health.failed |= u64{devices[i].failed} << i;
    health.recorded |= u64{superblock.stale_since[i] != 0} << i;
  }
  health.reported = health.failed;
  return health;
}

void set_reach(EngineAllocator& allocator, raid::ChunkState& state, const ReachedPages& reached, std::size_t chunk) {
  const bool is_listed = chunk < reached.unbacked.size() && !reached.unbacked[chunk].empty();
  state.presence = reached.all || is_listed ? raid::chunk_accessible : 0;
  if (!is_listed) return;
  const std::vector<u64>& words = reached.unbacked[chunk];
  GPU4FS_CHECK_EQ(words.size(), divide_up(divide_up(state.page_count, u64{pages_per_block_2m}), u64{64}));
  allocator.copy_in(state.unbacked, words.data(), words.size() * sizeof(u64));
}

}  // namespace

raid::LogicalSpace build_logical_space(EngineAllocator& allocator, const format::Superblock& superblock,
                                       const std::vector<device::Device>& devices,
                                       const std::vector<OpenedChunk>& chunks, const ReachedPages& reached,
                                       const SpaceRoom& room) {
  std::vector<u32> granules = map_granules(superblock, devices, chunks);
  granules.resize(std::min(granules.size() + room.granules, format::logical_granule_max), raid::no_chunk);
  const u64 device_capacity = std::min<u64>(devices.size() + room.devices, device_count_max);
  const u64 chunk_capacity = std::min<u64>(chunks.size() + room.chunks, format::logical_granule_max);
  BlockLayout layout;
  const u64 devices_at = layout.take(device_capacity * sizeof(device::Device));
  const u64 granules_at = layout.take(granules.size() * sizeof(u32));
  const u64 chunks_at = layout.take(chunk_capacity * sizeof(raid::ChunkState));
  const u64 damage_at = layout.take(sizeof(raid::DamageTable));
  const bool has_parities = std::any_of(
      chunks.begin(), chunks.end(), [](const OpenedChunk& chunk) { return stripe_count_of(chunk.descriptor) != 0; });
  const u64 parity_at = has_parities ? layout.take_pages(sizeof(raid::ParityState)) : 0;
  const u64 health_at = layout.take(sizeof(raid::DeviceHealth));
  std::vector<ChunkPlaces> places;
  for (const OpenedChunk& chunk : chunks) places.push_back(place_chunk(layout, chunk.descriptor));

  GPU4FS_CHECK_EQ(places.size(), chunks.size());
  void* block = allocator.allocate(layout.used(), page_size);
  GPU4FS_CHECK(is_aligned(block, page_size));
  allocator.zero(block, layout.used());
  std::vector<raid::ChunkState> states;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    states.push_back(make_chunk_state(allocator, chunks[i], places[i], block));
    set_reach(allocator, states.back(), reached, i);
  }
  raid::LogicalSpace space{};
  space.devices = at_offset<device::Device>(block, devices_at);
  space.device_count = static_cast<u32>(devices.size());
  space.chunk_count = static_cast<u32>(chunks.size());
  space.device_capacity = static_cast<u32>(device_capacity);
  space.chunk_capacity = static_cast<u32>(chunk_capacity);
  space.chunks = at_offset<raid::ChunkState>(block, chunks_at);
  space.granule_to_chunk = at_offset<u32>(block, granules_at);
  space.granule_count = granules.size();
  space.granule_shift = log2_floor(superblock.chunk_size_bytes);
  for (const device::Device& device : devices) {
    space.stacked |= device.stack != nullptr ? 1u : 0u;
    space.pages_apart |= device.kind != device::DeviceKind::memory ? 1u : 0u;
    if (device.staged != nullptr) space.staged = device.staged;
    if (device.tier != nullptr) space.tier = device.tier;
  }
  space.data_checksums = (superblock.feature_incompatible & format::feature_data_checksums) != 0 ? 1 : 0;
  space.damage = at_offset<raid::DamageTable>(block, damage_at);
  set_classes(space, superblock, chunks);
  if (has_parities) {
    space.parity = at_offset<raid::ParityState>(block, parity_at);
    u64 all_free[raid::scratch_page_count / 64];
    std::fill(std::begin(all_free), std::end(all_free), ~u64{0});
    allocator.copy_in(space.parity->scratch_free, all_free, sizeof(all_free));
  }
  space.tree_device_count = superblock.tree_replica_count;
  space.health = at_offset<raid::DeviceHealth>(block, health_at);
  const raid::DeviceHealth health = make_health(superblock, devices);
  allocator.copy_in(space.health, &health, sizeof(health));
  space.epoch_open = superblock.epoch + 1;
  allocator.copy_in(space.devices, devices.data(), devices.size() * sizeof(device::Device));
  allocator.copy_in(space.granule_to_chunk, granules.data(), granules.size() * sizeof(u32));
  allocator.copy_in(space.chunks, states.data(), states.size() * sizeof(raid::ChunkState));
  return space;
}

}  // namespace gpu4fs::pool
