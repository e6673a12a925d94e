// Which pages may be missing on devices that are being rebuilt: one bit for each page, ChunkState::rebuild_todo.
//
// The bits are set when a rebuild begins, while no step runs, for all pages that may be needed: those of the file
// system, and those that commands have allocated and not yet committed. From then on writes go to those devices as
// well, so nothing else has to be remembered, with two exceptions:
//   - A page is written in place while a rebuild may be copying it. This happens only to unwritten blocks of chunks
//     without parities. The copy may have the older content and be stored later, so the writer sets the bit again after
//     its write.
//   - A page is added to a parity that has not been rebuilt. The content of this parity is unknown, so it is left
//     unchanged, and the page's bit is set.
// In chunks with parities the rebuild works on whole rows: if no page of a row has its bit, everything that the devices
// hold of the row is right, except for rows whose stripe is free. There the bits change under the row's lock.
//
// For the leader.
#pragma once

#include "raid/device_loss.hpp"
#include "raid/parity/row.hpp"

namespace gpu4fs::raid {

GPU4FS_FN inline bool is_rebuilding(const LogicalSpace& space, u32 device) {
  return (rebuilding_devices(space) >> device & 1) != 0;
}

GPU4FS_FN inline void set_rebuild_todo(const ChunkState& chunk, u64 page) {
  GPU4FS_CHECK(chunk.rebuild_todo != nullptr);
  GPU4FS_CHECK_LT(page, chunk.page_count);
  fetch_or<Order::release, Scope::engine>(&chunk.rebuild_todo[page / 64], u64{1} << (page % 64));
}

GPU4FS_FN inline void clear_rebuild_todo(const ChunkState& chunk, u64 page) {
  GPU4FS_CHECK_LT(page, chunk.page_count);
  fetch_and<Order::acq_rel, Scope::engine>(&chunk.rebuild_todo[page / 64], ~(u64{1} << (page % 64)));
}

// Clears the bits in `pages` of the pages [page, page + 64).
GPU4FS_FN inline void clear_rebuild_todo_bits(const ChunkState& chunk, u64 page, u64 pages) {
  u64* const words = &chunk.rebuild_todo[page / 64];
  const u32 shift = page % 64;
  const u64 high = shift == 0 ? 0 : pages >> (64 - shift);
  GPU4FS_CHECK_LT(page + (pages == 0 ? 0 : log2_floor(pages)), chunk.page_count);
  if (pages << shift != 0) fetch_and<Order::acq_rel, Scope::engine>(&words[0], ~(pages << shift));
  if (high != 0) fetch_and<Order::acq_rel, Scope::engine>(&words[1], ~high);
}

// Pages [first, first + count), which the durable checkpoint may include, have been written in place.
GPU4FS_FN inline void note_rewritten_pages(const LogicalSpace& space, const ChunkState& chunk, u64 first, u64 count) {
  if (rebuilding_devices(space) == 0 || chunk.rebuild_todo == nullptr) return;
  for (u64 page = first; page < first + count; ++page) {
    if (page_bit(chunk.bitmaps.stable, page)) set_rebuild_todo(chunk, page);
  }
}

// Under the row's lock.
GPU4FS_FN inline bool row_is_rebuilt(const LogicalSpace& space, const RowView& view) {
  const ChunkState& chunk = space.chunks[view.chunk];
  for (u32 slot = 0; slot < view.slot_count; ++slot) {
    if (page_bit(chunk.rebuild_todo, row_page(view, slot))) return false;
  }
  return true;
}

}  // namespace gpu4fs::raid
