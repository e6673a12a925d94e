#include "pool/growth/free_granules.hpp"

#include <algorithm>

#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/limits.hpp"
#include "raid/levels/levels.hpp"

namespace gpu4fs::pool {

namespace {

u64 granules_of_column(const OpenedChunk& chunk) {
  return divide_up(raid::column_length(chunk.descriptor), format::physical_granule_bytes);
}

}  // namespace

u64 unallocated_bytes(const OpenedPool& pool, u32 device) {
  if (!pool.devices[device].is_here()) return 0;
  u64 used = 0;
  for (const OpenedChunk& chunk : pool.chunks) {
    for (const format::ColumnAddress column : chunk.columns) {
      if (column.device_index() == device) used += granules_of_column(chunk);
    }
  }
  return (pool.devices[device].part.chunk_area_granules - used) * format::physical_granule_bytes;
}

FreeGranules::FreeGranules(const OpenedPool& pool) {
  for (const OpenedDevice& device : pool.devices) add_device(device.part);
  for (const OpenedChunk& chunk : pool.chunks) mark(chunk, true);
}

void FreeGranules::add_device(const format::DevicePart& part) {
  devices_.push_back({part, std::vector<bool>(part.chunk_area_granules), 0});
}

std::optional<u64> FreeGranules::find(u32 device, u64 count) const {
  const std::vector<bool>& used = devices_[device].used;
  if (count == 0 || free_count(device) < count) return std::nullopt;
  u64 run = 0;
  for (u64 i = 0; i < used.size(); ++i) {
    run = used[i] ? 0 : run + 1;
    if (run == count) return i + 1 - count;
  }
  return std::nullopt;
}

void FreeGranules::mark(u32 device, u64 first, u64 count, bool used) {
  DeviceGranules& granules = devices_[device];
  GPU4FS_CHECK_LE(first + count, u64{granules.used.size()});
  for (u64 i = first; i < first + count; ++i) {
    GPU4FS_CHECK(granules.used[i] != used);
    granules.used[i] = used;
  }
  granules.used_count += used ? count : 0 - count;
}

void FreeGranules::mark(const OpenedChunk& chunk, bool used) {
  if (chunk.is_erased()) return;
  const u64 count = granules_of_column(chunk);
  for (const format::ColumnAddress column : chunk.columns) {
    const DeviceGranules& granules = devices_[column.device_index()];
    if (granules.used.empty()) continue;  // its areas are unknown
    const u64 first = (column.offset_bytes() - granules.part.chunk_area_offset) / format::physical_granule_bytes;
    mark(column.device_index(), first, count, used);
  }
}

std::vector<u8> FreeGranules::bitmap(u32 device, u64 page_count) const {
  std::vector<u8> bytes(page_count * page_size);
  const std::vector<bool>& used = devices_[device].used;
  for (u64 i = 0; i < used.size(); ++i) {
    if (used[i]) bytes[i / 8] = static_cast<u8>(bytes[i / 8] | (1u << (i % 8)));
  }
  return bytes;
}

}  // namespace gpu4fs::pool
