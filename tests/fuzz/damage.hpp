// Reads an input, and changes bytes as the input says.
#pragma once

#include <algorithm>
#include <cstring>

#include "base/limits.hpp"
#include "base/types.hpp"

namespace gpu4fs::fuzz {

// An input as a stream; after its end there are zeros.
class Input {
 public:
  Input(const u8* data, std::size_t length) : at_(data), end_(data + length) {}

  bool empty() const { return at_ == end_; }
  u8 byte() { return at_ == end_ ? u8{0} : *at_++; }
  u32 half() { return byte() | u32{byte()} << 8; }
  u64 number(u32 bytes) {
    u64 value = 0;
    for (u32 i = 0; i < bytes; ++i) value |= u64{byte()} << 8 * i;
    return value;
  }
  u64 below(u64 bound) { return (bound <= 256 ? byte() : half()) % bound; }

  // A number of the kind that parsers handle wrongly: small, a power of two or near one, or anything.
  u64 odd_number() {
    const u32 kind = byte();
    switch (kind % 8) {
      case 0:
        return kind / 8;
      case 1:
        return u64{1} << byte() % 64;
      case 2:
        return (u64{1} << byte() % 64) - 1;
      case 3:
        return ~u64{0} - kind / 8;
      case 4:
        return number(2);
      case 5:
        return number(4);
      case 6:
        return number(3) * page_size;
      default:
        return number(8);
    }
  }

 private:
  const u8* at_;
  const u8* end_;
};

// Changes some of `bytes`; `length` is at least 8.
inline void change_bytes(Input& input, u8* bytes, u64 length) {
  const u32 operation = input.byte();
  const u64 offset = input.half() % length;
  const u64 width = u64{1} << operation / 8 % 4;
  const u64 at = offset & ~(width - 1);
  u64 value = 0;
  switch (operation % 8) {
    case 0:
      bytes[offset] = static_cast<u8>(bytes[offset] ^ 1u << operation / 8 % 8);
      return;
    case 1:
      bytes[offset] = input.byte();
      return;
    case 2:
      std::memcpy(&value, bytes + at, width);
      value += static_cast<u64>(i64{input.byte()} - 128);
      break;
    case 3: {
      const u64 count = std::min<u64>(length - offset, input.byte());
      std::memset(bytes + offset, operation / 8, count);
      return;
    }
    case 4: {
      const u64 from = input.half() % length;
      const u64 count = std::min<u64>(length - std::max(from, offset), u64{8} << operation / 8 % 8);
      std::memmove(bytes + offset, bytes + from, count);
      return;
    }
    case 5: {  // a block pointer, or nearly one
      const u32 tags = input.byte();
      value = input.number(2) << (tags % 4 == 2 ? 21 : tags % 4 == 3 ? 30 : 12) | tags % 64;
      std::memcpy(bytes + (offset & ~u64{7}), &value, 8);
      return;
    }
    default:
      value = input.odd_number();
      break;
  }
  std::memcpy(bytes + at, &value, width);
}

}  // namespace gpu4fs::fuzz
