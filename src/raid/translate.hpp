// From a logical address to memory (docs/internals/format.md, section 4, "Translating").
//
// Translation takes one access to the granule table. Addresses come from block pointers on the medium, so an invalid
// one is a Status. The columns were checked against their devices when the space was built. Plain functions: one rank
// calls them, inside on_leader().
#pragma once

#include "base/atomics.hpp"
#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/config.hpp"
#include "base/limits.hpp"
#include "base/status.hpp"
#include "base/types.hpp"
#include "device/memory/memory_device.hpp"
#include "raid/levels/levels.hpp"
#include "raid/raid_types.hpp"

namespace gpu4fs::raid {

inline constexpr u64 no_address = 0;  // granule 0 belongs to no chunk

// A data page of the space.
struct PageLocation {
  u32 chunk;
  u32 reserved;
  u64 page;
};

// One page's bit in a bitmap of its chunk.
GPU4FS_FN inline bool page_bit(const u64* bitmap, u64 page) {
  return (load<Order::relaxed, Scope::engine>(&bitmap[page / 64]) >> (page % 64) & 1) != 0;
}

// Finds the chunk of any byte address. Status: corrupt_structure if no chunk covers it.
GPU4FS_FN inline Status find_chunk(const LogicalSpace& space, u64 address, u32* chunk) {
  *chunk = no_chunk;
  const u64 granule = address >> space.granule_shift;
  if (granule >= space.granule_count) return Status::corrupt_structure;
  // A caller gets an address in a chunk from the worker that allocated there, after the chunk was counted.
  const u32 index = load<Order::relaxed, Scope::group>(&space.granule_to_chunk[granule]);
  if (index == no_chunk) return Status::corrupt_structure;
  GPU4FS_CHECK_LT(index, known_chunk_count(space));
  GPU4FS_CHECK_LT(address - space.chunks[index].base_address, space.chunks[index].size_bytes);
  *chunk = index;
  return Status::ok;
}

// The same for the address of a page: corrupt_structure also if it is not page aligned.
GPU4FS_FN inline Status find_page(const LogicalSpace& space, u64 address, PageLocation* location) {
  *location = {no_chunk, 0, 0};
  if (!is_aligned(address, page_size)) return Status::corrupt_structure;
  GPU4FS_TRY(find_chunk(space, address, &location->chunk));
  location->page = (address - space.chunks[location->chunk].base_address) >> page_shift;
  return Status::ok;
}

// Whether the engine may touch the chunk's pages: ok, chunk_not_mapped, device_failed for a
// chunk whose allocation state and page descriptors are not in memory, or corrupt_structure for one that was deleted.
GPU4FS_FN inline Status chunk_state(const LogicalSpace& space, u32 chunk) {
  GPU4FS_CHECK_LT(chunk, known_chunk_count(space));
  const u32 presence = presence_of(space.chunks[chunk]);
  if (presence == chunk_usable) return Status::ok;
  if ((presence & chunk_erased) != 0) return Status::corrupt_structure;
  return (presence & chunk_loaded) == 0 ? Status::device_failed : Status::chunk_not_mapped;
}

// Whether the memory of a free page was returned to the system (space/backing.hpp).
GPU4FS_FN inline bool is_unbacked(const ChunkState& chunk, u64 page) {
  if (load<Order::relaxed, Scope::engine>(&chunk.unbacked_pages) == 0) return false;
  return page_bit(chunk.unbacked, page / pages_per_block_2m);
}

// The chunk of a page that is about to be accessed. *chunk is also set with chunk_not_mapped. A damaged pointer may
// lead to memory that is not present.
GPU4FS_FN inline Status chunk_of(const LogicalSpace& space, u64 address, u32* chunk) {
  PageLocation location;
  GPU4FS_TRY(find_page(space, address, &location));
  *chunk = location.chunk;
  GPU4FS_TRY(chunk_state(space, location.chunk));
  return is_unbacked(space.chunks[location.chunk], location.page) ? Status::chunk_not_mapped : Status::ok;
}

// The place of a data page, or of pages of a header area.
struct DevicePlace {
  u32 device;
  u32 reserved;
  u64 offset;
};

GPU4FS_FN inline Geometry geometry_of(const ChunkState& chunk) {
  return {chunk.column_count, chunk.stripe_pages, chunk.page_count};
}

// Pages of one of the chunk's columns on its device, the header area included.
GPU4FS_FN inline u64 pages_of_column(const ChunkState& chunk, const ColumnState& column) {
  const u64 data_pages = with_level(chunk.level, [&](auto level) { return level.column_pages(geometry_of(chunk)); });
  return (column.data_offset - column.header_offset) / page_size + data_pages;
}

// Whether the address of each page has to be looked up, even if it follows another one on its device. It may become
// true when a device joins, which is before the device has pages that the caller knows of.
GPU4FS_FN inline bool pages_are_apart(const LogicalSpace& space) {
  return load<Order::relaxed, Scope::group>(&space.pages_apart) != 0;
}

// Pages from `page` on that are contiguous on the devices, in every copy: in memory too, unless pages are apart.
GPU4FS_FN GPU4FS_NOINLINE inline u64 contiguous_pages(const ChunkState& chunk, u64 page) {
  GPU4FS_CHECK_LT(page, chunk.page_count);
  return with_level(chunk.level, [&](auto level) { return level.contiguous_pages(geometry_of(chunk), page); });
}

// The copy that is read first: adjacent stretches of a mirror come from different devices.
GPU4FS_FN inline u32 preferred_copy(const ChunkState& chunk, u64 page) {
  return chunk.copy_count == 1 ? 0 : static_cast<u32>(page / 64 % chunk.copy_count);
}

GPU4FS_FN GPU4FS_NOINLINE inline DevicePlace page_place(const LogicalSpace& space, const PageLocation& location,
                                                        u32 copy) {
  GPU4FS_CHECK_LT(location.chunk, known_chunk_count(space));
  const ChunkState& chunk = space.chunks[location.chunk];
  GPU4FS_CHECK_LT(location.page, chunk.page_count);
  GPU4FS_CHECK_LT(copy, chunk.copy_count);
  const PagePlace place =
      with_level(chunk.level, [&](auto level) { return level.map(geometry_of(chunk), location.page, copy); });
  GPU4FS_CHECK_LT(place.column, chunk.column_count);
  const ColumnState& column = chunk.columns[place.column];
  GPU4FS_CHECK_LT(column.device, known_device_count(space));
  return {column.device, 0, column.data_offset + place.page * page_size};
}

// Memory of a copy of a data page.
GPU4FS_FN GPU4FS_NOINLINE inline u8* page_memory(const LogicalSpace& space, const PageLocation& location,
                                                 u32 copy = 0) {
  const DevicePlace place = page_place(space, location, copy);
  return device::memory_at(space.devices[place.device], place.offset, page_size);
}

// The place of pages [first, first + count) of a column's header area.
GPU4FS_FN inline DevicePlace header_place(const LogicalSpace& space, const ChunkState& chunk, u32 column, u64 first,
                                          u64 count) {
  GPU4FS_CHECK_LT(column, chunk.column_count);
  const ColumnState& state = chunk.columns[column];
  GPU4FS_CHECK_LT(state.device, known_device_count(space));
  GPU4FS_CHECK_LT(state.header_offset, state.data_offset);
  GPU4FS_CHECK_LE((first + count) * page_size, state.data_offset - state.header_offset);
  return {state.device, 0, state.header_offset + first * page_size};
}

}  // namespace gpu4fs::raid
