// Settings of tests in the environment. GPU4FS_TEST_SCALE: the length of random tests in percent (cmake/tests.cmake).
#pragma once

#include <algorithm>
#include <cstdlib>

#include "base/types.hpp"

namespace gpu4fs::test {

inline u32 scaled(u32 count) {
  const char* text = std::getenv("GPU4FS_TEST_SCALE");
  const unsigned long percent = text == nullptr ? 100 : std::strtoul(text, nullptr, 10);
  return std::max<u32>(1, static_cast<u32>(u64{count} * (percent == 0 ? 100 : percent) / 100));
}

// With sanitizers a part of repeated work suffices.
inline bool is_short() {
  return scaled(100) < 100;
}

// A number in the environment.
inline u64 number_from(const char* name, u64 otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

}  // namespace gpu4fs::test
