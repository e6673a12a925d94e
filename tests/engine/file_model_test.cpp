// Random file commands from several clients at once, compared with byte vectors; checkpoints in between, and at the end
// a comparison with the state after a crash.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "engine/file_fixture.hpp"
#include "engine/file_walk.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test {
namespace {

void expect_content(FileEngine& engine, const std::vector<ModelFile>& files) {
  {
    FileClient client(engine);
    ASSERT_EQ(client.reclaim_orphans().status, Status::ok);
  }
  ASSERT_EQ(stored_difference<Client>(engine, files), "");
}

void run_walks(FileEngineOptions options, u32 walk_count, u32 step_count) {
  DeviceImages images;
  std::vector<ModelFile> final_files;
  {
    FileEngine engine(options);
    std::vector<std::unique_ptr<FileWalk<Client>>> walks;
    for (u32 w = 0; w < walk_count; ++w) walks.push_back(std::make_unique<FileWalk<Client>>(engine, 100 + w));
    std::vector<std::thread> threads;
    for (u32 w = 0; w < walk_count; ++w) {
      threads.emplace_back([&, w] {
        for (u32 i = 0; i < step_count && walks[w]->step(); ++i) {
        }
        walks[w]->read_all();
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& walk : walks) ASSERT_EQ(walk->difference(), "");
    EXPECT_GT(engine.host().counters().commands_optimistic, walk_count * step_count / 100);
    FileClient client(engine);
    ASSERT_EQ(client.sync().status, Status::ok);
    images = engine.images();
    for (const auto& walk : walks) final_files.insert(final_files.end(), walk->files(), walk->files() + 2);
    for (const auto& walk : walks) ASSERT_TRUE(walk->remove_all()) << walk->difference();
    ASSERT_EQ(client.checkpoint().status, Status::ok);
    ASSERT_EQ(client.checkpoint().status, Status::ok);
    EXPECT_LE(engine.fs().data_counters().used, 24u) << "pages leaked";
    EXPECT_EQ(engine.fs().data_counters().reserved, engine.fs().dirty.count);
    EXPECT_EQ(engine.fs().had_error, 0u);
  }
  FileEngine after_crash(options, images);
  expect_content(after_crash, final_files);
}

FileEngineOptions options_with(u32 frame_count, u32 staging_count) {
  FileEngineOptions options;
  options.pool.chunk_count = 4;
  options.pool.chunk_bytes = u64{16} << 20;
  options.pool.frame_count = frame_count;
  options.pool.staging_count = staging_count;
  return options;
}

TEST(FileModel, OneClient) {
  run_walks(options_with(1024, 512), 1, scaled(4000));
}
TEST(FileModel, FourClients) {
  run_walks(options_with(1024, 512), 4, scaled(1500));
}
TEST(FileModel, LittleMemory) {
  run_walks(options_with(320, 192), 3, scaled(1500));
}

// Overwriting in place, freeing and allocating never touch pages of the last checkpoint.
TEST(FileModel, CrashLeavesTheLastCheckpoint) {
  const FileEngineOptions options = options_with(1024, 512);
  FileEngine engine(options);
  FileWalk<Client> walk(engine, 500);
  ASSERT_TRUE(walk.checkpoint());
  u32 compared = 0;
  for (u32 round = 0; round < scaled(60); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    for (u32 i = 0; i < 12; ++i) ASSERT_TRUE(walk.step()) << walk.difference();
    const DeviceImages images = engine.images();
    // A checkpoint that a command needed does not belong to the walk.
    if (engine.fs().epoch_durable != walk.durable_epoch) continue;
    FileEngine after_crash(options, images);
    expect_content(after_crash, walk.durable_files);
    if (HasFatalFailure()) return;
    ++compared;
  }
  EXPECT_GT(compared, 0u);
}

TEST(FileModel, OrphansAreFreedAtMount) {
  const FileEngineOptions options = options_with(512, 256);
  DeviceImages images;
  {
    FileEngine engine(options);
    FileClient client(engine);
    for (u32 i = 0; i < 20; ++i) {
      const std::string name = "orphan" + std::to_string(i);
      const u64 inode = client.create(name).result;
      ASSERT_EQ(client.write(inode, i * 5000, 100000).result, 100000u);
      ASSERT_EQ(client.unlink(name).result, inode);
    }
    ASSERT_EQ(client.checkpoint().status, Status::ok);
    images = engine.images();
  }
  FileEngine engine(options, images);
  FileClient client(engine);
  const ring::Completion done = client.reclaim_orphans();
  EXPECT_EQ(done.status, Status::ok) << status_name(done.status);
  EXPECT_EQ(done.result, 20u);
  EXPECT_EQ(client.reclaim_orphans().result, 0u);
  ASSERT_EQ(client.checkpoint().status, Status::ok);
  ASSERT_EQ(client.checkpoint().status, Status::ok);
  EXPECT_LE(engine.fs().data_counters().used, 24u);
  EXPECT_EQ(engine.fs().had_error, 0u);
}

}  // namespace
}  // namespace gpu4fs::test
