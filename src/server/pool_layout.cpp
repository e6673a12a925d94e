#include "server/pool_layout.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/bits.hpp"
#include "base/limits.hpp"
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
u64 tree_pages_for(const std::vector<NamedSize>& devices, u64 chunk_size_bytes) {
  u64 chunk_max = 0;
  for (const NamedSize& device : devices) {
    chunk_max += device.size_bytes / chunk_bytes(chunk_size_bytes);
  }
  return std::max(tree_pages_min, 2 * chunk_tree_node_count(chunk_max));
}

// Deals logical bases to the devices in turn. Granule 0 of the logical space stays empty.
void place_chunks(PoolLayout& layout) {
  std::vector<u64> chunks_left;
  u64 chunk_count = 0;
  for (const format::DevicePart& part : layout.parts) {
    chunks_left.push_back(part.chunk_area_granules / layout.granules_per_chunk);
    chunk_count += chunks_left.back();
  }
  if (chunk_count + 1 > format::logical_granule_max) {
    throw PoolError(Status::out_of_range,
                    fmt::format("{} chunks of {} bytes are more than a pool can have: devices "
                                "differ too much in size",
                                chunk_count, layout.chunk_size_bytes));
  }
  for (u64 round = 0; layout.chunks.size() < chunk_count; ++round) {
    for (u32 device = 0; device < layout.parts.size(); ++device) {
      if (round >= chunks_left[device]) continue;
      const u64 base = (layout.chunks.size() + 1) * layout.chunk_size_bytes;
      layout.chunks.push_back({base, device, round * layout.granules_per_chunk});
    }
  }
}

}  // namespace

u64 default_chunk_size(u64 smallest_device_bytes) {
  const u64 eighth = std::max<u64>(smallest_device_bytes / 8, 1);
  return std::clamp(u64{1} << log2_floor(eighth), format::chunk_size_min, format::chunk_size_max);
}

u64 chunk_tree_node_count(u64 chunk_count) {
  u64 level_count = std::max<u64>(1, divide_up(chunk_count, entries_per_leaf));
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

PoolLayout compute_layout(const std::vector<NamedSize>& devices, u64 chunk_size_bytes, u64 log_bytes) {
  u64 smallest = ~u64{0};
  for (const NamedSize& device : devices) smallest = std::min(smallest, device.size_bytes);
  PoolLayout layout{};
  layout.chunk_size_bytes = chunk_size_bytes != 0 ? chunk_size_bytes : default_chunk_size(smallest);
  if (!is_power_of_two(layout.chunk_size_bytes) ||
      layout.chunk_size_bytes < format::chunk_size_min ||
      layout.chunk_size_bytes > format::chunk_size_max) {
    throw PoolError(
        Status::invalid_argument,
        fmt::format("chunk size {} is no power of two from {} to {}", layout.chunk_size_bytes,
                    format::chunk_size_min, format::chunk_size_max));
  }
  layout.pages_per_chunk = layout.chunk_size_bytes / page_size;
  layout.chunk = format::chunk_layout(layout.pages_per_chunk);
  layout.granules_per_chunk = chunk_bytes(layout.chunk_size_bytes) / format::physical_granule_bytes;
  if (log_bytes != 0 && (log_bytes < log_bytes_min || log_bytes > smallest / 2)) {
    throw PoolError(Status::invalid_argument,
                    fmt::format("an operation log of {} bytes: it needs {} at least, and half of the "
                                "smallest device at most",
                                log_bytes, log_bytes_min));
  }
  const u64 tree_pages = tree_pages_for(devices, layout.chunk_size_bytes);
  for (const NamedSize& device : devices) {
    layout.parts.push_back(device_layout(device.size_bytes, tree_pages, log_bytes));
    format::DevicePart& part = layout.parts.back();
    if (part.chunk_area_granules < layout.granules_per_chunk) {
      throw PoolError(Status::no_space,
                      fmt::format("{}: {} bytes are too small for a member of this pool; the "
                                  "minimum is {} bytes",
                                  device.name, device.size_bytes,
                                  minimum_device_size(layout.chunk_size_bytes, tree_pages)));
    }
    part.device_index = static_cast<u32>(&device - devices.data());
  }
  place_chunks(layout);
  return layout;
}

}  // namespace gpu4fs::server
