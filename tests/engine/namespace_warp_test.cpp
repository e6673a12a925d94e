// Name commands executed by an emulated warp and by a lane: the answers and the trees are the same.
#include <gtest/gtest.h>

#include <optional>

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
    NameWalk<Client> walk(engine);
    lane = run_name_walk(walk, steps);
  }
  NameWalkResult warp;
  {
    FileEngineOptions options;
    options.start = false;
    FileEngine engine(options);
    engine.engine().config.caches_slots = 1;
    std::optional<NameWalk<WaitingClient>> walk;
    const KernelWarp worker(engine.engine());
    walk.emplace(engine);
    warp = run_name_walk(*walk, steps);
    EXPECT_GT(engine.host().counters().commands_optimistic, 0u);
  }
  EXPECT_EQ(warp.answers, lane.answers);
  EXPECT_EQ(warp.tree, lane.tree);
  EXPECT_TRUE(lane.is_complete && warp.is_complete);
  EXPECT_FALSE(lane.tree.empty());
}

}  // namespace
}  // namespace gpu4fs::test
