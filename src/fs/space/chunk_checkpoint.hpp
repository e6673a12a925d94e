// A chunk's part in a checkpoint (docs/internals/architecture.md, section 5): snapshot, write, publish.
//
//            committed   stable            freed_now   freed_old        staged
// snapshot   (copied)    |= committed      = 0         |= freed_now     = committed
// publish                &= ~freed_old                 = 0
//
// All functions are uniform, take one chunk each, and may run for different chunks on any workers
// at once. A chunk that did not change since its last snapshot costs one look.
#pragma once

#include "base/copy.hpp"
#include "base/group.hpp"
#include "base/mutant.hpp"
#include "base/xxh3.hpp"
#include "fs/fs_types.hpp"
#include "fs/space/space_counters.hpp"
#include "fs/space/stripes.hpp"
#include "raid/page_access.hpp"

namespace gpu4fs::fs {

namespace detail {

GPU4FS_FN inline u64 bitmap_words(const ChunkState& chunk) {
  return divide_up(chunk.page_count, 64);
}

// First page of a bitmap slot in the header area: its header; the bitmap follows.
GPU4FS_FN inline u64 slot_page(const format::ChunkLayout& layout, u32 slot) {
  return slot == 0 ? layout.bitmap_a_page : layout.bitmap_b_page;
}

// The hash of a bitmap: of whole pages.
template <class Group>
GPU4FS_FN u64 bitmap_checksum(Group g, const ChunkState& chunk, const u64* bitmap,
                              u64 bitmap_pages) {
  if (bitmap_pages == 1) return xxh3_page(g, bitmap, chunk.base_address);
  return serial(g, [&] { return xxh3_64(bitmap, bitmap_pages * page_size, chunk.base_address); });
}

template <class Group>
GPU4FS_FN u64 count_set_bits(Group g, const ChunkState& chunk, const u64* bitmap) {
  u64 count = 0;
  for (u64 w = g.rank(); w < bitmap_words(chunk); w += g.size()) count += popcount(bitmap[w]);
  return g.reduce(count, [](u64 a, u64 b) { return a + b; });
}

// True if writing a copy of the header area failed with its device, and the pool goes on without it.
template <class Group>
GPU4FS_FN bool is_lost(Group g, const FileSystem& fs, const ChunkState& chunk, u32 column, Status status) {
  if (status == Status::ok) return false;
  return serial(g, [&] { return raid::column_has_failed(fs.space, chunk, column); });
}

// Copies a page of descriptors to the medium. Descriptors of pages that are being written change
// meanwhile; none of them is in the checkpoint, and each is copied whole.
template <class Group>
GPU4FS_FN Status write_descriptor_page(Group g, FileSystem& fs, const ChunkState& chunk, u64 page) {
  const u64 header_page = format::chunk_layout(chunk.page_count).descriptors_page + page;
  const format::PageDescriptor* source = chunk.descriptors + page * format::descriptors_per_page;
  for (u32 column = 0; column <= chunk.redundancy; ++column) {
    const Status begun = serial(g, [&] { return raid::begin_header_write(fs.space, chunk, column, header_page, 1); });
    if (is_lost(g, fs, chunk, column, begun)) continue;
    GPU4FS_TRY(begun);
    u8* destination = raid::header_memory(fs.space, chunk, column, header_page, 1);
    for (u32 i = g.rank(); i < format::descriptors_per_page; i += g.size()) {
      store_stream_16(destination + 16 * i, load_shared_16(source + i));
    }
    g.sync();
    serial(g, [&] { raid::end_header_write(fs.space, chunk, column, header_page, 1); });
  }
  return Status::ok;
}

template <class Group>
GPU4FS_FN Status write_descriptors(Group g, FileSystem& fs, ChunkState& chunk) {
  const u64 descriptor_pages = format::chunk_layout(chunk.page_count).descriptor_pages;
  for (u64 w = 0; w < divide_up(descriptor_pages, 64); ++w) {
    u64 dirty = serial(g, [&] {
      u64* word = &chunk.descriptor_dirty[w];
      if (load<Order::relaxed, Scope::engine>(word) == 0) return u64{0};
      return exchange<Order::acquire, Scope::engine>(word, u64{0});
    });
    while (dirty != 0) {
      const u64 page = w * 64 + count_trailing_zeros(dirty);
      GPU4FS_CHECK_LT(page, descriptor_pages);
      GPU4FS_TRY(write_descriptor_page(g, fs, chunk, page));
      dirty &= dirty - 1;
    }
  }
  return Status::ok;
}

struct SlotContent {
  u64 epoch;
  u64 bitmap_checksum;
  u64 set_count;
};

// The slot's header, composed on the medium: the slot counts for nothing until the superblock has its epoch.
template <class Group>
GPU4FS_FN Status write_slot_header(Group g, FileSystem& fs, ChunkState& chunk, u32 column, u32 slot,
                                   const SlotContent& content) {
  const u64 header_page = slot_page(format::chunk_layout(chunk.page_count), slot);
  GPU4FS_TRY(serial(g, [&] { return raid::begin_header_write(fs.space, chunk, column, header_page, 1); }));
  u8* page = raid::header_memory(fs.space, chunk, column, header_page, 1);
  zero_page(g, page);
  format::BitmapSlotHeader* written = reinterpret_cast<format::BitmapSlotHeader*>(page);
  serial(g, [&] {
    written->magic = format::bitmap_slot_magic;
    written->version = 1;
    written->slot = static_cast<u16>(slot);
    written->bitmap_checksum = content.bitmap_checksum;
    written->base_address = chunk.base_address;
    written->epoch = content.epoch;
    written->bit_count = chunk.page_count;
    written->set_count = content.set_count;
  });
  const u64 checksum = xxh3_page(g, page, chunk.base_address ^ slot);
  serial(g, [&] {
    written->checksum = checksum;
    raid::end_header_write(fs.space, chunk, column, header_page, 1);
  });
  return Status::ok;
}

// The staged bitmap into a slot of one copy of the header area.
template <class Group>
GPU4FS_FN Status write_slot(Group g, FileSystem& fs, ChunkState& chunk, u32 column, u32 slot,
                            const SlotContent& content) {
  const format::ChunkLayout layout = format::chunk_layout(chunk.page_count);
  const u64 first = slot_page(layout, slot) + 1;
  GPU4FS_TRY(serial(
      g, [&] { return raid::begin_header_write(fs.space, chunk, column, first, layout.bitmap_pages); }));
  u8* bitmap = raid::header_memory(fs.space, chunk, column, first, layout.bitmap_pages);
  copy_bytes(g, bitmap, chunk.bitmaps.staged, layout.bitmap_pages * page_size);
  g.sync();
  serial(g, [&] { raid::end_header_write(fs.space, chunk, column, first, layout.bitmap_pages); });
  return write_slot_header(g, fs, chunk, column, slot, content);
}

}  // namespace detail

// Gate closed. Fixes what the checkpoint writes of this chunk, and that its pages stay as they are.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void snapshot_chunk(Group g, FileSystem& fs, u32 index) {
  GPU4FS_CHECK_LT(index, raid::known_chunk_count(fs.space));
  raid::ChunkState& chunk = fs.space.chunks[index];
  const bool changed = serial(g, [&] {
    const bool found = load<Order::acquire, Scope::engine>(&chunk.loaded) != 0 &&
                       load<Order::relaxed, Scope::engine>(&chunk.changed) != 0;
    // Before pages become stable: a rebuild takes stable pages of other chunks only (raid/rebuild/).
    if (found) store<Order::relaxed, Scope::engine>(&chunk.staged_changed, 1u);
    fence<Order::seq_cst, Scope::engine>();
    return found;
  });
  if (!changed) return;
  const raid::ChunkBitmaps& maps = chunk.bitmaps;
  for (u64 w = g.rank(); w < detail::bitmap_words(chunk); w += g.size()) {
    const u64 committed = load<Order::relaxed, Scope::engine>(&maps.committed[w]);
    const u64 stable = load<Order::relaxed, Scope::engine>(&maps.stable[w]);
    const u64 freed = load<Order::relaxed, Scope::engine>(&maps.freed_now[w]);
    GPU4FS_CHECK_EQ(freed & committed, u64{0});
    GPU4FS_CHECK_EQ(freed & ~stable, u64{0});
    store<Order::relaxed, Scope::engine>(&maps.staged[w], committed);
    store<Order::relaxed, Scope::engine>(&maps.stable[w], stable | committed);
    if (freed != 0) {
      // Not empty if the checkpoint before could not be written.
      const u64 old = load<Order::relaxed, Scope::engine>(&maps.freed_old[w]);
      store<Order::relaxed, Scope::engine>(&maps.freed_old[w], old | freed);
      store<Order::relaxed, Scope::engine>(&maps.freed_now[w], u64{0});
    }
  }
  serial(g, [&] { store<Order::relaxed, Scope::engine>(&chunk.changed, 0u); });
}

// Writes the changed page descriptors in place, and the staged bitmap into the slot that does not
// hold the durable state. The caller flushes the devices afterwards.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status write_chunk(Group g, FileSystem& fs, u32 index, u64 epoch) {
  GPU4FS_CHECK_LT(index, raid::known_chunk_count(fs.space));
  raid::ChunkState& chunk = fs.space.chunks[index];
  const bool changed = serial(g, [&] { return chunk.staged_changed != 0; });
  if (!changed) return Status::ok;
  const u32 slot = serial(g, [&] {
    GPU4FS_CHECK_EQ(fs.space.devices[chunk.columns[0].device].read_only, 0u);
    GPU4FS_CHECK_LT(chunk.slot_epoch[chunk.slot_newest], epoch);
    return GPU4FS_MUTANT(durable_slot_overwritten, chunk.slot_newest ^ 1, chunk.slot_newest);
  });
  GPU4FS_TRY(detail::write_descriptors(g, fs, chunk));

  const u64 bitmap_pages = format::chunk_layout(chunk.page_count).bitmap_pages;
  detail::SlotContent content{};
  content.epoch = epoch;
  content.bitmap_checksum = detail::bitmap_checksum(g, chunk, chunk.bitmaps.staged, bitmap_pages);
  content.set_count = detail::count_set_bits(g, chunk, chunk.bitmaps.staged);
  for (u32 column = 0; column <= chunk.redundancy; ++column) {
    const Status written = detail::write_slot(g, fs, chunk, column, slot, content);
    if (!detail::is_lost(g, fs, chunk, column, written)) GPU4FS_TRY(written);
  }
  serial(g, [&] { chunk.slot_epoch[slot] = epoch; });
  return Status::ok;
}

// The checkpoint is durable: its slot is the newest one, and what was freed before it can be used
// again.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void publish_chunk(Group g, FileSystem& fs, u32 index) {
  GPU4FS_CHECK_LT(index, raid::known_chunk_count(fs.space));
  raid::ChunkState& chunk = fs.space.chunks[index];
  const bool changed = serial(g, [&] { return chunk.staged_changed != 0; });
  if (!changed) return;
  const raid::ChunkBitmaps& maps = chunk.bitmaps;
  u32 released = 0;
  for (u64 w = g.rank(); w < detail::bitmap_words(chunk); w += g.size()) {
    const u64 freed = GPU4FS_MUTANT(
        freed_pages_reused_early, (load<Order::relaxed, Scope::engine>(&maps.freed_old[w])),
        (load<Order::relaxed, Scope::engine>(&maps.freed_old[w]) |
         exchange<Order::relaxed, Scope::engine>(&maps.freed_now[w], u64{0})));
    if (freed == 0) continue;
    GPU4FS_CHECK_EQ(freed & (load<Order::relaxed, Scope::engine>(&maps.committed[w])), u64{0});
    store<Order::relaxed, Scope::engine>(&maps.freed_old[w], u64{0});
    fetch_and<Order::relaxed, Scope::engine>(&maps.stable[w], ~freed);
    if (detail::has_stripes(chunk)) {
      detail::close_word(fs, chunk, w, freed);
    } else {
      detail::clear_busy(chunk, w, freed);
    }
    released += popcount(freed);
  }
  released = g.reduce(released, [](u32 a, u32 b) { return a + b; });
  serial(g, [&] {
    chunk.slot_newest ^= 1;
    store<Order::release, Scope::engine>(&chunk.staged_changed, 0u);
    if (!detail::is_frozen(chunk)) {
      const u64 pending =
          fetch_sub<Order::relaxed, Scope::engine>(&detail::counters_of(fs, chunk).freed_pending, released);
      GPU4FS_CHECK_GE(pending, u64{released});
    }
    if (!detail::has_stripes(chunk)) detail::give_to_everyone(fs, chunk, released);
  });
}

}  // namespace gpu4fs::fs
