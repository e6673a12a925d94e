// Which pages devices that are being rebuilt may lack: a bit a page, ChunkState::rebuild_todo.
//
// The bits are set when a rebuild begins, while no step runs, of all pages that somebody may need:
// those of the file system, and those that commands have allocated and not yet committed. From then
// on what is written goes to those devices as well, so nothing else has to be remembered, with two
// exceptions:
//   - a page is written where it stands while a rebuild may be copying it. Only unwritten blocks of chunks without
//     parities are. The copy may be older and come later, so the writer sets the bit again after its write;
//   - a page is added to a parity that has not been rebuilt. Nobody knows what stands there, so the parity is left as
//     it is, and the page's bit is set.
// Of chunks with parities a row is what is rebuilt: while no page of it has its bit, all that the
// devices hold of it is right, save rows whose stripe is free. There the bits change under the
// row's lock.
//
// Leader's work.
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

// Of pages [page, page + 64) those with a bit in `pages`.
GPU4FS_FN inline void clear_rebuild_todo_bits(const ChunkState& chunk, u64 page, u64 pages) {
  u64* const words = &chunk.rebuild_todo[page / 64];
  const u32 shift = page % 64;
  const u64 high = shift == 0 ? 0 : pages >> (64 - shift);
  GPU4FS_CHECK_LT(page + (pages == 0 ? 0 : log2_floor(pages)), chunk.page_count);
  if (pages << shift != 0) fetch_and<Order::acq_rel, Scope::engine>(&words[0], ~(pages << shift));
  if (high != 0) fetch_and<Order::acq_rel, Scope::engine>(&words[1], ~high);
}

// Pages [first, first + count), of which the durable checkpoint may know, have been written where
// they stand.
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
