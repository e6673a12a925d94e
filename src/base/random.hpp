// Random numbers from the kernel's generator. Host only.
#pragma once

#include <sys/random.h>

#include <cerrno>
#include <cstddef>
#include <system_error>
#include <type_traits>

#include "base/types.hpp"
#include "base/uuid.hpp"

namespace gpu4fs {

// Throws std::system_error.
inline void fill_random(void* bytes, std::size_t length) {
  ssize_t got = 0;
  do {
    got = ::getrandom(bytes, length, 0);
  } while (got < 0 && errno == EINTR);
  // Up to 256 bytes come in one piece.
  if (got != static_cast<ssize_t>(length))
    throw std::system_error(got < 0 ? errno : EIO, std::generic_category(), "getrandom");
}

template <class T>
T random_number() {
  static_assert(std::is_unsigned_v<T>);
  T number = 0;
  fill_random(&number, sizeof(number));
  return number;
}

// A version 4 UUID.
inline Uuid random_uuid() {
  Uuid uuid{};
  fill_random(uuid.bytes, sizeof(uuid.bytes));
  uuid.bytes[6] = static_cast<u8>((uuid.bytes[6] & 0x0f) | 0x40);
  uuid.bytes[8] = static_cast<u8>((uuid.bytes[8] & 0x3f) | 0x80);
  return uuid;
}

}  // namespace gpu4fs
