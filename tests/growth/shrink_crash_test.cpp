// A crash at any write while chunks are deleted and a device leaves: the medium has the pool either before or after the
// change, with everything that was synced, and the pool works.
#include <set>

#include "growth/growth_crash_states.hpp"
#include "pool/pool_open.hpp"

namespace gpu4fs::test::shrink_crash_test {
namespace {

constexpr u64 shrink_device_bytes = u64{20} << 20;
constexpr u64 synced_blocks = 4;

struct ShrinkCrashShape {
  const char* profile;
  u32 device_count;
  friend std::ostream& operator<<(std::ostream& out, const ShrinkCrashShape& shape) {
    return out << shape.profile << " " << shape.device_count << "+1-1";
  }
};

class ShrinkCrashes : public ::testing::TestWithParam<ShrinkCrashShape> {
 protected:
  ShrinkCrashes() : leaving_(GetParam().device_count) {
    for (u32 i = 0; i <= leaving_; ++i) paths_.push_back(folder_ / fmt::format("device{}", i));
    pool::DeviceFile::create(paths_[leaving_], shrink_device_bytes);
    pool::MakePoolOptions options;
    options.device_paths = {paths_.begin(), paths_.end() - 1};
    options.size_bytes = shrink_device_bytes;
    options.chunk_size_bytes = u64{8} << 20;
    options.data_profile = options.metadata_profile = GetParam().profile;
    options.initial_share = 50;
    pool::make_pool(options);
    GrowthMount mount(options.device_paths);
    mount.server().grower().add_device(paths_[leaving_], false);
    mount.server().grower().add_chunks(~u64{0});
    EXPECT_FALSE(mount.server().grower().chunks_on(leaving_).empty());
    EXPECT_TRUE(mount.stop());
  }

  // Chunks are deleted, the device leaves, and chunks are created in the free space.
  void shrink() {
    states_ = std::make_unique<GrowthCrashStates>(paths_, log_path_, shrink_device_bytes);
    states_->remember_base();
    std::vector<std::string> devices;
    for (u32 i = 0; i < paths_.size(); ++i) devices.push_back(states_->recorded(i));
    const std::shared_ptr<device::WriteLog> log = device::open_write_log(log_path_);
    GrowthMount mount(devices);
    maintenance::PoolGrower& grower = mount.server().grower();
    const u64 inode = make_file(mount.files(), "file");
    for (u64 block = 0; block < synced_blocks; ++block)
      ASSERT_EQ(write_block(mount.files(), inode, block, block), Status::ok);
    ASSERT_EQ(mount.files().simple(wire::Opcode::fsync, inode).status, Status::ok);
    std::vector<u32> empty;
    for (const maintenance::ChunkUsage& chunk : grower.usage()) {
      if (chunk.pages_taken == 0) empty.push_back(chunk.chunk);
    }
    first_chunk_count_ = mount.server().superblock().chunk_count;
    log->mark(1);
    ASSERT_NO_THROW(grower.erase_chunks(empty));
    log->mark(2);
    ASSERT_TRUE(grower.chunks_on(leaving_).empty());
    ASSERT_NO_THROW(grower.remove_device(leaving_));
    log->mark(3);
    // In the space of the deleted chunks, where the medium still has their content.
    grower.add_chunks(~u64{0});
    log->mark(4);
    const u64 more = make_file(mount.files(), "more");
    for (u64 block = 0; block < synced_blocks; ++block)
      ASSERT_EQ(write_block(mount.files(), more, block, 100 + block), Status::ok);
    ASSERT_EQ(mount.files().simple(wire::Opcode::fsync, more).status, Status::ok);
    log->mark(5);
    mount.crash();
  }

  void check_state(const std::vector<GrowthImage>& images, u64 mark, bool goes_on) {
    try {
      look_at_state(images, mark, goes_on);
    } catch (const std::exception& error) {
      FAIL() << error.what();
    }
  }
  // As found by a mount that names one device: the others are in the same folder.
  void look_at_state(const std::vector<GrowthImage>& images, u64 mark, bool goes_on) {
    states_->put(images);
    const std::vector<std::string> named{paths_[0]};
    bool has_left = false;
    {
      const pool::OpenedPool pool = pool::open_pool({named, true, false});
      ASSERT_EQ(pool.devices.size(), paths_.size());
      has_left = pool.devices[leaving_].state == pool::MemberState::removed;
      if (!has_left) {
        ASSERT_TRUE(pool.devices[leaving_].is_here());
      }
      if (mark >= 2) {
        ASSERT_LT(pool.superblock.chunk_count, first_chunk_count_ + (mark >= 3 ? 1 : 0));
      }
      if (mark >= 3) {
        ASSERT_TRUE(has_left);
      }
      seen_.insert({has_left, pool.superblock.chunk_count});
    }
    ASSERT_EQ(find_problems(named), "");
    if (!goes_on) return;
    GrowthMount mount(named);
    ASSERT_TRUE(has_blocks(mount.files(), find_file(mount.files(), "file"), synced_blocks, 0));
    if (mark >= 5) {
      ASSERT_TRUE(has_blocks(mount.files(), find_file(mount.files(), "more"), synced_blocks, 100));
    }
    if (has_left) mount.server().grower().add_device(paths_[leaving_], true);
    mount.server().grower().add_chunks(~u64{0});
    const u64 inode = make_file(mount.files(), "behind");
    ASSERT_EQ(write_block(mount.files(), inode, 0, 7), Status::ok);
    ASSERT_TRUE(mount.stop());
    ASSERT_EQ(find_problems(paths_), "");
  }

  u32 leaving_;
  GrowthFolder folder_;
  std::string log_path_ = folder_ / "log";
  std::vector<std::string> paths_;
  static constexpr u64 crash_stride_ = 19;
  u32 first_chunk_count_ = 0;
  std::unique_ptr<GrowthCrashStates> states_;
  std::set<std::pair<bool, u32>> seen_;  // without the device; number of chunks
};

TEST_P(ShrinkCrashes, LeaveThePoolBeforeOrBehind) {
  ASSERT_NO_FATAL_FAILURE(shrink());
  const auto every = [](u64 mark) {
    return mark == 0 ? u64{0} : mark <= 2 ? u64{1} : mark == 3 ? u64{5} : crash_stride_;
  };
  states_->for_each({every, 6}, [&](const std::vector<GrowthImage>& images, u64 mark, bool goes_on) {
    check_state(images, mark, goes_on);
  });
  EXPECT_GE(seen_.size(), 3u);  // before, without the chunks, without the device
}

INSTANTIATE_TEST_SUITE_P(Shapes, ShrinkCrashes,
                         ::testing::Values(ShrinkCrashShape{"single", 2}, ShrinkCrashShape{"raid1", 2},
                                           ShrinkCrashShape{"raid5", 3}));

}  // namespace
}  // namespace gpu4fs::test::shrink_crash_test
