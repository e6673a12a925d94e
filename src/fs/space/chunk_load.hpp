// Mounting a chunk: its header, the valid bitmap slot and the page descriptors come into engine
// memory.
//
// The chunk's header area is hostile input: every structure is verified, and its numbers are
// compared with the chunk tree's. Of the two bitmap slots the newest one whose epoch is not beyond
// the superblock's counts. A slot whose header does not verify may be the torn remains of a
// checkpoint that never became valid, so it is passed over; that the durable one was not lost this
// way is seen by check_page_used() once all chunks are loaded. A slot that counts and whose bitmap
// does not verify is corrupt: an older bitmap would hand out pages that are in use.
//
// With redundancy the header area has several copies. The first one counts whose header and slot verify
// and whose newest slot is as new as that of any; descriptors are taken from the same copy. Copies that
// are older, or damaged, are written again by the next checkpoint.
#pragma once

#include "base/copy.hpp"
#include "base/group.hpp"
#include "base/mutant.hpp"
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
GPU4FS_FN Status read_slot(Group g, FileSystem& fs, ChunkState& chunk, u32 column, u32 slot,
                           SlotFacts* facts) {
  const format::ChunkLayout layout = format::chunk_layout(chunk.page_count);
  *facts = {0, 0, 0};
  GPU4FS_TRY(serial(
      g, [&] { return raid::begin_header_read(fs.space, chunk, column, slot_page(layout, slot), 1); }));
  const u8* page = raid::header_memory(fs.space, chunk, column, slot_page(layout, slot), 1);
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
GPU4FS_FN Status check_chunk_header(Group g, FileSystem& fs, ChunkState& chunk, u32 column) {
  void* buffer = chunk.bitmaps.staged;
  GPU4FS_TRY(serial(g, [&] { return raid::begin_header_read(fs.space, chunk, column, 0, 1); }));
  const u8* page = raid::header_memory(fs.space, chunk, column, 0, 1);
  if (!load_sealed_page(g, buffer, page, chunk.base_address)) return Status::corrupt_structure;
  return serial(g, [&] {
    const format::ChunkHeader* header = static_cast<const format::ChunkHeader*>(buffer);
    const bool fits = header->magic == format::chunk_header_magic && header->version == 1 &&
                      header->column_index == column && header->base_address == chunk.base_address &&
                      header->size_bytes == chunk.size_bytes;
    return fits ? Status::ok : Status::corrupt_structure;
  });
}

template <class Group>
GPU4FS_FN Status clear_slot(Group g, FileSystem& fs, ChunkState& chunk, u32 column, u32 slot) {
  const u64 page = slot_page(format::chunk_layout(chunk.page_count), slot);
  GPU4FS_TRY(serial(g, [&] { return raid::begin_header_write(fs.space, chunk, column, page, 1); }));
  zero_page(g, raid::header_memory(fs.space, chunk, column, page, 1));
  g.sync();
  serial(g, [&] { raid::end_header_write(fs.space, chunk, column, page, 1); });
  return Status::ok;
}

// Chooses the slot that counts. A slot beyond the superblock's epoch belongs to a checkpoint that
// was lost: mounted for writing its header goes, so that it cannot come back when the pool reaches
// that epoch.
template <class Group>
GPU4FS_FN Status choose_slot(Group g, FileSystem& fs, ChunkState& chunk, u32 column,
                             u64 superblock_epoch, SlotFacts (&slots)[2], u32* newest) {
  for (u32 slot = 0; slot < 2; ++slot) {
    GPU4FS_TRY(read_slot(g, fs, chunk, column, slot, &slots[slot]));
    if (GPU4FS_MUTANT(lost_slot_counts, slots[slot].epoch <= superblock_epoch, true)) continue;
    slots[slot].epoch = 0;
    if (fs.read_only == 0) GPU4FS_TRY(clear_slot(g, fs, chunk, column, slot));
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
GPU4FS_FN GPU4FS_NOINLINE Status load_bitmap(Group g, FileSystem& fs, ChunkState& chunk, u32 column,
                                             u32 slot, const SlotFacts& facts, u64* bitmap) {
  const format::ChunkLayout layout = format::chunk_layout(chunk.page_count);
  const u64 first = slot_page(layout, slot) + 1;
  GPU4FS_TRY(serial(
      g, [&] { return raid::begin_header_read(fs.space, chunk, column, first, layout.bitmap_pages); }));
  const u8* source = raid::header_memory(fs.space, chunk, column, first, layout.bitmap_pages);
  copy_bytes(g, bitmap, source, layout.bitmap_pages * page_size);
  g.sync();
  if (bitmap_checksum(g, chunk, bitmap, layout.bitmap_pages) != facts.bitmap_checksum)
    return Status::corrupt_structure;
  if (!padding_is_zero(g, chunk, bitmap, layout.bitmap_pages * (page_size / 8)))
    return Status::corrupt_structure;
  return count_set_bits(g, chunk, bitmap) == facts.set_count ? Status::ok
                                                                : Status::corrupt_structure;
}

// The other bitmaps and the counts of free pages, from `committed`.
// Answers how many pages count as free.
template <class Group>
GPU4FS_FN u64 derive_bitmaps(Group g, ChunkState& chunk) {
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
  const u64 free_count = has_stripes(chunk) ? derive_stripes(g, chunk)
                                            : chunk.page_count - count_set_bits(g, chunk, maps.committed);
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
  return free_count;
}

template <class Group>
GPU4FS_FN Status load_descriptors(Group g, FileSystem& fs, ChunkState& chunk, u32 column) {
  const format::ChunkLayout layout = format::chunk_layout(chunk.page_count);
  GPU4FS_TRY(serial(g, [&] {
    return raid::begin_header_read(fs.space, chunk, column, layout.descriptors_page,
                                   layout.descriptor_pages);
  }));
  const u8* source =
      raid::header_memory(fs.space, chunk, column, layout.descriptors_page, layout.descriptor_pages);
  copy_bytes(g, chunk.descriptors, source, layout.descriptor_pages * page_size);
  for (u64 w = g.rank(); w < divide_up(layout.descriptor_pages, 64); w += g.size())
    chunk.descriptor_dirty[w] = 0;
  return Status::ok;
}

GPU4FS_FN inline void add_to_counters(FileSystem& fs, const ChunkState& chunk, u64 free_count, u64 used_count) {
  SpaceCounters& counters = counters_of(fs, chunk);
  const u64 total =
      fetch_add<Order::relaxed, Scope::engine>(&counters.total, chunk.page_count) + chunk.page_count;
  fetch_add<Order::relaxed, Scope::engine>(&counters.free, free_count);
  fetch_add<Order::relaxed, Scope::engine>(&counters.used, used_count);
  // Chunks are loaded in parallel; what is kept back grows with the total.
  const u64 kept_back = kept_back_pages(fs, chunk.page_class, total);
  u64 found = load<Order::relaxed, Scope::engine>(&counters.emergency);
  while (found < kept_back) {
    if (compare_exchange<Order::relaxed, Scope::engine>(&counters.emergency, found, kept_back))
      break;
  }
}

// What one copy of the header area says.
struct HeaderCopy {
  Status status;
  u32 column;
  u32 newest;  // slot
  SlotFacts slots[2];
};

template <class Group>
GPU4FS_FN HeaderCopy read_header_copy(Group g, FileSystem& fs, ChunkState& chunk, u32 column,
                                      u64 superblock_epoch) {
  HeaderCopy copy{};
  copy.column = column;
  copy.status = check_chunk_header(g, fs, chunk, column);
  if (copy.status != Status::ok) return copy;
  copy.status = choose_slot(g, fs, chunk, column, superblock_epoch, copy.slots, &copy.newest);
  if (copy.status == Status::ok && copy.slots[copy.newest].epoch == 0) {
    copy.status = Status::corrupt_structure;
  }
  return copy;
}

// Writes the chunk header of column `good` in front of column `bad`. What cannot be written stays as it is: a later
// mount tries again.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void restore_chunk_header(Group g, FileSystem& fs, ChunkState& chunk, u32 good, u32 bad) {
  void* buffer = chunk.bitmaps.staged;
  const bool readable =
      serial(g, [&] { return raid::begin_header_read(fs.space, chunk, good, 0, 1) == Status::ok; });
  if (!readable) return;
  copy_bytes(g, buffer, raid::header_memory(fs.space, chunk, good, 0, 1), page_size);
  format::ChunkHeader* header = static_cast<format::ChunkHeader*>(buffer);
  serial(g, [&] {
    header->column_index = static_cast<u16>(bad);
    header->checksum = 0;
  });
  const u64 checksum = xxh3_page(g, buffer, chunk.base_address);
  const bool writable = serial(g, [&] {
    header->checksum = checksum;
    return raid::begin_header_write(fs.space, chunk, bad, 0, 1) == Status::ok;
  });
  if (!writable) return;
  copy_bytes(g, raid::header_memory(fs.space, chunk, bad, 0, 1), buffer, page_size);
  g.sync();
  serial(g, [&] { raid::end_header_write(fs.space, chunk, bad, 0, 1); });
}

// Bitmap and descriptors of the newest copy that has them. *complete: all copies are equally new and sound, as
// far as was seen.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status load_newest_copy(Group g, FileSystem& fs, ChunkState& chunk,
                                                  u64 superblock_epoch, HeaderCopy* chosen, bool* complete) {
  *complete = true;
  u64 best_epoch = 0;
  Status status = Status::corrupt_structure;
  // First how new the newest is, then the first copy of that age that loads.
  for (u32 column = 0; column <= chunk.redundancy; ++column) {
    if (serial(g, [&] { return raid::column_has_failed(fs.space, chunk, column); })) continue;
    const HeaderCopy copy = read_header_copy(g, fs, chunk, column, superblock_epoch);
    if (copy.status != Status::ok) {
      status = copy.status;
      *complete = false;
      continue;
    }
    const u64 epoch = copy.slots[copy.newest].epoch;
    if (best_epoch != 0 && epoch != best_epoch) *complete = false;
    best_epoch = maximum(best_epoch, epoch);
  }
  bool found = false;
  for (u32 column = 0; column <= chunk.redundancy; ++column) {
    if (serial(g, [&] { return raid::column_has_failed(fs.space, chunk, column); })) continue;
    const HeaderCopy copy = read_header_copy(g, fs, chunk, column, superblock_epoch);
    if (copy.status != Status::ok || copy.slots[copy.newest].epoch != best_epoch) continue;
    // Of the copies behind the one that counts the bitmap is only verified, in the work space.
    u64* bitmap = found ? chunk.bitmaps.staged : chunk.bitmaps.committed;
    Status loaded = load_bitmap(g, fs, chunk, column, copy.newest, copy.slots[copy.newest], bitmap);
    if (loaded == Status::ok && !found) loaded = load_descriptors(g, fs, chunk, column);
    if (loaded != Status::ok) {
      if (!found) status = loaded;
      *complete = false;
    } else if (!found) {
      found = true;
      *chosen = copy;
    }
  }
  return found ? Status::ok : status;
}

// Not all copies of the header area are sound: chunk headers are written at once, the next checkpoint writes
// everything else. `good`: a column whose chunk header is sound.
template <class Group>
GPU4FS_FN void rewrite_all_headers(Group g, FileSystem& fs, ChunkState& chunk, u32 good) {
  for (u32 column = 0; column <= chunk.redundancy; ++column) {
    if (check_chunk_header(g, fs, chunk, column) != Status::ok) restore_chunk_header(g, fs, chunk, good, column);
  }
  const u64 descriptor_pages = format::chunk_layout(chunk.page_count).descriptor_pages;
  for (u64 page = g.rank(); page < descriptor_pages; page += g.size()) {
    fetch_or<Order::relaxed, Scope::engine>(&chunk.descriptor_dirty[page / 64], u64{1} << (page % 64));
  }
  g.sync();
  serial(g, [&] { store<Order::relaxed, Scope::engine>(&chunk.changed, 1u); });
}

}  // namespace detail

// Mount. Loads one chunk, once, and adds it to fs.counters, which begin as zero. Its header area
// must be within the engine's reach; its data pages need not be. With fs.read_only nothing on the
// medium is changed. Status: corrupt_structure, medium_error, device_failed.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status load_chunk(Group g, FileSystem& fs, u32 index,
                                            u64 superblock_epoch) {
  GPU4FS_CHECK_LT(index, raid::known_chunk_count(fs.space));
  GPU4FS_CHECK_GT(superblock_epoch, u64{0});
  raid::ChunkState& chunk = fs.space.chunks[index];
  GPU4FS_CHECK_EQ(chunk.loaded, 0u);
  detail::HeaderCopy copy{};
  bool complete = true;
  GPU4FS_TRY(detail::load_newest_copy(g, fs, chunk, superblock_epoch, &copy, &complete));
  // The bitmap `staged` is work space until it is derived.
  if (!complete && fs.read_only == 0) detail::rewrite_all_headers(g, fs, chunk, copy.column);
  const u64 free_count = detail::derive_bitmaps(g, chunk);
  serial(g, [&] {
    chunk.slot_newest = copy.newest;
    chunk.slot_epoch[0] = copy.slots[0].epoch;
    chunk.slot_epoch[1] = copy.slots[1].epoch;
    chunk.free_pages = static_cast<u32>(free_count);
    detail::add_to_counters(fs, chunk, free_count, copy.slots[copy.newest].set_count);
    store<Order::release, Scope::engine>(&chunk.loaded, 1u);
    detail::count_chunk(fs, chunk);
  });
  return Status::ok;
}

// Mount, after all chunks: the superblock's page_used must be the pages found in use; a difference
// shows that a bitmap slot was lost. Status: corrupt_structure.
GPU4FS_FN inline Status check_page_used(const FileSystem& fs, u64 page_used) {
  return GPU4FS_MUTANT(page_count_unchecked, pages_used(fs) == page_used, true)
             ? Status::ok
             : Status::corrupt_structure;
}

// The server has made a chunk's pages reachable for the engine.
GPU4FS_FN inline void make_chunk_accessible(FileSystem& fs, u32 index) {
  GPU4FS_CHECK_LT(index, raid::known_chunk_count(fs.space));
  raid::ChunkState& chunk = fs.space.chunks[index];
  store<Order::release, Scope::engine>(&chunk.accessible, 1u);
  fence<Order::seq_cst, Scope::engine>();
  detail::count_chunk(fs, chunk);
}

}  // namespace gpu4fs::fs
