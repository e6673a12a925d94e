// Builds the logical space of an opened pool in engine memory. Host only.
//
// Engine memory may be VRAM, so its pointers are computed here and never followed: everything is
// laid out in one block, built as a host image where it is not zero, and copied in. The allocator:
//     void* allocate(u64 bytes, u64 alignment);  // engine memory, or an exception
//     void copy_in(void* engine_destination, const void* host_source, u64 bytes);
//     void zero(void* engine_destination, u64 bytes);
// One allocation is made, for the lifetime of the mount.
//
// The pool was validated when it was opened; the bounds that the engine's memory safety rests on
// are tested here again, because the superblock and the chunk tree come from the medium.
#pragma once

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/types.hpp"
#include "format/chunk_format.hpp"
#include "format/superblock_format.hpp"
#include "raid/damage.hpp"
#include "raid/device_loss.hpp"
#include "raid/levels/levels.hpp"
#include "raid/parity/parity_types.hpp"
#include "raid/raid_types.hpp"

namespace gpu4fs::raid {

// What does not fit together, in words.
class SpaceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A chunk as found in the chunk tree. Any type with these two members will do.
struct ChunkSource {
  format::ChunkDescriptor descriptor;
  std::vector<format::ColumnAddress> columns;
};

namespace detail {

// Pages of a chunk are counted in 30 bits.
inline constexpr u64 chunk_page_count_max = u64{1} << 30;

struct ColumnExtent {
  u32 device;
  u32 chunk;
  u64 begin;
  u64 end;
};

[[noreturn]] inline void refuse_chunk(u64 chunk, const std::string& what) {
  throw SpaceError("chunk " + std::to_string(chunk) + " of the pool: " + what);
}

inline void require(bool holds, u64 chunk, const char* what) {
  if (!holds) refuse_chunk(chunk, what);
}

inline void validate_descriptor(const format::ChunkDescriptor& d, u64 index, u64 chunk_size) {
  require(d.size_bytes != 0 && d.size_bytes % chunk_size == 0, index, "its size is not a multiple of the granule");
  if (const char* problem = find_shape_problem(d)) refuse_chunk(index, problem);
  require((d.flags & ~u32{format::chunk_flag_known}) == 0, index, "it has unknown flags");
  require(d.base_address != 0 && d.base_address % chunk_size == 0, index,
          "its base address is not a multiple of the granule");
  const u64 space_end = format::logical_granule_max * chunk_size;
  require(d.size_bytes <= space_end && d.base_address <= space_end - d.size_bytes, index,
          "it lies beyond the logical space");
  require(d.size_bytes / page_size <= chunk_page_count_max, index, "it is too large");
}

inline void validate_column(format::ColumnAddress column, u64 index, u64 bytes,
                            const std::vector<device::Device>& devices) {
  require(column.device_index() < devices.size(), index, "a column is on a device that the pool does not have");
  const u64 offset = column.offset_bytes();
  const u64 device_bytes = devices[column.device_index()].size_bytes;
  require(offset >= format::layout_area_offset, index, "a column lies in the superblock area");
  require(offset % format::physical_granule_bytes == 0, index, "a column is not aligned to 64 KiB");
  require(bytes <= device_bytes && offset <= device_bytes - bytes, index, "a column ends beyond its device");
}

inline void require_disjoint(std::vector<ColumnExtent> columns) {
  std::sort(columns.begin(), columns.end(), [](const ColumnExtent& a, const ColumnExtent& b) {
    return std::pair(a.device, a.begin) < std::pair(b.device, b.begin);
  });
  for (std::size_t i = 1; i < columns.size(); ++i) {
    if (columns[i].device == columns[i - 1].device && columns[i].begin < columns[i - 1].end) {
      refuse_chunk(columns[i].chunk, "a column overlaps one of chunk " + std::to_string(columns[i - 1].chunk));
    }
  }
}

inline void validate_superblock(const format::Superblock& superblock, u64 chunk_count,
                                const std::vector<device::Device>& devices) {
  const u64 chunk_size = superblock.chunk_size_bytes;
  if (!is_power_of_two(chunk_size) || chunk_size < format::chunk_size_min || chunk_size > format::chunk_size_max) {
    throw SpaceError("the pool's granule of " + std::to_string(chunk_size) + " bytes is out of range");
  }
  if (devices.empty() || devices.size() > device_count_max || devices.size() != superblock.device_count) {
    throw SpaceError("the pool has " + std::to_string(superblock.device_count) + " devices, " +
                     std::to_string(devices.size()) + " were given");
  }
  if (chunk_count == 0 || chunk_count > format::logical_granule_max || chunk_count != superblock.chunk_count) {
    throw SpaceError("the pool has " + std::to_string(superblock.chunk_count) + " chunks, its chunk tree " +
                     std::to_string(chunk_count));
  }
}

// Validates all and returns the granule table.
template <class Chunks>
std::vector<u32> map_granules(const format::Superblock& superblock, const std::vector<device::Device>& devices,
                              const Chunks& chunks) {
  validate_superblock(superblock, chunks.size(), devices);
  const u64 chunk_size = superblock.chunk_size_bytes;
  u64 end = 0;
  u64 page_total = 0;
  std::vector<ColumnExtent> columns;
  for (u32 i = 0; i < chunks.size(); ++i) {
    const format::ChunkDescriptor& d = chunks[i].descriptor;
    validate_descriptor(d, i, chunk_size);
    require(chunks[i].columns.size() == d.column_count, i, "columns are missing from its descriptor");
    const u64 bytes = column_length(d);
    u64 devices_used = 0;
    for (const format::ColumnAddress column : chunks[i].columns) {
      validate_column(column, i, bytes, devices);
      const bool is_physical = (d.flags & format::chunk_flag_physical) != 0;
      require(!is_physical || column.device_index() == d.physical_device, i,
              "it lies on another device than it should");
      const u64 device_bit = u64{1} << column.device_index();
      require((devices_used & device_bit) == 0, i, "two of its columns are on one device");
      devices_used |= device_bit;
      columns.push_back({column.device_index(), i, column.offset_bytes(), column.offset_bytes() + bytes});
    }
    end = std::max(end, d.base_address + d.size_bytes);
    page_total += d.size_bytes / page_size;
  }
  require_disjoint(std::move(columns));
  if (page_total != superblock.page_total) {
    throw SpaceError("the chunks have " + std::to_string(page_total) + " pages, the superblock says " +
                     std::to_string(superblock.page_total));
  }
  std::vector<u32> granules(end / chunk_size, no_chunk);
  for (u32 i = 0; i < chunks.size(); ++i) {
    const format::ChunkDescriptor& d = chunks[i].descriptor;
    for (u64 granule = d.base_address / chunk_size; granule < (d.base_address + d.size_bytes) / chunk_size; ++granule) {
      require(granules[granule] == no_chunk, i, "it overlaps another chunk in logical space");
      granules[granule] = i;
    }
  }
  return granules;
}

// Pages of the longest stripe that pages are allocated in.
inline u32 page_cost_of(const format::ChunkDescriptor& d) {
  return with_level(d.level, [&](auto level) -> u32 {
    if constexpr (level.parity_count != 0) {
      return static_cast<u32>(level.stripe_at(geometry_of(d), 0).page_count);
    } else {
      return 1;
    }
  });
}

inline u32 class_of(const format::ChunkDescriptor& d) {
  return static_cast<u32>(format::profile_of(d)) - 1;
}

// Hands out offsets of one block of engine memory, later pointers.
class BlockLayout {
 public:
  u64 take(u64 bytes) {
    const u64 offset = used_;
    used_ = align_up(used_ + bytes, cache_line);
    return offset;
  }
  u64 take_pages(u64 bytes) {
    used_ = align_up(used_, page_size);
    return take(bytes);
  }
  u64 used() const { return used_; }

 private:
  u64 used_ = 0;
};

template <class T>
T* at_offset(void* block, u64 offset) {
  return reinterpret_cast<T*>(static_cast<u8*>(block) + offset);
}

// Where the arrays of a chunk lie in the block.
struct ChunkPlaces {
  u64 columns;
  u64 descriptors;
  u64 descriptor_dirty;
  u64 descriptor_tables[2];
  u64 work_pages[2];
  u64 bitmaps[6];
  u64 rebuild_todo;
  u64 region_free;
  u64 stripe_stranded;
  u64 unbacked;
};

// Stripes of a chunk with parities, else 0.
inline u64 stripe_count_of(const format::ChunkDescriptor& d) {
  return with_level(d.level, [&](auto level) -> u64 {
    if constexpr (level.parity_count != 0) {
      return d.size_bytes / block_size_2m * level.stripes_per_region(geometry_of(d));
    } else {
      return 0;
    }
  });
}

inline ChunkPlaces place_chunk(BlockLayout& layout, const format::ChunkDescriptor& descriptor) {
  const format::ChunkLayout pages = format::chunk_layout(descriptor.size_bytes / page_size);
  const u64 region_count = divide_up(descriptor.size_bytes / page_size, pages_per_block_2m);
  ChunkPlaces places{};
  places.columns = layout.take(descriptor.column_count * sizeof(ColumnState));
  places.descriptors = layout.take_pages(pages.descriptor_pages * page_size);
  places.descriptor_dirty = layout.take(divide_up(pages.descriptor_pages, 64) * sizeof(u64));
  for (u64& table : places.descriptor_tables) table = layout.take_pages(pages.table_pages * page_size);
  for (u64& page : places.work_pages) page = layout.take_pages(page_size);
  for (u64& bitmap : places.bitmaps) bitmap = layout.take_pages(pages.bitmap_pages * page_size);
  places.rebuild_todo = layout.take(divide_up(descriptor.size_bytes / page_size, 64) * sizeof(u64));
  places.region_free = layout.take(divide_up(region_count, 2) * sizeof(u32));
  places.stripe_stranded = layout.take(stripe_count_of(descriptor) * sizeof(u32));
  places.unbacked = layout.take(divide_up(region_count, 64) * sizeof(u64));
  return places;
}

inline ChunkState make_chunk(const format::ChunkDescriptor& d, const ChunkPlaces& places, void* block) {
  ChunkState chunk{};
  chunk.base_address = d.base_address;
  chunk.size_bytes = d.size_bytes;
  chunk.page_count = d.size_bytes / page_size;
  chunk.level = d.level;
  chunk.redundancy = d.redundancy;
  chunk.column_count = d.column_count;
  chunk.stripe_pages = static_cast<u32>(d.stripe_length_bytes / page_size);
  chunk.copy_count = with_level(d.level, [&](auto level) { return level.copies(d.column_count); });
  chunk.parity_count = with_level(d.level, [](auto level) -> u32 { return level.parity_count; });
  chunk.stripe_count = static_cast<u32>(stripe_count_of(d));
  chunk.stripe_stranded = at_offset<u32>(block, places.stripe_stranded);
  chunk.flags = d.flags;
  chunk.columns = at_offset<ColumnState>(block, places.columns);
  chunk.descriptors = at_offset<format::PageDescriptor>(block, places.descriptors);
  chunk.descriptor_dirty = at_offset<u64>(block, places.descriptor_dirty);
  chunk.descriptor_table = at_offset<u64>(block, places.descriptor_tables[0]);
  chunk.descriptor_table_staged = at_offset<u64>(block, places.descriptor_tables[1]);
  chunk.header_work = at_offset<u8>(block, places.work_pages[0]);
  chunk.scrub_work = at_offset<u8>(block, places.work_pages[1]);
  chunk.epoch_created = d.epoch_created;
  chunk.bitmaps = {at_offset<u64>(block, places.bitmaps[0]), at_offset<u64>(block, places.bitmaps[1]),
                   at_offset<u64>(block, places.bitmaps[2]), at_offset<u64>(block, places.bitmaps[3]),
                   at_offset<u64>(block, places.bitmaps[4]), at_offset<u64>(block, places.bitmaps[5])};
  chunk.rebuild_todo = at_offset<u64>(block, places.rebuild_todo);
  chunk.region_free = at_offset<u32>(block, places.region_free);
  chunk.page_class = class_of(d);
  chunk.unbacked = at_offset<u64>(block, places.unbacked);
  chunk.trim_due = trim_due_at_once;  // what was there before the mount
  return chunk;
}

// What data and metadata are allocated in, and what that costs.
template <class Chunks>
void set_classes(LogicalSpace& space, const format::Superblock& superblock, const Chunks& chunks) {
  u64 all = 0;
  for (u32& cost : space.page_cost) cost = 1;
  for (const auto& chunk : chunks) {
    const format::ChunkDescriptor& d = chunk.descriptor;
    const u32 page_class = class_of(d);
    all |= u64{1} << page_class;
    if ((d.flags & format::chunk_flag_data) != 0) space.data_classes |= u64{1} << page_class;
    if (stripe_count_of(d) != 0) space.striped_classes |= u64{1} << page_class;
    space.page_cost[page_class] = std::max(space.page_cost[page_class], page_cost_of(d));
  }
  space.data_class = space.metadata_class = class_of(chunks[0].descriptor);
  if ((superblock.feature_incompatible & format::feature_mixed_profiles) != 0) {
    space.data_class = u32{superblock.data_profile} - 1;
    space.metadata_class = u32{superblock.metadata_profile} - 1;
  } else if (all != u64{1} << space.data_class) {
    throw SpaceError("chunks of several profiles in a pool that is said to have one");
  }
  for (const u32 needed : {space.data_class, space.metadata_class}) {
    if (needed >= format::profile_max || (all >> needed & 1) == 0) {
      throw SpaceError("the pool has no chunk of profile " + std::to_string(needed + 1));
    }
  }
  space.data_classes |= u64{1} << space.data_class;
}

template <class Allocator>
void copy_columns(Allocator& allocator, const ChunkState& chunk, const std::vector<format::ColumnAddress>& addresses) {
  const u64 header_bytes = format::chunk_layout(chunk.page_count).header_pages * page_size;
  std::vector<ColumnState> columns;
  for (const format::ColumnAddress column : addresses) {
    columns.push_back({column.device_index(), 0, column.offset_bytes(), column.offset_bytes() + header_bytes});
  }
  allocator.copy_in(chunk.columns, columns.data(), columns.size() * sizeof(ColumnState));
}

inline DeviceHealth make_health(const format::Superblock& superblock, const std::vector<device::Device>& devices) {
  DeviceHealth health{};
  for (u32 i = 0; i < devices.size(); ++i) {
    if (!format::has_device(superblock, i)) continue;
    health.failed |= u64{devices[i].failed} << i;
    health.recorded |= u64{superblock.stale_since[i] != 0} << i;
  }
  health.reported = health.failed;
  return health;
}

}  // namespace detail

// What may come while the pool is mounted.
struct SpaceRoom {
  u32 devices = 0;
  u32 chunks = 0;
  u64 granules = 0;  // of logical space, behind the last chunk
};

// The state of a chunk as an image, and in engine memory everything that it points to: for a chunk that comes after the
// mount (space/growth.hpp). What the chunk says of itself and its columns is true; not loaded.
template <class Allocator, class Chunk>
ChunkState build_chunk(Allocator& allocator, const Chunk& chunk, bool accessible) {
  detail::BlockLayout layout;
  const detail::ChunkPlaces places = detail::place_chunk(layout, chunk.descriptor);
  void* block = allocator.allocate(layout.used(), page_size);
  GPU4FS_CHECK(is_aligned(block, page_size));
  allocator.zero(block, layout.used());
  ChunkState state = detail::make_chunk(chunk.descriptor, places, block);
  state.accessible = accessible ? 1 : 0;
  detail::copy_columns(allocator, state, chunk.columns);
  return state;
}

// The space of an opened pool. `devices` in pool order, their `base` in the engine's address space;
// (those marked as failed: any, and the greatest size); `chunks` in any order, each with `descriptor` and `columns`
// like ChunkSource. No chunk is loaded yet; `room` for more is left. `accessible` says whether the engine reaches all
// data pages from the start; the header areas in front of them must be within its reach in any case. Throws
// SpaceError, and what the allocator throws.
template <class Allocator, class Chunks>
LogicalSpace build_logical_space(Allocator& allocator, const format::Superblock& superblock,
                                 const std::vector<device::Device>& devices, const Chunks& chunks, bool accessible,
                                 const SpaceRoom& room = {}) {
  std::vector<u32> granules = detail::map_granules(superblock, devices, chunks);
  granules.resize(std::min(granules.size() + room.granules, format::logical_granule_max), no_chunk);
  const u64 device_capacity = std::min<u64>(devices.size() + room.devices, device_count_max);
  const u64 chunk_capacity = std::min<u64>(chunks.size() + room.chunks, format::logical_granule_max);
  detail::BlockLayout layout;
  const u64 devices_at = layout.take(device_capacity * sizeof(device::Device));
  const u64 granules_at = layout.take(granules.size() * sizeof(u32));
  const u64 chunks_at = layout.take(chunk_capacity * sizeof(ChunkState));
  const u64 damage_at = layout.take(sizeof(DamageTable));
  const bool has_parities = std::any_of(
      chunks.begin(), chunks.end(), [](const auto& chunk) { return detail::stripe_count_of(chunk.descriptor) != 0; });
  const u64 parity_at = has_parities ? layout.take_pages(sizeof(ParityState)) : 0;
  const u64 health_at = layout.take(sizeof(DeviceHealth));
  std::vector<detail::ChunkPlaces> places;
  for (const auto& chunk : chunks) places.push_back(detail::place_chunk(layout, chunk.descriptor));

  GPU4FS_CHECK_EQ(places.size(), chunks.size());
  void* block = allocator.allocate(layout.used(), page_size);
  GPU4FS_CHECK(is_aligned(block, page_size));
  allocator.zero(block, layout.used());
  std::vector<ChunkState> states;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    states.push_back(detail::make_chunk(chunks[i].descriptor, places[i], block));
    states.back().accessible = accessible ? 1 : 0;
    detail::copy_columns(allocator, states.back(), chunks[i].columns);
  }
  LogicalSpace space{};
  space.devices = detail::at_offset<device::Device>(block, devices_at);
  space.device_count = static_cast<u32>(devices.size());
  space.chunk_count = static_cast<u32>(chunks.size());
  space.device_capacity = static_cast<u32>(device_capacity);
  space.chunk_capacity = static_cast<u32>(chunk_capacity);
  space.chunks = detail::at_offset<ChunkState>(block, chunks_at);
  space.granule_to_chunk = detail::at_offset<u32>(block, granules_at);
  space.granule_count = granules.size();
  space.granule_shift = log2_floor(superblock.chunk_size_bytes);
  for (const device::Device& device : devices) space.stacked |= device.stack != nullptr ? 1u : 0u;
  space.data_checksums = (superblock.feature_incompatible & format::feature_data_checksums) != 0 ? 1 : 0;
  space.damage = detail::at_offset<DamageTable>(block, damage_at);
  detail::set_classes(space, superblock, chunks);
  if (has_parities) {
    space.parity = detail::at_offset<ParityState>(block, parity_at);
    u64 all_free[scratch_page_count / 64];
    std::fill(std::begin(all_free), std::end(all_free), ~u64{0});
    allocator.copy_in(space.parity->scratch_free, all_free, sizeof(all_free));
  }
  space.tree_device_count = superblock.tree_replica_count;
  space.health = detail::at_offset<DeviceHealth>(block, health_at);
  const DeviceHealth health = detail::make_health(superblock, devices);
  allocator.copy_in(space.health, &health, sizeof(health));
  space.epoch_open = superblock.epoch + 1;
  allocator.copy_in(space.devices, devices.data(), devices.size() * sizeof(device::Device));
  allocator.copy_in(space.granule_to_chunk, granules.data(), granules.size() * sizeof(u32));
  allocator.copy_in(space.chunks, states.data(), states.size() * sizeof(ChunkState));
  return space;
}

}  // namespace gpu4fs::raid
