// fsck --repair of a pool from which a device was removed: its index stays empty, and the content of the others is
// repaired.
#include "fsck/repair/repair_pool.hpp"
#include "growth/growing_pool.hpp"
#include "pool/chunk_area.hpp"
#include "pool/pool_open.hpp"

namespace gpu4fs::test::repair_after_removal_test {
namespace {

constexpr u64 device_bytes = u64{40} << 20;
constexpr u64 block_count = 120;
constexpr u32 device_count = 4;
constexpr u32 leaving = 2;  // neither of those with the chunk tree, nor the last

class RepairAfterRemoval : public ::testing::Test {
 protected:
  RepairAfterRemoval() {
    for (u32 i = 0; i < device_count; ++i) devices_.push_back(folder_ / fmt::format("device{}", i));
    pool::MakePoolOptions options;
    options.device_paths = devices_;
    options.size_bytes = device_bytes;
    options.chunk_size_bytes = u64{8} << 20;
    options.data_profile = options.metadata_profile = "single";
    pool::make_pool(options);
  }

  // Leaves a pool of the other devices with a file.
  void remove_device() {
    GrowthMount mount(devices_);
    maintenance::PoolGrower& grower = mount.server().grower();
    const u64 inode = make_file(mount.files(), "file");
    for (u64 block = 0; block < block_count; ++block) {
      ASSERT_EQ(write_block(mount.files(), inode, block, block), Status::ok);
    }
    const std::vector<u32> chunks = grower.chunks_on(leaving);
    ASSERT_FALSE(chunks.empty());
    ASSERT_EQ(mount.server().empty_chunks(chunks, nullptr).status, Status::ok);
    grower.erase_chunks(chunks);
    ASSERT_NO_THROW(grower.remove_device(leaving));
    ASSERT_TRUE(has_blocks(mount.files(), inode, block_count, 0));
    ASSERT_TRUE(mount.stop());
    devices_.erase(devices_.begin() + leaving);
  }
  // The allocation of every second chunk becomes unknown. Returns the number of these chunks.
  u32 lose_bitmaps() {
    struct Area {
      u32 device;
      u64 offset;
      format::ChunkDescriptor descriptor;
    };
    std::vector<Area> areas;
    {
      const pool::OpenedPool pool = pool::open_pool({devices_, true, false});
      bool is_lost = false;
      for (const pool::OpenedChunk& chunk : pool.chunks) {
        is_lost = !is_lost;
        if (!is_lost) continue;
        const format::ColumnAddress place = chunk.columns.front();
        areas.push_back({place.device_index(), place.offset_bytes(), chunk.descriptor});
      }
    }
    for (const Area& area : areas) {
      const std::string path = folder_ / fmt::format("device{}", area.device);
      pool::DeviceFile file =
          pool::DeviceFile::open(path, pool::DeviceFile::Access::read_write, pool::DeviceFile::Locking::lock);
      const pool::BitmapPlace place = pool::chunk_bitmap_place(area.descriptor, area.offset);
      for (const u32 slot : {0u, 1u}) pool::clear_bitmap_slot(file, place, slot);
    }
    return static_cast<u32>(areas.size());
  }

  GrowthFolder folder_;
  std::vector<std::string> devices_;
};

TEST_F(RepairAfterRemoval, WhatIsDerivedIsDerivedAnew) {
  remove_device();
  ASSERT_FALSE(HasFatalFailure());
  ASSERT_EQ(find_problems(devices_), "");
  ASSERT_GT(lose_bitmaps(), 0u);
  ASSERT_NE(find_problems(devices_), "");
  fsck::RepairOptions repair;
  repair.device_paths = devices_;
  EXPECT_GT(fsck::repair_pool(repair).repair_count, 0u);
  EXPECT_EQ(find_problems(devices_), "");
  {
    GrowthMount mount(devices_);
    EXPECT_NE(mount.server().superblock().feature_incompatible & format::feature_removed_devices, 0u);
    EXPECT_FALSE(mount.server().has_lost_devices());
    const u64 inode = find_file(mount.files(), "file");
    EXPECT_TRUE(has_blocks(mount.files(), inode, block_count, 0));
    // The empty index is available for another device.
    pool::DeviceFile::create(folder_ / "another", device_bytes);
    EXPECT_EQ(mount.server().grower().add_device(folder_ / "another", false), leaving);
    ASSERT_EQ(write_block(mount.files(), inode, block_count, block_count), Status::ok);
    EXPECT_TRUE(has_blocks(mount.files(), inode, block_count + 1, 0));
    ASSERT_TRUE(mount.stop());
  }
  devices_.insert(devices_.begin() + leaving, folder_ / "another");
  EXPECT_EQ(find_problems(devices_), "");
}

}  // namespace
}  // namespace gpu4fs::test::repair_after_removal_test
