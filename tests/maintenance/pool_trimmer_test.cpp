// The trimmer against an engine that is played here: what it is told of chunks that the server does not know yet.
#include "maintenance/trim/pool_trimmer.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "support/memory_folder.hpp"

namespace gpu4fs::maintenance::pool_trimmer_test {
namespace {

// Gives the runs one after another, and writes down what is acknowledged.
class PlayedEngine final : public PoolHost {
 public:
  explicit PlayedEngine(std::vector<wire::TrimResult> runs) : runs_(std::move(runs)) {}

  ring::Completion call(wire::Command command) override {
    ring::Completion done{};
    if (command.opcode != wire::Opcode::grow) return done;
    if (command.mask == wire::grow_trim && next_ < runs_.size()) done.result = wire::pack_trim(runs_[next_++]);
    if (command.mask == wire::grow_trimmed) trimmed.push_back(command.inode);
    return done;
  }

  void device_joined(const std::string& /*spec*/) override {}
  void device_left(const std::string& /*path*/) override {}
  void device_replaced(const std::string& /*path*/, const std::string& /*spec*/) override {}
  void forget_errors(u32 /*device*/) override {}

  std::vector<u64> trimmed;

 private:
  std::vector<wire::TrimResult> runs_;
  std::size_t next_ = 0;
};

// Growth makes a chunk known to the engine first. Its regions stay as they are, but the engine is told that it may use
// them again, and the pass goes on behind it.
TEST(PoolTrimmer, PassesOverChunksThatTheServerDoesNotKnowYet) {
  MountedPool mounted{pool::OpenedPool{}};
  std::string path = gpu4fs::test::memory_folder() + "/gpu4fs_trimmer_XXXXXX";
  const int descriptor = ::mkstemp(path.data());
  ASSERT_GE(descriptor, 0);
  ASSERT_EQ(::ftruncate(descriptor, 1 << 20), 0);
  mounted.setup.files.push_back(device::MappedFile::adopt(descriptor, path));
  ASSERT_EQ(::unlink(path.c_str()), 0);
  if (!mounted.setup.files[0].grows_with_use()) GTEST_SKIP() << "no file on a tmpfs can be had here";
  ChunkMapper mapper(mounted, session::ServerPurpose::mount);
  PlayedEngine engine({{0, 3, 3}, {7, 5, 2}, {9, wire::trim_chunk_end, 0}});
  PoolTrimmer trimmer(mounted, mapper, engine);
  const TrimReport report = trimmer.trim_all();
  EXPECT_EQ(report.status, Status::ok);
  EXPECT_TRUE(report.is_complete);
  EXPECT_EQ(report.run_count, 3u);
  EXPECT_EQ(report.region_count, 0u);
  EXPECT_EQ(report.byte_count, 0u);
  EXPECT_EQ(engine.trimmed, (std::vector<u64>{0, 7}));
  for (const u64 chunk : {0, 7, 9}) EXPECT_FALSE(mapper.is_thin(chunk));
}

}  // namespace
}  // namespace gpu4fs::maintenance::pool_trimmer_test
