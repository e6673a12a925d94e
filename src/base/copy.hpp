// Copying, filling and zeroing by a group.
//
// All ranks call with equal arguments. The ranks share the work in 16-byte chunks, with four independent loads in
// flight each. This keeps PCIe full. None of these functions synchronises: the caller puts g.sync() between the last
// writer of the source and the call, and between the call and the first reader of the destination. Addresses have any
// alignment; ranges do not overlap; no byte outside them is read or written. A Lane on the CPU uses the C library.
#pragma once

#include "base/access.hpp"
#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/config.hpp"
#include "base/group.hpp"
#include "base/limits.hpp"
#include "base/types.hpp"

#if !GPU4FS_DEVICE_CODE
#include <cstring>
#endif

namespace gpu4fs {
namespace detail {

inline constexpr u32 copy_rows = 4;

// Sixteen bytes of the 32 bytes `first`, `second` from byte `shift`, 0 < shift < 16.
GPU4FS_FN constexpr Vector16 shift_pair(Vector16 first, Vector16 second, u32 shift) {
  const bool upper = shift >= 8;
  const u64 a = upper ? first.high : first.low;
  const u64 b = upper ? second.low : first.high;
  const u64 c = upper ? second.high : second.low;
  const u32 bits = shift % 8 * 8;
  if (bits == 0) return Vector16{a, b};
  return Vector16{(a >> bits) | (b << (64 - bits)), (b >> bits) | (c << (64 - bits))};
}

// rows[s] of rank r is chunk s * size + r of a run of chunks, and `following` the chunk after the
// last one (needed on the last rank only). Moves the run `shift` bytes towards its start, 0 <
// shift < 16. Collective.
template <u32 row_count, class Group>
GPU4FS_FN void shift_rows(Group g, Vector16 (&rows)[row_count], Vector16 following, u32 shift) {
  const bool last = g.rank() == Group::size() - 1;
  const u32 next_rank = (g.rank() + 1) % Group::size();
  GPU4FS_UNROLL
  for (u32 s = 0; s < row_count; ++s) {
    // Only the last rank uses rank 0's value: it needs rank 0's chunk of the next row.
    const Vector16 offered = g.leader() && s + 1 < row_count ? rows[s + 1 < row_count ? s + 1 : s] : rows[s];
    Vector16 next = g.shuffle(offered, next_rank);
    if (last && s + 1 == row_count) next = following;
    rows[s] = shift_pair(rows[s], next, shift);
  }
}

// `chunk_count` chunks; both addresses are 16-byte aligned.
template <class Group>
GPU4FS_FN void copy_chunks(Group g, u8* destination, const u8* source, u64 chunk_count) {
  for (u64 base = 0; base < chunk_count; base += copy_rows * Group::size()) {
    Vector16 rows[copy_rows] = {};
    GPU4FS_UNROLL
    for (u32 s = 0; s < copy_rows; ++s) {
      const u64 i = base + s * Group::size() + g.rank();
      if (i < chunk_count) rows[s] = load_stream_16(source + 16 * i);
    }
    GPU4FS_UNROLL
    for (u32 s = 0; s < copy_rows; ++s) {
      const u64 i = base + s * Group::size() + g.rank();
      if (i < chunk_count) store_stream_16(destination + 16 * i, rows[s]);
    }
  }
}

// The same if the source of chunk 0 lies `shift` bytes after the aligned address `source`, 0 < shift < 16. Reads
// chunk_count + 1 aligned chunks.
template <class Group>
GPU4FS_FN void copy_chunks_shifted(Group g, u8* destination, const u8* source, u64 chunk_count, u32 shift) {
  for (u64 base = 0; base < chunk_count; base += copy_rows * Group::size()) {
    Vector16 rows[copy_rows] = {};
    GPU4FS_UNROLL
    for (u32 s = 0; s < copy_rows; ++s) {
      const u64 i = base + s * Group::size() + g.rank();
      if (i <= chunk_count) rows[s] = load_stream_16(source + 16 * i);
    }
    const u64 end = base + copy_rows * Group::size();
    Vector16 following{};
    if (g.rank() == Group::size() - 1 && end <= chunk_count) following = load_stream_16(source + 16 * end);
    shift_rows(g, rows, following, shift);
    GPU4FS_UNROLL
    for (u32 s = 0; s < copy_rows; ++s) {
      const u64 i = base + s * Group::size() + g.rank();
      if (i < chunk_count) store_stream_16(destination + 16 * i, rows[s]);
    }
  }
}

template <class Group>
GPU4FS_FN void copy_single_bytes(Group g, u8* destination, const u8* source, u64 length) {
  for (u64 i = g.rank(); i < length; i += Group::size()) destination[i] = source[i];
}

template <class Group>
inline constexpr bool is_host_lane = Group::size() == 1 && GPU4FS_DEVICE_CODE == 0;

// Bytes from `pointer` to the next 16-byte boundary, and past the last one.
GPU4FS_FN inline u32 misalignment_16(const void* pointer) {
  return static_cast<u32>(reinterpret_cast<std::uintptr_t>(pointer) % 16);
}

}  // namespace detail

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void copy_bytes(Group g, void* destination, const void* source, u64 length) {
  u8* to = static_cast<u8*>(destination);
  const u8* from = static_cast<const u8*>(source);
  GPU4FS_CHECK(length == 0 || (to != nullptr && from != nullptr));
  if constexpr (detail::is_host_lane<Group>) {
#if !GPU4FS_DEVICE_CODE
    if (length != 0) std::memcpy(to, from, length);
#endif
    return;
  }
  u64 head = (16 - detail::misalignment_16(to)) % 16;
  const u32 shift = static_cast<u32>((detail::misalignment_16(from) + head) % 16);
  // The aligned chunk that holds the first shifted byte must not begin before the source.
  if (head < shift) head += 16;
  if (length < head + 32) {
    detail::copy_single_bytes(g, to, from, length);
    return;
  }
  // The last aligned chunk read must not end after the source: leave one chunk to the tail.
  u64 chunk_count = (length - head) / 16;
  if (shift != 0) chunk_count -= 1;
  detail::copy_single_bytes(g, to, from, head);
  if (shift == 0) {
    detail::copy_chunks(g, to + head, from + head, chunk_count);
  } else {
    detail::copy_chunks_shifted(g, to + head, from + head - shift, chunk_count, shift);
  }
  const u64 done = head + 16 * chunk_count;
  detail::copy_single_bytes(g, to + done, from + done, length - done);
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void fill_bytes(Group g, void* destination, u8 value, u64 length) {
  u8* to = static_cast<u8*>(destination);
  GPU4FS_CHECK(length == 0 || to != nullptr);
  if constexpr (detail::is_host_lane<Group>) {
#if !GPU4FS_DEVICE_CODE
    if (length != 0) std::memset(to, value, length);
#endif
    return;
  }
  const u64 head = minimum<u64>((16 - detail::misalignment_16(to)) % 16, length);
  const u64 chunk_count = (length - head) / 16;
  const u64 word = u64{value} * 0x0101010101010101u;
  for (u64 i = g.rank(); i < head; i += Group::size()) to[i] = value;
  for (u64 i = g.rank(); i < chunk_count; i += Group::size()) {
    store_stream_16(to + head + 16 * i, Vector16{word, word});
  }
  for (u64 i = head + 16 * chunk_count + g.rank(); i < length; i += Group::size()) to[i] = value;
}

// `page` is 16-byte aligned.
template <class Group>
GPU4FS_FN void zero_page(Group g, void* page) {
  GPU4FS_CHECK(is_aligned(page, 16));
  fill_bytes(g, page, 0, page_size);
}

}  // namespace gpu4fs
