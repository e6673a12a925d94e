// Verifies the header area of a chunk of a mounted pool, and repairs damaged copies. What is verified is read from the
// medium.
//
// Only structures to which the durable superblocks refer are verified: chunk headers, the newest slot and the pages of
// descriptors that its table names. A running checkpoint writes other places; while it may have written some of this
// chunk, the chunk is skipped. A checkpoint whose snapshot comes later waits before it is published (begin_repairs() in
// raid/repair_pages.hpp). If no column has a structure, engine memory has it, and the next checkpoint writes it
// elsewhere.
//
// Uniform.
#pragma once

#include "base/mutant.hpp"
#include "raid/repair_pages.hpp"
#include "space/extents.hpp"
#include "space/header_area.hpp"

namespace gpu4fs::space {

struct HeaderScrub {
  u64 verified;  // pages, each copy counted
  u64 damaged;   // those of them that are damaged
  u64 left;      // damaged pages without a good copy, or whose device cannot be written
};

namespace detail {

// Pages of a header area that should be equal in all columns.
struct HeaderPart {
  u64 first;
  u64 count;
};

// Leader: whether the chunk's durable structures stay in place until end_repairs(). After begin_repairs().
GPU4FS_FN inline bool header_is_settled(const ChunkState& chunk) {
  fence<Order::seq_cst, Scope::engine>();
  return load<Order::acquire, Scope::engine>(&chunk.staged_changed) == 0;
}

// Rewrites copies of `part` that do not verify from one that does. verify(pages): whether what was read is right.
// False: no column has the pages.
template <class Group, class Verify>
GPU4FS_FN GPU4FS_NOINLINE bool scrub_part(Group g, SpaceState& state, const ChunkState& chunk, const HeaderPart& part,
                                          HeaderScrub& scrub, Verify&& verify) {
  GPU4FS_CHECK_LE(2 * part.count, raid::work_pages(layout_of(chunk)));
  u32 bad = 0;
  const u8* good = nullptr;
  u8* buffer = chunk.scrub_work;
  u8* const second = buffer + part.count * page_size;
  for (u32 column = 0; column <= chunk.redundancy; ++column) {
    const Status status = read_header(g, state, chunk, {column, part.first, part.count}, buffer);
    if (status == Status::device_failed) continue;
    scrub.verified += part.count;
    if (status != Status::ok || !verify(buffer)) {
      bad |= 1u << column;
    } else if (good == nullptr) {
      good = buffer;
      buffer = GPU4FS_MUTANT(good_copy_overwritten, second, buffer);
    }
  }
  for (u32 left = bad; left != 0; left &= left - 1) {
    const u32 column = static_cast<u32>(count_trailing_zeros(u64{left}));
    scrub.damaged += part.count;
    count_bad_copy(g, state, chunk, column);
    const bool is_repaired = good != nullptr && state.read_only == 0 &&
                             write_header(g, state, chunk, {column, part.first, part.count}, good) == Status::ok;
    if (!is_repaired) scrub.left += part.count;
  }
  return good != nullptr || bad == 0;
}

template <class Group>
GPU4FS_FN void scrub_chunk_headers(Group g, SpaceState& state, const ChunkState& chunk, HeaderScrub& scrub) {
  for (u32 column = 0; column <= chunk.redundancy; ++column) {
    if (!on_leader(g, [&] { return raid::device_is_readable(state.space, chunk.columns[column].device); })) continue;
    ++scrub.verified;
    bool is_damaged = false;
    (void)settle_chunk_header(g, state, chunk, column, chunk.scrub_work, &is_damaged);
    if (!is_damaged) continue;
    ++scrub.damaged;
    if (state.read_only != 0) ++scrub.left;
  }
}

// Header, bitmap and table of the durable slot. False: no column has one of these.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE bool scrub_slot(Group g, SpaceState& state, const ChunkState& chunk, HeaderScrub& scrub) {
  const format::ChunkLayout layout = layout_of(chunk);
  const u32 slot = on_leader(g, [&] { return chunk.slot_newest; });
  const u64 checksum = on_leader(g, [&] { return chunk.slot_checksum[slot]; });
  u64 hashes[2] = {0, 0};
  const bool has_header = scrub_part(g, state, chunk, {slot_page(layout, slot), 1}, scrub, [&](u8* page) {
    if (!seal_fits(g, page, chunk.base_address ^ slot)) return false;
    const auto* header = reinterpret_cast<const format::BitmapSlotHeader*>(page);
    const bool is_this = on_leader(g, [&] { return header->checksum == checksum; });
    if (!is_this) return false;
    hashes[0] = on_leader(g, [&] { return header->bitmap_checksum; });
    hashes[1] = on_leader(g, [&] { return header->descriptor_table_checksum; });
    return true;
  });
  if (!has_header) return false;
  const HeaderPart parts[2] = {{slot_page(layout, slot) + 1, layout.bitmap_pages},
                               {table_page(layout, slot), layout.table_pages}};
  const u64 seeds[2] = {chunk.base_address, format::descriptor_table_seed(chunk.base_address)};
  bool has_all = true;
  for (u32 i = 0; i < 2; ++i) {
    has_all &= scrub_part(g, state, chunk, parts[i], scrub,
                          [&](const u8* pages) { return hash_pages(g, pages, parts[i].count, seeds[i]) == hashes[i]; });
  }
  return has_all;
}

// Whether a settled chunk has a page in use according to its durable bitmap.
template <class Group>
GPU4FS_FN bool has_stable_pages(Group g, const ChunkState& chunk) {
  u64 stable = 0;
  for (u64 w = g.rank(); w < bitmap_words(chunk); w += Group::size()) {
    stable |= load<Order::relaxed, Scope::engine>(&chunk.bitmaps.stable[w]);
  }
  return g.any(stable != 0);
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void scrub_descriptors(Group g, SpaceState& state, ChunkState& chunk, u64 page, u64 count,
                                                 HeaderScrub& scrub) {
  // In an empty chunk the words have no meaning, and the pages that they name may not be reachable.
  if (!has_stable_pages(g, chunk)) return;
  const format::ChunkLayout layout = layout_of(chunk);
  const u64 end = divide_up(page + count, u64{format::descriptors_per_page});
  for (u64 index = page / format::descriptors_per_page; index < end; ++index) {
    const u64 entry = on_leader(g, [&] { return chunk.descriptor_table[index]; });
    if (entry == format::descriptor_page_unwritten) continue;
    const HeaderPart part{layout.descriptor_page(index, format::descriptor_place(entry)), 1};
    const bool is_there = scrub_part(g, state, chunk, part, scrub, [&](const u8* copy) {
      return descriptor_page_fits(g, chunk, index, entry, copy);
    });
    if (is_there || state.read_only != 0) continue;
    on_leader(g, [&] {
      fetch_or<Order::release, Scope::engine>(&chunk.descriptor_dirty[index / 64], u64{1} << (index % 64));
      mark_changed(chunk);
    });
  }
}

}  // namespace detail

// Verifies the pages of descriptors of the chunk's pages [page, page + count) and, with page 0, everything before them.
// Adds to *scrub. If a checkpoint failed while it wrote the chunk, nothing is verified. Status: again (a checkpoint
// writes the chunk, or another worker verifies it).
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status scrub_header_area(Group g, SpaceState& state, u32 index, u64 page, u64 count,
                                                   HeaderScrub* scrub) {
  GPU4FS_CHECK_LT(index, raid::known_chunk_count(state.space));
  raid::ChunkState& chunk = state.space.chunks[index];
  GPU4FS_CHECK_LE(page + count, chunk.page_count);
  const bool is_taken =
      on_leader(g, [&] { return exchange<Order::acquire, Scope::engine>(&chunk.header_scrub, 1u) != 0; });
  if (is_taken) return Status::again;
  const u32 counter = on_leader(g, [&] { return raid::begin_repairs(state.space); });
  const bool settled = on_leader(g, [&] { return detail::header_is_settled(chunk); });
  if (settled) {
    if (page == 0) {
      detail::scrub_chunk_headers(g, state, chunk, *scrub);
      if (!detail::scrub_slot(g, state, chunk, *scrub) && state.read_only == 0) {
        on_leader(g, [&] { mark_changed(chunk); });
      }
    }
    detail::scrub_descriptors(g, state, chunk, page, count, *scrub);
  }
  g.sync();
  on_leader(g, [&] {
    raid::end_repairs(state.space, counter);
    store<Order::release, Scope::engine>(&chunk.header_scrub, 0u);
  });
  // After a failed checkpoint there is no other one to wait for.
  const bool is_final =
      on_leader(g, [&] { return load<Order::acquire, Scope::engine>(&state.checkpoint_failed) != 0; });
  return settled || is_final ? Status::ok : Status::again;
}

}  // namespace gpu4fs::space
