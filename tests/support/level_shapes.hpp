// Shapes of chunks for tests: a level, its columns, its stripes.
#pragma once

#include <iterator>
#include <string>
#include <vector>

#include "support/space_fixture.hpp"

namespace gpu4fs::test {

struct LevelShape {
  const char* name;
  format::RaidLevel level;
  u32 column_count;
  u32 stripe_length_bytes;
  bool is_scattered = false;  // the pages of its devices are not neighbours in memory
};

// A pool with one chunk of the shape, one device for each column.
inline SpaceOptions options_of(const LevelShape& shape) {
  SpaceOptions options;
  options.device_count = shape.column_count;
  options.level = shape.level;
  options.column_count = shape.column_count;
  options.stripe_length_bytes = shape.stripe_length_bytes;
  options.is_scattered = shape.is_scattered;
  return options;
}

// The shapes, and every `step`-th of them on scattered devices too.
template <class Shapes>
std::vector<LevelShape> with_scattered(const Shapes& shapes, std::size_t step = 1) {
  std::vector<LevelShape> all(std::begin(shapes), std::end(shapes));
  const std::size_t count = all.size();
  for (std::size_t i = 0; i < count; i += step) {
    all.push_back(all[i]);
    all.back().is_scattered = true;
  }
  return all;
}

inline std::string name_of(const LevelShape& shape) {
  return std::string(shape.name) + (shape.is_scattered ? "_scattered" : "");
}

}  // namespace gpu4fs::test
