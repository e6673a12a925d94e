// Checksums of the structures that contain their own: XXH3-64 of the page with the field zero.
#pragma once

#include <cstring>

#include "base/types.hpp"
#include "base/xxh3_serial.hpp"

namespace gpu4fs::pool {

// `T` is a page-sized format structure with a field `checksum`. The seeds are in docs/internals/format.md.
template <class T>
u64 structure_checksum(const T& structure, u64 seed) {
  static_assert(sizeof(T) == 4096);
  T copy;
  std::memcpy(&copy, &structure, sizeof(T));
  copy.checksum = 0;
  return xxh3_64(&copy, sizeof(T), seed);
}

template <class T>
void seal(T& structure, u64 seed) {
  structure.checksum = structure_checksum(structure, seed);
}

}  // namespace gpu4fs::pool
