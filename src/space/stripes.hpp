// Pages of chunks with parities are allocated and released in stripes. Internal to the layer.
//
// A row of pages must not get new ones while a checkpoint depends on its parities (raid/parity/row_write.hpp), so pages
// of such a chunk leave the free ones a whole stripe at a time. Commands whose pages will be named in a record of the
// log, and checkpoints, get stripes of their own. Small commands share the open stripe of their shard until the next
// checkpoint's snapshot. The rest of the stripe is then *stranded*: neither free nor in use. Freed pages become
// stranded as well. When all pages of a stripe are stranded, the stripe is free again.
//
//   zero bits of `busy`   pages of free stripes
//   stripe_stranded       for each stripe: the number of its stranded pages
//
// When no whole stripe is left, stranded pages are given to commands that log their changes to the row
// (space/partial_stripes.hpp).
//
// Counting. The pages after the last whole stripe of a region, its tail, are allocated only with the whole region. So
// they are in none of the counters of space_counters.hpp. There a region of 512 pages counts as region_cost() pages, a
// multiple of the stripe. Every sum is a multiple of the stripe too, so a reserved stripe is always found. A reserved
// page counts as LogicalSpace::page_cost pages, because it may need a stripe.
#pragma once

#include "raid/parity/row.hpp"
#include "space/take_run.hpp"

namespace gpu4fs::space {

GPU4FS_FN inline bool has_stripes(const ChunkState& chunk) {
  return chunk.stripe_count != 0;
}

// Pages of a whole stripe; 1 in chunks without stripes.
GPU4FS_FN GPU4FS_NOINLINE inline u32 stripe_pages(const ChunkState& chunk) {
  return has_stripes(chunk) ? static_cast<u32>(raid::stripe_at(chunk, 0).page_count) : 1;
}

// The number of pages that a region of 512 pages counts as.
GPU4FS_FN GPU4FS_NOINLINE inline u32 region_cost(const ChunkState& chunk) {
  return region_pages / stripe_pages(chunk) * stripe_pages(chunk);
}

// Those of the stripe's pages that count.
GPU4FS_FN inline u32 stripe_cost(const ChunkState& chunk, const raid::Stripe& stripe) {
  return stripe.page_count == stripe_pages(chunk) ? static_cast<u32>(stripe.page_count) : 0;
}

// In stripe_stranded: a worker is determining these pages, so the stripe does not become free.
inline constexpr u32 stripe_held_bit = u32{1} << 31;

// All pages of the stripe are stranded: it is free.
GPU4FS_FN GPU4FS_NOINLINE inline void release_stripe(SpaceState& state, ChunkState& chunk, const raid::Stripe& stripe) {
  raid::clear_in_parity(chunk, stripe.first, stripe.page_count);
  store<Order::relaxed, Scope::engine>(&chunk.stripe_stranded[stripe.index], 0u);
  const u32 stranded =
      fetch_sub<Order::relaxed, Scope::engine>(&chunk.stranded_pages, static_cast<u32>(stripe.page_count));
  GPU4FS_CHECK_GE(u64{stranded}, stripe.page_count);
  for_each_word(stripe.first, stripe.page_count, [&](u64 word, u64 mask) { clear_busy(chunk, word, mask); });
  give_to_everyone(state, chunk, stripe_cost(chunk, stripe));
}

// Pages [first, first + count), which are busy and have no owner, become stranded.
GPU4FS_FN GPU4FS_NOINLINE inline void close_pages(SpaceState& state, ChunkState& chunk, u64 first, u64 count) {
  GPU4FS_CHECK(has_stripes(chunk));
  GPU4FS_CHECK_LE(first + count, chunk.page_count);
  const u64 end = first + count;
  for (u64 page = first; page < end;) {
    const raid::Stripe stripe = raid::stripe_of(chunk, page);
    const u32 here = static_cast<u32>(minimum(end, stripe.first + stripe.page_count) - page);
    add<Scope::engine>(&chunk.stranded_pages, here);
    const u32 before = fetch_add<Order::acq_rel, Scope::engine>(&chunk.stripe_stranded[stripe.index], here);
    GPU4FS_CHECK_LE((before & ~stripe_held_bit) + here, stripe.page_count);
    if (before + here == stripe.page_count) release_stripe(state, chunk, stripe);
    page += here;
  }
}

// Closes the pages in `mask` of a bitmap word.
GPU4FS_FN GPU4FS_NOINLINE inline void close_word(SpaceState& state, ChunkState& chunk, u64 word, u64 mask) {
  while (mask != 0) {
    const u32 low = count_trailing_zeros(mask);
    const u64 rest = ~(mask >> low);
    const u32 length = minimum(rest == 0 ? 64 - low : count_trailing_zeros(rest), 64 - low);
    close_pages(state, chunk, word * 64 + low, length);
    mask &= length + low == 64 ? 0 : ~u64{0} << (low + length);
  }
}

// Takes up to `page_max` contiguous pages in whole stripes of the region; no tails. count 0: others took all of them
// first.
GPU4FS_FN GPU4FS_NOINLINE inline PageRun take_stripes_in_region(ChunkState& chunk, u32 region, u32 page_max) {
  const u32 whole = stripe_pages(chunk);
  GPU4FS_CHECK_LT(region, region_count_of(chunk));
  GPU4FS_CHECK_GE(page_max, whole);
  const u64 tail = u64{region} * region_pages + region_cost(chunk);
  for (u32 attempt = 0; attempt < 4; ++attempt) {
    const PageRun found = find_run(chunk, region, page_max);
    if (found.count < whole) break;
    // A worker that is just taking a stripe may have set only the bits of its first word.
    const raid::Stripe stripe = raid::stripe_of(chunk, found.first);
    const u64 first = stripe.first == found.first ? found.first : stripe.first + stripe.page_count;
    const u64 end = minimum(u64{found.first} + found.count, tail);
    if (end < first + whole) break;
    const u32 wanted = minimum(static_cast<u32>(end - first), page_max) / whole * whole;
    const u32 taken = set_busy_prefix(chunk, static_cast<u32>(first), wanted);
    const u32 kept = taken / whole * whole;
    for_each_word(first + kept, taken - kept, [&](u64 word, u64 mask) {
      fetch_and<Order::release, Scope::engine>(&chunk.bitmaps.busy[word], ~mask);
    });
    if (kept == 0) continue;
    subtract_region_free(chunk, region, kept);
    raid::mark_descriptors_dirty(chunk, first, kept);
    return {static_cast<u32>(first), kept};
  }
  return {0, 0};
}

// The same in any region, from `hint` on. Always succeeds under a claim of a stripe, for the same reason as
// take_in_chunk().
GPU4FS_FN GPU4FS_NOINLINE inline PageRun take_stripes(ChunkState& chunk, u32 hint, u32 page_max) {
  const u32 region_count = region_count_of(chunk);
  for (u32 attempt = 0;; ++attempt) {
    const u32 least = attempt == 0 ? minimum(page_max, 64u) : 1;
    for (u32 i = 0; i < region_count; ++i) {
      const u32 region = (hint + i) % region_count;
      if (region_free(chunk, region) < least) continue;
      const PageRun run = take_stripes_in_region(chunk, region, page_max);
      if (run.count != 0) return run;
    }
    if (attempt > 1) backoff(1000);
    GPU4FS_CHECK_LT(attempt, 1u << 24);
  }
}

// Pages of the shard's open stripe, at most `wanted`; page_count 0: there is none, or it is an older one, which is then
// stranded.
GPU4FS_FN GPU4FS_NOINLINE inline raid::Extent take_from_open_stripe(SpaceState& state, AllocationShard& shard,
                                                                    u32 page_class, u32 wanted) {
  GPU4FS_CHECK_LT(page_class, format::profile_max);
  ShardPlace& place = shard.places[page_class];
  raid::Extent taken{raid::no_address, 0, 0};
  shard.lock.lock();
  if (place.open_count != 0) {
    const u32 generation = load<Order::relaxed, Scope::engine>(&state.stripe_generation);
    raid::PageLocation location{};
    GPU4FS_CHECK_OK(raid::find_page(state.space, place.open_address, &location));
    if (place.open_generation == generation) {
      taken = {place.open_address, minimum(wanted, place.open_count), 0};
      place.open_address += u64{taken.page_count} * page_size;
      place.open_count -= taken.page_count;
    } else {
      close_pages(state, state.space.chunks[location.chunk], location.page, place.open_count);
      place.open_count = 0;
    }
  }
  shard.lock.unlock();
  return taken;
}

// The shard continues with these pages; its old ones, left from another command, are stranded.
GPU4FS_FN GPU4FS_NOINLINE inline void keep_open(SpaceState& state, AllocationShard& shard, u32 chunk_index, u64 first,
                                                u32 count, u32 generation) {
  ShardPlace& place = shard.places[state.space.chunks[chunk_index].page_class];
  shard.lock.lock();
  GPU4FS_CHECK_GT(count, 0u);
  const u32 old_count = place.open_count;
  const u64 old_address = place.open_address;
  place.open_address = state.space.chunks[chunk_index].base_address + first * page_size;
  place.open_count = count;
  place.open_generation = generation;
  shard.lock.unlock();
  if (old_count == 0) return;
  raid::PageLocation location{};
  GPU4FS_CHECK_OK(raid::find_page(state.space, old_address, &location));
  close_pages(state, state.space.chunks[location.chunk], location.page, old_count);
}

// The command's reservation of `page_count` pages is used up; `cost` pages left the free ones for it.
GPU4FS_FN GPU4FS_NOINLINE inline void use_promise(SpaceState& state, SpaceRequest& request, u32 page_count, u32 cost) {
  GPU4FS_CHECK_LE(page_count, request.pages_reserved);
  request.pages_reserved -= page_count;
  const u32 page_class = class_of(state, request);
  SpaceCounters& counters = state.counters[page_class];
  const u64 promised = u64{page_count} * state.space.page_cost[page_class];
  GPU4FS_CHECK_LE(cost, promised);
  const u64 reserved = fetch_sub<Order::relaxed, Scope::engine>(&counters.reserved, promised);
  GPU4FS_CHECK_GE(reserved, promised);
  subtract<Scope::engine>(&counters.free, u64{cost});
  if (promised != cost) fetch_add<Order::release, Scope::engine>(&counters.available, promised - cost);
}

// One attempt in a chunk: `wanted` pages or fewer. Handles the rest of their stripes.
GPU4FS_FN GPU4FS_NOINLINE inline raid::Extent allocate_stripes_in(SpaceState& state, SpaceRequest& request, u32 index,
                                                                  u32 hint, u32 wanted, u32 generation) {
  ChunkState& chunk = state.space.chunks[index];
  const u32 whole = stripe_pages(chunk);
  const bool shares = request.whole_stripes == 0 && wanted < whole;
  // Commands that share stripes take whole stripes only as far as they fill them.
  const u32 stripes =
      request.whole_stripes != 0 ? static_cast<u32>(divide_up(wanted, whole)) : maximum(wanted / whole, 1u);
  const u32 target = stripes * whole;
  const u32 claim = claim_pages(chunk, minimum(target, region_cost(chunk)), whole);
  if (claim == 0) return {raid::no_address, 0, 0};
  const PageRun run = take_stripes(chunk, hint, claim);
  if (run.count < claim) return_claim(chunk, claim - run.count);
  GPU4FS_CHECK_GT(run.count, 0u);
  GPU4FS_CHECK_LE(run.count, claim);
  const u32 used = minimum(wanted, run.count);
  use_promise(state, request, used, run.count);
  if (used < run.count && shares) {
    keep_open(state, state.shards[request.shard], index, u64{run.first} + used, run.count - used, generation);
  } else if (used < run.count) {
    close_pages(state, chunk, u64{run.first} + used, run.count - used);
  }
  return {chunk.base_address + u64{run.first} * page_size, used, 0};
}

// allocate_run() for single pages in a class whose chunks have parities.
GPU4FS_FN GPU4FS_NOINLINE inline raid::Extent allocate_striped(SpaceState& state, SpaceRequest& request, u32 wanted) {
  GPU4FS_CHECK_GT(wanted, 0u);
  GPU4FS_CHECK_LT(request.shard, state.shard_count);
  AllocationShard& shard = state.shards[request.shard];
  const u32 page_class = class_of(state, request);
  ShardPlace& place = shard.places[page_class];
  // Before anything is taken: at worst, a stripe that is taken after a snapshot counts as older than it.
  const u32 generation = load<Order::acquire, Scope::engine>(&state.stripe_generation);
  if (request.whole_stripes == 0) {
    const raid::Extent shared = take_from_open_stripe(state, shard, page_class, wanted);
    if (shared.page_count != 0) {
      use_promise(state, request, shared.page_count, 0);
      return shared;
    }
  }
  const u32 step = load<Order::relaxed, Scope::engine>(&place.chunk);
  const u32 row = load<Order::relaxed, Scope::engine>(&place.region);
  for (u32 attempt = 0;; ++attempt) {
    // The reserved page may be in a chunk that was added meanwhile.
    const u32 chunk_count = raid::chunk_count_of(state.space);
    const u32 start = static_cast<u32>(u64{request.shard} * chunk_count / state.shard_count);
    for (u32 i = 0; i < chunk_count; ++i) {
      const u32 step_here = (step + i) % chunk_count;
      const u32 index = (start + step_here) % chunk_count;
      if (state.space.chunks[index].page_class != page_class) continue;
      const u32 region_count = region_count_of(state.space.chunks[index]);
      const u32 first_region = static_cast<u32>(u64{request.shard} * region_count / state.shard_count);
      const raid::Extent extent =
          allocate_stripes_in(state, request, index, (first_region + row) % region_count, wanted, generation);
      if (extent.page_count == 0) continue;
      const u64 page = (extent.address - state.space.chunks[index].base_address) / page_size;
      const u32 region = static_cast<u32>(page / region_pages);
      store<Order::relaxed, Scope::engine>(&place.chunk, step_here);
      store<Order::relaxed, Scope::engine>(&place.region, (region + region_count - first_region) % region_count);
      return extent;
    }
    if (attempt > 1) backoff(1000);
    GPU4FS_CHECK_LT(attempt, 1u << 24);
  }
}

// Mount: free pages of stripes in use become stranded; free stripes are in no parity. Based on `busy`. Returns how many
// pages of the chunk count as free. Collective.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u64 derive_stripes(Group g, ChunkState& chunk) {
  u64 free = 0;
  u64 stranded = 0;
  for (u64 s = g.rank(); s < chunk.stripe_count; s += g.size()) {
    const raid::Stripe stripe = raid::stripe_at(chunk, s);
    u32 taken = 0;
    for_each_word(stripe.first, stripe.page_count, [&](u64 word, u64 mask) {
      taken += popcount(load<Order::relaxed, Scope::engine>(&chunk.bitmaps.committed[word]) & mask);
    });
    GPU4FS_CHECK_LE(taken, stripe.page_count);
    chunk.stripe_stranded[s] = taken == 0 ? 0 : static_cast<u32>(stripe.page_count) - taken;
    stranded += chunk.stripe_stranded[s];
    if (taken == 0) {
      raid::clear_in_parity(chunk, stripe.first, stripe.page_count);
      free += stripe_cost(chunk, stripe);
    } else {
      for_each_word(stripe.first, stripe.page_count, [&](u64 word, u64 mask) {
        fetch_or<Order::relaxed, Scope::engine>(&chunk.bitmaps.busy[word], mask);
      });
    }
  }
  stranded = g.reduce(stranded, [](u64 a, u64 b) { return a + b; });
  on_leader(g, [&] { chunk.stranded_pages = static_cast<u32>(stranded); });
  return g.reduce(free, [](u64 a, u64 b) { return a + b; });
}

// Before any command runs: takes the stripes of pages [first, first + count), which are free. The pages belong to the
// operation whose record names them, and are in the parities if they are `filled`. Returns their cost.
GPU4FS_FN GPU4FS_NOINLINE inline u32 take_stripes_of(ChunkState& chunk, u64 first, u64 count, bool filled) {
  u32 cost = 0;
  const u64 end = first + count;
  for (u64 page = first; page < end;) {
    const raid::Stripe stripe = raid::stripe_of(chunk, page);
    const u64 stop = minimum(end, stripe.first + stripe.page_count);
    for_each_word(stripe.first, stripe.page_count, [&](u64 word, u64 mask) {
      fetch_or<Order::relaxed, Scope::engine>(&chunk.bitmaps.busy[word], mask);
      subtract_region_free(chunk, static_cast<u32>(word / region_words), popcount(mask));
    });
    raid::mark_descriptors_dirty(chunk, stripe.first, stripe.page_count);
    for (u64 at = page; at < stop && filled; ++at) {
      store_shared_16(&chunk.descriptors[at], raid::make_descriptor(0, 0, format::page_flag_in_parity));
    }
    const u32 left = static_cast<u32>(stripe.page_count - (stop - page));
    add<Scope::engine>(&chunk.stripe_stranded[stripe.index], left);
    add<Scope::engine>(&chunk.stranded_pages, left);
    cost += stripe_cost(chunk, stripe);
    page = stop;
  }
  return cost;
}

}  // namespace gpu4fs::space
