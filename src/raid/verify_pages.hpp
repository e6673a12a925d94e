// Verifies pages in place, without copying them, for a scrub.
//
// As in reads of runs (raid/page_run_io.hpp), a warp loads the next page's bytes while it hashes one. Writers are not
// stopped meanwhile, so a page that does not match may just be in the process of being written. It counts only if it is
// still allocated and its descriptor has not changed after the hash. Two kinds of pages remain: those whose descriptor
// the writer has not set yet, and those that were not written since they were allocated. The caller sorts them out
// (maintenance/damage_owners.hpp).
#pragma once

#include "raid/page_run_io.hpp"

namespace gpu4fs::raid {

inline constexpr u32 verify_page_max = 64;

// Bits [page, page + 64) of a chunk's bitmap; bits beyond its pages are zero.
GPU4FS_FN inline u64 bitmap_bits_64(const ChunkState& chunk, const u64* bitmap, u64 page) {
  GPU4FS_CHECK_LT(page, chunk.page_count);
  const u32 shift = page % 64;
  const u64 word = page / 64;
  u64 bits = load<Order::relaxed, Scope::engine>(&bitmap[word]) >> shift;
  if (shift != 0 && (word + 1) * 64 < chunk.page_count) {
    bits |= load<Order::relaxed, Scope::engine>(&bitmap[word + 1]) << (64 - shift);
  }
  const u64 left = chunk.page_count - page;
  return left >= 64 ? bits : bits & ((u64{1} << left) - 1);
}

namespace detail {

// Those of a run's pages in `wanted` that do not match. `pages` is RunPages.
template <class Group, class Pages>
GPU4FS_FN GPU4FS_NOINLINE u64 mismatches_in_run(Group g, Pages pages, const format::PageDescriptor* descriptors,
                                                u64 address, u64 wanted) {
  u64 found = 0;
  u64 own = 0;
  const u32 page_end = wanted != 0 ? 64 - static_cast<u32>(count_leading_zeros(wanted)) : 0;
  u32 half = 2;
  u32 next_page = wanted != 0 ? static_cast<u32>(count_trailing_zeros(wanted)) : 0;
  PageRegisters<Group> next{};
  if (wanted != 0) next = load_aligned_page(g, pages.at(g, next_page));
  while (wanted != 0) {
    PageRegisters<Group> page = next;
    const u32 here = next_page;
    wanted &= wanted - 1;
    if (wanted != 0) {
      next_page = static_cast<u32>(count_trailing_zeros(wanted));
      next = load_aligned_page(g, pages.at(g, next_page));
    }
    u64 checksum = 0;
    if constexpr (Group::size() > 1) {
      if (here / warp_size != half) {
        half = here / warp_size;
        const u32 mine = half * warp_size + g.rank();
        if (mine < page_end) own = load_shared_16(&descriptors[mine]).low;
      }
      checksum = g.shuffle(own, here % warp_size);
    } else {
      checksum = load_shared_16(&descriptors[here]).low;
    }
    if (xxh3_registers(g, page, address + u64{here} * page_size) != checksum) found |= u64{1} << here;
  }
  return found;
}

// What is in a frame says nothing about the medium. One rank.
GPU4FS_FN inline void look_at_media(const LogicalSpace& space, const PageLocation& first, u32 copy, u32 wanted) {
  if (space.staged == nullptr) return;
  for (u32 left = wanted; left != 0; left &= left - 1) {
    const DevicePlace place = page_place(space, page_behind(first, count_trailing_zeros(left)), copy);
    device::look_at_medium(*space.staged, place.device, place.offset / page_size);
  }
}

// Of the pages in `wanted`, one bit each, which are apart, those that cannot be read or do not match.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u32 mismatches_apart(Group g, const LogicalSpace& space, const PageLocation& first, u32 copy,
                                               u32 wanted) {
  const PinScope pins(g, space);
  const ChunkState& chunk = space.chunks[first.chunk];
  on_leader(g, [&] { look_at_media(space, first, copy, GPU4FS_MUTANT(frames_scrubbed, wanted, 0u)); });
  const u32 refused = begin_run_read(g, space, first, wanted, copy).refused;
  const auto pages = RunPages<true, Group>::make(g, space, first, wanted & ~refused, copy);
  const u64 address = chunk.base_address + first.page * page_size;
  const u64 found = mismatches_in_run(g, pages, &chunk.descriptors[first.page], address, wanted & ~refused);
  return static_cast<u32>(found) | refused;
}

// The same for pages that are contiguous in memory.
template <class Group>
GPU4FS_FN u64 mismatches_together(Group g, const LogicalSpace& space, const PageLocation& first, u32 count, u32 copy,
                                  u64 wanted) {
  if (on_leader(g, [&] { return begin_copy_read(space, first, count, copy); }) != Status::ok) return wanted;
  const ChunkState& chunk = space.chunks[first.chunk];
  const RunPages<false, Group> pages{page_memory(space, first, copy)};
  const u64 address = chunk.base_address + first.page * page_size;
  return mismatches_in_run(g, pages, &chunk.descriptors[first.page], address, wanted);
}

}  // namespace detail

// Of copy `copy` of the chunk's pages [page, page + 64): those in `wanted` (one bit for each page, all in the chunk)
// that are allocated and do not match their checksum or cannot be read. Pages on lost devices are skipped. The chunk is
// accessible. Uniform.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u64 find_mismatches(Group g, const LogicalSpace& space, u32 index, u32 copy, u64 page,
                                              u64 wanted) {
  const ChunkState& chunk = space.chunks[index];
  GPU4FS_CHECK_LT(page, chunk.page_count);
  const u32 count = static_cast<u32>(minimum<u64>(verify_page_max, chunk.page_count - page));
  wanted &= ~on_leader(g, [&] { return pages_out_of_reach(space, index, copy, page, wanted); });
  const bool are_apart = on_leader(g, [&] { return pages_are_apart(space); });
  u64 found = 0;
  for (u32 done = 0; done < count;) {
    const PageLocation first{index, 0, page + done};
    const u64 most = are_apart ? detail::run_page_max : contiguous_pages(chunk, first.page);
    const u32 together = static_cast<u32>(minimum<u64>(count - done, most));
    GPU4FS_CHECK_GT(together, 0u);
    const u64 here = wanted >> done & low_bits(together);
    if (here != 0) {
      found |= (are_apart ? detail::mismatches_apart(g, space, first, copy, static_cast<u32>(here))
                          : detail::mismatches_together(g, space, first, together, copy, here))
               << done;
    }
    done += together;
  }
  return found;
}

// The same for pages that did not match before: those that are still allocated, still do not match, and whose
// descriptor did not change meanwhile. For the leader, except for hashing.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u64 confirm_mismatches(Group g, const LogicalSpace& space, u32 index, u32 copy, u64 page,
                                                 u64 suspects) {
  const ChunkState& chunk = space.chunks[index];
  u64 confirmed = 0;
  for (u64 left = suspects; left != 0; left &= left - 1) {
    const u32 at = static_cast<u32>(count_trailing_zeros(left));
    const format::PageDescriptor* descriptor = &chunk.descriptors[page + at];
    const Vector16 before = on_leader(g, [&] { return load_shared_16(descriptor); });
    const u64 again = find_mismatches(g, space, index, copy, page, u64{1} << at);
    const bool stays =
        again != 0 && on_leader(g, [&] {
          fence<Order::acquire, Scope::engine>();
          const Vector16 after = load_shared_16(descriptor);
          return after.low == before.low && after.high == before.high && page_bit(chunk.bitmaps.committed, page + at);
        });
    if (stays) confirmed |= u64{1} << at;
  }
  return confirmed;
}

}  // namespace gpu4fs::raid
