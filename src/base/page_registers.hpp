// One page spread over the registers of a group. It is hashed, verified, combined with parity and stored with one read
// of memory.
//
// On a group of 32, rank r holds in chunks[s] the page's bytes [512 s + 16 r, 512 s + 16 r + 16). On a Lane it is only
// a pointer to the page, because a CPU reads again from its first-level cache. So no other thread may change a Lane's
// page between the load and the last use.
//
// No function here synchronises memory; see base/copy.hpp.
#pragma once

#include "base/access.hpp"
#include "base/check.hpp"
#include "base/config.hpp"
#include "base/copy.hpp"
#include "base/group.hpp"
#include "base/limits.hpp"
#include "base/types.hpp"

namespace gpu4fs {

inline constexpr u32 page_chunk_rows = static_cast<u32>(page_size) / (16 * warp_size);

template <class Group>
struct PageRegisters {
  static_assert(Group::size() == warp_size);
  Vector16 chunks[page_chunk_rows];
};

template <>
struct PageRegisters<Lane> {
  const u8* page;
};

namespace detail {

GPU4FS_FN constexpr u32 page_chunk_offset(u32 row, u32 rank) {
  return 16 * (row * warp_size + rank);
}

GPU4FS_FN constexpr u8 byte_of(Vector16 chunk, u32 index) {
  return static_cast<u8>((index < 8 ? chunk.low : chunk.high) >> (index % 8 * 8));
}

// Not inlined: it waits for its loads anyway.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE PageRegisters<Group> load_page_unaligned(Group g, const u8* source) {
  PageRegisters<Group> page;
#if GPU4FS_DEVICE_CODE
  // Aligned loads, moved into place by shuffles. They touch the whole 16-byte chunks that hold the
  // first and the last byte, which no memory protection separates from those bytes.
  const u32 shift = misalignment_16(source);
  const u8* aligned = source - shift;
  GPU4FS_UNROLL
  for (u32 s = 0; s < page_chunk_rows; ++s) {
    page.chunks[s] = load_stream_16(aligned + page_chunk_offset(s, g.rank()));
  }
  Vector16 following{};
  if (g.rank() == Group::size() - 1) following = load_stream_16(aligned + page_size);
  shift_rows(g, page.chunks, following, shift);
#else
  for (u32 s = 0; s < page_chunk_rows; ++s) {
    std::memcpy(&page.chunks[s], source + page_chunk_offset(s, g.rank()), 16);
  }
#endif
  return page;
}

// Stores bytes [from, to) of a chunk that holds the page's bytes [begin, begin + 16).
GPU4FS_FN inline void store_chunk_part(u8* page_address, Vector16 chunk, u32 begin, u32 from, u32 to) {
  const u32 first = maximum(begin, from);
  const u32 end = minimum(begin + 16, to);
  for (u32 i = first; i < end; ++i) page_address[i] = byte_of(chunk, i - begin);
}

}  // namespace detail

// Reads the page_size bytes at `source`, which is 16-byte aligned: pages of devices and of engine memory. Without the
// code for other alignments, loops over pages keep more pages in flight.
template <class Group>
GPU4FS_FN PageRegisters<Group> load_aligned_page(Group g, const void* source) {
  const u8* from = static_cast<const u8*>(source);
  GPU4FS_CHECK(is_aligned(from, 16));
  if constexpr (Group::size() == 1) {
    return PageRegisters<Group>{from};
  } else {
    PageRegisters<Group> page;
    GPU4FS_UNROLL
    for (u32 s = 0; s < page_chunk_rows; ++s) {
      page.chunks[s] = load_stream_16(from + detail::page_chunk_offset(s, g.rank()));
    }
    return page;
  }
}

// Reads the page_size bytes at `source`, any alignment (16 is fastest).
template <class Group>
GPU4FS_FN PageRegisters<Group> load_page(Group g, const void* source) {
  const u8* from = static_cast<const u8*>(source);
  GPU4FS_CHECK(from != nullptr);
  if constexpr (Group::size() == 1) {
    return PageRegisters<Group>{from};
  } else {
    return is_aligned(from, 16) ? load_aligned_page(g, from) : detail::load_page_unaligned(g, from);
  }
}

// Writes the whole page to a 16-byte-aligned address.
template <class Group>
GPU4FS_FN void store_page(Group g, const PageRegisters<Group>& page, void* destination) {
  u8* to = static_cast<u8*>(destination);
  GPU4FS_CHECK(is_aligned(to, 16));
  if constexpr (Group::size() == 1) {
    copy_bytes(g, to, page.page, page_size);
  } else {
    GPU4FS_UNROLL
    for (u32 s = 0; s < page_chunk_rows; ++s) {
      store_stream_16(to + detail::page_chunk_offset(s, g.rank()), page.chunks[s]);
    }
  }
}

// Bytes [from, to) of a page.
struct ByteRange {
  u32 from;
  u32 to;
};

GPU4FS_FN constexpr ByteRange whole_page() {
  return {0, static_cast<u32>(page_size)};
}

// Writes the range of the page with its first byte at `destination`, which has any alignment. Nothing else is written.
// `page` is consumed.
template <class Group>
GPU4FS_FN void store_page_range(Group g, PageRegisters<Group>& page, void* destination, ByteRange range) {
  const u32 from = range.from;
  const u32 to = range.to;
  GPU4FS_CHECK_LE(from, to);
  GPU4FS_CHECK_LE(to, page_size);
  if constexpr (Group::size() == 1) {
    copy_bytes(g, destination, page.page + from, to - from);
  } else {
    // The address for byte 0 of the page. Chunk c then covers bytes [16 c + skip, 16 c + skip + 16).
    u8* page_address = reinterpret_cast<u8*>(reinterpret_cast<std::uintptr_t>(destination) - from);
    const u32 skip = (16 - detail::misalignment_16(page_address)) % 16;
    if (skip != 0) {
      if (g.leader()) detail::store_chunk_part(page_address, page.chunks[0], 0, from, minimum(to, skip));
      detail::shift_rows(g, page.chunks, Vector16{}, skip);
    }
    // At most two chunks are partial, the first and the last one of the range; a rank may own both.
    Vector16 first_part{};
    Vector16 last_part{};
    u32 first_begin = page_size;
    u32 last_begin = page_size;
    GPU4FS_UNROLL
    for (u32 s = 0; s < page_chunk_rows; ++s) {
      const u32 begin = detail::page_chunk_offset(s, g.rank()) + skip;
      if (begin >= from && begin + 16 <= to) {
        store_stream_16(page_address + begin, page.chunks[s]);
      } else if (begin < from && from < begin + 16) {
        first_part = page.chunks[s];
        first_begin = begin;
      } else if (begin < to && to < begin + 16) {
        last_part = page.chunks[s];
        last_begin = begin;
      }
    }
    if (first_begin < page_size) detail::store_chunk_part(page_address, first_part, first_begin, from, to);
    if (last_begin < page_size) detail::store_chunk_part(page_address, last_part, last_begin, from, to);
  }
}

namespace detail {

// Out of line: it is long, and seldom what is wanted.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void store_page_part(Group g, PageRegisters<Group>& page, u8* destination, ByteRange range) {
  store_page_range(g, page, destination, range);
}

}  // namespace detail

// As store_page_range(), which it calls, for loops over pages that are mostly whole and go to aligned addresses.
template <class Group>
GPU4FS_FN void store_mostly_whole_page(Group g, const PageRegisters<Group>& page, u8* destination, ByteRange range) {
  if (is_aligned(destination, 16) && range.to - range.from == page_size) return store_page(g, page, destination);
  PageRegisters<Group> copy = page;  // only this one is in memory
  detail::store_page_part(g, copy, destination, range);
}

}  // namespace gpu4fs
