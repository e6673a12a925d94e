// The beginning of a line about a device of a pool. Host only.
#pragma once

#include <fmt/format.h>

#include <string>

#include "base/types.hpp"

namespace gpu4fs::tools {

// "device 0    /dev/shm/a: "; a device without a file has no path to name. `state`: of pool::member_state_name().
inline std::string device_head(u64 index, const std::string& path, const std::string& state) {
  const bool has_file = state != "missing" && state != "removed";
  return fmt::format("device {:<4} {}", index, has_file ? path + ": " : "");
}

}  // namespace gpu4fs::tools
