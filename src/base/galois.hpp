// Arithmetic in GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2 + 1 (0x11d), whose generator is 2: the field of
// RAID-6 (H. P. Anvin, "The mathematics of RAID-6") and of ISA-L's erasure codes. Addition is exclusive or.
//
// Bytes that lie side by side in a word are multiplied together, by shifts and masks: no tables, so a warp and a
// vector unit do it alike.
#pragma once

#include "base/access.hpp"
#include "base/check.hpp"
#include "base/config.hpp"
#include "base/types.hpp"

namespace gpu4fs::galois {

// Twice each of the eight bytes.
GPU4FS_FN constexpr u64 twice(u64 bytes) {
  const u64 high = bytes & 0x8080808080808080u;
  const u64 reduce = (high << 1) - (high >> 7);  // 0xff where a byte overflows; the shift out of the word is meant
  return ((bytes & 0x7f7f7f7f7f7f7f7fu) << 1) ^ (reduce & 0x1d1d1d1d1d1d1d1du);
}
static_assert(twice(0x8001'ff00'4010'8002u) == 0x1d02'e300'8020'1d04u);

GPU4FS_FN GPU4FS_NOINLINE constexpr u8 multiply(u8 a, u8 b) {
  u64 product = 0;
  u64 shifted = a;
  for (u32 bit = 0; bit < 8; ++bit) {
    if ((b >> bit & 1) != 0) product ^= shifted;
    shifted = twice(shifted);
  }
  return static_cast<u8>(product);
}

// generator^exponent
GPU4FS_FN GPU4FS_NOINLINE constexpr u8 power_of_two(u32 exponent) {
  u8 value = 1;
  u8 square = 2;
  for (u32 left = exponent % 255; left != 0; left >>= 1) {
    if ((left & 1) != 0) value = multiply(value, square);
    square = multiply(square, square);
  }
  return value;
}

// 1 / a, a != 0: a^254.
GPU4FS_FN GPU4FS_NOINLINE constexpr u8 inverse(u8 a) {
  u8 value = 1;
  u8 square = a;
  for (u32 left = 254; left != 0; left >>= 1) {
    if ((left & 1) != 0) value = multiply(value, square);
    square = multiply(square, square);
  }
  return value;
}
static_assert(multiply(inverse(0x53), 0x53) == 1 && power_of_two(255) == 1 && power_of_two(8) == 0x1d);

GPU4FS_FN constexpr u64 scale(u64 bytes, u8 factor) {
  u64 product = 0;
  for (u32 left = factor; left != 0; left >>= 1) {
    if ((left & 1) != 0) product ^= bytes;
    bytes = twice(bytes);
  }
  return product;
}

GPU4FS_FN constexpr Vector16 add(Vector16 a, Vector16 b) { return {a.low ^ b.low, a.high ^ b.high}; }
GPU4FS_FN constexpr Vector16 twice(Vector16 bytes) { return {twice(bytes.low), twice(bytes.high)}; }
GPU4FS_FN constexpr Vector16 scale(Vector16 bytes, u8 factor) {
  return {scale(bytes.low, factor), scale(bytes.high, factor)};
}

// How one unknown follows from linear equations.
inline constexpr u32 equation_count_max = 3;

struct Weights {
  u8 values[equation_count_max];
};

// The equations are sum over c of 2^(powers[r] * places[c]) * x_c = s_r, r and c < count; the powers are different
// ones of 0, 1, 2 and the places different ones below 255, so there is one solution. Answers the weights w with
// x_target = sum of w_r * s_r. By elimination; `count` is 1 to 3.
GPU4FS_FN GPU4FS_NOINLINE inline Weights solve(const u32* powers, const u32* places, u32 count, u32 target) {
  GPU4FS_CHECK_LE(count, equation_count_max);
  GPU4FS_CHECK_LT(target, count);
  u8 matrix[equation_count_max][2 * equation_count_max] = {};
  for (u32 r = 0; r < count; ++r) {
    for (u32 c = 0; c < count; ++c) matrix[r][c] = power_of_two(powers[r] * places[c]);
    matrix[r][equation_count_max + r] = 1;
  }
  for (u32 c = 0; c < count; ++c) {
    u32 pivot = c;
    while (pivot < count && matrix[pivot][c] == 0) ++pivot;
    GPU4FS_CHECK_LT(pivot, count);
    const u8 factor = inverse(matrix[pivot][c]);
    for (u32 i = 0; i < 2 * equation_count_max; ++i) {
      const u8 value = multiply(matrix[pivot][i], factor);
      matrix[pivot][i] = matrix[c][i];
      matrix[c][i] = value;
    }
    for (u32 r = 0; r < count; ++r) {
      const u8 times = matrix[r][c];
      if (r == c || times == 0) continue;
      for (u32 i = 0; i < 2 * equation_count_max; ++i) matrix[r][i] ^= multiply(matrix[c][i], times);
    }
  }
  Weights weights{};
  for (u32 r = 0; r < count; ++r) weights.values[r] = matrix[target][equation_count_max + r];
  return weights;
}

}  // namespace gpu4fs::galois
