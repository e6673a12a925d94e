#include "pool/growth/growth_forecast.hpp"

#include <algorithm>
#include <optional>

#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/limits.hpp"
#include "pool/chunk_shape.hpp"
#include "pool/pool_layout.hpp"
#include "raid/levels/levels.hpp"

namespace gpu4fs::pool {

namespace {

// In a chunk with parities, the pages after the last whole stripe of a region are allocated only with the whole region.
u64 pages_given_out(const format::ChunkDescriptor& chunk) {
  const u64 pages = chunk.size_bytes / page_size;
  const u64 stripe = page_cost_of(chunk);
  return pages / pages_per_block_2m * (pages_per_block_2m / stripe * stripe);
}

// Free granules of the devices, from which chunks are taken.
class FreeRoom {
 public:
  FreeRoom(const OpenedPool& pool, const FreeGranules& free, u64 avoided)
      : chunk_size_bytes_(pool.superblock.chunk_size_bytes) {
    for (u32 i = 0; i < pool.devices.size(); ++i) {
      if (pool.devices[i].is_here() && (avoided >> i & 1) == 0) devices_.push_back({free.free_count(i), i});
    }
  }

  // Takes the space of one chunk; nothing if there is too little.
  std::optional<format::ChunkDescriptor> take(const ChunkForm& form) {
    std::vector<DeviceRoom*> devices;
    for (DeviceRoom& device : devices_) {
      if (form.may_lie_on(device.index)) devices.push_back(&device);
    }
    std::stable_sort(devices.begin(), devices.end(), [](auto* a, auto* b) { return a->granules > b->granules; });
    const u32 most = std::min(form.columns_wanted, static_cast<u32>(devices.size()));
    for (u32 count = most; count >= form.columns_least; --count) {
      const format::ChunkDescriptor chunk = describe_grown(form, count, chunk_size_bytes_);
      const u64 needed = granules_per_column(chunk);
      if (devices[count - 1]->granules < needed) continue;
      for (u32 i = 0; i < count; ++i) devices[i]->granules -= needed;
      return chunk;
    }
    return std::nullopt;
  }
  bool has(const ChunkForm& form) const { return FreeRoom(*this).take(form).has_value(); }

 private:
  struct DeviceRoom {
    u64 granules;
    u32 index;
  };
  u64 chunk_size_bytes_;
  std::vector<DeviceRoom> devices_;
};

GrowthForecast forecast_class(const OpenedPool& pool, FreeRoom room, const GrowthLimits& limits, const ChunkForm& form,
                              const ChunkForm* left_to) {
  GrowthForecast forecast{0, 0};
  const bool keeps_room = left_to != nullptr && room.has(*left_to);
  u64 granules = 0;
  while (forecast.chunks < limits.chunks) {
    const std::optional<format::ChunkDescriptor> chunk = room.take(form);
    if (!chunk || (keeps_room && !room.has(*left_to))) break;
    granules += chunk->size_bytes / pool.superblock.chunk_size_bytes;
    if (granules > limits.granules) break;
    ++forecast.chunks;
    forecast.pages += pages_given_out(*chunk);
  }
  return forecast;
}

}  // namespace

u64 granules_per_column(const format::ChunkDescriptor& descriptor) {
  return divide_up(raid::column_length(descriptor), format::physical_granule_bytes);
}

ChunkForm form_of_class(const OpenedPool& pool, u32 page_class) {
  ChunkForm form{};
  u32 widest = 0;
  for (const OpenedChunk& chunk : pool.chunks) {
    if (chunk.is_erased() || page_class_of(chunk.descriptor) != page_class) continue;
    form.like = chunk.descriptor;
    widest = std::max<u32>(widest, chunk.descriptor.column_count);
  }
  GPU4FS_CHECK_NE(widest, 0u);
  const format::RaidLevel level = form.like.level;
  const bool is_fixed = level == format::RaidLevel::single || level == format::RaidLevel::raid1;
  form.columns_least = is_fixed ? form.like.column_count : column_count_least(level);
  form.columns_wanted = level == format::RaidLevel::raid0 ? device_count_max : widest;
  return form;
}

format::ChunkDescriptor describe_grown(const ChunkForm& form, u32 column_count, u64 chunk_size_bytes) {
  const format::ChunkDescriptor& like = form.like;
  format::ChunkDescriptor chunk =
      describe_chunk({like.level, column_count, like.stripe_length_bytes, {}}, column_count, chunk_size_bytes);
  chunk.flags = like.flags;
  chunk.physical_device = like.physical_device;
  return chunk;
}

std::array<GrowthForecast, format::profile_max> forecast_growth(const OpenedPool& pool, const FreeGranules& free,
                                                                const GrowthLimits& limits) {
  std::array<GrowthForecast, format::profile_max> forecast{};
  // The content and the free room of absent devices are unknown.
  if (pool.absent_devices() != 0) return forecast;
  u64 classes = 0;
  for (const OpenedChunk& chunk : pool.chunks) {
    if (!chunk.is_erased()) classes |= u64{1} << page_class_of(chunk.descriptor);
  }
  const PoolProfiles profiles = profiles_of(pool);
  const u32 metadata_class = static_cast<u32>(profiles.metadata) - 1;
  const ChunkForm metadata = form_of_class(pool, metadata_class);
  const FreeRoom room(pool, free, limits.avoided_devices);
  for (u32 i = 0; i < format::profile_max; ++i) {
    if ((classes >> i & 1) == 0) continue;
    forecast[i] = forecast_class(pool, room, limits, form_of_class(pool, i), i == metadata_class ? nullptr : &metadata);
  }
  return forecast;
}

}  // namespace gpu4fs::pool
