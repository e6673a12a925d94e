// Devices and chunks with files: a removal and a balance move their content while others use it.
#include <atomic>
#include <functional>
#include <string_view>
#include <thread>

#include "growth/growing_pool.hpp"
#include "pool/pool_open.hpp"

namespace gpu4fs::test::emptying_test {
namespace {

constexpr u64 emptied_device_bytes = u64{48} << 20;

struct EmptyingShape {
  const char* profile;
  u32 device_count;
  bool has_parities;
  friend std::ostream& operator<<(std::ostream& out, const EmptyingShape& shape) {
    return out << shape.profile << " " << shape.device_count;
  }
};

// Its pages count as taken until two checkpoints have been written.
void remove_unsettled(GrowthMount& mount, const std::string& name) {
  FileOperation op;
  op.opcode = wire::Opcode::unlink;
  op.inode = format::inode_number_root;
  op.name = name;
  const client::Reply removed = mount.files().call(op);
  ASSERT_EQ(removed.status, Status::ok);
  if (removed.result != 0) {
    ASSERT_EQ(mount.files().simple(wire::Opcode::reclaim, removed.result).status, Status::ok);
  }
}

void remove_file(GrowthMount& mount, const std::string& name) {
  ASSERT_NO_FATAL_FAILURE(remove_unsettled(mount, name));
  for (u32 i = 0; i < 2; ++i) ASSERT_EQ(mount.server().open_inspector().checkpoint(), Status::ok);
}

class EmptiedDevices : public ::testing::TestWithParam<EmptyingShape> {
 protected:
  EmptiedDevices() {
    for (u32 i = 0; i < GetParam().device_count; ++i) devices_.push_back(folder_ / fmt::format("device{}", i));
    pool::MakePoolOptions options;
    options.device_paths = devices_;
    options.size_bytes = emptied_device_bytes;
    options.chunk_size_bytes = u64{8} << 20;
    options.data_profile = options.metadata_profile = GetParam().profile;
    pool::make_pool(options);
  }
  static maintenance::ReshapeReport await(maintenance::Reshaper& reshaper) {
    for (;;) {
      const maintenance::ReshapeReport report = reshaper.report();
      if (report.state != maintenance::JobState::running) return report;
      std::this_thread::yield();
    }
  }
  std::string new_device(const std::string& name, u64 bytes = emptied_device_bytes) {
    pool::DeviceFile::create(folder_ / name, bytes);
    return folder_ / name;
  }
  GrowthFolder folder_;
  std::vector<std::string> devices_;
};

// The remaining pages of the file "late" are spread over the whole pool: earlier data is removed. With parities every
// chunk has columns on all devices, and holes in its stripes would not be usable space.
u64 write_late(GrowthMount& mount, u64 seed, bool has_parities) {
  if (has_parities) {
    constexpr u64 few = 60;
    const u64 file = make_file(mount.files(), "late");
    for (u64 block = 0; block < few; ++block)
      EXPECT_EQ(write_block(mount.files(), file, block, seed + block), Status::ok);
    return few;
  }
  const u64 capacity = fill_file(mount.files(), make_file(mount.files(), "filler"), 0, 1);
  remove_file(mount, "filler");
  const u64 early = make_file(mount.files(), "early");
  for (u64 block = 0; block < capacity / 2; ++block)
    EXPECT_EQ(write_block(mount.files(), early, block, block), Status::ok);
  const u64 late = make_file(mount.files(), "late");
  const u64 count = capacity * 3 / 10;
  for (u64 block = 0; block < count; ++block)
    EXPECT_EQ(write_block(mount.files(), late, block, seed + block), Status::ok);
  remove_file(mount, "early");
  return count;
}

TEST_P(EmptiedDevices, LeaveThePoolWhileFilesAreWritten) {
  const u32 leaving = static_cast<u32>(devices_.size()) - 1;
  const std::string gone = devices_.back();
  u64 blocks = 0;
  {
    GrowthMount mount(devices_);
    blocks = write_late(mount, 3, GetParam().has_parities);
    const u64 busy = make_file(mount.files(), "busy");
    std::atomic<bool> ends{false};
    std::thread writer([&] {
      const std::unique_ptr<client::Session> session = mount.open_session();
      FileClient files(*session);
      for (u64 round = 0; !ends; ++round) {
        EXPECT_EQ(write_block(files, busy, round % 8, round % 8), Status::ok);
        if (round % 4 == 0) {
          EXPECT_EQ(files.simple(wire::Opcode::fsync, busy).status, Status::ok);
        }
      }
    });
    EXPECT_EQ(mount.server().reshaper().start_removal(leaving, 0), "");
    const maintenance::ReshapeReport report = await(mount.server().reshaper());
    ends = true;
    writer.join();
    ASSERT_EQ(report.state, maintenance::JobState::finished) << report.problem;
    EXPECT_GT(report.page_count, 0u);
    EXPECT_TRUE(has_blocks(mount.files(), find_file(mount.files(), "late"), blocks, 3));
    ASSERT_TRUE(mount.stop());
  }
  devices_.pop_back();
  std::filesystem::remove(gone);
  EXPECT_EQ(find_problems(devices_), "");
  GrowthMount mount(devices_);
  EXPECT_TRUE(has_blocks(mount.files(), find_file(mount.files(), "late"), blocks, 3));
  ASSERT_TRUE(mount.stop());
}

TEST_P(EmptiedDevices, LeaveThePoolRightAfterFilesWereRemoved) {
  GrowthMount mount(devices_);
  fill_file(mount.files(), make_file(mount.files(), "filler"), 0, 1);
  const u32 leaving = static_cast<u32>(devices_.size()) - 1;
  EXPECT_NE(mount.server().reshaper().start_removal(leaving, 0).find("have no room for"), std::string::npos);
  remove_unsettled(mount, "filler");
  ASSERT_EQ(mount.server().reshaper().start_removal(leaving, 0), "");
  EXPECT_EQ(await(mount.server().reshaper()).state, maintenance::JobState::finished);
  ASSERT_TRUE(mount.stop());
}

// A chunk of several columns needs as many devices with room: a single device that is added to a full pool stays empty.
TEST_P(EmptiedDevices, AreAsFullAsTheOthersAfterABalance) {
  const std::string added = new_device("added");
  u64 blocks = 0;
  {
    GrowthMount mount(devices_);
    blocks = write_late(mount, 5, GetParam().has_parities);
    const u32 index = mount.server().grower().add_device(added, false);
    ASSERT_EQ(mount.server().reshaper().start_balance(0), "");
    const maintenance::ReshapeReport report = await(mount.server().reshaper());
    EXPECT_EQ(report.state, maintenance::JobState::finished) << report.problem;
    if (std::string_view(GetParam().profile) == "single") {
      EXPECT_FALSE(mount.server().grower().chunks_on(index).empty());
      EXPECT_GT(report.page_count, 0u);
    }
    EXPECT_TRUE(has_blocks(mount.files(), find_file(mount.files(), "late"), blocks, 5));
    ASSERT_TRUE(mount.stop());
  }
  devices_.push_back(added);
  EXPECT_EQ(find_problems(devices_), "");
  GrowthMount mount(devices_);
  EXPECT_TRUE(has_blocks(mount.files(), find_file(mount.files(), "late"), blocks, 5));
  ASSERT_TRUE(mount.stop());
}

INSTANTIATE_TEST_SUITE_P(Shapes, EmptiedDevices,
                         ::testing::Values(EmptyingShape{"single", 3, false}, EmptyingShape{"raid1", 4, false},
                                           EmptyingShape{"raid5", 4, true}));

}  // namespace
}  // namespace gpu4fs::test::emptying_test
