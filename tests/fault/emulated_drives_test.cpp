// Pools whose devices are emulated NVMe drives, of which one does not work any more.
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <string>

#include "device/nvme/spec/commands.hpp"
#include "growth/growing_pool.hpp"

namespace gpu4fs::test::emulated_drives_test {
namespace {

constexpr u64 block_count = 24;
constexpr u64 timeout_ns = 1000000000;

class DrivePair {
 public:
  DrivePair() {
    pool::MakePoolOptions make;
    make.device_paths = {folder_ / "drive0", folder_ / "drive1"};
    make.size_bytes = u64{24} << 20;
    make.chunk_size_bytes = u64{8} << 20;
    make.data_profile = make.metadata_profile = "raid1";
    pool::make_pool(make);
    devices = make.device_paths;
  }

  session::ServerOptions options() {
    session::ServerOptions options = GrowthMount::options(devices);
    options.device_access = session::DeviceAccess::emulated;
    options.drives.command_timeout_ns = timeout_ns;
    return options;
  }
  static u64 failed_devices(GrowthMount& mount) {
    session::PoolHealth health;
    EXPECT_EQ(mount.server().open_inspector().health(&health), Status::ok);
    return health.record.failed_devices;
  }

  std::vector<std::string> devices;

 private:
  GrowthFolder folder_;
};

// Commands of one drive are not answered from some moment on: those of this kind, or all. `queue_depth`: 0: the usual.
void lose_commands_of(std::optional<nvme::IoOpcode> opcode, u32 queue_depth = 0) {
  DrivePair pair;
  std::atomic<bool> is_silent{false};
  session::ServerOptions options = pair.options();
  options.drives.is_lost = [&](u32 device, const nvme::SubmissionEntry& entry) {
    return is_silent && device == 1 && (!opcode || entry.opcode == static_cast<u8>(*opcode));
  };
  if (queue_depth != 0) {
    options.drives.queue_count = 1;
    options.drives.queue_depth = queue_depth;
  }
  {
    GrowthMount mount(options);
    const u64 inode = make_file(mount.files(), "file");
    for (u64 block = 0; block < block_count / 2; ++block) {
      ASSERT_EQ(write_block(mount.files(), inode, block, 7 + block), Status::ok);
    }
    ASSERT_EQ(mount.files().simple(wire::Opcode::sync, 0, 0, 0).status, Status::ok);
    EXPECT_EQ(DrivePair::failed_devices(mount), 0u);
    is_silent = true;
    for (u64 block = block_count / 2; block < block_count; ++block) {
      ASSERT_EQ(write_block(mount.files(), inode, block, 7 + block), Status::ok);
    }
    ASSERT_EQ(mount.files().simple(wire::Opcode::sync, 0, 0, 0).status, Status::ok);
    EXPECT_EQ(DrivePair::failed_devices(mount), u64{2});
    EXPECT_TRUE(has_blocks(mount.files(), inode, block_count, 7));
    EXPECT_TRUE(mount.stop());
  }
  session::ServerOptions alone = pair.options();
  alone.degraded = true;
  GrowthMount mount(alone);
  EXPECT_TRUE(has_blocks(mount.files(), find_file(mount.files(), "file"), block_count, 7));
  EXPECT_TRUE(mount.stop());
}

TEST(EmulatedDrives, APoolGoesOnWithoutADriveThatDoesNotWrite) {
  lose_commands_of(nvme::IoOpcode::write);
}

TEST(EmulatedDrives, APoolGoesOnWithoutADriveThatDoesNotFlush) {
  lose_commands_of(nvme::IoOpcode::flush);
}

// Whoever wants something of it waits for a place in its queue.
TEST(EmulatedDrives, APoolGoesOnWithoutADriveWhoseQueueIsFull) {
  lose_commands_of(std::nullopt, 2);
}

// Now and then a command is lost, of each kind that moves bytes. The drive aborts it, and the request is repeated.
TEST(EmulatedDrives, LateCommandsAreRepeated) {
  DrivePair pair;
  session::ServerOptions options = pair.options();
  std::atomic<u32> reads{0};
  std::atomic<u32> writes{0};
  std::atomic<u32> lost_count{0};
  std::atomic<bool> is_lossy{false};
  // A quarter of it is the time for an Abort, also on a busy machine.
  options.drives.command_timeout_ns = 2 * timeout_ns;
  options.drives.answers_aborts = true;
  options.drives.is_lost = [&](u32 device, const nvme::SubmissionEntry& entry) {
    if (!is_lossy || device != 1) return false;
    const bool is_read = entry.opcode == static_cast<u8>(nvme::IoOpcode::read);
    if (!is_read && entry.opcode != static_cast<u8>(nvme::IoOpcode::write)) return false;
    const bool is_lost = (is_read ? reads++ : writes++) % 40 == 0 && lost_count < 3;
    if (is_lost) ++lost_count;
    return is_lost;
  };
  options.page_cache_bytes = u64{1} << 20;
  {
    GrowthMount mount(options);
    const u64 inode = make_file(mount.files(), "file");
    is_lossy = true;
    for (u64 block = 0; block < block_count; ++block) {
      ASSERT_EQ(write_block(mount.files(), inode, block, 7 + block), Status::ok);
    }
    ASSERT_EQ(mount.files().simple(wire::Opcode::sync, 0, 0, 0).status, Status::ok);
    EXPECT_EQ(DrivePair::failed_devices(mount), 0u);
    EXPECT_EQ(lost_count, 3u);
    is_lossy = false;
    EXPECT_TRUE(mount.stop());
  }
  {
    GrowthMount mount(options);
    reads = lost_count = 0;
    is_lossy = true;
    EXPECT_TRUE(has_blocks(mount.files(), find_file(mount.files(), "file"), block_count, 7));
    EXPECT_EQ(DrivePair::failed_devices(mount), 0u);
    EXPECT_GE(reads, 1u);
    EXPECT_GE(lost_count, 1u);
    is_lossy = false;
    EXPECT_TRUE(mount.stop());
  }
  EXPECT_EQ(find_problems(pair.devices), "");
}

// In random order, with queues that are nearly always full.
TEST(EmulatedDrives, SmallQueuesInRandomOrder) {
  DrivePair pair;
  session::ServerOptions options = pair.options();
  options.drives.queue_count = 1;
  options.drives.queue_depth = 2;
  options.drives.order_seed = 5;
  options.drives.command_timeout_ns = 60000000000;
  {
    GrowthMount mount(options);
    const u64 inode = make_file(mount.files(), "file");
    for (u64 block = 0; block < block_count; ++block) {
      ASSERT_EQ(write_block(mount.files(), inode, block, 3 + block), Status::ok);
    }
    EXPECT_TRUE(has_blocks(mount.files(), inode, block_count, 3));
    EXPECT_TRUE(mount.stop());
  }
  EXPECT_EQ(find_problems(pair.devices), "");
}

}  // namespace
}  // namespace gpu4fs::test::emulated_drives_test
