// A chunk's header area on the medium. Its structures are read into engine memory and verified there, and written only
// from engine memory (device/transfer.hpp).
//
// The superblock has the sum of the slot headers' checksums. The slot header has the checksums of bitmap and descriptor
// table. The table has the checksum of each page of descriptors, with its place. So a damaged, missing or outdated
// structure is always recognised, and every column of the area is as good as any other. The chunk header contains only
// information from the chunk tree; a damaged one is composed again.
//
// All functions are uniform.
#pragma once

#include "base/copy.hpp"
#include "base/group.hpp"
#include "base/xxh3.hpp"
#include "device/transfer.hpp"
#include "raid/damage.hpp"
#include "raid/device_loss.hpp"
#include "raid/translate.hpp"
#include "space/space_counters.hpp"
#include "space/space_types.hpp"

namespace gpu4fs::space {

GPU4FS_FN inline u64 bitmap_words(const ChunkState& chunk) {
  return divide_up(chunk.page_count, 64);
}

GPU4FS_FN inline format::ChunkLayout layout_of(const ChunkState& chunk) {
  return format::chunk_layout(chunk.page_count);
}

// The first page of a bitmap slot in the header area: its header. The bitmap follows, then the descriptor table.
GPU4FS_FN inline u64 slot_page(const format::ChunkLayout& layout, u32 slot) {
  return slot == 0 ? layout.bitmap_a_page : layout.bitmap_b_page;
}
GPU4FS_FN inline u64 table_page(const format::ChunkLayout& layout, u32 slot) {
  return slot_page(layout, slot) + 1 + layout.bitmap_pages;
}

// The hash of `count` whole pages.
template <class Group>
GPU4FS_FN u64 hash_pages(Group g, const void* pages, u64 count, u64 seed) {
  if (count == 1) return xxh3_page(g, pages, seed);
  return on_leader(g, [&] { return xxh3_64(pages, count * page_size, seed); });
}

template <class Group>
GPU4FS_FN u64 count_set_bits(Group g, const ChunkState& chunk, const u64* bitmap) {
  u64 count = 0;
  for (u64 w = g.rank(); w < bitmap_words(chunk); w += g.size()) count += popcount(bitmap[w]);
  return g.reduce(count, [](u64 a, u64 b) { return a + b; });
}

// Pages [first, + count) of a column's header area.
struct HeaderRange {
  u32 column;
  u64 first;
  u64 count;
};

template <class Group>
GPU4FS_FN raid::DevicePlace place_of_header(Group g, const SpaceState& state, const ChunkState& chunk,
                                            HeaderRange range) {
  return on_leader(g, [&] { return raid::header_place(state.space, chunk, range.column, range.first, range.count); });
}

// Reads into engine memory, and records a failure. A device that was already marked is not reported
// (raid::begin_noted_read()).
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status read_header(Group g, const SpaceState& state, const ChunkState& chunk,
                                             HeaderRange range, void* destination) {
  const raid::DevicePlace place = place_of_header(g, state, chunk, range);
  if (!on_leader(g, [&] { return raid::device_is_readable(state.space, place.device); })) return Status::device_failed;
  const device::Device& device = state.space.devices[place.device];
  const Status status = device::read_range(g, device, place.offset, range.count * page_size, destination);
  if (status == Status::ok) return status;
  on_leader(g, [&] { raid::note_read_error(state.space, place.device, status); });
  return status;
}

// Writes from engine memory. After an error the column's device may have become a lost one (is_lost()); then the caller
// continues without it.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status write_header(Group g, const SpaceState& state, const ChunkState& chunk,
                                              HeaderRange range, const void* source) {
  const raid::DevicePlace place = place_of_header(g, state, chunk, range);
  const device::Device& device = state.space.devices[place.device];
  const Status status = device::write_range(g, device, place.offset, source, range.count * page_size);
  if (status == Status::ok) return status;
  on_leader(g, [&] { (void)raid::tolerates_write_error(state.space, place.device); });
  return status;
}

// True if the write to a copy of the header area failed with its device, and the pool continues without the device.
template <class Group>
GPU4FS_FN bool is_lost(Group g, const SpaceState& state, const ChunkState& chunk, u32 column, Status status) {
  if (status == Status::ok) return false;
  return on_leader(g, [&] { return raid::column_has_failed(state.space, chunk, column); });
}

template <class Group>
GPU4FS_FN void count_bad_copy(Group g, const SpaceState& state, const ChunkState& chunk, u32 column) {
  on_leader(g, [&] { raid::note_repair(state.space, chunk.columns[column].device); });
}

// A structure with its own checksum has it at byte 8 of its page.
inline constexpr u32 sealed_checksum_word = 1;
static_assert(offsetof(format::ChunkHeader, checksum) == 8 * sealed_checksum_word);
static_assert(offsetof(format::BitmapSlotHeader, checksum) == 8 * sealed_checksum_word);

// Whether a page with its own checksum matches it. The page is the same afterwards.
template <class Group>
GPU4FS_FN bool seal_fits(Group g, void* page, u64 seed) {
  u64* const word = static_cast<u64*>(page) + sealed_checksum_word;
  const u64 stored = on_leader(g, [&] {
    const u64 value = *word;
    *word = 0;
    return value;
  });
  const bool fits = xxh3_page(g, page, seed) == stored;
  on_leader(g, [&] { *word = stored; });
  return fits;
}

template <class Group>
GPU4FS_FN u64 seal_page(Group g, void* page, u64 seed) {
  u64* const word = static_cast<u64*>(page) + sealed_checksum_word;
  on_leader(g, [&] { *word = 0; });
  const u64 checksum = xxh3_page(g, page, seed);
  on_leader(g, [&] { *word = checksum; });
  return checksum;
}

// The content of a valid slot header.
struct SlotFacts {
  u64 epoch;  // 0: the slot is not valid
  u64 checksum;
  u64 bitmap_checksum;
  u64 table_checksum;
  u64 set_count;
};

// Status: that of the device if it cannot be read.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status read_slot(Group g, const SpaceState& state, const ChunkState& chunk, u32 column,
                                           u32 slot, SlotFacts* facts) {
  u8* const work = chunk.header_work;
  *facts = SlotFacts{};
  GPU4FS_TRY(read_header(g, state, chunk, {column, slot_page(layout_of(chunk), slot), 1}, work));
  if (!seal_fits(g, work, chunk.base_address ^ slot)) return Status::ok;
  *facts = on_leader(g, [&] {
    const format::BitmapSlotHeader& header = *reinterpret_cast<const format::BitmapSlotHeader*>(work);
    const bool fits = header.magic == format::bitmap_slot_magic && header.version == 2 && header.slot == slot &&
                      header.base_address == chunk.base_address && header.bit_count == chunk.page_count &&
                      header.set_count <= header.bit_count;
    if (!fits) return SlotFacts{};
    return SlotFacts{header.epoch, header.checksum, header.bitmap_checksum, header.descriptor_table_checksum,
                     header.set_count};
  });
  return Status::ok;
}

// The header of a slot of the chunk, with its checksum, in `work`. Returns the checksum.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u64 compose_slot_header(Group g, const ChunkState& chunk, u32 slot, const SlotFacts& facts,
                                                  u8* work) {
  zero_page(g, work);
  g.sync();
  on_leader(g, [&] {
    format::BitmapSlotHeader& header = *reinterpret_cast<format::BitmapSlotHeader*>(work);
    header.magic = format::bitmap_slot_magic;
    header.version = 2;
    header.slot = static_cast<u16>(slot);
    header.bitmap_checksum = facts.bitmap_checksum;
    header.base_address = chunk.base_address;
    header.epoch = facts.epoch;
    header.bit_count = chunk.page_count;
    header.set_count = facts.set_count;
    header.descriptor_table_checksum = facts.table_checksum;
  });
  return seal_page(g, work, chunk.base_address ^ slot);
}

// The chunk header of a column, as it was written when the chunk was created.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void compose_chunk_header(Group g, const SpaceState& state, const ChunkState& chunk,
                                                    u32 column, u8* work) {
  zero_page(g, work);
  g.sync();
  on_leader(g, [&] {
    format::ChunkHeader& header = *reinterpret_cast<format::ChunkHeader*>(work);
    header.magic = format::chunk_header_magic;
    header.version = 1;
    header.column_index = static_cast<u16>(column);
    if (state.superblocks != nullptr) {
      __builtin_memcpy(header.pool_uuid, state.superblocks[0].pool_uuid, sizeof(header.pool_uuid));
    }
    header.base_address = chunk.base_address;
    header.size_bytes = chunk.size_bytes;
    header.epoch_created = chunk.epoch_created;
  });
  (void)seal_page(g, work, chunk.base_address);
}

// Verifies the chunk header of a column. If it is wrong (*is_damaged) and the pool is mounted for writing, rewrites it.
// `work`: two pages of engine memory. Status: that of the device if it cannot be read.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status settle_chunk_header(Group g, const SpaceState& state, const ChunkState& chunk,
                                                     u32 column, u8* work, bool* is_damaged) {
  *is_damaged = false;
  GPU4FS_TRY(read_header(g, state, chunk, {column, 0, 1}, work));
  u8* const composed = work + page_size;
  compose_chunk_header(g, state, chunk, column, composed);
  bool same = true;
  for (u32 i = g.rank(); i < page_size / sizeof(u64); i += g.size()) {
    same &= reinterpret_cast<const u64*>(work)[i] == reinterpret_cast<const u64*>(composed)[i];
  }
  if (g.all(same)) return Status::ok;
  *is_damaged = true;
  count_bad_copy(g, state, chunk, column);
  // A header that cannot be written stays as it is; a later mount tries again.
  if (state.read_only == 0) (void)write_header(g, state, chunk, {column, 0, 1}, composed);
  return Status::ok;
}

// Whether a page of descriptors in engine memory matches its entry in a table.
template <class Group>
GPU4FS_FN bool descriptor_page_fits(Group g, const ChunkState& chunk, u64 index, u64 entry, const void* page) {
  return format::descriptor_entry_fits(entry,
                                       xxh3_page(g, page, format::descriptor_page_seed(chunk.base_address, index)));
}

}  // namespace gpu4fs::space
