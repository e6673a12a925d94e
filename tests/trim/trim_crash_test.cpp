// A crash at any write while files are created and removed and their memory is punched in between: everything that the
// newest durable epoch and the log refer to is present. A punch is recorded as a write of zeros
// (device/memory/mapped_file.hpp).
#include <algorithm>

#include "device/memory/mapped_file.hpp"
#include "growth/growth_crash_states.hpp"
#include "pool/chunk_reach.hpp"
#include "pool/pool_open.hpp"
#include "pool/region_ranges.hpp"
#include "support/staged_devices.hpp"

namespace gpu4fs::test::trim_crash_test {
namespace {

constexpr u64 device_bytes = u64{20} << 20;
constexpr u64 kept_blocks = 3;
constexpr u32 round_count = 3;
constexpr u64 round_blocks = 40;

struct TrimCrashShape {
  const char* profile;
  u32 device_count;
  u64 every;  // the state after one of this number of writes is tested
  friend std::ostream& operator<<(std::ostream& out, const TrimCrashShape& shape) {
    return out << shape.profile << " " << shape.device_count;
  }
};

class TrimCrashes : public ::testing::TestWithParam<TrimCrashShape> {
 protected:
  TrimCrashes() {
    for (u32 i = 0; i < GetParam().device_count; ++i) paths_.push_back(folder_ / fmt::format("device{}", i));
    pool::MakePoolOptions options;
    options.device_paths = paths_;
    options.size_bytes = device_bytes;
    options.chunk_size_bytes = u64{8} << 20;
    options.data_profile = options.metadata_profile = GetParam().profile;
    pool::make_pool(options);
  }

  // Mark 2r + 1: the file of round r is durable, and a part of it goes. Mark 2r + 2: its memory has returned.
  void run() {
    states_ = std::make_unique<GrowthCrashStates>(paths_, log_path_, device_bytes);
    states_->remember_base();
    std::vector<std::string> devices;
    for (u32 i = 0; i < paths_.size(); ++i) devices.push_back(states_->recorded(i));
    const std::shared_ptr<device::WriteLog> log = device::open_write_log(log_path_);
    GrowthMount mount(devices);
    const u64 kept = make_file(mount.files(), "kept");
    for (u64 block = 0; block < kept_blocks; ++block)
      ASSERT_EQ(write_block(mount.files(), kept, block, block), Status::ok);
    u64 bytes = 0;
    for (u32 round = 0; round < round_count; ++round) {
      // Fills the existing regions, so the next round begins in the same situation as this one.
      const u64 file = make_file(mount.files(), fmt::format("round{}", round));
      for (u64 block = 0; block < round_blocks; ++block)
        ASSERT_EQ(write_block(mount.files(), file, block, 100 * round + block), Status::ok);
      ASSERT_EQ(mount.files().simple(wire::Opcode::fsync, file).status, Status::ok);
      ASSERT_EQ(mount.files().simple(wire::Opcode::fsync, kept).status, Status::ok);
      log->mark(2 * round + 1);
      // The memory may be returned after the next checkpoint. Pages that no checkpoint knows are free at once, so the
      // chunks are searched before.
      ASSERT_EQ(mount.files().simple(wire::Opcode::truncate, file, growth_write_bytes).status, Status::ok);
      const u64 scratch = make_file(mount.files(), fmt::format("scratch{}", round));
      for (u64 block = 0; block < 20; ++block) (void)write_block(mount.files(), scratch, block, block);
      ASSERT_EQ(mount.files().simple(wire::Opcode::truncate, scratch, 0).status, Status::ok);
      maintenance::TrimReport before = mount.server().trimmer().trim(~u64{0});
      ASSERT_EQ(before.status, Status::ok);
      before = mount.server().trimmer().trim(~u64{0});
      ASSERT_EQ(before.status, Status::ok);
      const maintenance::TrimReport report = mount.server().trimmer().trim_all();
      ASSERT_EQ(report.status, Status::ok);
      log->mark(2 * round + 2);
      bytes += report.byte_count;
    }
    EXPECT_GE(bytes, u64{4} << 20);
    mount.crash();
  }

  // All blocks, or the first one if the truncation is durable.
  static u64 blocks_left(FileClient& files, u64 file) {
    const u64 offset = (round_blocks - 1) * growth_write_bytes;
    return files.simple(wire::Opcode::read, file, offset, growth_write_bytes).result == 0 ? 1 : round_blocks;
  }

  void look_at_state(const std::vector<GrowthImage>& images, u64 mark, bool is_chosen) {
    const bool goes_on = is_chosen || (mark % 2 == 1 && ++returning_count_ % 2 == 0);
    states_->put(images);
    const std::vector<std::string> named{paths_[0]};
    ASSERT_EQ(find_problems(named), "");
    if (!goes_on) return;
    GrowthMount mount(named);
    if (mark >= 1) {
      ASSERT_TRUE(has_blocks(mount.files(), find_file(mount.files(), "kept"), kept_blocks, 0));
    }
    for (u32 round = 0; round < (mark + 1) / 2; ++round) {
      const u64 file = find_file(mount.files(), fmt::format("round{}", round));
      ASSERT_TRUE(has_blocks(mount.files(), file, blocks_left(mount.files(), file), 100 * round));
    }
    ASSERT_EQ(mount.server().trimmer().trim_all().status, Status::ok);
    if (mark >= 1) {
      ASSERT_TRUE(has_blocks(mount.files(), find_file(mount.files(), "kept"), kept_blocks, 0));
    }
    ASSERT_TRUE(mount.stop());
    ASSERT_EQ(find_problems(paths_), "");
  }

  GrowthFolder folder_;
  std::string log_path_ = folder_ / "log";
  std::vector<std::string> paths_;
  std::unique_ptr<GrowthCrashStates> states_;
  u64 returning_count_ = 0;  // states in which memory was returning
};

// Devices whose pages pass through a page cache are written page by page, so there are many more states.
u64 every_state_of(const TrimCrashShape& shape, u64 mark) {
  const bool is_staged = wants_staged_devices();
  if (mark % 2 == 1) return is_staged ? 12 : std::min<u64>(shape.every, 8);
  return is_staged && shape.every < 10 ? 16 * shape.every : shape.every;
}

TEST_P(TrimCrashes, LeaveAllThatIsDurable) {
  ASSERT_NO_FATAL_FAILURE(run());
  states_->for_each({[](u64 mark) { return every_state_of(GetParam(), mark); }, 6},
                    [&](const std::vector<GrowthImage>& images, u64 mark, bool goes_on) {
                      try {
                        look_at_state(images, mark, goes_on);
                      } catch (const std::exception& error) {
                        FAIL() << error.what();
                      }
                    });
}

// The oracle works: it notices a punch of the region with the root directory.
TEST_P(TrimCrashes, APunchOfPagesInUseIsNoticed) {
  pool::OpenPoolOptions options;
  options.device_paths = paths_;
  options.read_only = true;
  options.lock = false;
  const pool::OpenedPool pool = pool::open_pool(options);
  const pool::OpenedChunk& chunk = pool.chunks.front();
  for (const pool::ColumnRange& range : pool::ranges_of_regions(chunk.descriptor, 0, 1)) {
    const format::ColumnAddress column = chunk.columns[range.column];
    const device::MappedFile file = device::MappedFile::open(paths_[column.device_index()]);
    file.release_range(column.offset_bytes() + pool::header_area_bytes(chunk.descriptor) + range.offset, range.length);
  }
  EXPECT_NE(find_problems(paths_), "");
}

INSTANTIATE_TEST_SUITE_P(Shapes, TrimCrashes,
                         ::testing::Values(TrimCrashShape{"single", 2, 3}, TrimCrashShape{"raid1", 2, 2},
                                           TrimCrashShape{"raid5", 3, 50}));

}  // namespace
}  // namespace gpu4fs::test::trim_crash_test
