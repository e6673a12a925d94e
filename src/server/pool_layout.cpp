#include "server/pool_layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/bits.hpp"
#include "base/limits.hpp"
#include "format/format_text.hpp"
#include "raid/levels/levels.hpp"
#include "server/pool_error.hpp"

namespace gpu4fs::server {

namespace {

constexpr u64 log_bytes_min = u64{1} << 20;
constexpr u64 log_bytes_max = u64{256} << 20;
constexpr u64 tree_pages_min = 16;
constexpr u64 bits_per_page = format::bits_per_page;

u64 chunk_bytes(u64 chunk_size_bytes) {
  return format::chunk_layout(chunk_size_bytes / page_size).header_pages * page_size +
         chunk_size_bytes;
}

format::DevicePart device_layout(u64 size_bytes, u64 tree_pages, u64 log_bytes = 0) {
  format::DevicePart part{};
  part.size_bytes = size_bytes;
  part.tree_offset = format::layout_area_offset;
  part.tree_pages = tree_pages;
  part.chunk_map_offset = part.tree_offset + tree_pages * page_size;
  // One bit for every granule of the device is a little more than the chunk area needs.
  const u64 granule_max = size_bytes / format::physical_granule_bytes;
  part.chunk_map_pages = std::max<u64>(1, divide_up(granule_max, bits_per_page));
  part.log_offset = part.chunk_map_offset + 2 * (1 + part.chunk_map_pages) * page_size;
  part.log_bytes = align_down(std::clamp(size_bytes / 64, log_bytes_min, log_bytes_max), page_size);
  if (log_bytes != 0) part.log_bytes = align_up(log_bytes, page_size);
  part.chunk_area_offset =
      align_up(part.log_offset + part.log_bytes, format::physical_granule_bytes);
  part.chunk_area_granules =
      part.chunk_area_offset >= size_bytes
          ? 0
          : (size_bytes - part.chunk_area_offset) / format::physical_granule_bytes;
  return part;
}

// Twice the nodes of the fullest tree, so that a new tree can be written beside the old one.
u64 tree_pages_for(const std::vector<NamedSize>& devices, u64 chunk_size_bytes, const ChunkProfile& profile) {
  u64 column_max = 0;
  for (const NamedSize& device : devices) {
    column_max += device.size_bytes / chunk_bytes(chunk_size_bytes);
  }
  const u64 columns_min = profile.level == format::RaidLevel::raid0 ? 2 : profile.column_count;
  const u64 columns_max = profile.column_count == 0 ? devices.size() : profile.column_count;
  return std::max(tree_pages_min, 2 * chunk_tree_node_count(divide_up(column_max, columns_min), columns_max));
}

format::ChunkDescriptor describe_chunk(const ChunkProfile& profile, u32 column_count, u64 chunk_size_bytes) {
  format::ChunkDescriptor descriptor{};
  descriptor.level = profile.level;
  descriptor.column_count = static_cast<u16>(column_count);
  raid::with_level(profile.level, [&](auto level) {
    descriptor.redundancy = static_cast<u8>(level.redundancy(column_count));
    descriptor.size_bytes = chunk_size_bytes * level.data_columns(column_count);
  });
  descriptor.stripe_length_bytes = profile.stripe_length_bytes;
  descriptor.flags = format::chunk_flag_data | format::chunk_flag_metadata;
  return descriptor;
}

// Deals columns to the devices with most room. Granule 0 of the logical space stays empty.
class ChunkPlacer {
 public:
  explicit ChunkPlacer(PoolLayout& layout) : layout_(layout), used_(layout.parts.size()) {}

  void place_all() {
    u64 base = layout_.chunk_size_bytes;
    while (std::optional<ChunkPlacement> chunk = next_chunk()) {
      chunk->descriptor.base_address = base;
      base += chunk->descriptor.size_bytes;
      if (base / layout_.chunk_size_bytes > format::logical_granule_max) {
        throw PoolError(Status::out_of_range,
                        fmt::format("chunks of {} bytes are too small for devices of this size: the pool would have "
                                    "more than {}",
                                    layout_.chunk_size_bytes, format::logical_granule_max - 1));
      }
      layout_.chunks.push_back(std::move(*chunk));
    }
  }

 private:
  u64 room(u32 device) const { return layout_.parts[device].chunk_area_granules - used_[device]; }

  // Devices, the one with most room first.
  std::vector<u32> by_room() const {
    std::vector<u32> devices(used_.size());
    for (u32 i = 0; i < devices.size(); ++i) devices[i] = i;
    std::stable_sort(devices.begin(), devices.end(), [this](u32 a, u32 b) { return room(a) > room(b); });
    return devices;
  }

  // As many columns as the profile wants, fewer where it may have fewer; nothing when there is no more room.
  std::optional<ChunkPlacement> next_chunk() {
    const ChunkProfile& profile = layout_.profile;
    const std::vector<u32> devices = by_room();
    const u32 wanted = profile.column_count == 0 ? static_cast<u32>(devices.size()) : profile.column_count;
    const u32 least = profile.level == format::RaidLevel::raid0 ? raid::Raid0Level::member_count_min : wanted;
    for (u32 count = std::min<u32>(wanted, static_cast<u32>(devices.size())); count >= least; --count) {
      ChunkPlacement chunk{describe_chunk(profile, count, layout_.chunk_size_bytes), {}};
      const u64 granules = chunk.column_granules();
      if (room(devices[count - 1]) < granules) continue;
      for (u32 i = 0; i < count; ++i) {
        chunk.columns.push_back({devices[i], used_[devices[i]]});
        used_[devices[i]] += granules;
      }
      return chunk;
    }
    return std::nullopt;
  }

  PoolLayout& layout_;
  std::vector<u64> used_;
};

}  // namespace

ChunkProfile parse_profile(const std::string& name, u32 stripe_length_bytes) {
  constexpr u32 stripe_length_default = 64 * 1024;
  ChunkProfile profile;
  if (name == "single") {
    profile = {format::RaidLevel::single, 1, 0};
  } else if (name == "raid0") {
    profile = {format::RaidLevel::raid0, 0, stripe_length_bytes != 0 ? stripe_length_bytes : stripe_length_default};
  } else if (name == "raid1") {
    profile = {format::RaidLevel::raid1, 2, 0};
  } else if (name == "raid1c3") {
    profile = {format::RaidLevel::raid1, 3, 0};
  } else if (name == "raid1c4") {
    profile = {format::RaidLevel::raid1, 4, 0};
  } else {
    throw PoolError(Status::not_supported,
                    fmt::format("profile '{}' is not supported: this version makes single, raid0, raid1, raid1c3 and "
                                "raid1c4",
                                name));
  }
  if (stripe_length_bytes != 0 && profile.stripe_length_bytes == 0) {
    throw PoolError(Status::invalid_argument, fmt::format("profile '{}' has no stripes to give a length to", name));
  }
  if (profile.stripe_length_bytes != 0 &&
      (!is_power_of_two(profile.stripe_length_bytes) || profile.stripe_length_bytes < raid::stripe_length_min ||
       profile.stripe_length_bytes > raid::stripe_length_max)) {
    throw PoolError(Status::invalid_argument, fmt::format("stripe length {} is no power of two from {} to {}",
                                                          profile.stripe_length_bytes, raid::stripe_length_min,
                                                          raid::stripe_length_max));
  }
  return profile;
}

u64 ChunkPlacement::column_granules() const {
  return divide_up(raid::column_length(descriptor), format::physical_granule_bytes);
}

u64 PoolLayout::page_total() const {
  u64 total = 0;
  for (const ChunkPlacement& chunk : chunks) total += chunk.descriptor.size_bytes / page_size;
  return total;
}

u64 default_chunk_size(u64 smallest_device_bytes) {
  const u64 eighth = std::max<u64>(smallest_device_bytes / 8, 1);
  return std::clamp(u64{1} << log2_floor(eighth), format::chunk_size_min, format::chunk_size_max);
}

u64 chunk_tree_node_count(u64 chunk_count, u64 column_count) {
  u64 level_count = std::max<u64>(1, divide_up(chunk_count, entries_per_leaf(column_count)));
  u64 total = level_count;
  while (level_count > 1) {
    level_count = divide_up(level_count, entries_per_branch_node);
    total += level_count;
  }
  return total;
}

u64 minimum_device_size(u64 chunk_size_bytes, u64 tree_pages) {
  const u64 needed = chunk_bytes(chunk_size_bytes) / format::physical_granule_bytes;
  u64 size = chunk_bytes(chunk_size_bytes);
  while (device_layout(size, tree_pages).chunk_area_granules < needed) {
    size += format::physical_granule_bytes;
  }
  return size;
}

PoolLayout compute_layout(const std::vector<NamedSize>& devices, u64 chunk_size_bytes, u64 log_bytes,
                          const ChunkProfile& profile) {
  u64 smallest = ~u64{0};
  for (const NamedSize& device : devices) smallest = std::min(smallest, device.size_bytes);
  PoolLayout layout{};
  layout.profile = profile;
  const u64 devices_needed = std::max<u64>(profile.column_count, profile.level == format::RaidLevel::raid0 ? 2 : 1);
  if (devices.size() < devices_needed) {
    throw PoolError(Status::invalid_argument, fmt::format("profile '{}' needs {} devices at least, {} given",
                                                          format::to_text(profile.level), devices_needed,
                                                          devices.size()));
  }
  layout.chunk_size_bytes = chunk_size_bytes != 0 ? chunk_size_bytes : default_chunk_size(smallest);
  if (!is_power_of_two(layout.chunk_size_bytes) ||
      layout.chunk_size_bytes < format::chunk_size_min ||
      layout.chunk_size_bytes > format::chunk_size_max) {
    throw PoolError(
        Status::invalid_argument,
        fmt::format("chunk size {} is no power of two from {} to {}", layout.chunk_size_bytes,
                    format::chunk_size_min, format::chunk_size_max));
  }
  if (log_bytes != 0 && (log_bytes < log_bytes_min || log_bytes > smallest / 2)) {
    throw PoolError(Status::invalid_argument,
                    fmt::format("an operation log of {} bytes: it needs {} at least, and half of the "
                                "smallest device at most",
                                log_bytes, log_bytes_min));
  }
  const u64 tree_pages = tree_pages_for(devices, layout.chunk_size_bytes, profile);
  for (const NamedSize& device : devices) {
    layout.parts.push_back(device_layout(device.size_bytes, tree_pages, log_bytes));
    format::DevicePart& part = layout.parts.back();
    if (part.chunk_area_granules < chunk_bytes(layout.chunk_size_bytes) / format::physical_granule_bytes) {
      throw PoolError(Status::no_space,
                      fmt::format("{}: {} bytes are too small for a member of this pool; the "
                                  "minimum is {} bytes",
                                  device.name, device.size_bytes,
                                  minimum_device_size(layout.chunk_size_bytes, tree_pages)));
    }
    part.device_index = static_cast<u32>(&device - devices.data());
  }
  ChunkPlacer(layout).place_all();
  if (layout.chunks.empty()) {
    throw PoolError(Status::no_space, "the devices are too small for a chunk of this profile");
  }
  return layout;
}

}  // namespace gpu4fs::server
