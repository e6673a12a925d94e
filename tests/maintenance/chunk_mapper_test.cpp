// What the mapper makes reachable for a simulated engine, and what it remembers of it.
#include "maintenance/chunk_mapper.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "base/limits.hpp"
#include "pool/chunk_reach.hpp"
#include "raid/levels/levels.hpp"
#include "support/played_pool.hpp"
#include "wire/rebuild_format.hpp"

namespace gpu4fs::maintenance::chunk_mapper_test {
namespace {

using gpu4fs::test::PlayedEngine;

constexpr u64 chunk_bytes = gpu4fs::test::PlayedPool::chunk_bytes;
constexpr u64 device_bytes = gpu4fs::test::PlayedPool::device_bytes;

// A mirrored pool on memory without a file, which is present from the start.
class ChunkMapperTest : public ::testing::Test {
 protected:
  ChunkMapperTest() {
    for (u32 i = 0; i < 2; ++i) pool_.add_device(device::MappedFile::anonymous(device_bytes));
    pool_.add_chunk();
  }

  const u8* column(u32 chunk, u32 device) const {
    return mounted_.setup.files[device].base() + mounted_.pool.chunks[chunk].columns[device].offset_bytes();
  }
  // A mount reaches the front from the start.
  PlayedEngine::Range behind_front(u32 chunk, u32 device) const {
    const format::ChunkDescriptor& descriptor = mounted_.pool.chunks[chunk].descriptor;
    const u64 front = pool::header_front_bytes(descriptor);
    return {column(chunk, device) + front, raid::column_length(descriptor) - front};
  }
  std::vector<PlayedEngine::Range> take_mapped() { return engine_.take_mapped(); }
  Status map(ChunkMapper& mapper, u64 chunk) { return mapper.map_chunk(chunk, *pool_.open_session()); }

  gpu4fs::test::PlayedPool pool_;
  MountedPool& mounted_ = pool_.mounted;
  PlayedEngine& engine_ = pool_.engine();
};

TEST_F(ChunkMapperTest, MapsEachColumnOnce) {
  ChunkMapper mapper(mounted_, session::ServerPurpose::mount);
  EXPECT_FALSE(mapper.is_mapped(0));
  ASSERT_EQ(map(mapper, 0), Status::ok);
  EXPECT_EQ(take_mapped(), (std::vector{behind_front(0, 0), behind_front(0, 1)}));
  EXPECT_TRUE(mapper.is_mapped(0));
  EXPECT_EQ(mapper.mapped_count(), 1u);
  ASSERT_EQ(map(mapper, 0), Status::ok);
  EXPECT_EQ(take_mapped().size(), 0u);
}

TEST_F(ChunkMapperTest, RefusesChunksThatAreNotThere) {
  ChunkMapper mapper(mounted_, session::ServerPurpose::mount);
  EXPECT_EQ(map(mapper, 1), Status::stale);
  mounted_.pool.chunks[0].columns.clear();
  EXPECT_EQ(map(mapper, 0), Status::stale);
  EXPECT_EQ(take_mapped().size(), 0u);
  EXPECT_EQ(mapper.mapped_count(), 0u);
}

TEST_F(ChunkMapperTest, MapsThinAndForgottenChunksAgain) {
  ChunkMapper mapper(mounted_, session::ServerPurpose::mount);
  ASSERT_EQ(map(mapper, 0), Status::ok);
  {
    const auto holding = mapper.hold_reach();
    mapper.mark_thin(0);
  }
  EXPECT_TRUE(mapper.is_thin(0));
  EXPECT_TRUE(mapper.is_mapped(0));
  take_mapped();
  ASSERT_EQ(map(mapper, 0), Status::ok);
  EXPECT_EQ(take_mapped().size(), 2u);
  EXPECT_FALSE(mapper.is_thin(0));
  mapper.forget_chunk(0);
  EXPECT_FALSE(mapper.is_mapped(0));
  EXPECT_EQ(mapper.mapped_count(), 0u);
  ASSERT_EQ(map(mapper, 0), Status::ok);
  EXPECT_EQ(take_mapped().size(), 2u);
}

TEST_F(ChunkMapperTest, PassesOverDevicesWithoutAFile) {
  mounted_.setup.files[0] = device::MappedFile::absent("played", false);
  ChunkMapper mapper(mounted_, session::ServerPurpose::mount);
  ASSERT_EQ(map(mapper, 0), Status::ok);
  EXPECT_EQ(take_mapped(), std::vector{behind_front(0, 1)});
}

TEST_F(ChunkMapperTest, DoesNotMapAChunkWhoseMemberCannotBeReached) {
  ChunkMapper mapper(mounted_, session::ServerPurpose::mount);
  engine_.refuse(behind_front(0, 1).base);
  EXPECT_EQ(map(mapper, 0), Status::gpu_error);
  EXPECT_FALSE(mapper.is_mapped(0));
  EXPECT_EQ(engine_.commands().all().size(), 0u);
}

TEST_F(ChunkMapperTest, GivesADeviceUpThatIsBeingFilledAndCannotBeReached) {
  mounted_.pool.devices[0].state = pool::MemberState::stale;
  ChunkMapper mapper(mounted_, session::ServerPurpose::mount);
  engine_.refuse(behind_front(0, 0).base);
  ASSERT_EQ(map(mapper, 0), Status::ok);
  ASSERT_EQ(engine_.commands().all().size(), 1u);
  EXPECT_EQ(engine_.commands().all()[0].opcode, wire::Opcode::rebuild);
  EXPECT_EQ(engine_.commands().all()[0].mode, static_cast<u32>(wire::RebuildStep::give_up));
  EXPECT_EQ(engine_.commands().all()[0].inode, 0u);
  EXPECT_TRUE(mapper.is_mapped(0));
  EXPECT_EQ(take_mapped(), std::vector{behind_front(0, 1)});
  mapper.forget_chunk(0);
  engine_.answer_with(Status::busy);
  EXPECT_EQ(map(mapper, 0), Status::busy) << "the pool cannot do without the device";
  EXPECT_FALSE(mapper.is_mapped(0));
}

// A check knows nothing of the chunk before, and needs only the regions with pages.
TEST_F(ChunkMapperTest, ReachesRegionsInUseForACheck) {
  ChunkMapper mapper(mounted_, session::ServerPurpose::check);
  const format::ChunkDescriptor& descriptor = mounted_.pool.chunks[0].descriptor;
  const u64 header = pool::header_area_bytes(descriptor);
  std::vector<u64> allocated(chunk_bytes / page_size / 64);
  allocated[pages_per_block_2m / 64] = 1;  // of the second region
  mapper.reach_regions(0, allocated);
  constexpr u64 region = u64{2} << 20;
  EXPECT_EQ(take_mapped(), (std::vector<PlayedEngine::Range>{{column(0, 0), header},
                                                             {column(0, 1), header},
                                                             {column(0, 0) + header + region, region},
                                                             {column(0, 1) + header + region, region}}));
  EXPECT_TRUE(mapper.is_mapped(0));
  mapper.forget_chunk(0);
  mapper.reach_regions(0, {});
  const u64 length = raid::column_length(descriptor);
  EXPECT_EQ(take_mapped(), (std::vector<PlayedEngine::Range>{{column(0, 0), length}, {column(0, 1), length}}));
}

// Empty chunks are not filled, so they are not needed in advance.
TEST_F(ChunkMapperTest, PreparesTheOtherColumnsOfChunksInUse) {
  mounted_.setup.files[0] = device::MappedFile::absent("played", false);
  mounted_.pool.devices[0].state = pool::MemberState::stale;
  const u32 empty = 0;
  const u32 used = pool_.add_chunk();
  ChunkMapper mapper(mounted_, session::ServerPurpose::check);
  const device::MappedFile newcomer = device::MappedFile::anonymous(device_bytes);
  mapper.prepare_memory(0, newcomer, {{empty, 0, chunk_bytes / page_size, 0}, {used, 0, chunk_bytes / page_size, 7}});
  const u64 length = raid::column_length(mounted_.pool.chunks[used].descriptor);
  EXPECT_EQ(take_mapped(), (std::vector<PlayedEngine::Range>{{column(used, 1), length}}));
  EXPECT_FALSE(mapper.is_mapped(empty));
  EXPECT_TRUE(mapper.is_mapped(used));
}

}  // namespace
}  // namespace gpu4fs::maintenance::chunk_mapper_test
