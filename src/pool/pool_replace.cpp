#include "pool/pool_replace.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/limits.hpp"
#include "fmt/format.h"
#include "format/chunk_format.hpp"
#include "format/log_format.hpp"
#include "pool/chunk_area.hpp"
#include "pool/chunk_reach.hpp"
#include "pool/chunk_tree/tree_store.hpp"
#include "pool/pool_checksum.hpp"
#include "pool/pool_error.hpp"
#include "raid/levels/levels.hpp"

namespace gpu4fs::pool {
namespace {

using format::DevicePart;

struct ColumnPlace {
  const OpenedChunk* chunk;
  u32 column;
  u64 offset;
  u64 length;
};

std::vector<ColumnPlace> columns_on(const OpenedPool& pool, u32 device) {
  std::vector<ColumnPlace> places;
  for (const OpenedChunk& chunk : pool.chunks) {
    for (u32 column = 0; column < chunk.columns.size(); ++column) {
      if (chunk.columns[column].device_index() != device) continue;
      places.push_back({&chunk, column, chunk.columns[column].offset_bytes(), raid::column_length(chunk.descriptor)});
    }
  }
  return places;
}

// The areas before the chunks of a member, except for the chunk map.
struct Front {
  u64 tree_pages;
  u64 log_bytes;
};

Front front_of(const OpenedPool& pool, u32 index) {
  Front front{0, 0};
  const bool holds_log = index < pool.superblock.tree_replica_count;
  for (const OpenedDevice& device : pool.devices) {
    if (!device.is_here()) continue;
    front.tree_pages = std::max(front.tree_pages, device.part.tree_pages);
    if (holds_log) front.log_bytes = std::max(front.log_bytes, device.part.log_bytes);
  }
  if (pool.superblock.log_capacity != 0) front.log_bytes = holds_log ? pool.superblock.log_capacity : 0;
  return front;
}

u64 map_bytes(u64 map_pages) {
  return 2 * (1 + map_pages) * page_size;
}

u64 area_begin(const Front& front, u64 map_pages) {
  const u64 end = format::layout_area_offset + front.tree_pages * page_size + map_bytes(map_pages) + front.log_bytes;
  return align_up(end, u64{format::physical_granule_bytes});
}

// Chunk map and chunk headers of stale members are rewritten, because the pool may have got new chunks.
void write_chunk_map(DeviceFile& file, const OpenedPool& pool, const DevicePart& part) {
  std::vector<u8> bitmap(part.chunk_map_pages * page_size);
  for (const ColumnPlace& place : columns_on(pool, part.device_index)) {
    const u64 first = (place.offset - part.chunk_area_offset) / format::physical_granule_bytes;
    const u64 count = divide_up(place.length, u64{format::physical_granule_bytes});
    for (u64 granule = first; granule < first + count; ++granule) {
      bitmap[granule / 8] = static_cast<u8>(bitmap[granule / 8] | (1u << (granule % 8)));
    }
  }
  write_bitmap_slot(file, chunk_map_place(part), 0, bitmap.data(), nullptr, 1);
  clear_bitmap_slot(file, chunk_map_place(part), 1);
}

void write_chunk_headers(DeviceFile& file, const OpenedPool& pool, u32 index) {
  for (const ColumnPlace& place : columns_on(pool, index)) {
    const format::ChunkDescriptor& chunk = place.chunk->descriptor;
    if (place.column > chunk.redundancy) continue;
    const format::ChunkHeader header = make_chunk_header(chunk, place.column, pool.superblock.pool_uuid);
    file.write_at(place.offset, &header, sizeof(header));
    for (u32 slot = 0; slot < 2; ++slot) clear_bitmap_slot(file, chunk_bitmap_place(chunk, place.offset), slot);
  }
}

// The node and all nodes below it, each from its newest valid replica.
void copy_tree_node(TreeNodeStore& from, DeviceFile& file, const DevicePart& part, u32 number, u32 level,
                    u64 epoch_max) {
  TreeReport ignored;
  const format::ChunkTreeNode page = read_newest_page(from, number, level, epoch_max, ignored);
  file.write_at(part.tree_offset + u64{number} * page_size, &page, sizeof(page));
  if (level == 0) return;
  for (u32 i = 0; i < page.entry_count; ++i) {
    format::ChunkTreeBranch branch{};
    std::memcpy(&branch, page.entries + i * sizeof(branch), sizeof(branch));
    copy_tree_node(from, file, part, branch.child, level - 1, epoch_max);
  }
}

void copy_chunk_tree(DeviceFile& file, OpenedPool& pool, const DevicePart& part) {
  const format::Superblock& superblock = pool.superblock;
  if (part.device_index >= superblock.tree_replica_count) return;
  std::vector<DeviceFile> none;
  std::vector<TreeDevice> devices;
  none.push_back(DeviceFile::absent("the device that is filled"));
  for (OpenedDevice& device : pool.devices) {
    const bool is_source = device.is_here() && device.part.device_index != part.device_index;
    devices.push_back({is_source ? &device.file : &none.front(), device.part});
  }
  DeviceNodeStore store(devices, superblock.tree_replica_count, false);
  copy_tree_node(store, file, part, superblock.tree_root, superblock.tree_height - 1u, ~u64{0});
}

}  // namespace

u64 replacement_size_min(const OpenedPool& pool, u32 index) {
  u64 least = area_begin(front_of(pool, index), 1) + pool.superblock.chunk_size_bytes;
  for (const ColumnPlace& place : columns_on(pool, index)) least = std::max(least, place.offset + place.length);
  return least;
}

DevicePart plan_replacement(const OpenedPool& pool, u32 index, u64 size_bytes, const u8 (&uuid)[16]) {
  const u64 least = replacement_size_min(pool, index);
  const u64 size = align_down(size_bytes, u64{page_size});
  if (size < least) {
    throw PoolError(Status::no_space,
                    fmt::format("a device of {} bytes is too small to take the place of device {}: it must "
                                "have {}",
                                size_bytes, index, least));
  }
  const std::vector<ColumnPlace> columns = columns_on(pool, index);
  u64 first_column = ~u64{0};
  for (const ColumnPlace& place : columns) first_column = std::min(first_column, place.offset);
  const Front front = front_of(pool, index);
  DevicePart part{};
  std::memcpy(part.device_uuid, uuid, sizeof(uuid));
  part.device_index = index;
  part.size_bytes = size;
  part.tree_offset = format::layout_area_offset;
  part.tree_pages = front.tree_pages;
  part.chunk_map_offset = part.tree_offset + part.tree_pages * page_size;
  part.log_bytes = front.log_bytes;
  // The chunk map is as large as the device needs, or as the room before the first column allows.
  u64 map_pages = 1;
  while (area_begin(front, map_pages) <= std::min(first_column, size) &&
         divide_up((size - area_begin(front, map_pages)) / format::physical_granule_bytes, u64{format::bits_per_page}) >
             map_pages) {
    ++map_pages;
  }
  while (map_pages > 1 && area_begin(front, map_pages) > first_column) --map_pages;
  part.chunk_map_pages = map_pages;
  part.log_offset = part.chunk_map_offset + map_bytes(map_pages);
  part.chunk_area_offset = columns.empty() ? area_begin(front, map_pages) : first_column;
  const u64 granules = (size - part.chunk_area_offset) / format::physical_granule_bytes;
  part.chunk_area_granules = std::min(granules, map_pages * format::bits_per_page);
  u64 end = 0;
  for (const ColumnPlace& place : columns) end = std::max(end, place.offset + place.length);
  const u64 area_end = part.chunk_area_offset + part.chunk_area_granules * format::physical_granule_bytes;
  if (area_begin(front, map_pages) > part.chunk_area_offset || end > area_end) {
    throw PoolError(Status::not_supported,
                    fmt::format("no layout has the columns of device {} in their places", index));
  }
  return part;
}

DevicePart stale_part(const OpenedPool& pool, u32 index, const DeviceFile& file) {
  const SuperblockProbe probe = probe_superblocks(file);
  const format::Superblock* own = probe.newest();
  const bool is_member = own != nullptr && own->device.device_index == index &&
                         std::memcmp(own->pool_uuid, pool.superblock.pool_uuid, sizeof(own->pool_uuid)) == 0 &&
                         std::memcmp(own->device.device_uuid, pool.superblock.device_uuids[index], 16) == 0;
  if (!is_member)
    throw PoolError(Status::wrong_pool, fmt::format("{}: is not device {} of the pool", file.path(), index));
  const u64 area_end = own->device.chunk_area_offset + own->device.chunk_area_granules * format::physical_granule_bytes;
  for (const ColumnPlace& place : columns_on(pool, index)) {
    if (place.offset >= own->device.chunk_area_offset && place.offset + place.length <= area_end) continue;
    throw PoolError(
        Status::corrupt_superblock,
        fmt::format("{}: the columns of device {} do not lie where it has room for them", file.path(), index));
  }
  return own->device;
}

void prepare_replacement(OpenedPool& pool, DeviceFile& file, const DevicePart& part, bool is_new) {
  file.reserve_range(0, part.chunk_area_offset);
  for (const ColumnPlace& place : columns_on(pool, part.device_index)) {
    file.reserve_range(place.offset, mounted_bytes(pool, *place.chunk));
  }
  if (is_new) {
    file.zero_range(0, format::layout_area_offset);
    file.clear_end();
    file.flush();  // the old content is invalid before anything of this pool is written
  }
  copy_chunk_tree(file, pool, part);
  write_chunk_map(file, pool, part);
  write_chunk_headers(file, pool, part.device_index);
  file.flush();
}

void write_stale_superblocks(const OpenedPool& pool, DeviceFile& file, const DevicePart& part, u64 stale_since) {
  GPU4FS_CHECK_GT(stale_since, u64{1});
  // Two of them: the checkpoint that makes the device a member overwrites one, and this write may be torn.
  for (u64 epoch = stale_since - 1; epoch != 0 && epoch + 2 >= stale_since; --epoch) {
    format::Superblock superblock = pool.superblock;
    superblock.epoch = epoch;
    superblock.slot = static_cast<u32>(epoch & 1);
    superblock.device = part;
    std::memcpy(superblock.device_uuids[part.device_index], part.device_uuid, sizeof(part.device_uuid));
    bool any = false;
    for (u32 d = 0; d < device_count_max; ++d) {
      u64& since = superblock.stale_since[d];
      if (d == part.device_index || since > epoch) since = 0;
      any = any || since != 0;
    }
    superblock.feature_incompatible &= ~u64{format::feature_stale_devices};
    if (any) superblock.feature_incompatible |= format::feature_stale_devices;
    seal(superblock, superblock_offset(superblock.slot));
    const std::string problem = find_superblock_problem(superblock, superblock.slot, file.size_bytes());
    if (!problem.empty()) throw PoolError(Status::corrupt_superblock, fmt::format("{}: {}", file.path(), problem));
    file.write_at(superblock_offset(superblock.slot), &superblock, sizeof(superblock));
  }
  file.flush();
}

}  // namespace gpu4fs::pool
