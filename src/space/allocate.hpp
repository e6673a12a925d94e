// Allocation of pages from a reservation (thesis Maucher 2022, section 4.3.5).
//
// Workers of different shards use different 2 MiB regions: an allocation is a few atomic operations on words that
// others rarely touch. A shard that has used up its region continues in the next chunk, to spread load over the
// devices. Large runs take whole regions and move to another chunk after each run. Plain functions, one rank.
// Exceptions are allocate_run() and functions that take whole regions, in which each rank takes one region.
#pragma once

#include "base/limits.hpp"
#include "raid/translate.hpp"
#include "space/space_types.hpp"
#include "space/stripes.hpp"
#include "space/take_run.hpp"

namespace gpu4fs::space {

// Longest run of whole regions in one extent, except for one block of 1 GiB; longer runs would put too much of a file
// on one device.
inline constexpr u32 large_run_pages_max = 16 * static_cast<u32>(pages_per_block_2m);

namespace detail {

GPU4FS_FN inline raid::Extent no_extent() {
  return {raid::no_address, 0, 0};
}

// Shards begin in different chunks, and in different regions of them.
GPU4FS_FN inline u32 start_of_shard(const SpaceState& state, u32 shard, u32 count) {
  return static_cast<u32>(u64{shard} * count / state.shard_count);
}

GPU4FS_FN inline raid::Extent take_extent(SpaceState& state, SpaceRequest& request, const ChunkState& chunk,
                                          PageRun run) {
  GPU4FS_CHECK_GT(run.count, 0u);
  if (has_stripes(chunk)) {
    GPU4FS_CHECK_EQ(run.count % region_pages, 0u);
    raid::mark_descriptors_dirty(chunk, run.first, run.count);
    use_promise(state, request, run.count, run.count / region_pages * region_cost(chunk));
  } else {
    use_promise(state, request, run.count, run.count);
  }
  return {chunk.base_address + u64{run.first} * page_size, run.count, 0};
}

// The command's reservation guarantees that the counted chunks have a page to claim (invariant 2 of
// space_counters.hpp). If a pass over the chunks finds none, others claimed pages meanwhile and pages were freed behind
// it; every such pass is progress of another worker.
GPU4FS_FN GPU4FS_NOINLINE inline raid::Extent allocate_small(SpaceState& state, SpaceRequest& request, u32 wanted) {
  const u32 page_class = class_of(state, request);
  ShardPlace& place = state.shards[request.shard].places[page_class];
  u32 step = load<Order::relaxed, Scope::engine>(&place.chunk);
  const u32 row = load<Order::relaxed, Scope::engine>(&place.region);
  for (u32 attempt = 0;; ++attempt) {
    // The reserved page may be in a chunk that was added meanwhile.
    const u32 chunk_count = raid::chunk_count_of(state.space);
    const u32 start = start_of_shard(state, request.shard, chunk_count);
    for (u32 i = 0; i < chunk_count; ++i) {
      const u32 step_here = (step + i) % chunk_count;
      ChunkState& chunk = state.space.chunks[(start + step_here) % chunk_count];
      if (chunk.page_class != page_class) continue;
      const u32 region_count = region_count_of(chunk);
      const u32 first_region = start_of_shard(state, request.shard, region_count);
      const u32 hint = (first_region + row) % region_count;
      // The region is used up: continue in the next chunk, unless it was already tried.
      if (attempt == 0 && i == 0 && chunk_count > 1 && region_free(chunk, hint) < minimum(wanted, u32{64})) continue;
      const u32 claim = claim_pages(chunk, wanted, 1);
      if (claim == 0) continue;
      const PageRun run = take_in_chunk(chunk, hint, claim);
      if (run.count < claim) return_claim(chunk, claim - run.count);
      const u32 region = run.first / region_pages;
      if (step_here != step || region != hint) {
        store<Order::relaxed, Scope::engine>(&place.chunk, step_here);
        store<Order::relaxed, Scope::engine>(&place.region, (region + region_count - first_region) % region_count);
      }
      return take_extent(state, request, chunk, run);
    }
    if (attempt > 1) backoff(1000);
    GPU4FS_CHECK_LT(attempt, 1u << 24);
  }
}

// The start of an allocation of whole regions.
struct LargeSearch {
  u32 page_class;
  u32 chunk_count;
  u32 start;
  u32 step;
  u32 row;
};
GPU4FS_FN inline LargeSearch begin_large_search(const SpaceState& state, const SpaceRequest& request) {
  const u32 page_class = class_of(state, request);
  const ShardPlace& place = state.shards[request.shard].places[page_class];
  const u32 chunk_count = raid::chunk_count_of(state.space);
  return {page_class, chunk_count, start_of_shard(state, request.shard, chunk_count),
          load<Order::relaxed, Scope::engine>(&place.large_chunk),
          load<Order::relaxed, Scope::engine>(&place.large_region)};
}

// A claim on a chunk of `least_regions` regions or a multiple of it.
struct LargeClaim {
  u32 regions;  // 0: the chunk has none available
  u32 cost;     // pages of a claim for each region
  u32 region_count;
  u32 hint;
};
GPU4FS_FN GPU4FS_NOINLINE inline LargeClaim claim_large(const SpaceState& state, const SpaceRequest& request,
                                                        const LargeSearch& search, ChunkState& chunk,
                                                        u32 wanted_regions, u32 least_regions) {
  const u32 region_count = region_count_of(chunk);
  if (chunk.page_class != search.page_class || region_count < least_regions) return {0, 0, 0, 0};
  const u32 cost = region_cost(chunk);
  const u32 regions = claim_pages(chunk, wanted_regions * cost, least_regions * cost) / cost;
  return {regions, cost, region_count,
          (start_of_shard(state, request.shard, region_count) + search.row) % region_count};
}

// Returns the part of the claim that was not found, and advances the shard. The next allocation begins in another
// chunk: regions are used row by row across all chunks.
GPU4FS_FN GPU4FS_NOINLINE inline raid::Extent take_large(SpaceState& state, SpaceRequest& request,
                                                         const LargeSearch& search, const LargeClaim& claim, u32 step,
                                                         PageRun run) {
  ChunkState& chunk = state.space.chunks[(search.start + step) % search.chunk_count];
  const u32 unused = (claim.regions - run.count / region_pages) * claim.cost;
  if (unused != 0) return_claim(chunk, unused);
  if (run.count == 0) return no_extent();
  ShardPlace& place = state.shards[request.shard].places[search.page_class];
  const u32 next_step = (step + 1) % search.chunk_count;
  store<Order::relaxed, Scope::engine>(&place.large_chunk, next_step);
  if (next_step <= step) {
    store<Order::relaxed, Scope::engine>(&place.large_region, search.row + run.count / region_pages);
  }
  return take_extent(state, request, chunk, run);
}

// Allocates whole regions of one chunk. Collective.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE raid::Extent allocate_large(Group g, SpaceState& state, SpaceRequest& request,
                                                      u32 wanted_regions) {
  const LargeSearch search = on_leader(g, [&] { return begin_large_search(state, request); });
  for (u32 i = 0; i < search.chunk_count; ++i) {
    const u32 step_here = (search.step + i) % search.chunk_count;
    ChunkState& chunk = state.space.chunks[(search.start + step_here) % search.chunk_count];
    const LargeClaim claim =
        on_leader(g, [&] { return claim_large(state, request, search, chunk, wanted_regions, 1); });
    if (claim.regions == 0) continue;
    const PageRun run = take_regions(g, chunk, claim.region_count, claim.hint, claim.regions);
    const raid::Extent extent = on_leader(g, [&] { return take_large(state, request, search, claim, step_here, run); });
    if (extent.page_count != 0) return extent;
  }
  return no_extent();
}

// Allocates one block of 1 GiB. Collective.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE raid::Extent allocate_giant(Group g, SpaceState& state, SpaceRequest& request) {
  const LargeSearch search = on_leader(g, [&] { return begin_large_search(state, request); });
  for (u32 i = 0; i < search.chunk_count; ++i) {
    const u32 step_here = (search.step + i) % search.chunk_count;
    ChunkState& chunk = state.space.chunks[(search.start + step_here) % search.chunk_count];
    const LargeClaim claim =
        on_leader(g, [&] { return claim_large(state, request, search, chunk, giant_regions, giant_regions); });
    if (claim.regions == 0) continue;
    const PageRun run = take_giant(g, chunk);
    const raid::Extent extent = on_leader(g, [&] { return take_large(state, request, search, claim, step_here, run); });
    if (extent.page_count != 0) return extent;
  }
  return no_extent();
}

// Allocates single pages, as allocate_run() below.
GPU4FS_FN GPU4FS_NOINLINE inline raid::Extent allocate_pages(SpaceState& state, SpaceRequest& request, u64 wanted) {
  const u32 pages = static_cast<u32>(minimum<u64>(minimum(wanted, request.pages_reserved), region_pages));
  if ((state.space.striped_classes >> class_of(state, request) & 1) != 0)
    return allocate_striped(state, request, pages);
  return allocate_small(state, request, pages);
}

GPU4FS_FN inline void check_allocation(const SpaceState& state, const SpaceRequest& request, u64 page_count_wanted) {
  GPU4FS_CHECK_LT(request.shard, state.shard_count);
  GPU4FS_CHECK_GT(page_count_wanted, u64{0});
  GPU4FS_CHECK_GT(request.pages_reserved, u64{0});
}

}  // namespace detail

// Takes free pages of profile op.profile out of op.pages_reserved, which is at least one: a run of contiguous pages
// inside one chunk, of at most min(page_count_wanted, op.pages_reserved).
//   alignment_pages 1     at least 1 page, at most 512
//   alignment_pages 512   whole regions, address and length multiples of 2 MiB; page_count 0 if no region is entirely
//                         free, if others were faster, or if less than one is reserved or requested
//   alignment_pages 2^18  one block of 1 GiB at a multiple of 1 GiB; page_count 0 if there is none, or if less is
//                         reserved or requested
// The pages belong to the command until commit_extent() or abandon_extent(). Collective; Lane for one rank alone.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE raid::Extent allocate_run(Group g, SpaceState& state, SpaceRequest& request,
                                                    u64 page_count_wanted, u32 alignment_pages) {
  if (alignment_pages == 1) {
    return on_leader(g, [&] {
      detail::check_allocation(state, request, page_count_wanted);
      return detail::allocate_pages(state, request, page_count_wanted);
    });
  }
  const u64 wanted = on_leader(g, [&] {
    detail::check_allocation(state, request, page_count_wanted);
    return minimum(page_count_wanted, request.pages_reserved);
  });
  if (alignment_pages == pages_per_block_1g) {
    if (wanted < pages_per_block_1g) return detail::no_extent();
    return detail::allocate_giant(g, state, request);
  }
  GPU4FS_CHECK_EQ(alignment_pages, region_pages);
  const u32 regions = static_cast<u32>(minimum(wanted, u64{large_run_pages_max})) / region_pages;
  if (regions == 0) return detail::no_extent();
  return detail::allocate_large(g, state, request, regions);
}

}  // namespace gpu4fs::space
