// Allocation of pages out of a reservation (thesis Maucher 2022, section 4.3.5).
//
// Workers of different shards work in different 2 MiB regions: an allocation is a few atomic
// operations on words that others rarely touch. A shard that has used up its region goes on in the
// next chunk, so that load spreads over the devices; large runs take whole regions and move to
// another chunk after each run. Plain functions, one rank.
#pragma once

#include "base/limits.hpp"
#include "fs/fs_types.hpp"
#include "fs/space/claim_run.hpp"
#include "fs/space/stripes.hpp"
#include "raid/translate.hpp"

namespace gpu4fs::fs {

// Longest run of whole regions in one extent, but for one block of 1 GiB; longer ones would put too
// much of a file on one device.
inline constexpr u32 large_run_pages_max = 16 * static_cast<u32>(pages_per_block_2m);

namespace detail {

// Shards begin in different chunks, and in different regions of them.
GPU4FS_FN inline u32 start_of_shard(const FileSystem& fs, u32 shard, u32 count) {
  return static_cast<u32>(u64{shard} * count / fs.shard_count);
}

GPU4FS_FN inline raid::Extent take_extent(FileSystem& fs, Operation& op, const ChunkState& chunk,
                                          PageRun run) {
  GPU4FS_CHECK_GT(run.count, 0u);
  if (has_stripes(chunk)) {
    GPU4FS_CHECK_EQ(run.count % region_pages, 0u);
    raid::mark_descriptors_dirty(chunk, run.first, run.count);
    use_promise(fs, op, run.count, run.count / region_pages * region_cost(chunk));
  } else {
    use_promise(fs, op, run.count, run.count);
  }
  return {chunk.base_address + u64{run.first} * page_size, run.count, 0};
}

// The command's promise says that the counted chunks have a page to claim (invariant 2 of
// space_counters.hpp). A pass over the chunks that finds none was overtaken by others that claimed
// pages and by pages freed behind it; every such pass is someone else's progress.
GPU4FS_FN GPU4FS_NOINLINE inline raid::Extent allocate_small(FileSystem& fs, Operation& op,
                                                             u32 wanted) {
  const u32 page_class = class_of(fs, op);
  ShardPlace& place = fs.shards[op.shard].places[page_class];
  u32 step = load<Order::relaxed, Scope::engine>(&place.chunk);
  const u32 row = load<Order::relaxed, Scope::engine>(&place.region);
  for (u32 attempt = 0;; ++attempt) {
    // The promise may be of a chunk that came since.
    const u32 chunk_count = raid::chunk_count_of(fs.space);
    const u32 start = start_of_shard(fs, op.shard, chunk_count);
    for (u32 i = 0; i < chunk_count; ++i) {
      const u32 step_here = (step + i) % chunk_count;
      ChunkState& chunk = fs.space.chunks[(start + step_here) % chunk_count];
      if (chunk.page_class != page_class) continue;
      const u32 region_count = region_count_of(chunk);
      const u32 first_region = start_of_shard(fs, op.shard, region_count);
      const u32 hint = (first_region + row) % region_count;
      // The region is used up: on to the next chunk, unless that was tried.
      if (attempt == 0 && i == 0 && chunk_count > 1 &&
          region_free(chunk, hint) < minimum(wanted, u32{64}))
        continue;
      const u32 claim = claim_pages(chunk, wanted, 1);
      if (claim == 0) continue;
      const PageRun run = claim_in_chunk(chunk, hint, claim);
      if (run.count < claim) return_claim(chunk, claim - run.count);
      const u32 region = run.first / region_pages;
      if (step_here != step || region != hint) {
        store<Order::relaxed, Scope::engine>(&place.chunk, step_here);
        store<Order::relaxed, Scope::engine>(&place.region,
                                             (region + region_count - first_region) % region_count);
      }
      return take_extent(fs, op, chunk, run);
    }
    if (attempt > 1) backoff(1000);
    GPU4FS_CHECK_LT(attempt, 1u << 24);
  }
}

GPU4FS_FN GPU4FS_NOINLINE inline raid::Extent allocate_large(FileSystem& fs, Operation& op,
                                                             u32 wanted_regions) {
  const u32 page_class = class_of(fs, op);
  ShardPlace& place = fs.shards[op.shard].places[page_class];
  const u32 chunk_count = raid::chunk_count_of(fs.space);
  const u32 start = start_of_shard(fs, op.shard, chunk_count);
  const u32 step = load<Order::relaxed, Scope::engine>(&place.large_chunk);
  const u32 row = load<Order::relaxed, Scope::engine>(&place.large_region);
  for (u32 i = 0; i < chunk_count; ++i) {
    const u32 step_here = (step + i) % chunk_count;
    ChunkState& chunk = fs.space.chunks[(start + step_here) % chunk_count];
    if (chunk.page_class != page_class) continue;
    const u32 cost = region_cost(chunk);
    const u32 claim = claim_pages(chunk, wanted_regions * cost, cost);
    if (claim == 0) continue;
    const u32 region_count = region_count_of(chunk);
    const u32 hint = (start_of_shard(fs, op.shard, region_count) + row) % region_count;
    const PageRun run = claim_regions(chunk, hint, claim / cost);
    const u32 unused = claim - run.count / region_pages * cost;
    if (unused != 0) return_claim(chunk, unused);
    if (run.count == 0) continue;
    const u32 next_step = (step_here + 1) % chunk_count;
    store<Order::relaxed, Scope::engine>(&place.large_chunk, next_step);
    // One row of regions across all chunks, then the next.
    if (next_step <= step_here) {
      store<Order::relaxed, Scope::engine>(&place.large_region, row + run.count / region_pages);
    }
    return take_extent(fs, op, chunk, run);
  }
  return {raid::no_address, 0, 0};
}

// One block of 1 GiB.
GPU4FS_FN GPU4FS_NOINLINE inline raid::Extent allocate_giant(FileSystem& fs, Operation& op) {
  const u32 page_class = class_of(fs, op);
  ShardPlace& place = fs.shards[op.shard].places[page_class];
  const u32 chunk_count = raid::chunk_count_of(fs.space);
  const u32 start = start_of_shard(fs, op.shard, chunk_count);
  const u32 step = load<Order::relaxed, Scope::engine>(&place.large_chunk);
  const u32 pages = static_cast<u32>(pages_per_block_1g);
  for (u32 i = 0; i < chunk_count; ++i) {
    const u32 step_here = (step + i) % chunk_count;
    ChunkState& chunk = fs.space.chunks[(start + step_here) % chunk_count];
    if (chunk.page_class != page_class) continue;
    const u32 cost = giant_regions * region_cost(chunk);
    if (chunk.page_count < pages || claim_pages(chunk, cost, cost) == 0) continue;
    const PageRun run = claim_giant(chunk);
    if (run.count == 0) {
      return_claim(chunk, cost);
      continue;
    }
    store<Order::relaxed, Scope::engine>(&place.large_chunk, (step_here + 1) % chunk_count);
    return take_extent(fs, op, chunk, run);
  }
  return {raid::no_address, 0, 0};
}

}  // namespace detail

// Takes free pages of profile op.profile out of op.pages_reserved, which holds at least one: a run of contiguous pages
// inside one chunk, of at most min(page_count_wanted, op.pages_reserved).
//   alignment_pages 1    1 page at least, 512 at most
//   alignment_pages 512  whole regions, address and length multiples of 2 MiB; page_count 0 when no region
//                        is entirely free, or others were at it, or less than one is reserved or wanted
//   alignment_pages 2^18  one block of 1 GiB at a multiple of 1 GiB; page_count 0 when there is
//                        none, or less is reserved or wanted
// The pages belong to the command until commit_extent() or abandon_extent().
GPU4FS_FN GPU4FS_NOINLINE inline raid::Extent allocate_run(FileSystem& fs, Operation& op,
                                                           u64 page_count_wanted,
                                                           u32 alignment_pages) {
  GPU4FS_CHECK_LT(op.shard, fs.shard_count);
  GPU4FS_CHECK_GT(page_count_wanted, u64{0});
  GPU4FS_CHECK_GT(op.pages_reserved, u64{0});
  const u64 wanted = minimum(page_count_wanted, op.pages_reserved);
  if (alignment_pages == 1 && (fs.space.striped_classes >> detail::class_of(fs, op) & 1) != 0) {
    return detail::allocate_striped(fs, op, static_cast<u32>(minimum<u64>(wanted, detail::region_pages)));
  }
  if (alignment_pages == 1) {
    return detail::allocate_small(fs, op,
                                  static_cast<u32>(minimum<u64>(wanted, detail::region_pages)));
  }
  if (alignment_pages == pages_per_block_1g) {
    return wanted < pages_per_block_1g ? raid::Extent{raid::no_address, 0, 0} : detail::allocate_giant(fs, op);
  }
  GPU4FS_CHECK_EQ(alignment_pages, detail::region_pages);
  const u32 regions =
      static_cast<u32>(minimum<u64>(wanted, large_run_pages_max)) / detail::region_pages;
  if (regions == 0) return {raid::no_address, 0, 0};
  return detail::allocate_large(fs, op, regions);
}

}  // namespace gpu4fs::fs
