// Pools that get devices and chunks while they are mounted: a full pool gets room, and everything that was written
// before and meanwhile is present, at once and after the next mount.
#include <atomic>
#include <thread>

#include "growth/growing_pool.hpp"
#include "pool/pool_open.hpp"

namespace gpu4fs::test::growth_test {
namespace {

struct GrowthShape {
  const char* profile;
  u32 device_count;
  u32 added;
  const char* folder;
  friend std::ostream& operator<<(std::ostream& out, const GrowthShape& shape) {
    return out << shape.profile << " " << shape.device_count << "+" << shape.added << " in " << shape.folder;
  }
};

class GrowingPools : public ::testing::TestWithParam<GrowthShape> {
 protected:
  GrowingPools() : folder_(GetParam().folder) {
    const GrowthShape& shape = GetParam();
    for (u32 i = 0; i < shape.device_count; ++i) devices_.push_back(folder_ / fmt::format("device{}", i));
    for (u32 i = 0; i < shape.added; ++i) {
      added_.push_back(folder_ / fmt::format("added{}", i));
      pool::DeviceFile::create(added_.back(), device_bytes);
    }
  }

  void make(u32 initial_share = 100) {
    pool::MakePoolOptions options;
    options.device_paths = devices_;
    options.size_bytes = device_bytes;
    options.chunk_size_bytes = u64{8} << 20;
    options.data_profile = options.metadata_profile = GetParam().profile;
    options.initial_share = initial_share;
    pool::make_pool(options);
  }

  std::vector<std::string> all_devices() const {
    std::vector<std::string> all = devices_;
    all.insert(all.end(), added_.begin(), added_.end());
    return all;
  }

  static constexpr u64 device_bytes = u64{40} << 20;
  GrowthFolder folder_;
  std::vector<std::string> devices_;
  std::vector<std::string> added_;
};

TEST_P(GrowingPools, AFullPoolGetsRoomFromNewDevices) {
  make();
  u64 inode = 0;
  u64 before = 0;
  u64 after = 0;
  {
    GrowthMount mount(devices_);
    inode = make_file(mount.files(), "file");
    before = fill_file(mount.files(), inode, 0, 1);
    ASSERT_GT(before, 20u);
    for (u32 i = 0; i < added_.size(); ++i) {
      EXPECT_EQ(mount.server().grower().add_device(added_[i], false), devices_.size() + i);
      EXPECT_THROW(mount.server().grower().add_device(added_[i], true), pool::PoolError);
    }
    EXPECT_GE(mount.server().grower().add_chunks(~u64{0}), 4u);
    EXPECT_EQ(mount.server().grower().add_chunks(~u64{0}), 0u);
    after = fill_file(mount.files(), inode, before, 1);
    EXPECT_GT(after * 4 * devices_.size(), before * 3 * added_.size());
    EXPECT_TRUE(has_blocks(mount.files(), inode, before + after, 1));
    ASSERT_TRUE(mount.stop());
  }
  EXPECT_EQ(find_problems(all_devices()), "");
  // The new members are in the folder of the others and are found there.
  GrowthMount mount(devices_);
  EXPECT_EQ(mount.server().superblock().device_count, devices_.size() + added_.size());
  EXPECT_EQ(mount.server().warnings().size(), 0u);
  EXPECT_TRUE(has_blocks(mount.files(), find_file(mount.files(), "file"), before + after, 1));
}

// Without another checkpoint.
TEST_P(GrowingPools, WhatGrewIsThereAfterACrash) {
  make();
  u64 chunks = 0;
  {
    GrowthMount mount(devices_);
    const u64 inode = make_file(mount.files(), "file");
    ASSERT_EQ(write_block(mount.files(), inode, 0, 5), Status::ok);
    for (const std::string& path : added_) mount.server().grower().add_device(path, false);
    chunks = mount.server().superblock().chunk_count + mount.server().grower().add_chunks(3);
    mount.crash();
  }
  EXPECT_EQ(find_problems(all_devices()), "");
  GrowthMount mount(all_devices());
  EXPECT_EQ(mount.server().superblock().chunk_count, chunks);
  EXPECT_TRUE(has_blocks(mount.files(), find_file(mount.files(), "file"), 1, 5));
  EXPECT_GT(mount.server().grower().add_chunks(~u64{0}), 0u);
  ASSERT_TRUE(mount.stop());
  EXPECT_EQ(find_problems(all_devices()), "");
}

TEST_P(GrowingPools, ChunksAreMadeWhileOthersWrite) {
  make(30);
  constexpr u32 writer_count = 3;
  constexpr u64 blocks = 24;
  std::atomic<u32> refused{0};
  GrowthMount mount(devices_);
  const u64 first_chunks = mount.server().superblock().chunk_count;
  std::vector<u64> inodes;
  for (u32 i = 0; i < writer_count; ++i) inodes.push_back(make_file(mount.files(), fmt::format("file{}", i)));
  std::vector<std::thread> writers;
  for (u32 i = 0; i < writer_count; ++i) {
    writers.emplace_back([&, i] {
      const std::unique_ptr<client::Session> session = mount.open_session();
      FileClient files(*session);
      for (u32 round = 0; round < 3; ++round) {
        for (u64 block = 0; block < blocks; ++block) {
          while (write_block(files, inodes[i], block, 100 * i + block) != Status::ok) ++refused;
          if (block % 8 == 0) (void)files.simple(wire::Opcode::fsync, inodes[i]);
        }
      }
    });
  }
  while (mount.server().grower().add_chunks(1) != 0) {
  }
  for (std::thread& writer : writers) writer.join();
  // A writer without room may have requested one of them.
  EXPECT_GE(mount.server().superblock().chunk_count, first_chunks + 2);
  for (u32 i = 0; i < writer_count; ++i) EXPECT_TRUE(has_blocks(mount.files(), inodes[i], blocks, 100 * i));
  ASSERT_TRUE(mount.stop());
  EXPECT_EQ(find_problems(devices_), "");
}

// Only commands that find no space request chunks.
TEST_P(GrowingPools, ChunksAreMadeWhenTheyAreNeeded) {
  make(20);
  u64 inode = 0;
  u64 blocks = 0;
  {
    GrowthMount mount(devices_);
    const u32 chunks = mount.server().superblock().chunk_count;
    inode = make_file(mount.files(), "file");
    blocks = fill_file(mount.files(), inode, 0, 9);
    EXPECT_GT(mount.server().superblock().chunk_count, 2 * chunks);
    EXPECT_EQ(mount.server().grower().add_chunks(~u64{0}), 0u);
    EXPECT_GT(blocks, chunks * 3 * 56);
    EXPECT_TRUE(has_blocks(mount.files(), inode, blocks, 9));
    ASSERT_TRUE(mount.stop());
  }
  EXPECT_EQ(find_problems(devices_), "");
}

TEST_P(GrowingPools, SeveralThatFindNoSpaceGetOneChunk) {
  make(20);
  GrowthMount mount(devices_);
  constexpr u32 writer_count = 3;
  std::vector<u64> inodes;
  std::vector<u64> blocks(writer_count);
  for (u32 i = 0; i < writer_count; ++i) inodes.push_back(make_file(mount.files(), fmt::format("file{}", i)));
  std::vector<std::thread> writers;
  for (u32 i = 0; i < writer_count; ++i) {
    writers.emplace_back([&, i] {
      const std::unique_ptr<client::Session> session = mount.open_session();
      FileClient files(*session);
      blocks[i] = fill_file(files, inodes[i], 0, 1000 * i);
    });
  }
  for (std::thread& writer : writers) writer.join();
  for (u32 i = 0; i < writer_count; ++i) EXPECT_TRUE(has_blocks(mount.files(), inodes[i], blocks[i], 1000 * i));
  EXPECT_EQ(mount.server().grower().add_chunks(~u64{0}), 0u);
  ASSERT_TRUE(mount.stop());
  EXPECT_EQ(find_problems(devices_), "");
}

INSTANTIATE_TEST_SUITE_P(Shapes, GrowingPools,
                         ::testing::Values(GrowthShape{"single", 1, 1, "/dev/shm"}, GrowthShape{"single", 2, 1, "/tmp"},
                                           GrowthShape{"raid0", 2, 2, "/dev/shm"},
                                           GrowthShape{"raid1", 2, 2, "/dev/shm"}, GrowthShape{"raid1", 3, 2, "/tmp"},
                                           GrowthShape{"raid5", 3, 3, "/dev/shm"},
                                           GrowthShape{"raid6", 4, 4, "/dev/shm"}));

class NewMembers : public ::testing::Test {
 protected:
  NewMembers() : pool_(folder_ / "device") {
    pool::MakePoolOptions options;
    options.device_paths = {pool_};
    options.size_bytes = u64{40} << 20;
    pool::make_pool(options);
  }
  std::string refusal(GrowthMount& mount, const std::string& path, bool force = false) {
    try {
      mount.server().grower().add_device(path, force);
    } catch (const pool::PoolError& error) {
      return error.what();
    }
    return "";
  }
  GrowthFolder folder_;
  std::string pool_;
};

TEST_F(NewMembers, AreRefusedWhereTheyDoNotFit) {
  const std::string other = folder_ / "other";
  pool::MakePoolOptions options;
  options.device_paths = {other};
  options.size_bytes = u64{40} << 20;
  pool::make_pool(options);
  pool::DeviceFile::create(folder_ / "small", u64{4} << 20);
  GrowthMount mount({pool_});
  EXPECT_NE(refusal(mount, pool_).find("is a member"), std::string::npos);
  EXPECT_NE(refusal(mount, other).find("a gpu4fs pool"), std::string::npos);
  EXPECT_NE(refusal(mount, folder_ / "small").find("too small"), std::string::npos);
  EXPECT_NE(refusal(mount, folder_ / "nothing"), "");
  EXPECT_NE(refusal(mount, "null=64M:"), "");
  EXPECT_EQ(mount.server().superblock().device_count, 1u);
  EXPECT_EQ(refusal(mount, other, true), "");
  EXPECT_EQ(mount.server().superblock().device_count, 2u);
  EXPECT_EQ(mount.server().superblock().tree_replica_count, 2u);
  ASSERT_TRUE(mount.stop());
  EXPECT_EQ(find_problems({pool_, other}), "");
}

// The tree has two replicas as soon as there are two devices: either suffices.
TEST_F(NewMembers, HoldTheTreeIfThereAreFewerReplicasThanWanted) {
  const std::string added = folder_ / "added";
  pool::DeviceFile::create(added, u64{60} << 20);
  {
    GrowthMount mount({pool_});
    mount.server().grower().add_device(added, false);
    mount.server().grower().add_chunks(2);
    ASSERT_TRUE(mount.stop());
  }
  const format::Superblock superblock = pool::open_pool({{pool_}, true}).superblock;
  {
    pool::DeviceFile first =
        pool::DeviceFile::open(pool_, pool::DeviceFile::Access::read_write, pool::DeviceFile::Locking::lock);
    first.zero_range(pool::open_pool({{added}, true, false}).devices[0].part.tree_offset, 16 * page_size);
  }
  const pool::OpenedPool repaired = pool::open_pool({{pool_}});
  EXPECT_EQ(repaired.chunks.size(), superblock.chunk_count);
  EXPECT_FALSE(repaired.warnings.empty());
}

// Workers of a staged pool need frames for what they pin, so a small page cache becomes larger, which is said.
TEST(SmallPageCache, IsSaidToBeTooSmall) {
  const GrowthFolder folder;
  const std::vector<std::string> devices{folder / "device"};
  pool::MakePoolOptions make;
  make.device_paths = devices;
  make.size_bytes = u64{64} << 20;
  pool::make_pool(make);
  for (const u64 page_cache_bytes : {u64{1} << 20, u64{32} << 20}) {
    session::ServerOptions options = GrowthMount::options(devices);
    options.device_access = session::DeviceAccess::direct_everywhere;
    options.page_cache_bytes = page_cache_bytes;
    GrowthMount mount(options);
    const std::vector<std::string>& warnings = mount.server().warnings();
    if (page_cache_bytes == u64{1} << 20) {
      ASSERT_EQ(warnings.size(), 1u);
      EXPECT_NE(warnings[0].find("page_cache=1 MiB is too small for 4 workers: 12 MiB are used"), std::string::npos)
          << warnings[0];
    } else {
      EXPECT_TRUE(warnings.empty());
    }
    ASSERT_TRUE(mount.stop());
  }
}

}  // namespace
}  // namespace gpu4fs::test::growth_test
