// Shapes of chunks for tests: a level, its columns, its stripes.
#pragma once

#include <iterator>
#include <string>
#include <vector>

#include "support/space_fixture.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test {

struct LevelShape {
  const char* name;
  format::RaidLevel level;
  u32 column_count;
  u32 stripe_length_bytes;
  device::DeviceKind kind = device::DeviceKind::memory;
};

// A pool with one chunk of the shape, one device for each column.
inline SpaceOptions options_of(const LevelShape& shape) {
  SpaceOptions options;
  options.device_count = shape.column_count;
  options.level = shape.level;
  options.column_count = shape.column_count;
  options.stripe_length_bytes = shape.stripe_length_bytes;
  options.kind = shape.kind;
  return options;
}

// The shapes, every `step`-th of them on scattered devices too, and two of them on staged devices; of short tests one.
// Under ThreadSanitizer none is: a group of its own races with nobody (tests/raid/staged_test.cpp has threads).
template <class Shapes>
std::vector<LevelShape> on_all_devices(const Shapes& shapes, std::size_t step = 1) {
  std::vector<LevelShape> all(std::begin(shapes), std::end(shapes));
  const std::size_t count = all.size();
  for (std::size_t i = 0; i < count; i += step) {
    all.push_back(all[i]);
    all.back().kind = device::DeviceKind::scattered;
  }
  for (const std::size_t i : {count / 3, count - 1}) {
    if (GPU4FS_TSAN != 0 || (i != count / 3 && is_short())) continue;
    all.push_back(all[i]);
    all.back().kind = device::DeviceKind::staged;
  }
  return all;
}

inline std::string name_of(device::DeviceKind kind) {
  return kind == device::DeviceKind::memory ? "memory" : kind == device::DeviceKind::staged ? "staged" : "scattered";
}
inline std::string name_of(const LevelShape& shape) {
  return std::string(shape.name) + (shape.kind == device::DeviceKind::memory ? "" : "_" + name_of(shape.kind));
}

}  // namespace gpu4fs::test
