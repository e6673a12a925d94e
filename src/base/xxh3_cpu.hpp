// The 4096-byte case of XXH3-64 with AVX2, chosen at run time. Host only; used through
// base/xxh3.hpp.
//
// Same steps as xxh3::hash_long, with the page's four blocks of 16 stripes unrolled over two vectors of four
// accumulators. With `copies` it also stores the page: one pass copies and hashes the stored bytes.
#pragma once

#include "base/config.hpp"
#include "base/limits.hpp"
#include "base/types.hpp"
#include "base/xxh3_serial.hpp"

#if GPU4FS_X86_64
#include <immintrin.h>

namespace gpu4fs {
namespace xxh3 {

inline bool has_avx2() {
  static const bool supported = __builtin_cpu_supports("avx2") != 0;
  return supported;
}

// `page` has any alignment; `destination` is unused unless `copies`.
template <bool copies>
__attribute__((target("avx2"))) inline u64 hash_page_avx2(u8* destination, const u8* page, u64 seed) {
  alignas(32) u64 secret[secret_word_count];
  for (u32 i = 0; i < secret_word_count; ++i) secret[i] = seeded_word(i, seed);
  const u8* secret_bytes_at = reinterpret_cast<const u8*>(secret);
  alignas(32) u64 sums[accumulator_count];
  for (u32 i = 0; i < accumulator_count; ++i) sums[i] = initial_accumulator(i);
  __m256i accumulators[2];
  for (u32 half = 0; half < 2; ++half) {
    accumulators[half] = _mm256_load_si256(reinterpret_cast<const __m256i*>(sums + 4 * half));
  }
  const __m256i prime = _mm256_set1_epi64x(static_cast<long long>(prime32_1));
  constexpr u32 stripe_count = static_cast<u32>(page_size) / stripe_bytes;
  for (u32 block = 0; block < stripe_count / stripes_per_block; ++block) {
    const bool last_block = block == stripe_count / stripes_per_block - 1;
    for (u32 n = 0; n < stripes_per_block; ++n) {
      const u32 at = (block * stripes_per_block + n) * stripe_bytes;
      const u32 key_offset = last_block && n == stripes_per_block - 1 ? last_stripe_offset : 8 * n;
      for (u32 half = 0; half < 2; ++half) {
        const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(page + at + 32 * half));
        if constexpr (copies) {
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(destination + at + 32 * half), words);
        }
        const __m256i keys =
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(secret_bytes_at + key_offset + 32 * half));
        const __m256i mixed = _mm256_xor_si256(words, keys);
        const __m256i products = _mm256_mul_epu32(mixed, _mm256_srli_epi64(mixed, 32));
        const __m256i swapped = _mm256_shuffle_epi32(words, _MM_SHUFFLE(1, 0, 3, 2));
        accumulators[half] = _mm256_add_epi64(accumulators[half], _mm256_add_epi64(products, swapped));
      }
    }
    if (last_block) break;
    for (u32 half = 0; half < 2; ++half) {
      const __m256i keys =
          _mm256_load_si256(reinterpret_cast<const __m256i*>(secret_bytes_at + scramble_offset + 32 * half));
      __m256i mixed = _mm256_xor_si256(accumulators[half], _mm256_srli_epi64(accumulators[half], 47));
      mixed = _mm256_xor_si256(mixed, keys);
      const __m256i low = _mm256_mul_epu32(mixed, prime);
      const __m256i high = _mm256_slli_epi64(_mm256_mul_epu32(_mm256_srli_epi64(mixed, 32), prime), 32);
      accumulators[half] = _mm256_add_epi64(low, high);
    }
  }
  for (u32 half = 0; half < 2; ++half) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(sums + 4 * half), accumulators[half]);
  }
  return merge_accumulators(sums, page_size, seed);
}

}  // namespace xxh3
}  // namespace gpu4fs
#endif
