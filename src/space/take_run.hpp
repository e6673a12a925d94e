// Finds and takes runs of free pages in one chunk, lock-free. Internal to the layer.
//
// The caller holds a claim on the chunk (claim_pages) that is at least as large as the taken run, so busy bits are set
// only under a claim. Bits that are taken and returned after a collision are covered by it too.
#pragma once

#include "base/access.hpp"
#include "base/group.hpp"
#include "space/space_counters.hpp"

namespace gpu4fs::space {

struct PageRun {
  u32 first;
  u32 count;  // 0: none
};

// The first run of at least `wanted` zero bits in the region's words, otherwise the longest one. A snapshot.
GPU4FS_FN inline PageRun find_run(const ChunkState& chunk, u32 region, u32 wanted) {
  PageRun best{0, 0};
  PageRun run{0, 0};
  for (u32 w = 0; w < region_words; ++w) {
    const u64 word = load<Order::acquire, Scope::engine>(&chunk.bitmaps.busy[region * region_words + w]);
    u32 bit = 0;
    while (bit < 64) {
      const u64 rest = word >> bit;
      if ((rest & 1) != 0) {
        run.count = 0;
        bit += count_trailing_zeros(~rest);
        continue;
      }
      const u32 length = rest == 0 ? 64 - bit : count_trailing_zeros(rest);
      if (run.count == 0) run.first = region * region_pages + w * 64 + bit;
      run.count += length;
      bit += length;
      if (run.count > best.count) best = run;
      if (best.count >= wanted) return best;
    }
  }
  return best;
}

// Sets the bits of [first, first + count) and returns how many pages from `first` on belong to the caller.
GPU4FS_FN inline u32 set_busy_prefix(ChunkState& chunk, u32 first, u32 count) {
  u32 taken = 0;
  bool collided = false;
  for_each_word(first, count, [&](u64 word, u64 mask) {
    if (collided) return;
    const u64 old = fetch_or<Order::acquire, Scope::engine>(&chunk.bitmaps.busy[word], mask);
    const u64 conflict = old & mask;
    u64 ours = mask;
    if (conflict != 0) {
      ours = mask & ((conflict & (~conflict + 1)) - 1);
      const u64 surplus = mask & ~old & ~ours;
      if (surplus != 0) fetch_and<Order::release, Scope::engine>(&chunk.bitmaps.busy[word], ~surplus);
      collided = true;
    }
    taken += popcount(ours);
  });
  return taken;
}

// Takes 1 to `wanted` contiguous pages of the region; count 0: others took all of them first.
GPU4FS_FN inline PageRun take_in_region(ChunkState& chunk, u32 region, u32 wanted) {
  for (u32 attempt = 0; attempt < 4; ++attempt) {
    const PageRun found = find_run(chunk, region, wanted);
    if (found.count == 0) break;
    GPU4FS_CHECK_LE(found.first + minimum(found.count, wanted), chunk.page_count);
    const u32 taken = set_busy_prefix(chunk, found.first, minimum(found.count, wanted));
    if (taken != 0) {
      subtract_region_free(chunk, region, taken);
      return {found.first, taken};
    }
  }
  return {0, 0};
}

// Takes a region that is entirely free according to its count, all or nothing; two callers that try the same region at
// once may both fail. Earlier accesses to its pages are visible after a fence of the caller. The words are taken
// without tests in between, so a GPU waits for one answer instead of eight.
GPU4FS_FN inline bool take_whole_region(ChunkState& chunk, u32 region) {
  u64* words = &chunk.bitmaps.busy[u64{region} * region_words];
  u64 before[region_words];
  GPU4FS_UNROLL
  for (u32 w = 0; w < region_words; ++w) before[w] = fetch_or<Order::relaxed, Scope::engine>(&words[w], ~u64{0});
  u64 taken = 0;
  GPU4FS_UNROLL
  for (u32 w = 0; w < region_words; ++w) taken |= before[w];
  if (taken == 0) {
    subtract_region_free(chunk, region, region_pages);
    return true;
  }
  for (u32 w = 0; w < region_words; ++w) {
    if (~before[w] != 0) fetch_and<Order::release, Scope::engine>(&words[w], before[w]);
  }
  return false;
}

// Takes 1 to `wanted` contiguous pages, preferably in region `hint` or after it, where a large part is free.
//
// It always succeeds: the caller's claim guarantees that at least `wanted` bits are zero, or held by others that will
// clear them again without waiting for the caller (a surplus after a collision). A pass over all regions fails only if
// others took the bits it saw or freed bits behind it. Each of them takes under a claim of its own, which leaves the
// caller's untouched. So a failed pass is progress of another worker, and when the others stop, the next pass succeeds.
GPU4FS_FN inline PageRun take_in_chunk(ChunkState& chunk, u32 hint, u32 wanted) {
  const u32 region_count = region_count_of(chunk);
  const u32 well_filled = minimum(wanted, u32{64});
  for (u32 attempt = 0;; ++attempt) {
    const u32 least = attempt == 0 ? well_filled : 1;
    for (u32 i = 0; i < region_count; ++i) {
      const u32 region = (hint + i) % region_count;
      if (region_free(chunk, region) < least) continue;
      const PageRun run = take_in_region(chunk, region, wanted);
      if (run.count != 0) return run;
    }
    if (attempt > 1) backoff(1000);
    GPU4FS_CHECK_LT(attempt, 1u << 24);
  }
}

// Returns an entirely taken region.
GPU4FS_FN inline void return_whole_region(ChunkState& chunk, u32 region) {
  for (u32 w = 0; w < region_words; ++w) clear_busy(chunk, u64{region} * region_words + w, ~u64{0});
}

GPU4FS_FN inline bool looks_free(const ChunkState& chunk, u32 region) {
  return region_free(chunk, region) == region_pages;
}

// Takes entirely free regions from `first` on, at most `wanted`, up to the first one that is not free or that others
// took. Each rank takes one at a time, and returns it if it lies after that one. Collective.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u32 take_regions_from(Group g, ChunkState& chunk, u32 first, u32 wanted) {
  u32 count = 0;
  u32 in_a_row = Group::size();
  while (count < wanted && in_a_row == Group::size()) {
    const u32 ahead = count + g.rank();
    const u32 asked = leading_ranks(g, ahead < wanted && looks_free(chunk, first + ahead));
    const bool taken = g.rank() < asked && take_whole_region(chunk, first + ahead);
    in_a_row = leading_ranks(g, taken);
    if (taken && g.rank() >= in_a_row) return_whole_region(chunk, first + ahead);
    count += in_a_row;
  }
  fence<Order::acquire, Scope::engine>();
  g.sync();
  return count;
}

// Takes up to `wanted_regions` consecutive regions of the chunk's `region_count` that are entirely free, from `hint`
// on; count 0: there are none. Collective.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE PageRun take_regions(Group g, ChunkState& chunk, u32 region_count, u32 hint,
                                               u32 wanted_regions) {
  for (u32 passed = 0; passed < region_count;) {
    const u32 ahead = passed + g.rank();
    const u32 found = g.ballot(ahead < region_count && looks_free(chunk, (hint + ahead) % region_count));
    passed += found == 0 ? Group::size() : count_trailing_zeros(found);
    if (found == 0) continue;
    const u32 first = (hint + passed) % region_count;
    const u32 count = take_regions_from(g, chunk, first, minimum(wanted_regions, region_count - first));
    if (count != 0) return {first * region_pages, count * region_pages};
    ++passed;
  }
  return {0, 0};
}

inline constexpr u32 giant_regions = static_cast<u32>(pages_per_block_1g / pages_per_block_2m);

// A search that takes nothing. Collective.
template <class Group>
GPU4FS_FN bool regions_are_free(Group g, const ChunkState& chunk, u32 first, u32 count) {
  bool free = true;
  for (u32 i = g.rank(); i < count; i += Group::size()) free = free && looks_free(chunk, first + i);
  return g.all(free);
}

// Takes 1 GiB of entirely free regions at a multiple of 1 GiB in logical space, all or nothing; count 0: there is none,
// or others were faster. Collective.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE PageRun take_giant(Group g, ChunkState& chunk) {
  const u64 begin = align_up(chunk.base_address, block_size_1g) - chunk.base_address;
  for (u64 at = begin; at / page_size + pages_per_block_1g <= chunk.page_count; at += block_size_1g) {
    const u32 first = static_cast<u32>(at / block_size_2m);
    if (!regions_are_free(g, chunk, first, giant_regions)) continue;
    const u32 count = take_regions_from(g, chunk, first, giant_regions);
    if (count == giant_regions) return {first * region_pages, giant_regions * region_pages};
    for (u32 i = g.rank(); i < count; i += Group::size()) return_whole_region(chunk, first + i);
  }
  return {0, 0};
}

}  // namespace gpu4fs::space
