// Mounting a chunk: its header, the valid bitmap slot and the page descriptors come into engine
// memory.
//
// The chunk's header area is hostile input: every structure is verified, and its numbers are
// compared with the chunk tree's. Of the two bitmap slots the newest one whose epoch is not beyond
// the superblock's counts. A slot whose header does not verify may be the torn remains of a
// checkpoint that never became valid, so it is passed over; that the durable one was not lost this
// way is seen by check_page_used() once all chunks are loaded. A slot that counts and whose bitmap
// does not verify is corrupt: an older bitmap would hand out pages that are in use.
#pragma once

#include "base/copy.hpp"
#include "base/group.hpp"
#include "base/xxh3.hpp"
#include "fs/fs_types.hpp"
#include "fs/space/chunk_checkpoint.hpp"
#include "fs/space/reserve.hpp"
#include "raid/page_access.hpp"

namespace gpu4fs::fs {

namespace detail {

// The checksum of a structure with one of its own lies at byte 8 of its page.
inline constexpr u32 sealed_checksum_word = 1;
static_assert(offsetof(format::ChunkHeader, checksum) == 8 * sealed_checksum_word);
static_assert(offsetof(format::BitmapSlotHeader, checksum) == 8 * sealed_checksum_word);

// Copies a page that carries its own checksum to `buffer`, where the field becomes zero; true if it
// verifies.
template <class Group>
GPU4FS_FN bool load_sealed_page(Group g, void* buffer, const void* source, u64 seed) {
  copy_bytes(g, buffer, source, page_size);
  const u64 stored = serial(g, [&] {
    u64* word = static_cast<u64*>(buffer) + sealed_checksum_word;
    const u64 value = *word;
    *word = 0;
    return value;
  });
  const bool valid = xxh3_page(g, buffer, seed) == stored;
  g.sync();
  return valid;
}

// What a valid slot header says.
struct SlotFacts {
  u64 epoch;  // 0: the slot is not valid
  u64 bitmap_checksum;
  u64 set_count;
};

// Status: the device's, when it cannot read.
template <class Group>
GPU4FS_FN Status read_slot(Group g, FileSystem& fs, ChunkState& chunk, u32 slot, SlotFacts* facts) {
  const format::ChunkLayout layout = format::chunk_layout(chunk.page_count);
  *facts = {0, 0, 0};
  GPU4FS_TRY(serial(
      g, [&] { return raid::begin_header_read(fs.space, chunk, 0, slot_page(layout, slot), 1); }));
  const u8* page = raid::header_memory(fs.space, chunk, 0, slot_page(layout, slot), 1);
  void* buffer = chunk.bitmaps.staged;  // not in use before the chunk is loaded
  if (!load_sealed_page(g, buffer, page, chunk.base_address ^ slot)) return Status::ok;
  *facts = serial(g, [&] {
    const format::BitmapSlotHeader* header = static_cast<const format::BitmapSlotHeader*>(buffer);
    const bool fits = header->magic == format::bitmap_slot_magic && header->version == 1 &&
                      header->slot == slot && header->base_address == chunk.base_address &&
                      header->bit_count == chunk.page_count &&
                      header->set_count <= header->bit_count;
    return fits ? SlotFacts{header->epoch, header->bitmap_checksum, header->set_count}
                : SlotFacts{0, 0, 0};
  });
  return Status::ok;
}

// Status: corrupt_structure, or the device's.
template <class Group>
GPU4FS_FN Status check_chunk_header(Group g, FileSystem& fs, ChunkState& chunk) {
  void* buffer = chunk.bitmaps.staged;
  GPU4FS_TRY(serial(g, [&] { return raid::begin_header_read(fs.space, chunk, 0, 0, 1); }));
  const u8* page = raid::header_memory(fs.space, chunk, 0, 0, 1);
  if (!load_sealed_page(g, buffer, page, chunk.base_address)) return Status::corrupt_structure;
  return serial(g, [&] {
    const format::ChunkHeader* header = static_cast<const format::ChunkHeader*>(buffer);
    const bool fits = header->magic == format::chunk_header_magic && header->version == 1 &&
                      header->column_index == 0 && header->base_address == chunk.base_address &&
                      header->size_bytes == chunk.size_bytes;
    return fits ? Status::ok : Status::corrupt_structure;
  });
}

template <class Group>
GPU4FS_FN Status clear_slot(Group g, FileSystem& fs, ChunkState& chunk, u32 slot) {
  const u64 page = slot_page(format::chunk_layout(chunk.page_count), slot);
  GPU4FS_TRY(serial(g, [&] { return raid::begin_header_write(fs.space, chunk, 0, page, 1); }));
  zero_page(g, raid::header_memory(fs.space, chunk, 0, page, 1));
  g.sync();
  serial(g, [&] { raid::end_header_write(fs.space, chunk, 0, page, 1); });
  return Status::ok;
}

// Chooses the slot that counts. A slot beyond the superblock's epoch belongs to a checkpoint that
// was lost: mounted for writing its header goes, so that it cannot come back when the pool reaches
// that epoch.
template <class Group>
GPU4FS_FN Status choose_slot(Group g, FileSystem& fs, ChunkState& chunk, u64 superblock_epoch,
                             SlotFacts (&slots)[2], u32* newest) {
  for (u32 slot = 0; slot < 2; ++slot) {
    GPU4FS_TRY(read_slot(g, fs, chunk, slot, &slots[slot]));
    if (slots[slot].epoch <= superblock_epoch) continue;
    slots[slot].epoch = 0;
    if (fs.read_only == 0) GPU4FS_TRY(clear_slot(g, fs, chunk, slot));
  }
  *newest = slots[1].epoch > slots[0].epoch ? 1 : 0;
  return Status::ok;
}

// True if no bit beyond the chunk's pages is set.
template <class Group>
GPU4FS_FN bool padding_is_zero(Group g, const ChunkState& chunk, const u64* bitmap,
                               u64 word_count) {
  bool clear = true;
  for (u64 w = g.rank(); w < word_count; w += g.size()) {
    const u64 pages_before = w * 64;
    u64 padding = 0;
    if (pages_before >= chunk.page_count) {
      padding = ~u64{0};
    } else if (chunk.page_count - pages_before < 64) {
      padding = ~u64{0} << (chunk.page_count - pages_before);
    }
    clear &= (bitmap[w] & padding) == 0;
  }
  return g.all(clear);
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status load_bitmap(Group g, FileSystem& fs, ChunkState& chunk, u32 slot,
                                             const SlotFacts& facts) {
  const format::ChunkLayout layout = format::chunk_layout(chunk.page_count);
  u64* committed = chunk.bitmaps.committed;
  const u64 first = slot_page(layout, slot) + 1;
  GPU4FS_TRY(serial(
      g, [&] { return raid::begin_header_read(fs.space, chunk, 0, first, layout.bitmap_pages); }));
  const u8* source = raid::header_memory(fs.space, chunk, 0, first, layout.bitmap_pages);
  copy_bytes(g, committed, source, layout.bitmap_pages * page_size);
  g.sync();
  if (bitmap_checksum(g, chunk, committed, layout.bitmap_pages) != facts.bitmap_checksum)
    return Status::corrupt_structure;
  if (!padding_is_zero(g, chunk, committed, layout.bitmap_pages * (page_size / 8)))
    return Status::corrupt_structure;
  return count_set_bits(g, chunk, committed) == facts.set_count ? Status::ok
                                                                : Status::corrupt_structure;
}

// The other bitmaps and the counts of free pages, from `committed`.
template <class Group>
GPU4FS_FN void derive_bitmaps(Group g, ChunkState& chunk) {
  const raid::ChunkBitmaps& maps = chunk.bitmaps;
  for (u64 w = g.rank(); w < u64{region_count_of(chunk)} * region_words; w += g.size()) {
    const u64 first = w * 64;
    const u64 left = first < chunk.page_count ? chunk.page_count - first : 0;
    const u64 padding = left >= 64 ? 0 : ~u64{0} << left;
    maps.busy[w] = maps.committed[w] | padding;
    maps.stable[w] = maps.committed[w];
    maps.staged[w] = maps.committed[w];
    maps.freed_now[w] = 0;
    maps.freed_old[w] = 0;
  }
  g.sync();
  for (u32 pair = g.rank(); pair < (region_count_of(chunk) + 1) / 2; pair += g.size()) {
    u32 counts = 0;
    for (u32 region = 2 * pair; region < minimum(2 * pair + 2, region_count_of(chunk)); ++region) {
      u32 free = 0;
      for (u32 w = 0; w < region_words; ++w)
        free += popcount(~maps.busy[u64{region} * region_words + w]);
      counts |= free << (16 * (region % 2));
    }
    chunk.region_free[pair] = counts;
  }
}

template <class Group>
GPU4FS_FN Status load_descriptors(Group g, FileSystem& fs, ChunkState& chunk) {
  const format::ChunkLayout layout = format::chunk_layout(chunk.page_count);
  GPU4FS_TRY(serial(g, [&] {
    return raid::begin_header_read(fs.space, chunk, 0, layout.descriptors_page,
                                   layout.descriptor_pages);
  }));
  const u8* source =
      raid::header_memory(fs.space, chunk, 0, layout.descriptors_page, layout.descriptor_pages);
  copy_bytes(g, chunk.descriptors, source, layout.descriptor_pages * page_size);
  for (u64 w = g.rank(); w < divide_up(layout.descriptor_pages, 64); w += g.size())
    chunk.descriptor_dirty[w] = 0;
  return Status::ok;
}

GPU4FS_FN inline void add_to_counters(FileSystem& fs, u64 page_count, u64 free_count) {
  const u64 total =
      fetch_add<Order::relaxed, Scope::engine>(&fs.counters.total, page_count) + page_count;
  fetch_add<Order::relaxed, Scope::engine>(&fs.counters.free, free_count);
  fetch_add<Order::relaxed, Scope::engine>(&fs.counters.used, page_count - free_count);
  // Chunks are loaded in parallel; what is kept back grows with the total.
  const u64 kept_back = emergency_pages(total);
  u64 found = load<Order::relaxed, Scope::engine>(&fs.counters.emergency);
  while (found < kept_back) {
    if (compare_exchange<Order::relaxed, Scope::engine>(&fs.counters.emergency, found, kept_back))
      break;
  }
}

}  // namespace detail

// Mount. Loads one chunk, once, and adds it to fs.counters, which begin as zero. Its header area
// must be within the engine's reach; its data pages need not be. With fs.read_only nothing on the
// medium is changed. Status: corrupt_structure, medium_error, device_failed.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status load_chunk(Group g, FileSystem& fs, u32 index,
                                            u64 superblock_epoch) {
  GPU4FS_CHECK_LT(index, fs.space.chunk_count);
  GPU4FS_CHECK_GT(superblock_epoch, u64{0});
  raid::ChunkState& chunk = fs.space.chunks[index];
  GPU4FS_CHECK_EQ(chunk.loaded, 0u);
  GPU4FS_TRY(detail::check_chunk_header(g, fs, chunk));
  detail::SlotFacts slots[2];
  u32 newest = 0;
  GPU4FS_TRY(detail::choose_slot(g, fs, chunk, superblock_epoch, slots, &newest));
  if (slots[newest].epoch == 0) return Status::corrupt_structure;
  GPU4FS_TRY(detail::load_bitmap(g, fs, chunk, newest, slots[newest]));
  detail::derive_bitmaps(g, chunk);
  GPU4FS_TRY(detail::load_descriptors(g, fs, chunk));
  serial(g, [&] {
    const u64 free_count = chunk.page_count - slots[newest].set_count;
    chunk.slot_newest = newest;
    chunk.slot_epoch[0] = slots[0].epoch;
    chunk.slot_epoch[1] = slots[1].epoch;
    chunk.free_pages = static_cast<u32>(free_count);
    detail::add_to_counters(fs, chunk.page_count, free_count);
    store<Order::release, Scope::engine>(&chunk.loaded, 1u);
    detail::count_chunk(fs, chunk);
  });
  return Status::ok;
}

// Mount, after all chunks: the superblock's page_used must be the pages found in use; a difference
// shows that a bitmap slot was lost. Status: corrupt_structure.
GPU4FS_FN inline Status check_page_used(const FileSystem& fs, u64 page_used) {
  return load<Order::relaxed, Scope::engine>(&fs.counters.used) == page_used
             ? Status::ok
             : Status::corrupt_structure;
}

// The server has made a chunk's pages reachable for the engine.
GPU4FS_FN inline void make_chunk_accessible(FileSystem& fs, u32 index) {
  GPU4FS_CHECK_LT(index, fs.space.chunk_count);
  raid::ChunkState& chunk = fs.space.chunks[index];
  store<Order::release, Scope::engine>(&chunk.accessible, 1u);
  fence<Order::seq_cst, Scope::engine>();
  detail::count_chunk(fs, chunk);
}

}  // namespace gpu4fs::fs
