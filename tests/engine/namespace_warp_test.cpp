// Name commands executed by an emulated warp and by a lane: the answers and the trees are the same.
#include <gtest/gtest.h>

#include "engine/file_fixture.hpp"
#include "engine/name_walk.hpp"
#include "engine/warp_workers.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test {
namespace {

TEST(NamespaceWarp, AnswersAsALaneDoes) {
  const u32 steps = scaled(150);
  NameWalkResult lane;
  {
    FileEngine engine;
    lane = run_name_walk<Client>(engine, steps);
  }
  NameWalkResult warp;
  {
    FileEngineOptions options;
    options.start = false;
    FileEngine engine(options);
    WarpWorkers workers(engine.engine(), 1);
    warp = run_name_walk<WaitingClient>(engine, steps);
  }
  EXPECT_EQ(warp.answers, lane.answers);
  EXPECT_EQ(warp.tree, lane.tree);
  EXPECT_TRUE(lane.is_complete && warp.is_complete);
  EXPECT_FALSE(lane.tree.empty());
}

}  // namespace
}  // namespace gpu4fs::test
