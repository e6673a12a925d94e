// Random numbers from the kernel's generator. Host only.
#pragma once

#include <cstddef>
#include <type_traits>

#include "base/types.hpp"
#include "base/uuid.hpp"

namespace gpu4fs {

// Throws std::system_error.
void fill_random(void* bytes, std::size_t length);

template <class T>
T random_number() {
  static_assert(std::is_unsigned_v<T>);
  T number = 0;
  fill_random(&number, sizeof(number));
  return number;
}

// A version 4 UUID.
Uuid random_uuid();

}  // namespace gpu4fs
