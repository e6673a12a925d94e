// The life of allocated pages: committed or abandoned, and freed.
//
// A page's state is in the bitmaps of its chunk (raid/raid_types.hpp). Commits and frees happen inside the commit gate,
// so a checkpoint's snapshot sees all of an operation or nothing. Freed extents come from block pointers. If pages of
// them are not in use, the map is damaged. This is recorded in state.had_error and otherwise ignored. Plain functions,
// one rank, except for commit_extent and free_extent.
#pragma once

#include "base/mutant.hpp"
#include "base/status.hpp"
#include "raid/translate.hpp"
#include "space/partial_stripes.hpp"
#include "space/space_counters.hpp"
#include "space/space_types.hpp"
#include "space/stripes.hpp"

namespace gpu4fs::space {

// The chunk and first page of an extent from the allocator.
GPU4FS_FN inline raid::PageLocation location_of(const SpaceState& state, const raid::Extent& extent) {
  raid::PageLocation location;
  GPU4FS_CHECK_OK(raid::find_page(state.space, extent.address, &location));
  GPU4FS_CHECK_LE(location.page + extent.page_count, state.space.chunks[location.chunk].page_count);
  return location;
}

namespace detail {

// The bits of [first, end) that lie in u64 word `word` of a bitmap, which contains at least one of them.
GPU4FS_FN constexpr u64 word_mask(u64 word, u64 first, u64 end) {
  const u64 low = maximum(first, word * 64) - word * 64;
  const u64 high = minimum(end, word * 64 + 64) - word * 64;
  const u64 below_high = high == 64 ? ~u64{0} : (u64{1} << high) - 1;
  return below_high & ~((u64{1} << low) - 1);
}

}  // namespace detail

GPU4FS_FN inline void mark_changed(ChunkState& chunk) {
  if (load<Order::relaxed, Scope::engine>(&chunk.changed) == 0)
    store<Order::relaxed, Scope::engine>(&chunk.changed, 1u);
}

// Gate. The allocated pages become part of the file system in this epoch. `logged`: a record of the operation log names
// them, so they are stable at once. Collective, because a large extent has many words; Lane for one rank alone.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void commit_extent(Group g, SpaceState& state, raid::Extent extent, bool logged = false) {
  const raid::PageLocation location = on_leader(g, [&] { return location_of(state, extent); });
  raid::ChunkState& chunk = state.space.chunks[location.chunk];
  const u64 end = location.page + extent.page_count;
  for (u64 word = location.page / 64 + g.rank(); word * 64 < end; word += Group::size()) {
    const u64 mask = detail::word_mask(word, location.page, end);
    GPU4FS_CHECK_EQ((load<Order::relaxed, Scope::engine>(&chunk.bitmaps.busy[word])) & mask, mask);
    const u64 old = fetch_or<Order::relaxed, Scope::engine>(&chunk.bitmaps.committed[word], mask);
    GPU4FS_CHECK_EQ(old & mask, u64{0});
    if (logged) fetch_or<Order::relaxed, Scope::engine>(&chunk.bitmaps.stable[word], mask);
  }
  on_leader(g, [&] {
    add<Scope::engine>(&counters_of(state, chunk).used, extent.page_count);
    mark_changed(chunk);
  });
}

// Gate. Committed pages were filled in place (unwritten blocks): the next checkpoint must write their descriptors even
// if nothing else changed in the chunk.
GPU4FS_FN inline void touch_extent(SpaceState& state, raid::Extent extent) {
  mark_changed(state.space.chunks[location_of(state, extent).chunk]);
}

namespace detail {

GPU4FS_FN inline u64 count_busy(const raid::ChunkState& chunk, u64 first_page, u64 page_count) {
  u64 count = 0;
  for_each_word(first_page, page_count, [&](u64 word, u64 mask) {
    count += popcount(load<Order::relaxed, Scope::engine>(&chunk.bitmaps.busy[word]) & mask);
  });
  return count;
}

}  // namespace detail

// Whether all of the extent's pages exist and none is free.
GPU4FS_FN inline bool pages_are_taken(const SpaceState& state, raid::Extent extent) {
  raid::PageLocation location;
  if (raid::find_page(state.space, extent.address, &location) != Status::ok) return false;
  const raid::ChunkState& chunk = state.space.chunks[location.chunk];
  if (extent.page_count > chunk.page_count - location.page) return false;
  return detail::count_busy(chunk, location.page, extent.page_count) == extent.page_count;
}

// Whether a record's extent may become part of a file: its pages were adopted, and no other record has used them.
GPU4FS_FN inline bool pages_are_uncommitted(const SpaceState& state, raid::Extent extent) {
  if (!pages_are_taken(state, extent)) return false;
  const raid::PageLocation location = location_of(state, extent);
  u64 committed = 0;
  for_each_word(location.page, extent.page_count, [&](u64 word, u64 mask) {
    committed |=
        load<Order::relaxed, Scope::engine>(&state.space.chunks[location.chunk].bitmaps.committed[word]) & mask;
  });
  return committed == 0;
}

// Before any command runs: takes the free pages of `extent`, like an allocation, for the operation whose record names
// them. `filled`: with their content. It also takes stranded pages, which the operation had taken
// (space/partial_stripes.hpp). Status: corrupt_structure for other pages.
GPU4FS_FN GPU4FS_NOINLINE inline Status adopt_extent(SpaceState& state, raid::Extent extent, bool filled = true) {
  raid::PageLocation location;
  GPU4FS_TRY(raid::find_page(state.space, extent.address, &location));
  raid::ChunkState& chunk = state.space.chunks[location.chunk];
  if (extent.page_count == 0 || extent.page_count > chunk.page_count - location.page) return Status::corrupt_structure;
  if (detail::count_busy(chunk, location.page, extent.page_count) != 0) {
    for (u64 i = 0; i < extent.page_count; ++i) GPU4FS_TRY(adopt_stranded_page(chunk, location.page + i));
    return Status::ok;
  }
  const bool striped = has_stripes(chunk);
  u32 cost = extent.page_count;
  if (striped) cost = take_stripes_of(chunk, location.page, extent.page_count, filled);
  for_each_word(location.page, extent.page_count, [&](u64 word, u64 mask) {
    // The pages are neither overwritten nor reused before the recovery's checkpoint: until then the log needs them.
    fetch_or<Order::relaxed, Scope::engine>(&chunk.bitmaps.stable[word], mask);
    if (striped) return;
    fetch_or<Order::relaxed, Scope::engine>(&chunk.bitmaps.busy[word], mask);
    subtract_region_free(chunk, static_cast<u32>(word / region_words), popcount(mask));
  });
  const u32 before = fetch_sub<Order::relaxed, Scope::engine>(&chunk.free_pages, cost);
  GPU4FS_CHECK_GE(before & free_number_mask, cost);
  SpaceCounters& counters = counters_of(state, chunk);
  subtract<Scope::engine>(&counters.free, cost);
  if ((before & counted_bit) != 0) subtract<Scope::engine>(&counters.available, cost);
  return Status::ok;
}

// Returns allocated pages that were not committed to the command's reservation. In chunks with parities they become
// free when their stripe is free; in frozen chunks they are not reused. Returns how many pages the reservation got.
GPU4FS_FN GPU4FS_NOINLINE inline u32 abandon_extent(SpaceState& state, SpaceRequest& request, raid::Extent extent) {
  const raid::PageLocation location = location_of(state, extent);
  raid::ChunkState& chunk = state.space.chunks[location.chunk];
  const bool striped = has_stripes(chunk);
  for_each_word(location.page, extent.page_count, [&](u64 word, u64 mask) {
    GPU4FS_CHECK_EQ((load<Order::relaxed, Scope::engine>(&chunk.bitmaps.committed[word])) & mask, u64{0});
    if (!striped) clear_busy(chunk, word, mask);
  });
  if (striped) {
    close_pages(state, chunk, location.page, extent.page_count);
    return 0;
  }
  const u32 bits = return_claim(chunk, extent.page_count);
  if ((bits & frozen_bit) != 0) return 0;
  GPU4FS_CHECK((bits & counted_bit) != 0);
  SpaceCounters& counters = counters_of(state, chunk);
  add<Scope::engine>(&counters.free, extent.page_count);
  // A command that has switched to another profile has no reservation for them.
  if (chunk.page_class != class_of(state, request)) {
    fetch_add<Order::release, Scope::engine>(&counters.available, extent.page_count);
    return 0;
  }
  GPU4FS_CHECK_EQ(state.space.page_cost[chunk.page_class], 1u);
  add<Scope::engine>(&counters.reserved, extent.page_count);
  request.pages_reserved += extent.page_count;
  return extent.page_count;
}

namespace detail {

struct FreedPages {
  u32 count;
  u32 pending;  // those of them that are reusable when the next checkpoint is durable
};

// Frees the pages of `mask` in one word of the bitmaps. `waits`: none of them is reusable at once.
GPU4FS_FN inline FreedPages free_word(SpaceState& state, ChunkState& chunk, u64 word, u64 mask, bool waits) {
  const u64 in_use = mask & load<Order::relaxed, Scope::engine>(&chunk.bitmaps.committed[word]);
  if (in_use != mask) store<Order::relaxed, Scope::engine>(&state.had_error, 1u);
  // Stable first: a search for pages that nobody needs must not see a page that is neither in use nor stable
  // (space/partial_stripes.hpp).
  if (waits && in_use != 0) fetch_or<Order::relaxed, Scope::engine>(&chunk.bitmaps.stable[word], in_use);
  const u64 old = fetch_and<Order::release, Scope::engine>(&chunk.bitmaps.committed[word], ~mask);
  GPU4FS_CHECK_EQ(old & mask, in_use);
  const u64 stable = in_use & GPU4FS_MUTANT(freed_pages_reused_at_once,
                                            (load<Order::relaxed, Scope::engine>(&chunk.bitmaps.stable[word])), u64{0});
  if (stable != 0) fetch_or<Order::relaxed, Scope::engine>(&chunk.bitmaps.freed_now[word], stable);
  clear_busy(chunk, word, in_use & ~stable);
  return {popcount(in_use), popcount(stable)};
}

GPU4FS_FN GPU4FS_NOINLINE inline void count_freed(SpaceState& state, ChunkState& chunk, FreedPages freed) {
  if (freed.count == 0) return;
  mark_changed(chunk);
  SpaceCounters& counters = counters_of(state, chunk);
  const u64 used = fetch_sub<Order::relaxed, Scope::engine>(&counters.used, freed.count);
  GPU4FS_CHECK_GE(used, u64{freed.count});
  // Pages of frozen chunks do not become available.
  const bool comes_back = freed.pending != 0 && !is_frozen(chunk);
  if (comes_back) add<Scope::engine>(&counters.freed_pending, freed.pending);
  give_to_everyone(state, chunk, freed.count - freed.pending);
}

// The place of an extent from a block pointer; no_chunk: it has no pages, which is recorded.
GPU4FS_FN inline raid::PageLocation location_to_free(SpaceState& state, raid::Extent extent) {
  raid::PageLocation location{};
  const Status status = raid::find_page(state.space, extent.address, &location);
  if (status == Status::ok && extent.page_count <= state.space.chunks[location.chunk].page_count - location.page) {
    return location;
  }
  store<Order::relaxed, Scope::engine>(&state.had_error, 1u);
  return {raid::no_chunk, 0, 0};
}

}  // namespace detail

// Gate. The pages leave the file system. Pages that the durable checkpoint, the one being written or the log refers to
// are reusable when the next checkpoint is durable; the others at once. With a log all pages wait: a recovery must find
// room for everything that had room at any time since the checkpoint. Collective, one word of the bitmaps for each
// rank; Lane for one rank alone.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void free_extent(Group g, SpaceState& state, raid::Extent extent) {
  const raid::PageLocation location = on_leader(g, [&] { return detail::location_to_free(state, extent); });
  if (location.chunk == raid::no_chunk) return;
  raid::ChunkState& chunk = state.space.chunks[location.chunk];
  const u64 end = location.page + extent.page_count;
  const bool waits = state.has_log != 0 || has_stripes(chunk);
  detail::FreedPages own{0, 0};
  for (u64 word = location.page / 64 + g.rank(); word * 64 < end; word += Group::size()) {
    const detail::FreedPages here =
        detail::free_word(state, chunk, word, detail::word_mask(word, location.page, end), waits);
    own.count += here.count;
    own.pending += here.pending;
  }
  const auto sum = [](u32 a, u32 b) { return a + b; };
  const detail::FreedPages freed{g.reduce(own.count, sum), g.reduce(own.pending, sum)};
  on_leader(g, [&] { detail::count_freed(state, chunk, freed); });
}

// True if the page must not be changed in place: the durable checkpoint, or the one being written,
// refers to it. True also for an address that no page has.
GPU4FS_FN inline bool is_stable(const SpaceState& state, u64 address) {
  raid::PageLocation location;
  if (raid::find_page(state.space, address, &location) != Status::ok) return true;
  return raid::page_bit(state.space.chunks[location.chunk].bitmaps.stable, location.page);
}

// Whether the engine can reach the page's memory: ok, or chunk_not_mapped with op.wanted_chunk set, or
// corrupt_structure for an address that no page has, or device_failed.
GPU4FS_FN GPU4FS_NOINLINE inline Status check_accessible(const SpaceState& state, SpaceRequest& request, u64 address) {
  u32 chunk = raid::no_chunk;
  const Status status = raid::chunk_of(state.space, address, &chunk);
  return want_chunk(request, chunk, status);
}

}  // namespace gpu4fs::space
