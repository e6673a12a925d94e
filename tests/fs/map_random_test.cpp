// The file map compared with a std::map, through random replacements, removals, conversions and checkpoints.
#include <gtest/gtest.h>

#include "base/emulated_warp.hpp"
#include "fs/map_model.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test {
namespace {

SmallPoolOptions walk_options() {
  SmallPoolOptions options;
  options.chunk_count = 3;
  options.chunk_bytes = u64{16} << 20;
  options.frame_count = 1024;
  options.staging_count = 512;
  return options;
}

template <class Group>
void walk_map(Group g, SmallFileSystem& small, fs::Operation& op, u64 number, u64 seed, u32 step_count) {
  MapWalk<Group> walk(g, small, op, seed);
  walk.number = number;
  for (u32 i = 0; i < step_count && !::testing::Test::HasFatalFailure(); ++i) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", step " + std::to_string(i));
    walk.step();
    walk.check();
  }
  if (::testing::Test::HasFatalFailure()) return;
  walk.remove(0, fs::map_page_max);
  walk.check();
}

u64 new_file(SmallFileSystem& small) {
  fs::Operation op{};
  MapWalk<Lane> walk(Lane{}, small, op, 1);
  walk.create_file();
  return walk.number;
}

// The pages in use after two checkpoints without any content.
u64 used_when_idle(SmallFileSystem& small) {
  EXPECT_EQ(small.checkpoint(Lane{}), Status::ok);
  EXPECT_EQ(small.checkpoint(Lane{}), Status::ok);
  return small.fs().data_counters().used;
}

TEST(MapRandom, AgreesWithModelOnLane) {
  for (u64 seed = 1; seed <= scaled(12); ++seed) {
    SmallFileSystem small(walk_options());
    const u64 number = new_file(small);
    const u64 used_before = used_when_idle(small);
    fs::Operation op{};
    walk_map(Lane{}, small, op, number, seed, 150);
    if (HasFatalFailure()) return;
    EXPECT_EQ(used_when_idle(small), used_before) << "pages leaked, seed " << seed;
  }
}

TEST(MapRandom, AgreesWithModelOnEmulatedWarp) {
  SmallFileSystem small(walk_options());
  const u64 number = new_file(small);
  const u64 used_before = used_when_idle(small);
  fs::Operation op{};
  run_emulated_warp([&](EmulatedWarp g) { walk_map(g, small, op, number, 77, scaled(12)); });
  if (HasFatalFailure()) return;
  EXPECT_EQ(used_when_idle(small), used_before) << "pages leaked";
}

}  // namespace
}  // namespace gpu4fs::test
