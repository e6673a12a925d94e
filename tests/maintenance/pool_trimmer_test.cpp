// The trimmer with a simulated engine that reports chunks that the server does not know yet.
#include "maintenance/trim/pool_trimmer.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "support/played_pool.hpp"

namespace gpu4fs::maintenance::pool_trimmer_test {
namespace {

// Growth makes a chunk known to the engine first. Its regions stay unchanged, but the engine is told that it may use
// them again, and the pass continues after it.
TEST(PoolTrimmer, PassesOverChunksThatTheServerDoesNotKnowYet) {
  MountedPool mounted{pool::OpenedPool{}};
  mounted.setup.files.push_back(gpu4fs::test::make_memory_file(1 << 20));
  ASSERT_TRUE(mounted.setup.files[0].grows_with_use());
  ChunkMapper mapper(mounted, session::ServerPurpose::mount);
  // Returns the runs one after another.
  std::vector<wire::TrimResult> runs{{9, wire::trim_chunk_end, 0}, {7, 5, 2}, {0, 3, 3}};
  gpu4fs::test::PlayedHost host([&](const wire::Command& command) {
    ring::Completion done{};
    if (command.opcode != wire::Opcode::grow || command.mask != wire::grow_trim || runs.empty()) return done;
    done.result = wire::pack_trim(runs.back());
    runs.pop_back();
    return done;
  });
  PoolTrimmer trimmer(mounted, mapper, host);
  const TrimReport report = trimmer.trim_all();
  EXPECT_EQ(report.status, Status::ok);
  EXPECT_TRUE(report.is_complete);
  EXPECT_EQ(report.run_count, 3u);
  EXPECT_EQ(report.region_count, 0u);
  EXPECT_EQ(report.byte_count, 0u);
  std::vector<u64> trimmed;
  for (const wire::Command& command : host.commands().all()) {
    if (command.opcode == wire::Opcode::grow && command.mask == wire::grow_trimmed) trimmed.push_back(command.inode);
  }
  EXPECT_EQ(trimmed, (std::vector<u64>{0, 7}));
  for (const u64 chunk : {0, 7, 9}) EXPECT_FALSE(mapper.is_thin(chunk));
}

}  // namespace
}  // namespace gpu4fs::maintenance::pool_trimmer_test
