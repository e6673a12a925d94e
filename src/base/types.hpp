// Integer names used throughout, and the 16-byte unit of every bulk access.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpu4fs {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i8 = std::int8_t;
using i16 = std::int16_t;
using i32 = std::int32_t;
using i64 = std::int64_t;

// Sixteen bytes, naturally aligned: the widest single access of both processors. `low` holds bytes
// 0 to 7 in little-endian order.
struct alignas(16) Vector16 {
  u64 low;
  u64 high;

  friend constexpr bool operator==(const Vector16&, const Vector16&) = default;
};

static_assert(sizeof(Vector16) == 16 && alignof(Vector16) == 16);

}  // namespace gpu4fs
