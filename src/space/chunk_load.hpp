// Mounting a chunk: loads its header, the current bitmap slot and the page descriptors into engine memory.
//
// The chunk's header area is untrusted input: every structure is verified (space/header_area.hpp), and its numbers are
// compared with those of the chunk tree. Of the two bitmap slots, the current one is the newest whose epoch is not
// beyond the superblock's. A slot whose header does not verify may be the torn remains of a checkpoint that was never
// completed, so it is skipped. When all chunks are loaded, check_slot_sum() detects a durable slot that was lost this
// way. A current slot whose bitmap no column has is corrupt: an older bitmap would show pages in use as free.
//
// With redundancy the header area has several copies. Each structure, and each page of descriptors, is read from the
// first column whose copy matches the slot. If the pool is mounted for writing, the other copies are repaired at once.
// If no column has a page of descriptors, the existing bytes are used, and the descriptors are marked
// (format::page_flag_unverified): a page that matches its checksum is right even if the checksum is unverified, and a
// page that does not match is an error. The next checkpoint writes the descriptors with this mark.
#pragma once

#include "base/copy.hpp"
#include "base/group.hpp"
#include "base/mutant.hpp"
#include "base/xxh3.hpp"
#include "space/backing.hpp"
#include "space/chunk_checkpoint.hpp"
#include "space/header_area.hpp"
#include "space/reserve.hpp"
#include "space/space_types.hpp"

namespace gpu4fs::space {

namespace detail {

// What the columns of a header area contain.
struct HeaderSurvey {
  Status status;    // ok, or why there is no current slot
  u32 readable;     // columns, one bit each, as below
  u32 sound;        // those that have the header of the current slot
  u32 slot;         // the current one
  u64 other_epoch;  // of the other one
  SlotFacts facts;  // of the current slot
};

template <class Group>
GPU4FS_FN Status clear_slot(Group g, SpaceState& state, ChunkState& chunk, u32 column, u32 slot) {
  const u64 page = slot_page(layout_of(chunk), slot);
  zero_page(g, chunk.header_work);
  g.sync();
  return write_header(g, state, chunk, {column, page, 1}, chunk.header_work);
}

GPU4FS_FN inline void add_to_survey(HeaderSurvey& survey, u32 column, u32 slot, const SlotFacts& facts) {
  if (facts.epoch > survey.facts.epoch) {
    survey.other_epoch = survey.slot != slot ? survey.facts.epoch : 0;
    survey.facts = facts;
    survey.slot = slot;
    survey.sound = 1u << column;
  } else if (slot != survey.slot) {
    survey.other_epoch = maximum(survey.other_epoch, facts.epoch);
  } else if (facts.epoch == survey.facts.epoch && facts.checksum == survey.facts.checksum) {
    survey.sound |= 1u << column;
  }
}

struct ColumnSlots {
  SlotFacts facts[2];
  Status cleared;  // of headers that had to be cleared; ok also if there were none
};

// Both slots of a column. A slot beyond the superblock's epoch belongs to a checkpoint that was lost: if the pool is
// mounted for writing, its header is cleared, so it does not become valid when the pool reaches that epoch.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status read_slots(Group g, SpaceState& state, ChunkState& chunk, u32 column,
                                            u64 superblock_epoch, ColumnSlots* slots) {
  for (u32 slot = 0; slot < 2; ++slot) {
    GPU4FS_TRY(read_slot(g, state, chunk, column, slot, &slots->facts[slot]));
    if (GPU4FS_MUTANT(lost_slot_counts, slots->facts[slot].epoch <= superblock_epoch, true)) continue;
    slots->facts[slot].epoch = 0;
    if (state.read_only != 0) continue;
    const Status status = clear_slot(g, state, chunk, column, slot);
    if (!is_lost(g, state, chunk, column, status) && status != Status::ok) slots->cleared = status;
  }
  return Status::ok;
}

// Finds the current slot.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE HeaderSurvey survey_header(Group g, SpaceState& state, ChunkState& chunk,
                                                     u64 superblock_epoch) {
  HeaderSurvey survey{};
  Status problem = Status::corrupt_structure;
  Status cleared = Status::ok;
  for (u32 column = 0; column <= chunk.redundancy; ++column) {
    if (on_leader(g, [&] { return raid::column_has_failed(state.space, chunk, column); })) continue;
    ColumnSlots slots{};
    const Status status = read_slots(g, state, chunk, column, superblock_epoch, &slots);
    if (slots.cleared != Status::ok) cleared = slots.cleared;
    if (status != Status::ok) {
      problem = status;
      continue;
    }
    survey.readable |= 1u << column;
    for (u32 slot = 0; slot < 2; ++slot) {
      const SlotFacts& facts = slots.facts[slot];
      if (facts.epoch != 0) add_to_survey(survey, column, slot, facts);
    }
  }
  survey.status = cleared != Status::ok ? cleared : survey.facts.epoch == 0 ? problem : Status::ok;
  return survey;
}

struct PagesToFind {
  u32 columns;  // to search, one bit each
  u64 first;
  u64 count;
  u64 seed;
  u64 hash;
};
struct PagesFound {
  Status status;  // ok, or that of the device if no column can be read
  u32 columns;    // that have the pages, one bit each
};

// Reads `count` pages from `first` on with this hash, from the first column that has them, into `to`; the others are
// read into `work`, which has as many pages.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE PagesFound find_header_pages(Group g, const SpaceState& state, const ChunkState& chunk,
                                                       const PagesToFind& wanted, void* to, void* work) {
  u32 found = 0;
  u32 read = 0;
  Status problem = Status::ok;
  for (u32 left = wanted.columns; left != 0; left &= left - 1) {
    const u32 column = static_cast<u32>(count_trailing_zeros(u64{left}));
    // A failed read leaves anything behind, so what was read before stays in another place.
    void* const buffer = read == 0 ? to : work;
    const Status status = read_header(g, state, chunk, {column, wanted.first, wanted.count}, buffer);
    if (status != Status::ok) {
      problem = status;
      continue;
    }
    ++read;
    const void* const copy = GPU4FS_MUTANT(header_copy_unverified, buffer, to);
    if (hash_pages(g, copy, wanted.count, wanted.seed) != wanted.hash) continue;
    if (found == 0 && buffer != to) copy_bytes(g, to, buffer, wanted.count * page_size);
    found |= 1u << column;
  }
  g.sync();
  return {read == 0 ? problem : Status::ok, found};
}

// True if no bit beyond the chunk's pages is set.
template <class Group>
GPU4FS_FN bool padding_is_zero(Group g, const ChunkState& chunk, const u64* bitmap, u64 word_count) {
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

// Reads the bitmap into `committed`; *sound: the columns that have it. Status: corrupt_structure, or that of the
// device.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status load_bitmap(Group g, const SpaceState& state, ChunkState& chunk,
                                             const HeaderSurvey& survey, u32* sound) {
  const format::ChunkLayout layout = layout_of(chunk);
  const PagesToFind wanted{survey.readable, slot_page(layout, survey.slot) + 1, layout.bitmap_pages, chunk.base_address,
                           survey.facts.bitmap_checksum};
  u64* const bitmap = chunk.bitmaps.committed;
  const PagesFound found = find_header_pages(g, state, chunk, wanted, bitmap, chunk.bitmaps.staged);
  GPU4FS_TRY(found.status);
  *sound = found.columns;
  if (*sound == 0) return Status::corrupt_structure;
  if (!padding_is_zero(g, chunk, bitmap, layout.bitmap_pages * (page_size / 8))) return Status::corrupt_structure;
  return count_set_bits(g, chunk, bitmap) == survey.facts.set_count ? Status::ok : Status::corrupt_structure;
}

// Reads the descriptor table. If no column has it, what could be read first is used; its entries are valid as far as
// pages exist that match them.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE PagesFound load_table(Group g, const SpaceState& state, ChunkState& chunk,
                                                const HeaderSurvey& survey) {
  const format::ChunkLayout layout = layout_of(chunk);
  const u32 columns = survey.facts.epoch != 0 ? survey.readable : 0;
  const PagesToFind wanted{columns, table_page(layout, survey.slot), layout.table_pages,
                           format::descriptor_table_seed(chunk.base_address), survey.facts.table_checksum};
  u64* const table = chunk.descriptor_table;
  fill_bytes(g, table, 0, layout.table_pages * page_size);
  g.sync();
  return find_header_pages(g, state, chunk, wanted, table, chunk.descriptor_table_staged);
}

// Descriptors of a page that no column has, as they could be read first. Their flags have no meaning.
template <class Group>
GPU4FS_FN void mark_unverified(Group g, ChunkState& chunk, u64 index) {
  format::PageDescriptor* descriptors = chunk.descriptors + index * format::descriptors_per_page;
  for (u32 i = g.rank(); i < format::descriptors_per_page; i += g.size()) {
    const Vector16 found = load_shared_16(&descriptors[i]);
    const u64 birth_epoch = found.high & 0xffffffffu;
    store_shared_16(&descriptors[i], Vector16{found.low, birth_epoch | u64{format::page_flag_unverified} << 32});
  }
  g.sync();
}

// Limit of the pages of descriptors that are read together: they are verified while a processor's first cache has them.
inline constexpr u64 descriptor_run_max = 8;

// Pages of descriptors whose current places are next to each other, in every column.
struct DescriptorRun {
  u64 index;  // of the first one
  u64 page;   // its place in the header area
  u32 count;  // at most descriptor_run_max, and at most as many as header_work has
  u32 reserved;
};

// The run from `index` on, without pages that were never written. Leader.
GPU4FS_FN inline DescriptorRun find_descriptor_run(const ChunkState& chunk, u64 index, bool is_verified) {
  const format::ChunkLayout layout = layout_of(chunk);
  const u64* const table = chunk.descriptor_table;
  const u64 place = format::descriptor_place(table[index]);
  const u64 room = minimum(raid::work_pages(layout), descriptor_run_max);
  const u64 end = minimum(index + room, layout.descriptor_pages);
  u64 next = index;
  for (; next < end; ++next) {
    if (is_verified && table[next] == format::descriptor_page_unwritten) break;
    if (format::descriptor_place(table[next]) != place) break;
  }
  return {index, layout.descriptor_page(index, place), static_cast<u32>(next - index), 0};
}

GPU4FS_FN inline u8* descriptor_memory(const ChunkState& chunk, u64 index) {
  return reinterpret_cast<u8*>(chunk.descriptors + index * format::descriptors_per_page);
}

// Reads the run from all columns, each once. Returns the pages that are right in all of them, one bit each. The others
// have to be read one by one: a bad sector in a run does not say which page it is in.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u32 load_descriptor_run(Group g, const SpaceState& state, const ChunkState& chunk,
                                                  u32 readable, const DescriptorRun& run) {
  u8* const place = descriptor_memory(chunk, run.index);
  u32 right = ~u32{0};
  u8* to = place;
  for (u32 left = readable; left != 0; left &= left - 1) {
    const u32 column = static_cast<u32>(count_trailing_zeros(u64{left}));
    const Status status = read_header(g, state, chunk, {column, run.page, run.count}, to);
    if (status == Status::device_failed) continue;
    if (status != Status::ok) return 0;
    const u8* const copy = GPU4FS_MUTANT(descriptor_copy_unverified, to, place);
    for (u32 i = 0; i < run.count; ++i) {
      const u64 entry = on_leader(g, [&] { return chunk.descriptor_table[run.index + i]; });
      if (!descriptor_page_fits(g, chunk, run.index + i, entry, copy + i * page_size)) right &= ~(1u << i);
    }
    to = chunk.header_work;
  }
  return GPU4FS_MUTANT(descriptors_read_twice, to == place, true) ? 0 : right;
}

// Reads one page of descriptors from the first column that has it. If the pool is mounted for writing, the others get
// it. Status: checksum_mismatch if no column has it; then the content of one of them was read. The device's status if
// none can be read.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status load_descriptor_page(Group g, SpaceState& state, ChunkState& chunk, u32 readable,
                                                      u64 index) {
  const u64 entry = on_leader(g, [&] { return chunk.descriptor_table[index]; });
  const u64 page = layout_of(chunk).descriptor_page(index, format::descriptor_place(entry));
  u8* const to = descriptor_memory(chunk, index);
  Status status = Status::checksum_mismatch;
  u32 bad = 0;
  bool found = false;
  for (u32 left = readable; left != 0; left &= left - 1) {
    const u32 column = static_cast<u32>(count_trailing_zeros(u64{left}));
    // A failed read leaves anything behind, so what was read before stays in another place.
    u8* const buffer = found || bad != 0 ? chunk.header_work : to;
    const Status read = read_header(g, state, chunk, {column, page, 1}, buffer);
    if (read != Status::ok) {
      status = read;
      continue;
    }
    const bool fits = descriptor_page_fits(g, chunk, index, entry, buffer);
    if (!fits) bad |= 1u << column;
    if (fits && !found && buffer != to) copy_bytes(g, to, buffer, page_size);
    found = found || fits;
  }
  g.sync();
  if (!found && bad == 0) return status;
  for (; bad != 0; bad &= bad - 1) {
    const u32 column = static_cast<u32>(count_trailing_zeros(u64{bad}));
    count_bad_copy(g, state, chunk, column);
    if (found && state.read_only == 0) (void)write_header(g, state, chunk, {column, page, 1}, to);
  }
  return found ? Status::ok : Status::checksum_mismatch;
}

// The epoch of the youngest page in a page of descriptors.
template <class Group>
GPU4FS_FN u64 newest_birth(Group g, const void* page) {
  u64 newest = 0;
  for (u32 i = g.rank(); i < format::descriptors_per_page; i += g.size()) {
    newest = maximum(newest, load_shared_16(static_cast<const format::PageDescriptor*>(page) + i).high & 0xffffffffu);
  }
  return g.reduce(newest, [](u64 a, u64 b) { return maximum(a, b); });
}

// If the table does not say which place is valid: uses the content of the other place if it is younger.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void take_younger_place(Group g, SpaceState& state, ChunkState& chunk, u32 readable,
                                                  u64 index) {
  const u64 entry = on_leader(g, [&] { return chunk.descriptor_table[index]; });
  const u64 other = layout_of(chunk).descriptor_page(index, format::descriptor_place(entry) ^ 1);
  u8* const to = descriptor_memory(chunk, index);
  const u32 column = static_cast<u32>(count_trailing_zeros(u64{readable}));
  if (read_header(g, state, chunk, {column, other, 1}, chunk.header_work) != Status::ok) return;
  if (newest_birth(g, chunk.header_work) <= newest_birth(g, to)) return;
  copy_bytes(g, to, chunk.header_work, page_size);
  g.sync();
}

// Without a page in use the descriptors have no meaning, and they may not be reachable.
template <class Group>
GPU4FS_FN void forget_descriptors(Group g, ChunkState& chunk) {
  const format::ChunkLayout layout = layout_of(chunk);
  fill_bytes(g, chunk.descriptor_table, 0, layout.table_pages * page_size);
  fill_bytes(g, chunk.descriptor_table_staged, 0, layout.table_pages * page_size);
  for (u64 w = g.rank(); w < divide_up(layout.descriptor_pages, 64); w += g.size()) chunk.descriptor_dirty[w] = 0;
  g.sync();
}

// A page of descriptors that is not right in all columns.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status settle_descriptor_page(Group g, SpaceState& state, ChunkState& chunk, u32 readable,
                                                        u64 index, bool is_verified) {
  const Status status = load_descriptor_page(g, state, chunk, readable, index);
  if (status != Status::checksum_mismatch) return status;
  if (!is_verified) take_younger_place(g, state, chunk, readable, index);
  mark_unverified(g, chunk, index);
  on_leader(g, [&] {
    chunk.descriptor_dirty[index / 64] |= u64{1} << (index % 64);
    store<Order::relaxed, Scope::engine>(&chunk.changed, 1u);
  });
  return Status::ok;
}

// Reads all descriptors according to the table. `is_verified`: the table is verified; otherwise pages that do not match
// it are unverified. Status: that of the device.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status load_descriptors(Group g, SpaceState& state, ChunkState& chunk, u32 readable,
                                                  bool is_verified) {
  const u64 descriptor_pages = layout_of(chunk).descriptor_pages;
  for (u64 w = g.rank(); w < divide_up(descriptor_pages, 64); w += g.size()) chunk.descriptor_dirty[w] = 0;
  g.sync();
  for (u64 index = 0; index < descriptor_pages;) {
    const DescriptorRun run = on_leader(g, [&] { return find_descriptor_run(chunk, index, is_verified); });
    if (run.count == 0) {
      zero_page(g, descriptor_memory(chunk, index));
      ++index;
      continue;
    }
    const u32 right = load_descriptor_run(g, state, chunk, readable, run);
    for (u32 i = 0; i < run.count; ++i) {
      if ((right >> i & 1) != 0) continue;
      GPU4FS_TRY(settle_descriptor_page(g, state, chunk, readable, index + i, is_verified));
    }
    index += run.count;
  }
  g.sync();
  return Status::ok;
}

// Sets the other bitmaps and the counts of free pages from `committed`. Returns the number of free pages.
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
  const u64 free_count =
      has_stripes(chunk) ? derive_stripes(g, chunk) : chunk.page_count - count_set_bits(g, chunk, maps.committed);
  for (u32 pair = g.rank(); pair < (region_count_of(chunk) + 1) / 2; pair += g.size()) {
    u32 counts = 0;
    for (u32 region = 2 * pair; region < minimum(2 * pair + 2, region_count_of(chunk)); ++region) {
      u32 free = 0;
      for (u32 w = 0; w < region_words; ++w) free += popcount(~maps.busy[u64{region} * region_words + w]);
      counts |= free << (16 * (region % 2));
    }
    chunk.region_free[pair] = counts;
  }
  return free_count;
}

GPU4FS_FN inline void add_to_counters(SpaceState& state, const ChunkState& chunk, u64 free_count, u64 used_count) {
  SpaceCounters& counters = counters_of(state, chunk);
  const u64 total = fetch_add<Order::relaxed, Scope::engine>(&counters.total, chunk.page_count) + chunk.page_count;
  add<Scope::engine>(&counters.free, free_count);
  add<Scope::engine>(&counters.used, used_count);
  // Chunks are loaded in parallel; the reserve grows with the total.
  const u64 kept_back = kept_back_pages(state, chunk.page_class, total);
  u64 found = load<Order::relaxed, Scope::engine>(&counters.emergency);
  while (found < kept_back) {
    if (compare_exchange<Order::relaxed, Scope::engine>(&counters.emergency, found, kept_back)) break;
  }
}

// Writes the current slot to all columns that lack a part of it; `sound` have the whole. It is the durable slot, and
// the content is what it should have been.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void restore_slots(Group g, SpaceState& state, ChunkState& chunk, const HeaderSurvey& survey,
                                             u32 sound) {
  (void)compose_slot_header(g, chunk, survey.slot, survey.facts, chunk.header_work);
  for (u32 left = survey.readable & ~sound; left != 0; left &= left - 1) {
    const u32 column = static_cast<u32>(count_trailing_zeros(u64{left}));
    count_bad_copy(g, state, chunk, column);
    // A column that cannot be written stays as it is; a later mount tries again.
    if (state.read_only == 0) (void)write_slot(g, state, chunk, column, survey.slot);
  }
}

// Loads bitmap, table and descriptors. Afterwards the bitmap `staged` and the staged table are those of the slot.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status load_structures(Group g, SpaceState& state, ChunkState& chunk,
                                                 const HeaderSurvey& survey) {
  u32 sound_bitmaps = 0;
  GPU4FS_TRY(load_bitmap(g, state, chunk, survey, &sound_bitmaps));
  const PagesFound tables = load_table(g, state, chunk, survey);
  GPU4FS_TRY(tables.status);
  const format::ChunkLayout layout = layout_of(chunk);
  copy_bytes(g, chunk.bitmaps.staged, chunk.bitmaps.committed, layout.bitmap_pages * page_size);
  copy_bytes(g, chunk.descriptor_table_staged, chunk.descriptor_table, layout.table_pages * page_size);
  g.sync();
  if (tables.columns != 0) {
    restore_slots(g, state, chunk, survey, survey.sound & sound_bitmaps & tables.columns);
  } else {
    // The next checkpoint writes a valid one.
    for (u32 left = survey.readable; left != 0; left &= left - 1) {
      count_bad_copy(g, state, chunk, static_cast<u32>(count_trailing_zeros(u64{left})));
    }
    on_leader(g, [&] { store<Order::relaxed, Scope::engine>(&chunk.changed, 1u); });
  }
  if (survey.facts.set_count != 0) return load_descriptors(g, state, chunk, survey.readable, tables.columns != 0);
  forget_descriptors(g, chunk);
  return Status::ok;
}

}  // namespace detail

// Mount. Loads one chunk, once, and adds it to state.counters, which are initially zero. The engine must be able to
// reach the front of its header area, and its descriptors if pages are in use, but not its data pages. With
// state.read_only nothing on the medium is changed. Status: corrupt_structure, medium_error, device_failed.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status load_chunk(Group g, SpaceState& state, u32 index, u64 superblock_epoch) {
  GPU4FS_CHECK_LT(index, raid::known_chunk_count(state.space));
  GPU4FS_CHECK_GT(superblock_epoch, u64{0});
  raid::ChunkState& chunk = state.space.chunks[index];
  GPU4FS_CHECK(!raid::is_loaded(chunk));
  const detail::HeaderSurvey survey = detail::survey_header(g, state, chunk, superblock_epoch);
  GPU4FS_TRY(survey.status);
  GPU4FS_TRY(detail::load_structures(g, state, chunk, survey));
  for (u32 left = survey.readable; left != 0; left &= left - 1) {
    const u32 column = static_cast<u32>(count_trailing_zeros(u64{left}));
    bool is_damaged = false;
    (void)settle_chunk_header(g, state, chunk, column, chunk.header_work, &is_damaged);
  }
  const u64 free_count = detail::derive_bitmaps(g, chunk);
  on_leader(g, [&] {
    chunk.slot_newest = survey.slot;
    chunk.slot_epoch[survey.slot] = survey.facts.epoch;
    chunk.slot_epoch[survey.slot ^ 1] = survey.other_epoch;
    chunk.slot_checksum[survey.slot] = survey.facts.checksum;
    chunk.free_pages = static_cast<u32>(free_count) - GPU4FS_MUTANT(holes_given_out, take_holes_out(chunk), 0u);
    detail::add_to_counters(state, chunk, free_count, survey.facts.set_count);
    fetch_or<Order::release, Scope::engine>(&chunk.presence, raid::chunk_loaded);
    count_chunk(state, chunk);
  });
  return Status::ok;
}

// Used instead of load_chunk() if the caller has the bitmaps: loads only the descriptors of the durable slot. With
// state.read_only nothing on the medium is changed. Status: that of the device; corrupt_structure if no column is left.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status load_chunk_descriptors(Group g, SpaceState& state, u32 index, u64 superblock_epoch) {
  GPU4FS_CHECK_LT(index, raid::known_chunk_count(state.space));
  raid::ChunkState& chunk = state.space.chunks[index];
  const detail::HeaderSurvey survey = detail::survey_header(g, state, chunk, superblock_epoch);
  if (survey.readable == 0) return survey.status;
  const detail::PagesFound table = detail::load_table(g, state, chunk, survey);
  GPU4FS_TRY(table.status);
  return detail::load_descriptors(g, state, chunk, survey.readable, table.columns != 0);
}

// Mount, after all chunks: compares the chosen slots with the superblock's sum. A difference shows that a slot was
// lost. Status: corrupt_structure.
template <class Group>
GPU4FS_FN Status check_slot_sum(Group g, const SpaceState& state, u64 slot_sum) {
  return sum_slot_checksums(g, state, false) == slot_sum ? Status::ok : Status::corrupt_structure;
}

// The same for the superblock's page_used.
GPU4FS_FN inline Status check_page_used(const SpaceState& state, u64 page_used) {
  return GPU4FS_MUTANT(page_count_unchecked, pages_used(state) == page_used, true) ? Status::ok
                                                                                   : Status::corrupt_structure;
}

// The server has made a chunk's pages reachable for the engine.
GPU4FS_FN inline void make_chunk_accessible(SpaceState& state, u32 index) {
  GPU4FS_CHECK_LT(index, raid::known_chunk_count(state.space));
  raid::ChunkState& chunk = state.space.chunks[index];
  fetch_or<Order::release, Scope::engine>(&chunk.presence, raid::chunk_accessible);
  fence<Order::seq_cst, Scope::engine>();
  count_chunk(state, chunk);
}

}  // namespace gpu4fs::space
