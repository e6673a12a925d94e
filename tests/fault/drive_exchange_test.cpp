// Pools on emulated NVMe drives: a device whose drive failed is filled again, and devices come and go.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "device/nvme/spec/commands.hpp"
#include "growth/growing_pool.hpp"
#include "pool/lock_wait.hpp"
#include "pool/pool_device_file.hpp"

namespace gpu4fs::test::drive_exchange_test {
namespace {

constexpr u64 device_bytes = u64{24} << 20;
constexpr u64 block_count = 24;

class DrivePool {
 public:
  DrivePool(const std::string& profile, u32 device_count) {
    pool::MakePoolOptions make;
    for (u32 i = 0; i < device_count; ++i) make.device_paths.push_back(folder_ / "drive" + std::to_string(i));
    make.size_bytes = device_bytes;
    make.chunk_size_bytes = u64{8} << 20;
    make.data_profile = profile;
    make.metadata_profile = "raid1";
    pool::make_pool(make);
    devices = make.device_paths;
  }

  session::ServerOptions options(session::DeviceAccess access = session::DeviceAccess::emulated) const {
    session::ServerOptions options = GrowthMount::options(devices);
    options.device_access = access;
    return options;
  }
  std::string new_file(const std::string& name) const {
    pool::DeviceFile::create(folder_ / name, device_bytes);
    return folder_ / name;
  }

  std::vector<std::string> devices;

 private:
  GrowthFolder folder_;
};

u64 failed_devices(GrowthMount& mount) {
  session::PoolHealth health;
  EXPECT_EQ(mount.server().open_inspector().health(&health), Status::ok);
  return health.record.failed_devices;
}

void write_blocks(GrowthMount& mount, u64 inode, u64 first, u64 end) {
  for (u64 block = first; block < end; ++block) {
    ASSERT_EQ(write_block(mount.files(), inode, block, 7 + block), Status::ok);
  }
  ASSERT_EQ(mount.files().simple(wire::Opcode::sync, 0, 0, 0).status, Status::ok);
}

enum class Cure { rebuild, replace, spare };

// The drive of device 1 falls silent, and the device is filled again. Then the pool works without device 0.
void cure(const std::string& profile, u32 device_count, Cure how) {
  DrivePool pool(profile, device_count);
  const std::string fresh = pool.new_file("fresh");
  std::atomic<bool> is_silent{false};
  session::ServerOptions options = pool.options();
  options.drives.command_timeout_ns = 1000000000;
  options.drives.is_lost = [&](u32 device, const nvme::SubmissionEntry& entry) {
    return device == 1 && entry.opcode == static_cast<u8>(nvme::IoOpcode::write) && is_silent.load();
  };
  {
    GrowthMount mount(options);
    const u64 inode = make_file(mount.files(), "file");
    ASSERT_NO_FATAL_FAILURE(write_blocks(mount, inode, 0, block_count / 2));
    is_silent = true;
    ASSERT_NO_FATAL_FAILURE(write_blocks(mount, inode, block_count / 2, block_count));
    EXPECT_EQ(failed_devices(mount), u64{2});
    is_silent = false;
    if (how == Cure::rebuild) {
      ASSERT_EQ(mount.server().exchange().rebuild("1", 0), "");
    } else if (how == Cure::replace) {
      ASSERT_EQ(mount.server().exchange().replace("1", fresh, false, 0), "");
    } else {
      ASSERT_EQ(mount.server().spares().add(fresh, false), "");
      while (mount.server().rebuilder().report().state == maintenance::JobState::never) std::this_thread::yield();
    }
    while (mount.server().rebuilder().is_busy()) std::this_thread::yield();
    EXPECT_EQ(mount.server().rebuilder().report().state, maintenance::JobState::finished);
    EXPECT_EQ(failed_devices(mount), 0u);
    EXPECT_TRUE(has_blocks(mount.files(), inode, block_count, 7));
    ASSERT_NO_FATAL_FAILURE(write_blocks(mount, inode, block_count, block_count + 4));
    EXPECT_EQ(failed_devices(mount), 0u);
    EXPECT_TRUE(mount.stop());
  }
  if (how != Cure::rebuild) pool.devices[1] = fresh;
  EXPECT_EQ(find_problems(pool.devices), "");
  std::filesystem::remove(pool.devices[0]);
  pool.devices.erase(pool.devices.begin());
  session::ServerOptions without = pool.options();
  without.degraded = true;
  GrowthMount mount(without);
  EXPECT_TRUE(has_blocks(mount.files(), find_file(mount.files(), "file"), block_count + 4, 7));
  EXPECT_TRUE(mount.stop());
}

TEST(DriveExchange, ADeviceIsRebuiltOnAnotherDrive) {
  cure("raid1", 2, Cure::rebuild);
  cure("raid5", 3, Cure::rebuild);
}

TEST(DriveExchange, AnotherFileTakesThePlace) {
  cure("raid1", 2, Cure::replace);
  cure("raid5", 3, Cure::replace);
}

TEST(DriveExchange, ASpareTakesThePlace) {
  cure("raid1", 2, Cure::spare);
  cure("raid5", 3, Cure::spare);
}

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(DriveExchange, WithoutADriveNothingChanges) {
  DrivePool pool("raid1", 2);
  const std::string fresh = pool.new_file("fresh");
  std::ofstream(fresh, std::ios::binary | std::ios::in | std::ios::out) << "something else";
  const std::string before = content_of(fresh);
  session::ServerOptions options = pool.options();
  options.drives.spare_count = 0;
  GrowthMount mount(options);
  const u64 inode = make_file(mount.files(), "file");
  const std::string problem = mount.server().exchange().replace("1", fresh, true, 0);
  EXPECT_NE(problem.find(fresh + ": there is no emulated drive left for it"), std::string::npos) << problem;
  try {
    (void)mount.server().grower().add_device(fresh, true);
    ADD_FAILURE() << "it was added";
  } catch (const pool::PoolError& error) {
    EXPECT_EQ(error.status(), Status::no_space);
    EXPECT_NE(std::string(error.what()).find(fresh), std::string::npos) << error.what();
  }
  EXPECT_TRUE(content_of(fresh) == before) << "the file was changed";
  EXPECT_EQ(failed_devices(mount), 0u);
  ASSERT_NO_FATAL_FAILURE(write_blocks(mount, inode, 0, 4));
  EXPECT_EQ(failed_devices(mount), 0u);
  EXPECT_TRUE(has_blocks(mount.files(), inode, 4, 7));
  EXPECT_TRUE(mount.stop());
  EXPECT_EQ(find_problems(pool.devices), "");
}

// With one drive more than devices.
void add_and_remove(session::DeviceAccess access) {
  DrivePool pool("raid1", 2);
  session::ServerOptions options = pool.options(access);
  options.drives.spare_count = 1;
  GrowthMount mount(options);
  const u64 inode = make_file(mount.files(), "file");
  for (u32 round = 0; round < 3; ++round) {
    const std::string path = pool.new_file("fresh" + std::to_string(round));
    const u32 device = mount.server().grower().add_device(path, false);
    EXPECT_THROW(pool::DeviceFile::open(path, pool::DeviceFile::Access::read_write, pool::DeviceFile::Locking::lock),
                 pool::DeviceInUse);
    ASSERT_NO_FATAL_FAILURE(write_blocks(mount, inode, 2 * round, 2 * round + 2));
    mount.server().grower().remove_device(device);
    EXPECT_NO_THROW(pool::DeviceFile::open(path, pool::DeviceFile::Access::read_write, pool::DeviceFile::Locking::lock))
        << round;
  }
  EXPECT_TRUE(has_blocks(mount.files(), inode, 6, 7));
  EXPECT_TRUE(mount.stop());
  EXPECT_EQ(find_problems(pool.devices), "");
}

TEST(DriveExchange, ARemovedDeviceIsFreeAtOnce) {
  add_and_remove(session::DeviceAccess::emulated);
  add_and_remove(session::DeviceAccess::direct_everywhere);
  add_and_remove(session::DeviceAccess::mapped);
}

}  // namespace
}  // namespace gpu4fs::test::drive_exchange_test
