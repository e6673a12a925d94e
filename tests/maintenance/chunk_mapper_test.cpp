// What the mapper brings within reach of an engine that is played here, and what it remembers of it.
#include "maintenance/chunk_mapper.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/access.hpp"
#include "base/limits.hpp"
#include "engine/engine_host.hpp"
#include "pool/chunk_reach.hpp"
#include "pool/pool_error.hpp"
#include "raid/levels/levels.hpp"
#include "wire/rebuild_format.hpp"

namespace gpu4fs::maintenance::chunk_mapper_test {
namespace {

constexpr u64 chunk_bytes = u64{24} << 20;
constexpr u64 device_bytes = u64{64} << 20;
constexpr u64 column_offset = u64{1} << 20;

// Writes down what it is to reach, and the commands that it gets.
class PlayedEngine final : public engine::EngineHost, private ring::EnginePort {
 public:
  struct Range {
    const u8* base;
    u64 length;
    bool operator==(const Range&) const = default;
  };

  u32 open_session(const engine::SessionRequest& request) override {
    memory_ = request.memory;
    layout_ = request.layout;
    return 0;
  }
  Status map_memory(void* base, u64 length) override {
    if (refused.contains(static_cast<const u8*>(base))) return Status::gpu_error;
    mapped.push_back({static_cast<const u8*>(base), length});
    return Status::ok;
  }
  ring::EnginePort& port(u32 /*session*/) override { return *this; }

  void start() override {}
  void stop() override {}
  void close_session(u32 /*session*/) override {}
  Status add_buffer(u32, u32, void*, u64) override { return Status::not_supported; }
  void remove_buffer(u32, u32) override {}
  bool wait_upcall(ring::Upcall*, u64) override { return false; }
  void while_paused(const std::function<void()>& work) override { work(); }
  [[nodiscard]] bool has_died() const override { return false; }
  [[nodiscard]] std::string fault_text() const override { return ""; }
  void request_death() override {}
  [[nodiscard]] std::string description() const override { return "played"; }
  [[nodiscard]] engine::EngineCounters counters() const override { return {}; }
  [[nodiscard]] u64 durable_epoch() const override { return 1; }

  std::vector<Range> mapped;
  std::set<const u8*> refused;  // beginnings of what cannot be reached
  std::vector<wire::Command> commands;
  Status answer = Status::ok;

 private:
  void doorbell() override {}
  bool wait(std::uint64_t end_position, ring::Predicate done) override {
    const u64 position = end_position - 1;
    const u64 slot = position & ((u64{1} << layout_.depth_log2) - 1);
    const u64 sequence = wire::ring_sequence(position, layout_.depth_log2);
    const u8* descriptor = memory_ + layout_.descriptor_offset + slot * sizeof(wire::RingDescriptor);
    commands.push_back(wire::decode_command(*reinterpret_cast<const wire::RingDescriptor*>(descriptor)));
    store_shared_16(memory_ + layout_.completion_offset + slot * sizeof(wire::RingCompletion),
                    {0, static_cast<u64>(answer) | sequence << 32});
    return done();
  }

  u8* memory_ = nullptr;
  ring::SessionLayout layout_{};
};

// A mirrored pool on memory without a file, which is all there from the start.
class ChunkMapperTest : public ::testing::Test {
 protected:
  ChunkMapperTest() {
    auto engine = std::make_unique<PlayedEngine>();
    engine_ = engine.get();
    mounted_.setup.host = std::move(engine);
    for (u32 i = 0; i < 2; ++i) add_device(device::MappedFile::anonymous(device_bytes));
    add_chunk();
  }

  void add_device(device::MappedFile file) {
    mounted_.setup.files.push_back(std::move(file));
    mounted_.pool.devices.push_back({pool::DeviceFile::absent("played"), {}, true, pool::MemberState::here, 0});
  }
  u32 add_chunk() {
    pool::OpenedChunk chunk{};
    chunk.descriptor.level = format::RaidLevel::raid1;
    chunk.descriptor.column_count = 2;
    chunk.descriptor.redundancy = 1;
    chunk.descriptor.size_bytes = chunk_bytes;
    const u64 number = mounted_.pool.chunks.size();
    chunk.descriptor.base_address = number * chunk_bytes;
    const u64 offset = column_offset + number * (device_bytes / 2);
    for (u32 i = 0; i < 2; ++i) chunk.columns.push_back(format::ColumnAddress::make(i, offset));
    mounted_.pool.chunks.push_back(std::move(chunk));
    return static_cast<u32>(number);
  }
  const u8* column(u32 chunk, u32 device) const {
    return mounted_.setup.files[device].base() + mounted_.pool.chunks[chunk].columns[device].offset_bytes();
  }
  // A mount reaches what is in front from the start.
  PlayedEngine::Range behind_front(u32 chunk, u32 device) const {
    const format::ChunkDescriptor& descriptor = mounted_.pool.chunks[chunk].descriptor;
    const u64 front = pool::header_front_bytes(descriptor);
    return {column(chunk, device) + front, raid::column_length(descriptor) - front};
  }
  std::vector<PlayedEngine::Range> take_mapped() { return std::exchange(engine_->mapped, {}); }
  Status map(ChunkMapper& mapper, u64 chunk) {
    session::ServerSession session(*mounted_.setup.host, mounted_.open_close, session::ServerSession::Kind::internal, 2,
                                   page_size);
    return mapper.map_chunk(chunk, session);
  }

  MountedPool mounted_{pool::OpenedPool{}};
  PlayedEngine* engine_ = nullptr;
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
  engine_->refused.insert(behind_front(0, 1).base);
  EXPECT_EQ(map(mapper, 0), Status::gpu_error);
  EXPECT_FALSE(mapper.is_mapped(0));
  EXPECT_EQ(engine_->commands.size(), 0u);
}

TEST_F(ChunkMapperTest, GivesADeviceUpThatIsBeingFilledAndCannotBeReached) {
  mounted_.pool.devices[0].state = pool::MemberState::stale;
  ChunkMapper mapper(mounted_, session::ServerPurpose::mount);
  engine_->refused.insert(behind_front(0, 0).base);
  ASSERT_EQ(map(mapper, 0), Status::ok);
  ASSERT_EQ(engine_->commands.size(), 1u);
  EXPECT_EQ(engine_->commands[0].opcode, wire::Opcode::rebuild);
  EXPECT_EQ(engine_->commands[0].mode, static_cast<u32>(wire::RebuildStep::give_up));
  EXPECT_EQ(engine_->commands[0].inode, 0u);
  EXPECT_TRUE(mapper.is_mapped(0));
  EXPECT_EQ(take_mapped(), std::vector{behind_front(0, 1)});
  mapper.forget_chunk(0);
  engine_->answer = Status::busy;
  EXPECT_EQ(map(mapper, 0), Status::busy) << "the pool cannot do without the device";
  EXPECT_FALSE(mapper.is_mapped(0));
}

// A check knows nothing of the chunk before, and needs the regions with pages alone.
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

// What does not hold anything is not filled, so it is not needed ahead.
TEST_F(ChunkMapperTest, PreparesTheOtherColumnsOfChunksInUse) {
  mounted_.setup.files[0] = device::MappedFile::absent("played", false);
  mounted_.pool.devices[0].state = pool::MemberState::stale;
  const u32 empty = 0;
  const u32 used = add_chunk();
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
