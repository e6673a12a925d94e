// Arithmetic in GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2 + 1 (0x11d), whose generator is 2: the field of
// RAID-6 (H. P. Anvin, "The mathematics of RAID-6") and of ISA-L's erasure codes. Addition is exclusive or.
//
// All bytes of a word are multiplied together. The CPU uses shifts and masks, which the compiler turns into vector
// code. A warp looks bytes up in registers (Multiplier), for which a GPU has an instruction. Tables in memory would be
// slow: the acquire of a lock empties the cache, and the next row would have to fetch them again. The existing tables,
// of powers and logarithms, are for the few bytes that describe how rows are combined.
#pragma once

#include "base/access.hpp"
#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/config.hpp"
#include "base/types.hpp"

namespace gpu4fs::galois {

// Each of the eight bytes times two.
GPU4FS_FN constexpr u64 twice(u64 bytes) {
  const u64 reduce = spread_high_bits(bytes);  // 0xff where a byte overflows
  return ((bytes & 0x7f7f7f7f7f7f7f7fu) << 1) ^ (reduce & 0x1d1d1d1d1d1d1d1du);
}
static_assert(twice(0x8001'ff00'4010'8002u) == 0x1d02'e300'8020'1d04u);

namespace detail {

// A polynomial of degree 14 at most, as a byte.
GPU4FS_FN constexpr u32 reduce(u32 product) {
  for (u32 i = 0; i < 2; ++i) {
    const u32 high = product >> 8;
    product = (product & 0xff) ^ high ^ (high << 2) ^ (high << 3) ^ (high << 4);
  }
  return product;
}

struct Logarithms {
  u8 powers[255];  // of 2
  u8 logs[256];    // of values other than 0
};

constexpr Logarithms make_logarithms() {
  Logarithms made{};
  u32 power = 1;
  for (u32 exponent = 0; exponent < 255; ++exponent) {
    made.powers[exponent] = static_cast<u8>(power);
    made.logs[power] = static_cast<u8>(exponent);
    power = reduce(power << 1);
  }
  return made;
}

// Static, so the GPU keeps it in memory and not on the stack of every lane.
GPU4FS_FN inline const Logarithms& logarithms() {
  static constexpr Logarithms table = make_logarithms();
  return table;
}

}  // namespace detail

GPU4FS_FN constexpr u8 multiply(u8 a, u8 b) {
  u32 product = 0;
  GPU4FS_UNROLL
  for (u32 bit = 0; bit < 8; ++bit) product ^= (u32{a} << bit) & (0u - (u32{b} >> bit & 1u));
  return static_cast<u8>(detail::reduce(product));
}

// generator^exponent
GPU4FS_FN inline u8 power_of_two(u32 exponent) {
  return detail::logarithms().powers[exponent % 255];
}

// 1 / a, a != 0.
GPU4FS_FN inline u8 inverse(u8 a) {
  return detail::logarithms().powers[(255u - detail::logarithms().logs[a]) % 255];
}

static_assert(detail::make_logarithms().powers[8] == 0x1d && detail::make_logarithms().logs[0x1d] == 8);
static_assert(multiply(detail::make_logarithms().powers[200], detail::make_logarithms().powers[100]) ==
              detail::make_logarithms().powers[45]);

GPU4FS_FN constexpr u64 scale(u64 bytes, u8 factor) {
  u64 product = 0;
  GPU4FS_UNROLL
  for (u32 bit = 0; bit < 8; ++bit) {
    product ^= bytes & (u64{0} - (u64{factor} >> bit & 1u));
    bytes = twice(bytes);
  }
  return product;
}

// The bits of eight bytes as indexes of a Multiplier. Nibble 2 i of a member belongs to byte i of the lower word,
// nibble 2 i + 1 to byte i of the upper one. Independent of the factor.
struct ByteIndexes {
  u32 low;   // bits 0 to 2
  u32 high;  // bits 4 to 6
  u32 rest;  // bits 3 and 7
};

GPU4FS_FN constexpr ByteIndexes split_bytes(u64 bytes) {
  const u32 a = static_cast<u32>(bytes);
  const u32 b = static_cast<u32>(bytes >> 32);
  const u32 low = (a & 0x0f0f0f0fu) | (b << 4 & 0xf0f0f0f0u);
  const u32 high = (a >> 4 & 0x0f0f0f0fu) | (b & 0xf0f0f0f0u);
  return {low & 0x77777777u, high & 0x77777777u, (low >> 3 & 0x11111111u) | (high >> 2 & 0x22222222u)};
}

// The products of a factor with each value of the bits of ByteIndexes.
struct Multiplier {
  u32 low[2];
  u32 high[2];
  u32 rest;
};

GPU4FS_FN constexpr Multiplier make_multiplier(u8 factor) {
  u32 multiples[8] = {factor};  // of the factor with each bit
  GPU4FS_UNROLL
  for (u32 bit = 1; bit < 8; ++bit) {
    multiples[bit] = (multiples[bit - 1] << 1) ^ (multiples[bit - 1] >> 7) * 0x11du;
  }
  const u32 low = (multiples[0] * 0x01000100u) ^ (multiples[1] * 0x01010000u);
  const u32 high = (multiples[4] * 0x01000100u) ^ (multiples[5] * 0x01010000u);
  return {{low, low ^ (multiples[2] * 0x01010101u)},
          {high, high ^ (multiples[6] * 0x01010101u)},
          (multiples[3] * 0x01000100u) ^ (multiples[7] * 0x01010000u)};
}

// The factor times the eight bytes.
GPU4FS_FN inline u64 scale(const ByteIndexes& bytes, const Multiplier& by) {
  const u32 first = select_bytes(by.low[0], by.low[1], bytes.low) ^ select_bytes(by.high[0], by.high[1], bytes.high) ^
                    select_bytes(by.rest, 0, bytes.rest);
  const u32 second = select_bytes(by.low[0], by.low[1], bytes.low >> 16) ^
                     select_bytes(by.high[0], by.high[1], bytes.high >> 16) ^
                     select_bytes(by.rest, 0, bytes.rest >> 16);
  return u64{select_bytes(first, second, 0x6420)} | u64{select_bytes(first, second, 0x7531)} << 32;
}

GPU4FS_FN constexpr Vector16 add(Vector16 a, Vector16 b) {
  return {a.low ^ b.low, a.high ^ b.high};
}
GPU4FS_FN constexpr Vector16 twice(Vector16 bytes) {
  return {twice(bytes.low), twice(bytes.high)};
}
GPU4FS_FN inline Vector16 scale(Vector16 bytes, const Multiplier& by) {
  return {scale(split_bytes(bytes.low), by), scale(split_bytes(bytes.high), by)};
}

// How an unknown follows from linear equations.
inline constexpr u32 equation_count_max = 3;

struct Weights {
  u8 values[equation_count_max];
};

namespace detail {

// The determinant of the equations without row `r` and column `target`.
GPU4FS_FN inline u8 minor(const u32* powers, const u32* places, u32 count, u32 r, u32 target) {
  if (count == 1) return 1;
  const u32 row = r == 0 ? 1 : 0;
  const u32 column = target == 0 ? 1 : 0;
  if (count == 2) return power_of_two(powers[row] * places[column]);
  const u32 next_row = 3 - r - row;
  const u32 next_column = 3 - target - column;
  return power_of_two(powers[row] * places[column] + powers[next_row] * places[next_column]) ^
         power_of_two(powers[next_row] * places[column] + powers[row] * places[next_column]);
}

}  // namespace detail

// The equations are sum over c of 2^(powers[r] * places[c]) * x_c = s_r, r and c < count; the powers are distinct
// values of 0, 1, 2 and the places distinct values below 255, so there is one solution. Returns the weights w with
// x_target = sum of w_r * s_r, by Cramer's rule, without signs, which have no meaning here. `count` is 1 to 3.
GPU4FS_FN GPU4FS_NOINLINE inline Weights solve(const u32* powers, const u32* places, u32 count, u32 target) {
  GPU4FS_CHECK_LE(count, equation_count_max);
  GPU4FS_CHECK_LT(target, count);
  Weights weights{};
  u8 determinant = 0;
  for (u32 r = 0; r < count; ++r) {
    weights.values[r] = detail::minor(powers, places, count, r, target);
    determinant ^= multiply(power_of_two(powers[r] * places[target]), weights.values[r]);
  }
  GPU4FS_CHECK_NE(determinant, 0);
  const u8 factor = inverse(determinant);
  for (u32 r = 0; r < count; ++r) weights.values[r] = multiply(weights.values[r], factor);
  return weights;
}

}  // namespace gpu4fs::galois
