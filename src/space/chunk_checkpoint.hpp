// A chunk's part in a checkpoint (docs/internals/architecture.md, section 5): snapshot, write, publish.
//
//            committed   stable            freed_now   freed_old        staged
// snapshot   (copied)    |= committed      = 0         |= freed_now     = committed
// publish                &= ~freed_old                 = 0
//
// Changed pages of descriptors are written to the places that the durable slot's table does not name, and the new table
// to the other slot. So until the superblocks of the epoch are durable, everything that the previous epoch refers to is
// unchanged, however often the checkpoint is written.
//
// All functions are uniform, process one chunk, and may run for different chunks on different workers at once. A chunk
// that did not change since its last snapshot costs one test.
#pragma once

#include "base/mutant.hpp"
#include "space/header_area.hpp"
#include "space/space_counters.hpp"
#include "space/stripes.hpp"

namespace gpu4fs::space {

namespace detail {

// Writes a page of descriptors in its current state to all columns, and enters it into the staged table. Descriptors of
// pages that are being written change meanwhile. None of them is in the checkpoint, and each is copied atomically.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status write_descriptor_page(Group g, SpaceState& state, ChunkState& chunk, u64 index) {
  const format::PageDescriptor* source = chunk.descriptors + index * format::descriptors_per_page;
  u8* const copy = chunk.header_work;
  for (u32 i = g.rank(); i < format::descriptors_per_page; i += g.size()) {
    store_shared_16(copy + 16 * i, load_shared_16(source + i));
  }
  g.sync();
  const u64 hash = xxh3_page(g, copy, format::descriptor_page_seed(chunk.base_address, index));
  const u64 place = on_leader(g, [&] { return format::descriptor_place(chunk.descriptor_table[index]) ^ 1; });
  const u64 header_page = layout_of(chunk).descriptor_page(index, place);
  for (u32 column = 0; column <= chunk.redundancy; ++column) {
    const Status written = write_header(g, state, chunk, {column, header_page, 1}, copy);
    if (!is_lost(g, state, chunk, column, written)) GPU4FS_TRY(written);
  }
  on_leader(g, [&] { chunk.descriptor_table_staged[index] = format::descriptor_entry(hash, place); });
  return Status::ok;
}

template <class Group>
GPU4FS_FN Status write_descriptors(Group g, SpaceState& state, ChunkState& chunk) {
  const u64 descriptor_pages = layout_of(chunk).descriptor_pages;
  for (u64 w = 0; w < divide_up(descriptor_pages, 64); ++w) {
    u64* const word = &chunk.descriptor_dirty[w];
    u64 dirty = on_leader(g, [&] {
      if (load<Order::relaxed, Scope::engine>(word) == 0) return u64{0};
      return exchange<Order::acquire, Scope::engine>(word, u64{0});
    });
    while (dirty != 0) {
      const u64 index = w * 64 + count_trailing_zeros(dirty);
      GPU4FS_CHECK_LT(index, descriptor_pages);
      const Status written = write_descriptor_page(g, state, chunk, index);
      if (written != Status::ok) {
        // The next attempt writes them.
        on_leader(g, [&] { fetch_or<Order::release, Scope::engine>(word, dirty); });
        return written;
      }
      dirty &= dirty - 1;
    }
  }
  return Status::ok;
}

// Writes bitmap, table and header of a slot to one copy of the header area. `header` is in chunk.header_work.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status write_slot(Group g, SpaceState& state, ChunkState& chunk, u32 column, u32 slot) {
  const format::ChunkLayout layout = layout_of(chunk);
  const u64 first = slot_page(layout, slot) + 1;
  const u64 count = layout.bitmap_pages + layout.table_pages;
  const u64* const staged = chunk.bitmaps.staged;
  GPU4FS_CHECK_EQ(chunk.descriptor_table_staged, staged + layout.bitmap_pages * (page_size / sizeof(u64)));
  GPU4FS_TRY(write_header(g, state, chunk, {column, first, count}, staged));
  return write_header(g, state, chunk, {column, slot_page(layout, slot), 1}, chunk.header_work);
}

// Writes the staged bitmap and table to a slot of all columns. Returns the facts of its header.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status write_slots(Group g, SpaceState& state, ChunkState& chunk, u32 slot, u64 epoch,
                                             u64* checksum) {
  const format::ChunkLayout layout = layout_of(chunk);
  SlotFacts facts{};
  facts.epoch = epoch;
  facts.bitmap_checksum = hash_pages(g, chunk.bitmaps.staged, layout.bitmap_pages, chunk.base_address);
  facts.table_checksum = hash_pages(g, chunk.descriptor_table_staged, layout.table_pages,
                                    format::descriptor_table_seed(chunk.base_address));
  facts.set_count = count_set_bits(g, chunk, chunk.bitmaps.staged);
  *checksum = compose_slot_header(g, chunk, slot, facts, chunk.header_work);
  for (u32 column = 0; column <= chunk.redundancy; ++column) {
    const Status written = write_slot(g, state, chunk, column, slot);
    if (!is_lost(g, state, chunk, column, written)) GPU4FS_TRY(written);
  }
  return Status::ok;
}

}  // namespace detail

// Gate closed. Fixes what the checkpoint writes of this chunk, and that its pages stay unchanged.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void snapshot_chunk(Group g, SpaceState& state, u32 index) {
  GPU4FS_CHECK_LT(index, raid::known_chunk_count(state.space));
  raid::ChunkState& chunk = state.space.chunks[index];
  const bool changed = on_leader(g, [&] {
    const bool found = raid::is_loaded(chunk) && load<Order::relaxed, Scope::engine>(&chunk.changed) != 0;
    // Before pages become stable: a rebuild takes stable pages only of other chunks (raid/rebuild/).
    if (found) store<Order::relaxed, Scope::engine>(&chunk.staged_changed, 1u);
    fence<Order::seq_cst, Scope::engine>();
    return found;
  });
  if (!changed) return;
  const raid::ChunkBitmaps& maps = chunk.bitmaps;
  for (u64 w = g.rank(); w < bitmap_words(chunk); w += g.size()) {
    const u64 committed = load<Order::relaxed, Scope::engine>(&maps.committed[w]);
    const u64 stable = load<Order::relaxed, Scope::engine>(&maps.stable[w]);
    const u64 freed = load<Order::relaxed, Scope::engine>(&maps.freed_now[w]);
    GPU4FS_CHECK_EQ(freed & committed, u64{0});
    GPU4FS_CHECK_EQ(freed & ~stable, u64{0});
    store<Order::relaxed, Scope::engine>(&maps.staged[w], committed);
    store<Order::relaxed, Scope::engine>(&maps.stable[w], stable | committed);
    if (freed != 0) {
      // Not empty if the previous checkpoint could not be written.
      const u64 old = load<Order::relaxed, Scope::engine>(&maps.freed_old[w]);
      store<Order::relaxed, Scope::engine>(&maps.freed_old[w], old | freed);
      store<Order::relaxed, Scope::engine>(&maps.freed_now[w], u64{0});
    }
  }
  on_leader(g, [&] { store<Order::relaxed, Scope::engine>(&chunk.changed, 0u); });
}

// Writes the changed pages of descriptors, and the staged bitmap and table to the slot that does not hold the durable
// state. The caller flushes the devices afterwards.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status write_chunk(Group g, SpaceState& state, u32 index, u64 epoch) {
  GPU4FS_CHECK_LT(index, raid::known_chunk_count(state.space));
  raid::ChunkState& chunk = state.space.chunks[index];
  const bool changed = on_leader(g, [&] { return chunk.staged_changed != 0; });
  if (!changed) return Status::ok;
  const u32 slot = on_leader(g, [&] {
    GPU4FS_CHECK_EQ(state.space.devices[chunk.columns[0].device].read_only, 0u);
    GPU4FS_CHECK_LT(chunk.slot_epoch[chunk.slot_newest], epoch);
    return GPU4FS_MUTANT(durable_slot_overwritten, chunk.slot_newest ^ 1, chunk.slot_newest);
  });
  GPU4FS_TRY(detail::write_descriptors(g, state, chunk));
  u64 checksum = 0;
  GPU4FS_TRY(detail::write_slots(g, state, chunk, slot, epoch, &checksum));
  on_leader(g, [&] {
    chunk.slot_epoch[slot] = epoch;
    chunk.slot_checksum[slot] = checksum;
  });
  return Status::ok;
}

namespace detail {

// Of the slot that the running checkpoint has written (`staged`) if it writes the chunk, otherwise of the durable one.
GPU4FS_FN inline u64 written_slot_checksum(const raid::ChunkState& chunk, bool staged) {
  const bool is_written = staged && load<Order::acquire, Scope::engine>(&chunk.staged_changed) != 0;
  return chunk.slot_checksum[is_written ? chunk.slot_newest ^ 1 : chunk.slot_newest];
}

}  // namespace detail

// The sum of the checksums of all current slots: of those that the running checkpoint has written (`staged`), or of the
// durable ones.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u64 sum_slot_checksums(Group g, const SpaceState& state, bool staged) {
  u64 sum = 0;
  for (u32 i = g.rank(); i < raid::known_chunk_count(state.space); i += g.size()) {
    const raid::ChunkState& chunk = state.space.chunks[i];
    if (raid::is_erased(chunk)) continue;
    sum += detail::written_slot_checksum(chunk, staged);
  }
  return g.reduce(sum, [](u64 a, u64 b) { return a + b; });
}

// The checkpoint is durable: its slot is the newest one, and pages that were freed before it can be reused.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void publish_chunk(Group g, SpaceState& state, u32 index) {
  GPU4FS_CHECK_LT(index, raid::known_chunk_count(state.space));
  raid::ChunkState& chunk = state.space.chunks[index];
  const bool changed = on_leader(g, [&] { return chunk.staged_changed != 0; });
  if (!changed) return;
  const raid::ChunkBitmaps& maps = chunk.bitmaps;
  u32 released = 0;
  for (u64 w = g.rank(); w < bitmap_words(chunk); w += g.size()) {
    const u64 freed = GPU4FS_MUTANT(freed_pages_reused_early, (load<Order::relaxed, Scope::engine>(&maps.freed_old[w])),
                                    (load<Order::relaxed, Scope::engine>(&maps.freed_old[w]) |
                                     exchange<Order::relaxed, Scope::engine>(&maps.freed_now[w], u64{0})));
    if (freed == 0) continue;
    GPU4FS_CHECK_EQ(freed & (load<Order::relaxed, Scope::engine>(&maps.committed[w])), u64{0});
    store<Order::relaxed, Scope::engine>(&maps.freed_old[w], u64{0});
    fetch_and<Order::relaxed, Scope::engine>(&maps.stable[w], ~freed);
    if (has_stripes(chunk)) {
      close_word(state, chunk, w, freed);
    } else {
      clear_busy(chunk, w, freed);
    }
    released += popcount(freed);
  }
  released = g.reduce(released, [](u32 a, u32 b) { return a + b; });
  for (u64 i = g.rank(); i < layout_of(chunk).descriptor_pages; i += g.size()) {
    chunk.descriptor_table[i] = chunk.descriptor_table_staged[i];
  }
  g.sync();
  on_leader(g, [&] {
    chunk.slot_newest ^= 1;
    store<Order::release, Scope::engine>(&chunk.staged_changed, 0u);
    if (!is_frozen(chunk)) {
      const u64 pending = fetch_sub<Order::relaxed, Scope::engine>(&counters_of(state, chunk).freed_pending, released);
      GPU4FS_CHECK_GE(pending, u64{released});
    }
    if (!has_stripes(chunk)) give_to_everyone(state, chunk, released);
  });
}

}  // namespace gpu4fs::space
