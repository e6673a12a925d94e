// All levels, and the one switch over them. A level that is a reserved number of the format is not
// here.
#pragma once

#include "base/check.hpp"
#include "raid/levels/single.hpp"

namespace gpu4fs::raid {

// True for the levels that this version can read and write.
GPU4FS_FN constexpr bool is_known_level(format::RaidLevel level) {
  return level == SingleLevel::level;
}

// Calls visit(Level{}) with the descriptor of `level`, which is known.
template <class Visit>
GPU4FS_FN auto with_level(format::RaidLevel level, Visit&& visit) {
  GPU4FS_CHECK(is_known_level(level));
  switch (level) {
    default:
      return visit(SingleLevel{});
  }
}

}  // namespace gpu4fs::raid
