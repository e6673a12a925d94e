// Shapes of chunks for tests: a level, its columns, its stripes.
#pragma once

#include "support/space_fixture.hpp"

namespace gpu4fs::test {

struct LevelShape {
  const char* name;
  format::RaidLevel level;
  u32 column_count;
  u32 stripe_length_bytes;
};

// A pool with one chunk of the shape, one device for each column.
inline SpaceOptions options_of(const LevelShape& shape) {
  SpaceOptions options;
  options.device_count = shape.column_count;
  options.level = shape.level;
  options.column_count = shape.column_count;
  options.stripe_length_bytes = shape.stripe_length_bytes;
  return options;
}

}  // namespace gpu4fs::test
