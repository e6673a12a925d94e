// XXH3-64 of whole pages by a group, alone and fused with copying.
//
// A page is four blocks of 16 stripes of 64 bytes. Within a block the contributions of the stripes to the eight
// accumulators are plain sums. So the ranks of a warp process stripes in parallel: rank r serves the pair of
// accumulators r % 4 for the stripes r / 4 and r / 4 + 8 of every block. These are the 16-byte chunks of the page that
// it holds (base/page_registers.hpp). The 8 partial sums (4 blocks, 2 accumulators) of 32 ranks are reduced by halving:
// each step keeps half of the sums. This takes 7 exchanges; reducing them one by one would take 24. Only the scrambles
// between blocks are serial, and every rank runs those of one accumulator.
//
// The seed is the page's logical address, so a page written to the wrong place does not verify.
// Results equal xxh3_64(page, 4096, seed). No function here synchronises memory; all are
// collective.
#pragma once

#include "base/config.hpp"
#include "base/copy.hpp"
#include "base/group.hpp"
#include "base/limits.hpp"
#include "base/page_registers.hpp"
#include "base/types.hpp"
#include "base/xxh3_cpu.hpp"
#include "base/xxh3_serial.hpp"

namespace gpu4fs {
namespace xxh3 {

inline constexpr u32 page_block_count = static_cast<u32>(page_size) / block_bytes;
static_assert(page_block_count * block_bytes == page_size && page_chunk_rows == 2 * page_block_count);

// Partial sums by block and accumulator parity: values[2 * block + parity].
template <u32 count>
struct PartialSums {
  u64 values[count];
};

// Gives one half of the sums to the rank across `mask` and adds the other half's partner.
template <u32 count, class Group>
GPU4FS_FN PartialSums<count / 2> halve(Group g, const PartialSums<count>& sums, u32 mask) {
  const bool keeps_upper = (g.rank() & mask) != 0;
  PartialSums<count / 2> kept;
  PartialSums<count / 2> given;
  GPU4FS_UNROLL
  for (u32 i = 0; i < count / 2; ++i) {
    kept.values[i] = keeps_upper ? sums.values[i + count / 2] : sums.values[i];
    given.values[i] = keeps_upper ? sums.values[i] : sums.values[i + count / 2];
  }
  const PartialSums<count / 2> received = g.shuffle_xor(given, mask);
  GPU4FS_UNROLL
  for (u32 i = 0; i < count / 2; ++i) kept.values[i] += received.values[i];
  return kept;
}

// What a rank needs of the secret, with the seed. Of a Lane only the seed.
struct PageKeys {
  u64 seed;
  u64 words[5];
  u64 scramble;
  u64 merge;
  u64 accumulator;  // at the beginning
};

// May be called before the page is there, so the loads of both are on their way together.
template <class Group>
GPU4FS_FN PageKeys page_keys(Group g, u64 seed) {
  if constexpr (Group::size() == 1) {
    return PageKeys{seed, {}, 0, 0, 0};
  } else {
    const u32 pair = g.rank() % 4;
    const u32 first_word = g.rank() / 4 + 2 * pair;
    const u32 index = 2 * pair + g.rank() / 4 % 2;
    return PageKeys{
        seed,
        {seeded_word(first_word, seed), seeded_word(first_word + 1, seed), seeded_word(first_word + 8, seed),
         seeded_word(first_word + 9, seed), seeded_word(first_word + 10, seed)},
        seeded_word(scramble_offset / 8 + index, seed),
        seeded_bytes(merge_offset + 8 * index, seed),
        initial_accumulator(index)};
  }
}

template <class Group>
GPU4FS_FN PartialSums<2 * page_block_count> sum_chunks(Group g, const PageRegisters<Group>& page,
                                                       const u64 (&keys)[5]) {
  const u32 stripe = g.rank() / 4;
  static_assert(last_stripe_offset == 8 * 15 + 1);
  PartialSums<2 * page_block_count> sums{};
  GPU4FS_UNROLL
  for (u32 s = 0; s < page_chunk_rows; ++s) {
    u64 key_low = keys[s % 2 * 2];
    u64 key_high = keys[s % 2 * 2 + 1];
    if (s == page_chunk_rows - 1 && stripe == 7) {
      // The key of the page's last stripe begins one byte later in the secret.
      key_low = (keys[2] >> 8) | (keys[3] << 56);
      key_high = (keys[3] >> 8) | (keys[4] << 56);
    }
    const Vector16 chunk = page.chunks[s];
    sums.values[s / 2 * 2] += chunk.high + keyed_product(chunk.low, key_low);
    sums.values[s / 2 * 2 + 1] += chunk.low + keyed_product(chunk.high, key_high);
  }
  return sums;
}

}  // namespace xxh3

// The hash of a page held in registers.
template <class Group>
GPU4FS_FN u64 xxh3_registers(Group g, const PageRegisters<Group>& page, const xxh3::PageKeys& keys) {
  if constexpr (Group::size() == 1) {
#if GPU4FS_X86_64
    if (xxh3::has_avx2()) return xxh3::hash_page_avx2<false>(nullptr, page.page, keys.seed);
#endif
    return xxh3::hash_long(page.page, page_size, keys.seed);
  } else {
    const u32 pair = g.rank() % 4;
    const u32 parity = g.rank() / 4 % 2;
    const auto by_block = xxh3::halve(g, xxh3::sum_chunks(g, page, keys.words), 16);
    const auto by_parity = xxh3::halve(g, by_block, 8);
    // Rank r has the sum of block r / 8, accumulator 2 * pair + parity.
    const u64 sum = xxh3::halve(g, by_parity, 4).values[0];
    u64 accumulator = keys.accumulator;
    GPU4FS_UNROLL
    for (u32 block = 0; block < xxh3::page_block_count; ++block) {
      accumulator += g.shuffle(sum, 8 * block + 4 * parity + pair);
      if (block + 1 < xxh3::page_block_count) accumulator = xxh3::scramble(accumulator, keys.scramble);
    }
    const u64 mixed = accumulator ^ keys.merge;
    u64 folded = xxh3::multiply_fold(mixed, g.shuffle_xor(mixed, 4));
    folded += g.shuffle_xor(folded, 1);
    folded += g.shuffle_xor(folded, 2);
    return xxh3::avalanche(page_size * xxh3::prime64_1 + folded);
  }
}

template <class Group>
GPU4FS_FN u64 xxh3_registers(Group g, const PageRegisters<Group>& page, u64 seed) {
  return xxh3_registers(g, page, xxh3::page_keys(g, seed));
}

// The hash of the page at a 16-byte-aligned address.
template <class Group>
GPU4FS_FN u64 xxh3_page(Group g, const void* page, u64 seed) {
  return xxh3_registers(g, load_aligned_page(g, page), seed);
}

// Copies a page from `source` (any alignment) to `destination` (16-byte aligned) and returns the
// hash of the bytes written, even if the source changes meanwhile.
template <class Group>
GPU4FS_FN u64 xxh3_copy_page(Group g, void* destination, const void* source, u64 seed) {
  GPU4FS_CHECK(is_aligned(destination, 16));
  if constexpr (Group::size() == 1) {
#if GPU4FS_X86_64
    if (xxh3::has_avx2()) {
      return xxh3::hash_page_avx2<true>(static_cast<u8*>(destination), static_cast<const u8*>(source), seed);
    }
#endif
    copy_bytes(g, destination, source, page_size);
    return xxh3_page(g, destination, seed);
  } else {
    const PageRegisters<Group> page = load_page(g, source);
    store_page(g, page, destination);
    return xxh3_registers(g, page, seed);
  }
}

// Verifies the page at `source`. If its hash is `expected`, writes the range with its first byte at `destination` (any
// alignment). On a mismatch returns false and releases no data: the destination is untouched, or zeroed if a lane
// hashes what it copies. A lane that needs a part of the page reads this part twice, so no other thread may write it
// meanwhile.
template <class Group>
[[nodiscard]] GPU4FS_FN bool verify_copy_page(Group g, void* destination, const void* source, u64 seed, u64 expected,
                                              ByteRange range) {
#if GPU4FS_X86_64
  if constexpr (Group::size() == 1) {
    if (range.from == 0 && range.to == page_size && xxh3::has_avx2()) {
      u8* copy = static_cast<u8*>(destination);
      if (xxh3::hash_page_avx2<true>(copy, static_cast<const u8*>(source), seed) == expected) return true;
      fill_bytes(g, copy, 0, page_size);
      return false;
    }
  }
#endif
  PageRegisters<Group> page = load_page(g, source);
  if (xxh3_registers(g, page, seed) != expected) return false;
  store_page_range(g, page, destination, range);
  return true;
}

template <class Group>
[[nodiscard]] GPU4FS_FN bool verify_copy_page(Group g, void* destination, const void* source, u64 seed, u64 expected) {
  return verify_copy_page(g, destination, source, seed, expected, whole_page());
}

}  // namespace gpu4fs
