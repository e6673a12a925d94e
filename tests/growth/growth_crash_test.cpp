// A crash at any write while devices are added and chunks are created: the medium has the pool either before or after
// the change, with everything that was synced, and the pool works.
#include <set>

#include "growth/growth_crash_states.hpp"
#include "pool/pool_open.hpp"

namespace gpu4fs::test::growth_crash_test {
namespace {

constexpr u64 crash_device_bytes = u64{20} << 20;
constexpr u64 synced_blocks = 8;

struct CrashShape {
  const char* profile;
  u32 device_count;
  u32 added;
  friend std::ostream& operator<<(std::ostream& out, const CrashShape& shape) {
    return out << shape.profile << " " << shape.device_count << "+" << shape.added;
  }
};

class GrowthCrashes : public ::testing::TestWithParam<CrashShape> {
 protected:
  GrowthCrashes() : shape_(GetParam()) {
    for (u32 i = 0; i < shape_.device_count + shape_.added; ++i) paths_.push_back(folder_ / fmt::format("device{}", i));
    for (u32 i = shape_.device_count; i < paths_.size(); ++i) pool::DeviceFile::create(paths_[i], crash_device_bytes);
    pool::MakePoolOptions options;
    options.device_paths = old_paths();
    options.size_bytes = crash_device_bytes;
    options.chunk_size_bytes = u64{8} << 20;
    options.data_profile = options.metadata_profile = shape_.profile;
    pool::make_pool(options);
  }

  std::vector<std::string> old_paths() const { return {paths_.begin(), paths_.begin() + shape_.device_count}; }
  // The growth, and the beginning of its writes in the log.
  void grow() {
    states_ = std::make_unique<GrowthCrashStates>(paths_, log_path_, crash_device_bytes);
    states_->remember_base();
    std::vector<std::string> devices;
    for (u32 i = 0; i < shape_.device_count; ++i) devices.push_back(states_->recorded(i));
    const std::shared_ptr<device::WriteLog> log = device::open_write_log(log_path_);
    GrowthMount mount(devices);
    const u64 inode = make_file(mount.files(), "file");
    for (u64 block = 0; block < synced_blocks; ++block)
      ASSERT_EQ(write_block(mount.files(), inode, block, block), Status::ok);
    ASSERT_EQ(mount.files().simple(wire::Opcode::fsync, inode).status, Status::ok);
    log->mark(1);
    for (u32 i = shape_.device_count; i < paths_.size(); ++i)
      mount.server().grower().add_device(states_->recorded(i), false);
    log->mark(2);
    ASSERT_GE(mount.server().grower().add_chunks(1), 1u);
    ASSERT_GE(mount.server().grower().add_chunks(~u64{0}), 1u);
    log->mark(3);
    const u64 more = make_file(mount.files(), "more");
    for (u64 block = 0; block < synced_blocks; ++block)
      ASSERT_EQ(write_block(mount.files(), more, block, 100 + block), Status::ok);
    ASSERT_EQ(mount.files().simple(wire::Opcode::fsync, more).status, Status::ok);
    log->mark(4);
    mount.crash();
  }

  // The pool as found by a mount with its old members, and by one with all devices that have a superblock.
  void check_state(const std::vector<GrowthImage>& images, u64 mark, bool goes_on) {
    try {
      look_at_state(images, mark, goes_on);
    } catch (const std::exception& error) {
      FAIL() << error.what();
    }
  }
  void look_at_state(const std::vector<GrowthImage>& images, u64 mark, bool goes_on) {
    states_->put(images);
    const pool::OpenedPool pool = pool::open_pool({old_paths(), true, false});
    const u32 device_count = pool.superblock.device_count;
    ASSERT_TRUE(device_count >= shape_.device_count && device_count <= paths_.size());
    if (mark >= 2) {
      ASSERT_EQ(device_count, paths_.size());
    }
    if (mark >= 3) {
      ASSERT_GT(pool.superblock.chunk_count, first_chunk_count_ + 1);
    }
    seen_.insert({device_count, pool.superblock.chunk_count});
    const std::string problems = find_problems(old_paths());
    ASSERT_EQ(problems, "");
    std::vector<std::string> all;
    for (const std::string& path : paths_) {
      if (pool::probe_superblocks(path).newest() != nullptr) all.push_back(path);
    }
    ASSERT_EQ(find_problems(all), "");
    if (!goes_on) return;
    GrowthMount mount(old_paths());
    ASSERT_TRUE(has_blocks(mount.files(), find_file(mount.files(), "file"), synced_blocks, 0));
    if (mark >= 4) {
      ASSERT_TRUE(has_blocks(mount.files(), find_file(mount.files(), "more"), synced_blocks, 100));
    }
    for (u32 i = mount.server().superblock().device_count; i < paths_.size(); ++i) {
      mount.server().grower().add_device(paths_[i], true);
    }
    mount.server().grower().add_chunks(~u64{0});
    const u64 inode = make_file(mount.files(), "behind");
    ASSERT_EQ(write_block(mount.files(), inode, 0, 7), Status::ok);
    ASSERT_TRUE(mount.stop());
    ASSERT_EQ(find_problems(paths_), "");
  }

  CrashShape shape_;
  GrowthFolder folder_;
  std::string log_path_ = folder_ / "log";
  std::vector<std::string> paths_;
  static constexpr u64 crash_stride_ = 23;
  u32 first_chunk_count_ = 0;
  std::unique_ptr<GrowthCrashStates> states_;
  std::set<std::pair<u32, u32>> seen_;  // numbers of devices and chunks
};

TEST_P(GrowthCrashes, LeaveThePoolBeforeOrBehind) {
  first_chunk_count_ = pool::open_pool({old_paths(), true, false}).superblock.chunk_count;
  ASSERT_NO_FATAL_FAILURE(grow());
  // After the growth only one of a number of writes: that part is the same for any pool.
  const auto every = [](u64 mark) { return mark == 0 ? u64{0} : mark <= 2 ? u64{1} : crash_stride_; };
  states_->for_each({every}, [&](const std::vector<GrowthImage>& images, u64 mark, bool goes_on) {
    check_state(images, mark, goes_on);
  });
  EXPECT_GE(seen_.size(), 3u);  // at least before, with devices, with chunks
}

INSTANTIATE_TEST_SUITE_P(Shapes, GrowthCrashes,
                         ::testing::Values(CrashShape{"single", 1, 1}, CrashShape{"raid1", 2, 2},
                                           CrashShape{"raid5", 3, 3}));

}  // namespace
}  // namespace gpu4fs::test::growth_crash_test
