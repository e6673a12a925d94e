// Bit arithmetic that compiles to the same single instruction on both processors.
#pragma once

#include <type_traits>

#include "base/config.hpp"
#include "base/types.hpp"

namespace gpu4fs {

GPU4FS_FN constexpr bool is_power_of_two(u64 value) {
  return value != 0 && (value & (value - 1)) == 0;
}

// Rounds to a multiple of `alignment`, a power of two. align_up wraps when value > 2^64 -
// alignment: callers that take sizes from outside check against their own limit first.
GPU4FS_FN constexpr u64 align_down(u64 value, u64 alignment) {
  return value & ~(alignment - 1);
}
GPU4FS_FN constexpr u64 align_up(u64 value, u64 alignment) {
  return (value + (alignment - 1)) & ~(alignment - 1);
}
GPU4FS_FN constexpr bool is_aligned(u64 value, u64 alignment) {
  return (value & (alignment - 1)) == 0;
}
GPU4FS_FN inline bool is_aligned(const void* pointer, u64 alignment) {
  return is_aligned(reinterpret_cast<std::uintptr_t>(pointer), alignment);
}

// Without the overflow of (a + b - 1) / b. `divisor` is not 0.
GPU4FS_FN constexpr u64 divide_up(u64 value, u64 divisor) {
  return value / divisor + (value % divisor != 0 ? 1 : 0);
}

template <class T>
GPU4FS_FN constexpr T minimum(T a, T b) {
  return b < a ? b : a;
}
template <class T>
GPU4FS_FN constexpr T maximum(T a, T b) {
  return a < b ? b : a;
}

// Zero has 64 (or 32) leading and trailing zeros.
GPU4FS_FN constexpr u32 count_leading_zeros(u64 value) {
  if (value == 0) return 64;
#if GPU4FS_DEVICE_CODE
  if (!std::is_constant_evaluated()) return static_cast<u32>(__clzll(static_cast<long long>(value)));
  u32 count = 0;
  while ((value >> 63) == 0) {
    value <<= 1;
    ++count;
  }
  return count;
#else
  return static_cast<u32>(__builtin_clzll(value));
#endif
}

GPU4FS_FN constexpr u32 popcount(u64 value) {
  value = value - ((value >> 1) & 0x5555555555555555u);
  value = (value & 0x3333333333333333u) + ((value >> 2) & 0x3333333333333333u);
  value = (value + (value >> 4)) & 0x0f0f0f0f0f0f0f0fu;
  return static_cast<u32>((value * 0x0101010101010101u) >> 56);
}

GPU4FS_FN constexpr u32 count_trailing_zeros(u64 value) {
  return value == 0 ? 64 : 63 - count_leading_zeros(value & (~value + 1));
}
GPU4FS_FN constexpr u32 count_leading_zeros(u32 value) {
  return count_leading_zeros(u64{value}) - 32;
}
GPU4FS_FN constexpr u32 count_trailing_zeros(u32 value) {
  return value == 0 ? 32 : count_trailing_zeros(u64{value});
}
GPU4FS_FN constexpr u32 popcount(u32 value) {
  return popcount(u64{value});
}

// Floor and ceiling of the binary logarithm; the floor of 0 is undefined, the ceiling of 0 and 1
// is 0.
GPU4FS_FN constexpr u32 log2_floor(u64 value) {
  return 63 - count_leading_zeros(value);
}
GPU4FS_FN constexpr u32 log2_ceil(u64 value) {
  return value <= 1 ? 0 : log2_floor(value - 1) + 1;
}

// The lowest `count` bits set, 0 <= count <= 64.
GPU4FS_FN constexpr u64 low_bits(u32 count) {
  return count >= 64 ? ~u64{0} : (u64{1} << count) - 1;
}

// Store the result of `a + b` or `a * b`, or return false on overflow: the guard for numbers that are read from a
// medium.
GPU4FS_FN constexpr bool add_checked(u64 a, u64 b, u64& sum) {
  sum = a + b;
  return sum >= a;
}
GPU4FS_FN constexpr bool multiply_checked(u64 a, u64 b, u64& product) {
  product = a * b;
  return a == 0 || product / a == b;
}

GPU4FS_FN constexpr u64 rotate_left(u64 value, u32 count) {
  return (value << (count & 63)) | (value >> ((64 - count) & 63));
}

// 0xff for each byte whose highest bit is set, 0 for the others.
GPU4FS_FN constexpr u64 spread_high_bits(u64 bytes) {
#if GPU4FS_DEVICE_CODE
  if (!std::is_constant_evaluated()) {
    u32 low = static_cast<u32>(bytes);
    u32 high = static_cast<u32>(bytes >> 32);
    asm("prmt.b32 %0, %0, 0, 0xba98;" : "+r"(low));
    asm("prmt.b32 %0, %0, 0, 0xba98;" : "+r"(high));
    return (u64{high} << 32) | low;
  }
#endif
  const u64 bits = bytes & 0x8080808080808080u;
  return (bits << 1) - (bits >> 7);  // the bits that are shifted out of the word are dropped on purpose
}

// Byte i of the result is the byte of `low` and `high` (eight bytes) that nibble i of `indexes` selects. The upper half
// of `indexes` is ignored; its four nibbles are below 8.
GPU4FS_FN inline u32 select_bytes(u32 low, u32 high, u32 indexes) {
#if GPU4FS_DEVICE_CODE
  u32 selected;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(selected) : "r"(low), "r"(high), "r"(indexes));
  return selected;
#else
  const u64 bytes = (u64{high} << 32) | low;
  u32 selected = 0;
  for (u32 i = 0; i < 4; ++i) {
    selected |= static_cast<u32>(bytes >> (indexes >> (4 * i) & 7) * 8 & 0xff) << (8 * i);
  }
  return selected;
#endif
}

// Byte order reversal.
GPU4FS_FN constexpr u32 byte_swap(u32 value) {
  return (value >> 24) | ((value >> 8) & 0xff00u) | ((value << 8) & 0xff0000u) | (value << 24);
}
GPU4FS_FN constexpr u64 byte_swap(u64 value) {
  return (u64{byte_swap(static_cast<u32>(value))} << 32) | byte_swap(static_cast<u32>(value >> 32));
}

}  // namespace gpu4fs
