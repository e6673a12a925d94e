// A 128-bit identifier of a pool or a device (RFC 9562, bytes in network order). Text forms and
// generation, which only the host needs, are in base/to_text.hpp.
#pragma once

#include "base/config.hpp"
#include "base/types.hpp"

namespace gpu4fs {

struct Uuid {
  u8 bytes[16];

  GPU4FS_FN constexpr bool is_nil() const {
    for (u32 i = 0; i < 16; ++i) {
      if (bytes[i] != 0) return false;
    }
    return true;
  }

  friend GPU4FS_FN constexpr bool operator==(const Uuid& a, const Uuid& b) {
    for (u32 i = 0; i < 16; ++i) {
      if (a.bytes[i] != b.bytes[i]) return false;
    }
    return true;
  }
};

static_assert(sizeof(Uuid) == 16 && alignof(Uuid) == 1);

}  // namespace gpu4fs
