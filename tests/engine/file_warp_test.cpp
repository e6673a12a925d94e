// File commands executed by emulated warps: the code paths of the GPU engine, including its group discipline.
#include <gtest/gtest.h>

#include <optional>

#include "engine/file_fixture.hpp"
#include "engine/file_walk.hpp"
#include "engine/warp_workers.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test {
namespace {

FileEngineOptions warp_options() {
  FileEngineOptions options;
  options.pool.chunk_count = 4;
  options.pool.chunk_bytes = u64{16} << 20;
  options.start = false;
  return options;
}

// The warp stays at a quiet ring and remembers where it has found things.
TEST(FileWarp, AgreesWithModel) {
  const FileEngineOptions options = warp_options();
  DeviceImages images;
  std::vector<ModelFile> files;
  {
    FileEngine engine(options);
    engine.engine().config.caches_slots = 1;
    std::optional<FileWalk<WaitingClient>> walk;
    {
      const KernelWarp warp(engine.engine());
      walk.emplace(engine, 900);
      for (u32 i = 0; i < scaled(200); ++i) ASSERT_TRUE(walk->step()) << walk->difference();
      ASSERT_TRUE(walk->read_all() && walk->checkpoint()) << walk->difference();
      files = walk->durable_files;
    }
    images = engine.images();
    EXPECT_EQ(engine.fs().had_error, 0u);
    EXPECT_GT(engine.host().counters().commands_optimistic, 0u);
  }
  FileEngineOptions lane_options = options;
  lane_options.start = true;
  FileEngine after(lane_options, images);
  EXPECT_EQ(stored_difference<Client>(after, files), "");
}

}  // namespace
}  // namespace gpu4fs::test
