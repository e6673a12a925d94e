// XXH3-64 with seed for input of any length, by one lane.
//
// Written from the algorithm's specification (xxHash, doc/xxhash_spec.md, "XXH3 algorithm description"): short inputs
// are mixed through 128-bit products, inputs of more than 240 bytes run eight 64-bit accumulators over 64-byte stripes,
// 16 stripes a block, with a scramble of the accumulators after each block. Results equal XXH3_64bits_withSeed of
// libxxhash. The secret is the default one of the specification, stored as 24 little-endian words because all bulk
// reads use word offsets. Hashing whole pages by a group: base/xxh3.hpp.
#pragma once

#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/config.hpp"
#include "base/types.hpp"

namespace gpu4fs {
namespace xxh3 {

inline constexpr u64 prime32_1 = 0x9e3779b1u;
inline constexpr u64 prime32_2 = 0x85ebca77u;
inline constexpr u64 prime32_3 = 0xc2b2ae3du;
inline constexpr u64 prime64_1 = 0x9e3779b185ebca87u;
inline constexpr u64 prime64_2 = 0xc2b2ae3d27d4eb4fu;
inline constexpr u64 prime64_3 = 0x165667b19e3779f9u;
inline constexpr u64 prime64_4 = 0x85ebca77c2b2ae63u;
inline constexpr u64 prime64_5 = 0x27d4eb2f165667c5u;
inline constexpr u64 prime_mx_1 = 0x165667919e3779f9u;
inline constexpr u64 prime_mx_2 = 0x9fb21c651e98df25u;

inline constexpr u32 accumulator_count = 8;
inline constexpr u32 stripe_bytes = 64;
inline constexpr u32 secret_bytes = 192;
inline constexpr u32 secret_word_count = secret_bytes / 8;
inline constexpr u32 stripes_per_block = (secret_bytes - stripe_bytes) / 8;
inline constexpr u32 block_bytes = stripes_per_block * stripe_bytes;
// Byte offsets into the secret of the steps that do not walk through it.
inline constexpr u32 scramble_offset = secret_bytes - stripe_bytes;
inline constexpr u32 last_stripe_offset = secret_bytes - stripe_bytes - 7;
inline constexpr u32 merge_offset = 11;

// Word `index` (0 to 23) of the default secret. The table is static, so the GPU keeps it in memory and not on the stack
// of every lane.
GPU4FS_FN inline u64 secret_word(u32 index) {
  static constexpr u64 words[secret_word_count] = {
      0xbe4ba423396cfeb8u, 0x1cad21f72c81017cu, 0xdb979083e96dd4deu, 0x1f67b3b7a4a44072u, 0x78e5c0cc4ee679cbu,
      0x2172ffcc7dd05a82u, 0x8e2443f7744608b8u, 0x4c263a81e69035e0u, 0xcb00c391bb52283cu, 0xa32e531b8b65d088u,
      0x4ef90da297486471u, 0xd8acdea946ef1938u, 0x3f349ce33f76faa8u, 0x1d4f0bc7c7bbdcf9u, 0x3159b4cd4be0518au,
      0x647378d9c97e9fc8u, 0xc3ebd33483acc5eau, 0xeb6313faffa081c5u, 0x49daf0b751dd0d17u, 0x9e68d429265516d3u,
      0xfca1477d58be162bu, 0xce31d07ad1b8f88fu, 0x280416958f3acb45u, 0x7e404bbbcafbd7afu};
  return words[index];
}

// The same word of the secret derived from `seed` for long inputs.
GPU4FS_FN inline u64 seeded_word(u32 index, u64 seed) {
  return index % 2 == 0 ? secret_word(index) + seed : secret_word(index) - seed;
}

// Eight secret bytes at any offset; for the default secret pass seed 0.
GPU4FS_FN inline u64 seeded_bytes(u32 offset, u64 seed) {
  const u32 shift = offset % 8 * 8;
  const u64 word = seeded_word(offset / 8, seed);
  return shift == 0 ? word : (word >> shift) | (seeded_word(offset / 8 + 1, seed) << (64 - shift));
}
GPU4FS_FN inline u64 secret_at(u32 offset) {
  return seeded_bytes(offset, 0);
}

GPU4FS_FN constexpr u64 multiply_fold(u64 a, u64 b) {
#if GPU4FS_DEVICE_CODE
  if (!std::is_constant_evaluated()) return (a * b) ^ __umul64hi(a, b);
#endif
  __extension__ typedef unsigned __int128 Wide;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<u64>(product) ^ static_cast<u64>(product >> 64);
}

GPU4FS_FN constexpr u64 avalanche(u64 hash) {
  hash = (hash ^ (hash >> 37)) * prime_mx_1;
  return hash ^ (hash >> 32);
}

// The final mix of XXH64, which the shortest inputs use.
GPU4FS_FN constexpr u64 avalanche_short(u64 hash) {
  hash = (hash ^ (hash >> 33)) * prime64_2;
  hash = (hash ^ (hash >> 29)) * prime64_3;
  return hash ^ (hash >> 32);
}

GPU4FS_FN inline u64 initial_accumulator(u32 index) {
  static constexpr u64 values[accumulator_count] = {prime32_3, prime64_1, prime64_2, prime64_3,
                                                    prime64_4, prime32_2, prime64_5, prime32_1};
  return values[index];
}

GPU4FS_FN constexpr u64 scramble(u64 accumulator, u64 key) {
  return (accumulator ^ (accumulator >> 47) ^ key) * prime32_1;
}

// The contribution of one input word to its own accumulator; the word itself is added to that of the neighbour.
GPU4FS_FN constexpr u64 keyed_product(u64 word, u64 key) {
  const u64 mixed = word ^ key;
  return (mixed & 0xffffffffu) * (mixed >> 32);
}

// Little-endian reads at any alignment.
GPU4FS_FN inline u64 read_64(const u8* at) {
#if GPU4FS_DEVICE_CODE
  if (is_aligned(at, 8)) return *reinterpret_cast<const u64*>(at);
  u64 value = 0;
  for (u32 i = 0; i < 8; ++i) value |= u64{at[i]} << (8 * i);
  return value;
#else
  u64 value;
  __builtin_memcpy(&value, at, sizeof(value));
  return value;
#endif
}

GPU4FS_FN inline u64 read_32(const u8* at) {
  return at[0] | (u32{at[1]} << 8) | (u32{at[2]} << 16) | (u32{at[3]} << 24);
}

GPU4FS_FN inline u64 mix_16(const u8* at, u32 secret_offset, u64 seed) {
  return multiply_fold(read_64(at) ^ (secret_at(secret_offset) + seed),
                       read_64(at + 8) ^ (secret_at(secret_offset + 8) - seed));
}

GPU4FS_FN inline u64 hash_0_to_16(const u8* input, u64 length, u64 seed) {
  if (length > 8) {
    const u64 low = read_64(input) ^ ((secret_at(24) ^ secret_at(32)) + seed);
    const u64 high = read_64(input + length - 8) ^ ((secret_at(40) ^ secret_at(48)) - seed);
    return avalanche(length + byte_swap(low) + high + multiply_fold(low, high));
  }
  if (length >= 4) {
    const u64 mixed_seed = seed ^ (u64{byte_swap(static_cast<u32>(seed))} << 32);
    const u64 value = read_32(input + length - 4) + (read_32(input) << 32);
    u64 hash = value ^ ((secret_at(8) ^ secret_at(16)) - mixed_seed);
    hash ^= rotate_left(hash, 49) ^ rotate_left(hash, 24);
    hash *= prime_mx_2;
    hash ^= (hash >> 35) + length;
    hash *= prime_mx_2;
    return hash ^ (hash >> 28);
  }
  if (length > 0) {
    const u32 combined =
        (u32{input[0]} << 16) | (u32{input[length / 2]} << 24) | input[length - 1] | (static_cast<u32>(length) << 8);
    const u64 flip = ((secret_at(0) ^ secret_at(4)) & 0xffffffffu) + seed;
    return avalanche_short(combined ^ flip);
  }
  return avalanche_short(seed ^ secret_at(56) ^ secret_at(64));
}

GPU4FS_FN inline u64 hash_17_to_128(const u8* input, u64 length, u64 seed) {
  u64 sum = length * prime64_1;
  const u32 pair_count = static_cast<u32>((length - 1) / 32) + 1;
  for (u32 i = 0; i < pair_count; ++i) {
    sum += mix_16(input + 16 * i, 32 * i, seed);
    sum += mix_16(input + length - 16 * (i + 1), 32 * i + 16, seed);
  }
  return avalanche(sum);
}

GPU4FS_FN inline u64 hash_129_to_240(const u8* input, u64 length, u64 seed) {
  u64 sum = length * prime64_1;
  const u32 round_count = static_cast<u32>(length / 16);
  for (u32 i = 0; i < 8; ++i) sum += mix_16(input + 16 * i, 16 * i, seed);
  sum = avalanche(sum);
  for (u32 i = 8; i < round_count; ++i) sum += mix_16(input + 16 * i, 16 * (i - 8) + 3, seed);
  sum += mix_16(input + length - 16, 136 - 17, seed);
  return avalanche(sum);
}

GPU4FS_FN inline void accumulate_stripe(u64 (&sums)[accumulator_count], const u8* stripe,
                                        const u64 (&keys)[accumulator_count]) {
  GPU4FS_UNROLL
  for (u32 i = 0; i < accumulator_count; ++i) {
    const u64 word = read_64(stripe + 8 * i);
    sums[i ^ 1] += word;
    sums[i] += keyed_product(word, keys[i]);
  }
}

GPU4FS_FN inline void load_keys(u64 (&keys)[accumulator_count], u32 offset, u64 seed) {
  GPU4FS_UNROLL
  for (u32 i = 0; i < accumulator_count; ++i) keys[i] = seeded_bytes(offset + 8 * i, seed);
}

GPU4FS_FN inline u64 merge_accumulators(const u64 (&sums)[accumulator_count], u64 length, u64 seed) {
  u64 hash = length * prime64_1;
  GPU4FS_UNROLL
  for (u32 i = 0; i < accumulator_count; i += 2) {
    hash += multiply_fold(sums[i] ^ seeded_bytes(merge_offset + 8 * i, seed),
                          sums[i + 1] ^ seeded_bytes(merge_offset + 8 * i + 8, seed));
  }
  return avalanche(hash);
}

GPU4FS_FN inline u64 hash_long(const u8* input, u64 length, u64 seed) {
  GPU4FS_CHECK_GT(length, u64{240});
  u64 sums[accumulator_count];
  u64 keys[accumulator_count];
  for (u32 i = 0; i < accumulator_count; ++i) sums[i] = initial_accumulator(i);
  // The last stripe, which may overlap the previous one, is never part of this loop.
  const u64 stripe_count = (length - 1) / stripe_bytes;
  for (u64 stripe = 0; stripe < stripe_count; ++stripe) {
    const u32 in_block = static_cast<u32>(stripe % stripes_per_block);
    load_keys(keys, 8 * in_block, seed);
    accumulate_stripe(sums, input + stripe * stripe_bytes, keys);
    if (in_block == stripes_per_block - 1) {
      load_keys(keys, scramble_offset, seed);
      for (u32 i = 0; i < accumulator_count; ++i) sums[i] = scramble(sums[i], keys[i]);
    }
  }
  load_keys(keys, last_stripe_offset, seed);
  accumulate_stripe(sums, input + length - stripe_bytes, keys);
  return merge_accumulators(sums, length, seed);
}

}  // namespace xxh3

// The hash of `length` bytes at `data`, any alignment. `data` may be null when length is 0.
GPU4FS_FN GPU4FS_NOINLINE inline u64 xxh3_64(const void* data, u64 length, u64 seed) {
  const u8* input = static_cast<const u8*>(data);
  GPU4FS_CHECK(input != nullptr || length == 0);
  if (length <= 16) return xxh3::hash_0_to_16(input, length, seed);
  if (length <= 128) return xxh3::hash_17_to_128(input, length, seed);
  if (length <= 240) return xxh3::hash_129_to_240(input, length, seed);
  return xxh3::hash_long(input, length, seed);
}

}  // namespace gpu4fs
