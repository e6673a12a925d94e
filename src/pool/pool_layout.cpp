#include "pool/pool_layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "base/bits.hpp"
#include "base/limits.hpp"
#include "format/format_text.hpp"
#include "pool/chunk_shape.hpp"
#include "pool/pool_error.hpp"
#include "raid/levels/levels.hpp"

namespace gpu4fs::pool {

namespace {

constexpr u64 log_bytes_min = u64{1} << 20;
constexpr u64 log_bytes_max = u64{256} << 20;
constexpr u64 tree_pages_min = 16;
constexpr u64 bits_per_page = format::bits_per_page;

u64 chunk_bytes(u64 chunk_size_bytes) {
  return format::chunk_layout(chunk_size_bytes / page_size).header_pages * page_size + chunk_size_bytes;
}

// The least number of columns of a chunk of the profile.
u32 member_count_min(const ChunkProfile& profile) {
  if (profile.column_count != 0) return profile.column_count;
  return column_count_least(profile.level);
}

// Several times the nodes of the fullest tree: changes are copied, and more devices may be added.
u64 tree_pages_for(const std::vector<NamedSize>& devices, u64 chunk_size_bytes, const std::vector<ChunkShare>& shares) {
  u64 column_max = 0;
  for (const NamedSize& device : devices) {
    column_max += device.size_bytes / chunk_bytes(chunk_size_bytes);
  }
  u64 columns_min = ~u64{0};
  u64 columns_max = 1;
  for (const ChunkShare& share : shares) {
    columns_min = std::min<u64>(columns_min, member_count_min(share.profile));
    columns_max =
        std::max<u64>(columns_max, share.profile.column_count == 0 ? devices.size() : share.profile.column_count);
  }
  return std::max(tree_pages_min, 8 * chunk_tree_node_count(divide_up(column_max, columns_min), columns_max));
}

}  // namespace

u32 column_count_least(format::RaidLevel level) {
  return raid::with_level(level, [](auto kind) -> u32 { return kind.member_count_min; });
}

format::DevicePart device_layout(u64 size_bytes, u64 tree_pages, u64 log_bytes) {
  format::DevicePart part{};
  part.size_bytes = size_bytes;
  part.tree_offset = format::layout_area_offset;
  part.tree_pages = tree_pages;
  part.chunk_map_offset = part.tree_offset + tree_pages * page_size;
  // One bit for every granule of the device is slightly more than the chunk area needs.
  const u64 granule_max = size_bytes / format::physical_granule_bytes;
  part.chunk_map_pages = std::max<u64>(1, divide_up(granule_max, bits_per_page));
  part.log_offset = part.chunk_map_offset + 2 * (1 + part.chunk_map_pages) * page_size;
  part.log_bytes = align_down(std::clamp(size_bytes / 64, log_bytes_min, log_bytes_max), page_size);
  if (log_bytes != 0) part.log_bytes = align_up(log_bytes, page_size);
  part.chunk_area_offset = align_up(part.log_offset + part.log_bytes, format::physical_granule_bytes);
  part.chunk_area_granules =
      part.chunk_area_offset >= size_bytes ? 0 : (size_bytes - part.chunk_area_offset) / format::physical_granule_bytes;
  return part;
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
  descriptor.flags = format::chunk_flag_any_content;
  if (profile.device) {
    descriptor.flags = u32{format::chunk_flag_data} | format::chunk_flag_physical;
    descriptor.physical_device = *profile.device;
  }
  return descriptor;
}

namespace {

// Assigns columns to the devices with the most room. Granule 0 of the logical space stays empty.
class ChunkPlacer {
 public:
  ChunkPlacer(PoolLayout& layout, const std::vector<ChunkShare>& shares) : layout_(layout), used_(layout.parts.size()) {
    for (const ChunkShare& share : shares) states_.push_back({share, 0, 0, false});
  }

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
    for (const ShareState& state : states_) {
      if (state.chunk_count != 0) continue;
      const std::string name = format::profile_name(profile_number(state.share.profile)).text;
      throw PoolError(Status::no_space,
                      states_.size() == 1 ? "the devices are too small for a chunk of this profile"
                                          : fmt::format("the devices are too small for a chunk of profile '{}' beside "
                                                        "those of the others",
                                                        name));
    }
  }

 private:
  struct ShareState {
    ChunkShare share;
    u64 granules;
    u64 chunk_count;
    bool is_full;  // no device has room for one more
  };

  u64 room(u32 device) const { return layout_.parts[device].chunk_area_granules - used_[device]; }

  // Devices, the one with the most room first.
  std::vector<u32> by_room(const ChunkProfile& profile) const {
    if (profile.device) return {*profile.device};
    std::vector<u32> devices(used_.size());
    for (u32 i = 0; i < devices.size(); ++i) devices[i] = i;
    std::stable_sort(devices.begin(), devices.end(), [this](u32 a, u32 b) { return room(a) > room(b); });
    return devices;
  }

  // The next chunk of the profile that has the least of its share; nothing if there is no room left.
  std::optional<ChunkPlacement> next_chunk() {
    for (;;) {
      ShareState* poorest = nullptr;
      for (ShareState& state : states_) {
        if (state.is_full) continue;
        const auto filled = [](const ShareState& s) { return static_cast<double>(s.granules) / s.share.share; };
        if (poorest == nullptr || filled(state) < filled(*poorest)) poorest = &state;
      }
      if (poorest == nullptr) return std::nullopt;
      if (std::optional<ChunkPlacement> chunk = place_chunk(poorest->share)) {
        poorest->granules += chunk->column_granules() * chunk->columns.size();
        ++poorest->chunk_count;
        return chunk;
      }
      poorest->is_full = true;
    }
  }

  // As many columns as the profile requests, fewer if it allows fewer; nothing if there is no room left.
  std::optional<ChunkPlacement> place_chunk(const ChunkShare& share) {
    const ChunkProfile& profile = share.profile;
    const std::vector<u32> devices = by_room(profile);
    const u32 wanted = profile.column_count == 0 ? static_cast<u32>(devices.size()) : profile.column_count;
    const u32 least = member_count_min(profile);
    for (u32 count = std::min<u32>(wanted, static_cast<u32>(devices.size())); count >= least; --count) {
      ChunkPlacement chunk{describe_chunk(profile, count, layout_.chunk_size_bytes), {}};
      chunk.descriptor.flags = share.flags | (chunk.descriptor.flags & format::chunk_flag_physical);
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
  std::vector<ShareState> states_;
  std::vector<u64> used_;
};

}  // namespace

namespace {

// The index in "physical:12"; nothing for any other name.
std::optional<u32> parse_physical(const std::string& name) {
  constexpr std::string_view begin = "physical:";
  if (!name.starts_with(begin)) return std::nullopt;
  u32 device = 0;
  const char* const end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + begin.size(), end, device);
  if (error != std::errc{} || rest != end || device >= format::physical_device_max ||
      name != format::profile_name(format::physical_profile(device)).text) {
    throw PoolError(Status::invalid_argument,
                    fmt::format("profile '{}': physical: and the index of a device, 0 to {}, is wanted", name,
                                format::physical_device_max - 1));
  }
  return device;
}

}  // namespace

ChunkProfile parse_profile(const std::string& name, u32 stripe_length_bytes) {
  constexpr u32 stripe_length_default = 64 * 1024;
  // The pages of a stripe are allocated together, so short ones waste the least.
  constexpr u32 parity_stripe_length_default = page_size;
  ChunkProfile profile;
  if (const std::optional<u32> device = parse_physical(name)) {
    profile = {format::RaidLevel::single, 1, 0, device};
  } else if (name == "single") {
    profile = {format::RaidLevel::single, 1, 0, {}};
  } else if (name == "raid0") {
    profile = {format::RaidLevel::raid0, 0, stripe_length_bytes != 0 ? stripe_length_bytes : stripe_length_default, {}};
  } else if (name == "raid1") {
    profile = {format::RaidLevel::raid1, 2, 0, {}};
  } else if (name == "raid1c3") {
    profile = {format::RaidLevel::raid1, 3, 0, {}};
  } else if (name == "raid1c4") {
    profile = {format::RaidLevel::raid1, 4, 0, {}};
  } else if (name == "raid5" || name == "raid6" || name == "raid7") {
    const format::RaidLevel level = name == "raid5"   ? format::RaidLevel::raid5
                                    : name == "raid6" ? format::RaidLevel::raid6
                                                      : format::RaidLevel::raid7;
    profile = {level, 0, stripe_length_bytes != 0 ? stripe_length_bytes : parity_stripe_length_default, {}};
  } else {
    throw PoolError(Status::not_supported,
                    fmt::format("profile '{}' is not supported: this version makes single, raid0, raid1, raid1c3, "
                                "raid1c4, raid5, raid6, raid7 and physical:INDEX",
                                name));
  }
  if (stripe_length_bytes != 0 && profile.stripe_length_bytes == 0) {
    throw PoolError(Status::invalid_argument, fmt::format("profile '{}' has no stripes to give a length to", name));
  }
  if (profile.stripe_length_bytes != 0 &&
      (!is_power_of_two(profile.stripe_length_bytes) || profile.stripe_length_bytes < stripe_length_min ||
       profile.stripe_length_bytes > stripe_length_max)) {
    throw PoolError(Status::invalid_argument,
                    fmt::format("stripe length {} is no power of two from {} to {}", profile.stripe_length_bytes,
                                stripe_length_min, stripe_length_max));
  }
  return profile;
}

format::Profile profile_number(const ChunkProfile& profile) {
  return profile.device ? format::physical_profile(*profile.device)
                        : format::profile_of(profile.level, profile.column_count);
}

u64 ChunkPlacement::column_granules() const {
  return divide_up(raid::column_length(descriptor), format::physical_granule_bytes);
}

u64 PoolLayout::page_total() const {
  u64 total = 0;
  for (const ChunkPlacement& chunk : chunks) total += chunk.descriptor.size_bytes / page_size;
  return total;
}

// A mount takes memory chunk by chunk, so the default is not the largest allowed size.
u64 default_chunk_size(u64 smallest_device_bytes) {
  constexpr u64 default_max = u64{256} << 20;
  const u64 eighth = std::max<u64>(smallest_device_bytes / 8, 1);
  return std::clamp(u64{1} << log2_floor(eighth), format::chunk_size_min, default_max);
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
  return compute_layout(devices, chunk_size_bytes, log_bytes,
                        std::vector<ChunkShare>{{profile, format::chunk_flag_any_content, 1}});
}

PoolLayout compute_layout(const std::vector<NamedSize>& devices, u64 chunk_size_bytes, u64 log_bytes,
                          const std::vector<ChunkShare>& shares) {
  u64 smallest = ~u64{0};
  for (const NamedSize& device : devices) smallest = std::min(smallest, device.size_bytes);
  PoolLayout layout{};
  for (const ChunkShare& share : shares) {
    const u64 devices_needed = member_count_min(share.profile);
    if (share.profile.device && *share.profile.device >= devices.size()) {
      throw PoolError(Status::invalid_argument, fmt::format("profile 'physical:{}': the pool has {} devices",
                                                            *share.profile.device, devices.size()));
    }
    if (devices.size() >= devices_needed) continue;
    throw PoolError(Status::invalid_argument, fmt::format("profile '{}' needs {} devices at least, {} given",
                                                          format::profile_name(profile_number(share.profile)).text,
                                                          devices_needed, devices.size()));
  }
  layout.chunk_size_bytes = chunk_size_bytes != 0 ? chunk_size_bytes : default_chunk_size(smallest);
  if (!is_power_of_two(layout.chunk_size_bytes) || layout.chunk_size_bytes < format::chunk_size_min ||
      layout.chunk_size_bytes > format::chunk_size_max) {
    throw PoolError(Status::invalid_argument,
                    fmt::format("chunk size {} is no power of two from {} to {}", layout.chunk_size_bytes,
                                format::chunk_size_min, format::chunk_size_max));
  }
  if (log_bytes != 0 && (log_bytes < log_bytes_min || log_bytes > smallest / 2)) {
    throw PoolError(Status::invalid_argument,
                    fmt::format("an operation log of {} bytes: it needs {} at least, and half of the "
                                "smallest device at most",
                                log_bytes, log_bytes_min));
  }
  const u64 tree_pages = tree_pages_for(devices, layout.chunk_size_bytes, shares);
  for (const NamedSize& device : devices) {
    layout.parts.push_back(device_layout(device.size_bytes, tree_pages, log_bytes));
    format::DevicePart& part = layout.parts.back();
    if (part.chunk_area_granules < chunk_bytes(layout.chunk_size_bytes) / format::physical_granule_bytes) {
      throw PoolError(Status::no_space, fmt::format("{}: {} bytes are too small for a member of this pool; the "
                                                    "minimum is {} bytes",
                                                    device.name, device.size_bytes,
                                                    minimum_device_size(layout.chunk_size_bytes, tree_pages)));
    }
    part.device_index = static_cast<u32>(&device - devices.data());
  }
  ChunkPlacer(layout, shares).place_all();
  return layout;
}

}  // namespace gpu4fs::pool
