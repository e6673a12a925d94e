// Free regions whose memory was returned to the system, so a pool occupies only the memory that it uses.
//
// The server punches regions out of the devices' files (maintenance/trim/). A region that may be overwritten may be
// punched: it is free for the allocator, so neither the durable checkpoint, nor the one before, nor a record of the log
// refers to a page of it, and no row of it has a page in use. Such a region is *unbacked* from before the punch until
// the server has allocated the memory of its chunk again (UpcallKind::map_chunk), because a store into a hole of a full
// medium would end the process. Regions of block devices have no holes. They are unbacked until the discard has ended.
//
//   busy          set, as for pages in use, so no page of it is allocated
//   free_pages    without these pages, and so is SpaceCounters::available
//   counters.free with these pages: they are free for users
//
// begin_trim() takes a run of regions, and end_trim() takes it back from the server. In between its chunk is
// *trimming*: answers of the server about the chunk's memory may be older than the punch, so they are ignored. So are
// answers to earlier requests (ChunkState::generation changes). No command can take a page of a chunk that the engine
// does not reach yet, so its regions need no mark.
//
// A mount finds regions without blocks in files that have holes (pool::ReachedPages). Those of them that are free are
// unbacked from the start, so pages can be read although there is no room for more.
//
// begin_trim() and end_trim() are for the leader while no step runs, like freeze_chunk() and for the same reason.
#pragma once

#include "base/bits.hpp"
#include "base/status.hpp"
#include "raid/device_loss.hpp"
#include "space/freeze.hpp"
#include "space/reserve.hpp"
#include "space/space_types.hpp"
#include "space/stripes.hpp"
#include "space/take_run.hpp"

namespace gpu4fs::space {

// Consecutive regions of one chunk.
struct TrimRun {
  u32 chunk;
  u32 first;
  u32 count;  // 0: no run
};

// What to search for.
struct TrimSearch {
  u32 chunk;  // where to begin
  u32 region;
  u32 now;          // 1: also in chunks in which pages were freed since the last search
  u32 regions_max;  // of a run
};

namespace detail {

GPU4FS_FN inline bool can_be_trimmed(const ChunkState& chunk) {
  return (raid::presence_of(chunk) & (raid::chunk_loaded | raid::chunk_erased)) == raid::chunk_loaded &&
         load<Order::relaxed, Scope::engine>(&chunk.trimming) == 0 && !is_frozen(chunk);
}

GPU4FS_FN inline bool is_counted(const ChunkState& chunk) {
  return (load<Order::relaxed, Scope::engine>(&chunk.free_pages) & counted_bit) != 0;
}

// Consecutive free regions from `first` on.
GPU4FS_FN GPU4FS_NOINLINE inline TrimRun run_of_free_regions(const ChunkState& chunk, u32 index, u32 first,
                                                             u32 regions_max) {
  const u32 region_count = region_count_of(chunk);
  for (u32 region = first; region < region_count; ++region) {
    if (!looks_free(chunk, region)) continue;
    u32 count = 1;
    while (count < regions_max && region + count < region_count && looks_free(chunk, region + count)) ++count;
    return {index, region, count};
  }
  return {index, region_count, 0};
}

// Free regions of the class that the engine reaches, at most `limit`: large extents need whole regions.
GPU4FS_FN GPU4FS_NOINLINE inline u64 count_backed_regions(const SpaceState& state, u32 page_class, u64 limit) {
  u64 count = 0;
  for (u32 i = 0; i < raid::chunk_count_of(state.space) && count < limit; ++i) {
    const ChunkState& chunk = state.space.chunks[i];
    if (chunk.page_class != page_class || !is_counted(chunk)) continue;
    for (u32 region = 0; region < region_count_of(chunk) && count < limit; ++region)
      count += looks_free(chunk, region) ? 1 : 0;
  }
  return count;
}

// While no step runs: marks up to `wanted` regions from run.first on, which are believed to be free, and removes their
// pages from the reservable ones. Returns the number of regions.
GPU4FS_FN GPU4FS_NOINLINE inline u32 take_regions_out(SpaceState& state, ChunkState& chunk, const TrimRun& run,
                                                      u32 wanted) {
  SpaceCounters& counters = counters_of(state, chunk);
  const u32 cost = region_cost(chunk);
  const u64 emergency = load<Order::relaxed, Scope::engine>(&counters.emergency);
  const u64 available = load<Order::acquire, Scope::engine>(&counters.available);
  const u32 promised = static_cast<u32>(minimum<u64>(wanted, (available - minimum(available, emergency)) / cost));
  if (promised == 0 || !take_available(counters, u64{promised} * cost, emergency)) return 0;
  // Commands that end while no step runs may still return pages.
  const u32 claimed = claim_pages(chunk, promised * cost, cost) / cost;
  u32 taken = 0;
  while (taken < claimed && take_whole_region(chunk, run.first + taken)) {
    const u32 region = run.first + taken;
    fetch_or<Order::release, Scope::engine>(&chunk.unbacked[region / 64], u64{1} << (region % 64));
    ++taken;
  }
  fetch_add<Order::release, Scope::engine>(&chunk.unbacked_pages, taken * cost);
  if (claimed != taken) (void)return_claim(chunk, (claimed - taken) * cost);
  if (promised != taken) fetch_add<Order::release, Scope::engine>(&counters.available, u64{promised - taken} * cost);
  return taken;
}

// Whether the chunk has to be searched, which counts as a search.
GPU4FS_FN inline bool is_trim_due(ChunkState& chunk, bool now) {
  u32 due = load<Order::relaxed, Scope::engine>(&chunk.trim_due);
  for (;;) {
    if (due == 0) return false;
    const bool waits = due == raid::trim_due_later && !now;
    if (!compare_exchange<Order::acq_rel, Scope::engine>(&chunk.trim_due, due, waits ? raid::trim_due_at_once : 0u))
      continue;
    return !waits;
  }
}

}  // namespace detail

// Leader. The next run from the position in `search`; nothing is taken. Chunks in which nothing was freed since the
// last search are skipped, and those in which something was freed wait for the next search.
GPU4FS_FN GPU4FS_NOINLINE inline TrimRun find_trim_run(SpaceState& state, const TrimSearch& search) {
  u32 first = search.region;
  for (u32 i = search.chunk; i < raid::chunk_count_of(state.space); ++i, first = 0) {
    raid::ChunkState& chunk = state.space.chunks[i];
    if (!detail::can_be_trimmed(chunk)) continue;
    if (first == 0 && !detail::is_trim_due(chunk, search.now != 0)) continue;
    const TrimRun run = detail::run_of_free_regions(chunk, i, first, search.regions_max);
    if (run.count != 0) return run;
  }
  return {raid::no_chunk, 0, 0};
}

// While the chunk is being loaded, before its free pages count. Leader. Of the regions whose bits are set, the free
// ones become unbacked. Returns how many free pages they have.
GPU4FS_FN GPU4FS_NOINLINE inline u32 take_holes_out(ChunkState& chunk) {
  u32 taken = 0;
  for (u32 w = 0; w < divide_up(region_count_of(chunk), 64u); ++w) {
    for (u64 left = chunk.unbacked[w]; left != 0; left &= left - 1) {
      const u32 region = w * 64 + static_cast<u32>(count_trailing_zeros(left));
      if (looks_free(chunk, region) && take_whole_region(chunk, region)) {
        ++taken;
      } else {
        chunk.unbacked[w] &= ~(u64{1} << (region % 64));
      }
    }
  }
  const u32 pages = taken * region_cost(chunk);
  store<Order::release, Scope::engine>(&chunk.unbacked_pages, pages);
  return pages;
}

// The memory of the whole chunk is allocated, again or still: its regions are free for all commands. One rank, any
// number of them.
GPU4FS_FN GPU4FS_NOINLINE inline void restore_backing(SpaceState& state, u32 index) {
  raid::ChunkState& chunk = state.space.chunks[index];
  if (load<Order::acquire, Scope::engine>(&chunk.unbacked_pages) == 0) return;
  const u32 cost = region_cost(chunk);
  for (u32 w = 0; w < divide_up(region_count_of(chunk), 64u); ++w) {
    u64 left = exchange<Order::acq_rel, Scope::engine>(&chunk.unbacked[w], u64{0});
    for (; left != 0; left &= left - 1) {
      return_whole_region(chunk, w * 64 + count_trailing_zeros(left));
      // They were always included in SpaceCounters::free.
      const u32 bits = return_claim(chunk, cost);
      if ((bits & counted_bit) != 0) {
        fetch_add<Order::release, Scope::engine>(&counters_of(state, chunk).available, u64{cost});
      }
      // Last, so a concurrent count finds them twice instead of missing them.
      fetch_sub<Order::release, Scope::engine>(&chunk.unbacked_pages, cost);
    }
  }
}

// While no step runs: takes as much of the run as is still free. The given number of regions of its class stays
// reachable. Status: no_space if there are no more than those; device_failed while a device is lost or being filled;
// busy if others took the run. The run belongs to the server until end_trim().
GPU4FS_FN GPU4FS_NOINLINE inline Status begin_trim(SpaceState& state, TrimRun* run, u64 kept_regions) {
  const TrimRun wanted = *run;
  *run = {wanted.chunk, wanted.first, 0};
  if (raid::failed_devices(state.space) != 0 || raid::rebuilt_devices(state.space) != 0) return Status::device_failed;
  raid::ChunkState& chunk = state.space.chunks[wanted.chunk];
  if (!detail::can_be_trimmed(chunk)) return Status::busy;
  u32 count = 0;
  while (count < wanted.count && looks_free(chunk, wanted.first + count)) ++count;
  if (detail::is_counted(chunk)) {
    const u64 backed = detail::count_backed_regions(state, chunk.page_class, kept_regions + count);
    const u32 spare = static_cast<u32>(backed - minimum(backed, kept_regions));
    if (spare == 0) return Status::no_space;
    count = detail::take_regions_out(state, chunk, wanted, minimum(count, spare));
  }
  if (count == 0) return Status::busy;
  chunk.generation += 1;
  store<Order::release, Scope::engine>(&chunk.trimming, 1u);
  run->count = count;
  return Status::ok;
}

// While no step runs: the server has punched its run of the chunk, or has given up.
GPU4FS_FN GPU4FS_NOINLINE inline Status end_trim(SpaceState& state, u32 index) {
  if (index >= raid::chunk_count_of(state.space)) return Status::out_of_range;
  raid::ChunkState& chunk = state.space.chunks[index];
  if (load<Order::relaxed, Scope::engine>(&chunk.trimming) == 0) return Status::not_found;
  chunk.generation += 1;
  store<Order::release, Scope::engine>(&chunk.trimming, 0u);
  return Status::ok;
}

}  // namespace gpu4fs::space
