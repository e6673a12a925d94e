// A page composed of an old page and new bytes. Internal to raid/page_io.
//
// A warp merges in registers, a Lane in a buffer of its own. The checksum is that of the merged bytes: the target is
// not read again, so bytes that overwrite it meanwhile never get a matching checksum.
#pragma once

#include "base/config.hpp"
#include "base/copy.hpp"
#include "base/group.hpp"
#include "base/limits.hpp"
#include "base/mutant.hpp"
#include "base/page_registers.hpp"
#include "base/types.hpp"
#include "base/xxh3.hpp"

namespace gpu4fs::raid::detail {

struct OldPage {
  const u8* memory;  // nullptr: a page of zeros
  u64 address;
  u64 checksum;
};

struct MergeTarget {
  u8* memory;  // may be the old page
  u64 address;
  bool has_checksum;  // pages of this use have a checksum: verify the old one, compute the new one
};

// The bytes that replace a part of the old page.
struct NewBytes {
  ByteRange range;
  const u8* bytes;  // nullptr: zeros
};

struct MergeResult {
  bool is_verified;  // false: the old page is damaged
  u64 checksum;      // of the new page
};

// Sixteen bytes of any alignment. Reads only aligned chunks that hold one of them.
GPU4FS_FN inline Vector16 load_unaligned_16(const u8* source) {
#if GPU4FS_DEVICE_CODE
  const u32 shift = gpu4fs::detail::misalignment_16(source);
  const Vector16 first = load_stream_16(source - shift);
  if (shift == 0) return first;
  return gpu4fs::detail::shift_pair(first, load_stream_16(source - shift + 16), shift);
#else
  Vector16 value;
  __builtin_memcpy(&value, source, sizeof(value));
  return value;
#endif
}

GPU4FS_FN inline Vector16 with_byte(Vector16 chunk, u32 index, u8 value) {
  const u32 shift = index % 8 * 8;
  u64& word = index < 8 ? chunk.low : chunk.high;
  word = (word & ~(u64{0xff} << shift)) | (u64{value} << shift);
  return chunk;
}

// Merges in the page held in registers.
template <class Group>
GPU4FS_FN void replace_range(Group g, PageRegisters<Group>& page, const NewBytes& replaced) {
  const u32 from = replaced.range.from;
  const u32 to = replaced.range.to;
  const u8* const source = replaced.bytes;
  GPU4FS_UNROLL
  for (u32 s = 0; s < page_chunk_rows; ++s) {
    const u32 begin = gpu4fs::detail::page_chunk_offset(s, g.rank());
    if (begin >= from && begin + 16 <= to) {
      page.chunks[s] = source == nullptr ? Vector16{} : load_unaligned_16(source + (begin - from));
    } else {
      const u32 first = maximum(begin, from);
      const u32 end = minimum(begin + 16, to);
      for (u32 i = first; i < end; ++i) {
        page.chunks[s] = with_byte(page.chunks[s], i - begin, source == nullptr ? u8{0} : source[i - from]);
      }
    }
  }
}

template <class Group>
GPU4FS_FN MergeResult merge_in_registers(Group g, const MergeTarget& target, const OldPage& old,
                                         const NewBytes& replaced) {
  PageRegisters<Group> page{};
  if (old.memory != nullptr) {
    page = load_page(g, old.memory);
    if (target.has_checksum && xxh3_registers(g, page, old.address) != old.checksum) return {false, 0};
  }
  replace_range(g, page, replaced);
  store_page(g, page, target.memory);
  return {true, target.has_checksum ? xxh3_registers(g, page, target.address) : 0};
}

GPU4FS_FN inline MergeResult merge_in_buffer(Lane g, const MergeTarget& target, const OldPage& old,
                                             const NewBytes& replaced) {
  const u32 from = replaced.range.from;
  const u32 to = replaced.range.to;
  const u8* const source = replaced.bytes;
  alignas(64) u8 page[page_size];
  if (old.memory == nullptr) {
    zero_page(g, page);
  } else if (!target.has_checksum) {
    copy_bytes(g, page, old.memory, page_size);
  } else if (GPU4FS_MUTANT(merge_unverified, xxh3_copy_page(g, page, old.memory, old.address) != old.checksum,
                           xxh3_copy_page(g, page, old.memory, old.address) == 0)) {
    return {false, 0};
  }
  if (source == nullptr) {
    fill_bytes(g, page + from, 0, to - from);
  } else {
    copy_bytes(g, page + from, source, to - from);
  }
  copy_bytes(g, target.memory, page, page_size);
  return {true, target.has_checksum ? xxh3_page(g, page, target.address) : 0};
}

// Writes the merged page to the target, or nothing if the old page is damaged. Does not synchronise.
template <class Group>
GPU4FS_FN MergeResult merge_page(Group g, const MergeTarget& target, const OldPage& old, const NewBytes& replaced) {
  GPU4FS_CHECK(target.memory != nullptr);
  GPU4FS_CHECK_LE(replaced.range.from, replaced.range.to);
  GPU4FS_CHECK_LE(replaced.range.to, page_size);
  if constexpr (Group::size() > 1) {
    return merge_in_registers(g, target, old, replaced);
  } else {
    return merge_in_buffer(g, target, old, replaced);
  }
}

}  // namespace gpu4fs::raid::detail
