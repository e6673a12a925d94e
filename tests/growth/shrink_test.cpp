// Pools that lose chunks and devices while they are mounted: the content of the others stays, and chunks can be created
// again.
#include <atomic>
#include <set>
#include <thread>

#include "growth/growing_pool.hpp"
#include "pool/pool_open.hpp"

namespace gpu4fs::test::shrink_test {
namespace {

constexpr u64 shrink_device_bytes = u64{40} << 20;

struct ShrinkShape {
  const char* profile;
  u32 device_count;
  const char* folder;
  friend std::ostream& operator<<(std::ostream& out, const ShrinkShape& shape) {
    return out << shape.profile << " " << shape.device_count << " in " << shape.folder;
  }
};

class ShrinkingPools : public ::testing::TestWithParam<ShrinkShape> {
 protected:
  ShrinkingPools() : folder_(GetParam().folder) {
    for (u32 i = 0; i < GetParam().device_count; ++i) devices_.push_back(folder_ / fmt::format("device{}", i));
    pool::MakePoolOptions options;
    options.device_paths = devices_;
    options.size_bytes = shrink_device_bytes;
    options.chunk_size_bytes = u64{8} << 20;
    options.data_profile = options.metadata_profile = GetParam().profile;
    options.initial_share = 30;
    pool::make_pool(options);
  }

  std::string new_device(const std::string& name) {
    pool::DeviceFile::create(folder_ / name, shrink_device_bytes);
    return folder_ / name;
  }

  // Chunks without pages in use that did not exist before.
  static std::vector<u32> empty_chunks(GrowthMount& mount, const std::set<u32>& before) {
    std::vector<u32> empty;
    for (const maintenance::ChunkUsage& chunk : mount.server().grower().usage()) {
      if (chunk.pages_taken == 0 && !before.contains(chunk.chunk)) empty.push_back(chunk.chunk);
    }
    return empty;
  }
  static std::set<u32> all_chunks(GrowthMount& mount) {
    std::set<u32> all;
    for (const maintenance::ChunkUsage& chunk : mount.server().grower().usage()) all.insert(chunk.chunk);
    return all;
  }
  static Status refusal(const std::function<void()>& work) {
    try {
      work();
    } catch (const pool::PoolError& error) {
      return error.status();
    }
    return Status::ok;
  }

  GrowthFolder folder_;
  std::vector<std::string> devices_;
};

TEST_P(ShrinkingPools, EmptyChunksGoAndTheirSpaceIsUsedAgain) {
  u64 inode = 0;
  u64 blocks = 4;
  u32 chunks = 0;
  {
    GrowthMount mount(devices_);
    maintenance::PoolGrower& grower = mount.server().grower();
    inode = make_file(mount.files(), "file");
    for (u64 block = 0; block < blocks; ++block)
      ASSERT_EQ(write_block(mount.files(), inode, block, 3 + block), Status::ok);
    ASSERT_EQ(mount.files().simple(wire::Opcode::fsync, inode).status, Status::ok);
    const std::set<u32> before = all_chunks(mount);
    const format::Superblock old = mount.server().superblock();
    u64 made = 0;
    for (u32 round = 0; round < 4; ++round) {
      // The deleted chunks are created again: in the same space, and with the same memory.
      const u64 now = grower.add_chunks(~u64{0});
      ASSERT_GE(now, 2u);
      if (round != 0) {
        ASSERT_EQ(now, made);
      }
      made = now;
      const std::vector<u32> empty = empty_chunks(mount, before);
      ASSERT_EQ(empty.size(), made);
      ASSERT_LT(*std::max_element(empty.begin(), empty.end()), before.size() + made);
      grower.erase_chunks(empty);
      ASSERT_EQ(all_chunks(mount), before);
      ASSERT_EQ(mount.server().superblock().page_total, old.page_total);
      ASSERT_EQ(mount.server().superblock().chunk_count, old.chunk_count);
      ASSERT_TRUE(has_blocks(mount.files(), inode, blocks, 3));
    }
    chunks = mount.server().superblock().chunk_count;
    // Commands that find no space get chunks as before.
    blocks += fill_file(mount.files(), inode, blocks, 3);
    EXPECT_GE(mount.server().superblock().chunk_count, chunks + made - 1);
    chunks = mount.server().superblock().chunk_count;
    EXPECT_TRUE(has_blocks(mount.files(), inode, blocks, 3));
    ASSERT_TRUE(mount.stop());
  }
  EXPECT_EQ(find_problems(devices_), "");
  GrowthMount mount(devices_);
  EXPECT_EQ(mount.server().superblock().chunk_count, chunks);
  EXPECT_TRUE(has_blocks(mount.files(), find_file(mount.files(), "file"), blocks, 3));
}

TEST_P(ShrinkingPools, WhatIsInUseOrTheLastOneStays) {
  GrowthMount mount(devices_);
  maintenance::PoolGrower& grower = mount.server().grower();
  const u64 inode = make_file(mount.files(), "file");
  ASSERT_EQ(write_block(mount.files(), inode, 0, 3), Status::ok);
  std::vector<u32> used;
  std::vector<u32> all;
  for (const maintenance::ChunkUsage& chunk : grower.usage()) {
    all.push_back(chunk.chunk);
    if (chunk.pages_taken != 0) used.push_back(chunk.chunk);
  }
  ASSERT_FALSE(used.empty());
  ASSERT_EQ(grower.add_chunks(2), 2u);
  const u32 last = all.back() + 2;
  EXPECT_EQ(refusal([&] { grower.erase_chunks({used.front()}); }), Status::busy);
  // All or none.
  EXPECT_EQ(refusal([&] { grower.erase_chunks({last, used.front()}); }), Status::busy);
  EXPECT_EQ(refusal([&] { grower.erase_chunks({last + 1}); }), Status::not_found);
  all.push_back(last - 1);
  all.push_back(last);
  EXPECT_EQ(refusal([&] { grower.erase_chunks(all); }), Status::invalid_argument);
  // The refused ones are in use as before.
  const u64 blocks = fill_file(mount.files(), inode, 1, 3);
  EXPECT_GT(blocks, 20u);
  EXPECT_EQ(refusal([&] { grower.erase_chunks({last}); }), Status::no_space);
  EXPECT_TRUE(has_blocks(mount.files(), inode, blocks + 1, 3));
  ASSERT_TRUE(mount.stop());
  EXPECT_EQ(find_problems(devices_), "");
}

// Without another checkpoint.
TEST_P(ShrinkingPools, WhatWasDeletedIsGoneAfterACrash) {
  u32 chunks = 0;
  {
    GrowthMount mount(devices_);
    const u64 inode = make_file(mount.files(), "file");
    ASSERT_EQ(write_block(mount.files(), inode, 0, 5), Status::ok);
    ASSERT_EQ(mount.files().simple(wire::Opcode::fsync, inode).status, Status::ok);
    const std::set<u32> before = all_chunks(mount);
    ASSERT_GE(mount.server().grower().add_chunks(~u64{0}), 2u);
    std::vector<u32> empty = empty_chunks(mount, before);
    empty.pop_back();
    mount.server().grower().erase_chunks(empty);
    chunks = mount.server().superblock().chunk_count;
    mount.crash();
  }
  EXPECT_EQ(find_problems(devices_), "");
  GrowthMount mount(devices_);
  EXPECT_EQ(mount.server().superblock().chunk_count, chunks);
  EXPECT_TRUE(has_blocks(mount.files(), find_file(mount.files(), "file"), 1, 5));
  EXPECT_GT(mount.server().grower().add_chunks(~u64{0}), 0u);
  ASSERT_TRUE(mount.stop());
  EXPECT_EQ(find_problems(devices_), "");
}

TEST_P(ShrinkingPools, ChunksComeAndGoWhileOthersWrite) {
  constexpr u32 writer_count = 2;
  constexpr u64 blocks = 12;
  GrowthMount mount(devices_);
  std::vector<u64> inodes;
  for (u32 i = 0; i < writer_count; ++i) inodes.push_back(make_file(mount.files(), fmt::format("file{}", i)));
  std::atomic<bool> ends{false};
  std::vector<std::thread> writers;
  for (u32 i = 0; i < writer_count; ++i) {
    writers.emplace_back([&, i] {
      const std::unique_ptr<client::Session> session = mount.open_session();
      FileClient files(*session);
      for (u32 round = 0; round < 3 || !ends; ++round) {
        for (u64 block = 0; block < blocks; ++block) {
          Status written = Status::no_space;
          while (written == Status::no_space) written = write_block(files, inodes[i], block, 100 * i + block);
          EXPECT_EQ(written, Status::ok) << status_name(written);
          if (block % 8 == 0) (void)files.simple(wire::Opcode::fsync, inodes[i]);
        }
      }
    });
  }
  const std::set<u32> before = all_chunks(mount);
  u64 deleted = 0;
  for (u32 round = 0; round < 6; ++round) {
    (void)mount.server().grower().add_chunks(2);
    for (const u32 chunk : empty_chunks(mount, before)) {
      const Status status = refusal([&] { mount.server().grower().erase_chunks({chunk}); });
      // Another thread may be faster.
      EXPECT_TRUE(status == Status::ok || status == Status::busy || status == Status::no_space) << status_name(status);
      deleted += status == Status::ok ? 1 : 0;
    }
  }
  ends = true;
  for (std::thread& writer : writers) writer.join();
  std::printf("%llu chunks deleted\n", static_cast<unsigned long long>(deleted));
  for (u32 i = 0; i < writer_count; ++i) EXPECT_TRUE(has_blocks(mount.files(), inodes[i], blocks, 100 * i));
  ASSERT_TRUE(mount.stop());
  EXPECT_EQ(find_problems(devices_), "");
}

TEST_P(ShrinkingPools, ADeviceLeavesAndItsIndexIsUsedAgain) {
  const u32 index = static_cast<u32>(devices_.size());
  const std::string first = new_device("first");
  const std::string second = new_device("second");
  {
    GrowthMount mount(devices_);
    maintenance::PoolGrower& grower = mount.server().grower();
    const u64 inode = make_file(mount.files(), "file");
    ASSERT_EQ(write_block(mount.files(), inode, 0, 5), Status::ok);
    EXPECT_EQ(refusal([&] { grower.remove_device(0); }), Status::invalid_argument);
    ASSERT_EQ(grower.add_device(first, false), index);
    // A device with a replica of the tree cannot leave, even if it is empty.
    if (mount.server().superblock().tree_replica_count > index) {
      EXPECT_EQ(refusal([&] { grower.remove_device(index); }), Status::invalid_argument);
      ASSERT_TRUE(mount.stop());
      return;
    }
    const std::set<u32> before = all_chunks(mount);
    ASSERT_GE(grower.add_chunks(~u64{0}), 1u);
    EXPECT_EQ(refusal([&] { grower.remove_device(index); }), Status::busy);
    grower.erase_chunks(empty_chunks(mount, before));
    ASSERT_TRUE(grower.chunks_on(index).empty());
    grower.remove_device(index);
    EXPECT_EQ(refusal([&] { grower.remove_device(index); }), Status::invalid_argument);
    EXPECT_EQ(pool::probe_superblocks(first).newest(), nullptr);
    ASSERT_EQ(write_block(mount.files(), inode, 1, 6), Status::ok);
    ASSERT_TRUE(mount.stop());
  }
  EXPECT_EQ(find_problems(devices_), "");
  {
    GrowthMount mount(devices_);
    EXPECT_EQ(mount.server().warnings().size(), 0u);
    EXPECT_EQ(mount.server().superblock().device_count, index + 1);
    const u64 inode = find_file(mount.files(), "file");
    EXPECT_TRUE(has_blocks(mount.files(), inode, 2, 5));
    EXPECT_FALSE(mount.server().has_lost_devices());
    ASSERT_EQ(mount.server().grower().add_device(second, false), index);
    ASSERT_GE(mount.server().grower().add_chunks(~u64{0}), 1u);
    EXPECT_FALSE(mount.server().grower().chunks_on(index).empty());
    const u64 blocks = 2 + fill_file(mount.files(), inode, 2, 5);
    EXPECT_TRUE(has_blocks(mount.files(), inode, blocks, 5));
    ASSERT_TRUE(mount.stop());
  }
  std::vector<std::string> all = devices_;
  all.push_back(second);
  EXPECT_EQ(find_problems(all), "");
  all.push_back(first);
  EXPECT_EQ(refusal([&] { (void)pool::open_pool({all, true, false}); }), Status::not_a_pool);
}

INSTANTIATE_TEST_SUITE_P(Shapes, ShrinkingPools,
                         ::testing::Values(ShrinkShape{"single", 2, "/dev/shm"}, ShrinkShape{"raid1", 3, "/dev/shm"},
                                           ShrinkShape{"raid5", 4, "/dev/shm"}));

}  // namespace
}  // namespace gpu4fs::test::shrink_test
