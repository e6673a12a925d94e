// The sum of the slots' checksums while superblocks name a plan and its chunks are not in the table yet, or still are:
// after a crash that follows any checkpoint in that time, the pool loads.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string_view>

#include "raid/page_io.hpp"
#include "space/growth.hpp"
#include "support/small_file_system.hpp"

namespace gpu4fs::test::growth_slot_sum_test {
namespace {

class GrowthSlotSum : public ::testing::Test {
 protected:
  GrowthSlotSum() : plan_(std::make_unique<space::PoolGrowth>()) {
    EXPECT_EQ(small_.load_status(), Status::ok);
    fs().growth = plan_.get();
    image_ = chunk();
  }
  fs::FileSystem& fs() { return small_.fs(); }
  raid::ChunkState& chunk() { return fs().space.chunks[1]; }

  // The content of superblocks of a pool with this number of chunks.
  void plan(u32 chunk_count) {
    std::memset(static_cast<void*>(plan_.get()), 0, sizeof(*plan_));
    const format::Superblock& superblock = fs().superblocks[0];
    plan_->device_count = superblock.device_count;
    plan_->device_uuids[0][0] = 1;
    plan_->slot_count = 2;
    plan_->chunk_count = chunk_count;
    plan_->page_total = chunk_count * small_pool::chunk_pages(small_.options());
  }
  // Changes something in the first chunk.
  void change() {
    fs::Operation op = small_.operation();
    ASSERT_EQ(space::reserve_pages(fs(), op, 1), Status::ok);
    const raid::Extent run = space::allocate_run(Lane{}, fs(), op, 1, 1);
    const std::vector<u8> bytes(page_size, 0x42);
    ASSERT_EQ(raid::write_page(Lane{}, fs().space, run.address, bytes.data()), Status::ok);
    space::commit_extent(Lane{}, fs(), run);
  }
  // The checkpoint that takes the plan up.
  void make_durable() {
    ASSERT_EQ(space::stage_growth(fs()), Status::ok);
    const Status written = small_.checkpoint(Lane{}, [&](std::string_view step) {
      if (step == "begin") space::take_up_growth(fs(), space::growth_number(fs()), true);
      if (step == "superblocks") space::end_growth(fs());
    });
    ASSERT_EQ(written, Status::ok);
  }
  void expect_loads(u32 chunk_count) {
    SmallPoolOptions options = small_.options();
    options.chunk_count = chunk_count;
    EXPECT_EQ(SmallFileSystem(options, small_.images()).load_status(), Status::ok);
  }
  // After the checkpoint that names the plan, others before the admission, and one after it.
  void expect_loads_at_any_time(u32 chunk_count) {
    change();
    make_durable();
    expect_loads(chunk_count);
    for (u32 i = 0; i < 2; ++i) {
      change();
      ASSERT_EQ(small_.checkpoint(Lane{}), Status::ok);
      expect_loads(chunk_count);
    }
    ASSERT_EQ(space::admit_chunks(fs()), Status::ok);
    EXPECT_EQ(space::growth_slot_sum(fs()), 0u);
    change();
    ASSERT_EQ(small_.checkpoint(Lane{}), Status::ok);
    expect_loads(chunk_count);
  }
  void erase_chunk() {
    ASSERT_EQ(space::freeze_chunk(fs(), 1), Status::ok);
    plan(1);
    plan_->erased_slots[plan_->erased_count++] = 1;
  }

  SmallFileSystem small_;
  std::unique_ptr<space::PoolGrowth> plan_;
  raid::ChunkState image_;
};

TEST_F(GrowthSlotSum, HasNoChunkThatIsDeleted) {
  erase_chunk();
  ASSERT_NO_FATAL_FAILURE(expect_loads_at_any_time(1));
}

TEST_F(GrowthSlotSum, HasEachChunkThatIsMade) {
  erase_chunk();
  ASSERT_NO_FATAL_FAILURE(make_durable());
  ASSERT_EQ(space::admit_chunks(fs()), Status::ok);
  plan(2);
  plan_->added_slots[0] = 1;
  plan_->added[0] = image_;
  plan_->added[0].presence &= ~raid::chunk_usable;
  plan_->added_count = 1;
  ASSERT_NO_FATAL_FAILURE(expect_loads_at_any_time(2));
}

}  // namespace
}  // namespace gpu4fs::test::growth_slot_sum_test
