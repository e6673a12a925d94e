// Mounted pools that lose devices: every level with redundancy, every set of devices that it can lose, before, during
// and after writes; the state after a crash; and one device too many.
//
// The files of lost devices stay in place, so each mount after the loss finds them again with old contents.
#include <gtest/gtest.h>

#include <filesystem>

#include "fault/losing_pool.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test::degraded_test {
namespace {

using Level = LosingLevel;

class LostDevices : public ::testing::TestWithParam<Level> {
 protected:
  // Everything acknowledged is present although the lost devices are back with their old content.
  void expect_kept_after_power_loss(LosingPool& losing, u32 lost) {
    losing.power_loss();
    EXPECT_NE(losing.mount_problem().find("is stale since epoch"), std::string::npos) << lost;
    losing.mount(true);
    EXPECT_EQ(failed_mask(losing), lost);
    losing.read_all();
    losing.write_all(40);
    losing.read_all();
    losing.close();
    losing.pool().unmount();
    const fsck::CheckResult check = losing.pool().check();
    EXPECT_EQ(check.findings.count(fsck::FindingId::device_missing), popcount(u64{lost}));
    EXPECT_EQ(check.findings.error_count(), popcount(u64{lost})) << findings_text(check);
  }

  template <class Visit>
  void for_each_set(Visit visit) {
    const Level level = GetParam();
    for (u32 lost = 1; lost < 1u << level.device_count; ++lost) {
      if (static_cast<u32>(popcount(u64{lost})) > level.redundancy) continue;
      SCOPED_TRACE(fmt::format("lost {:#b}", lost));
      LosingPool losing(level);
      visit(losing, lost);
      if (HasFatalFailure()) return;
    }
  }
};

TEST_P(LostDevices, BeforeTheMount) {
  for_each_set([&](LosingPool& losing, u32 lost) {
    losing.close();
    losing.pool().unmount();
    const std::vector<std::string> paths = losing.pool().device_paths();
    const std::string away = std::filesystem::path(paths[0]).parent_path().string() + "/away";
    std::filesystem::create_directory(away);
    for (u32 d = 0; d < paths.size(); ++d) {
      if ((lost >> d & 1) != 0) std::filesystem::rename(paths[d], fmt::format("{}/{}", away, d));
    }
    EXPECT_NE(losing.mount_problem().find("is missing: UUID"), std::string::npos);
    losing.mount(true);
    EXPECT_EQ(failed_mask(losing), lost);
    losing.read_all();
    losing.write_all(1);
    EXPECT_EQ(losing.sync(), Status::ok);
    losing.read_all();
    for (u32 d = 0; d < paths.size(); ++d) {
      if ((lost >> d & 1) != 0) std::filesystem::rename(fmt::format("{}/{}", away, d), paths[d]);
    }
    expect_kept_after_power_loss(losing, lost);
  });
}

TEST_P(LostDevices, InTheMiddleOfWrites) {
  using Moments = std::vector<std::int64_t>;
  for (const std::int64_t accesses : is_short() ? Moments{3, 60} : Moments{0, 3, 17, 60}) {
    SCOPED_TRACE(accesses);
    for_each_set([&](LosingPool& losing, u32 lost) {
      losing.lose(lost, accesses);
      losing.write_all(1);
      losing.read_all();
      for (u32 version = 2; version < 6; ++version) losing.write_all(version);
      EXPECT_EQ(losing.sync(), Status::ok);
      losing.read_all();
      EXPECT_EQ(failed_mask(losing), lost);
      EXPECT_FALSE(raid::has_unrecorded_loss(losing.pool().engine()->fs.space));
      // The next sync can use the log again.
      losing.write_all(6);
      EXPECT_EQ(losing.sync(), Status::ok);
      expect_kept_after_power_loss(losing, lost);
    });
  }
}

TEST_P(LostDevices, BetweenWritesAndSync) {
  for_each_set([&](LosingPool& losing, u32 lost) {
    losing.write_all(1);
    losing.lose(lost, 0);
    losing.read_all();
    EXPECT_EQ(losing.sync(), Status::ok);
    EXPECT_EQ(failed_mask(losing), lost);
    expect_kept_after_power_loss(losing, lost);
  });
}

// Each access of a sync and of a checkpoint in turn is the last one of the device.
TEST_P(LostDevices, AtEachAccessOfASync) {
  const Level level = GetParam();
  for (const bool by_checkpoint : {false, true}) {
    u32 survived = 0;
    const auto next = [](std::int64_t accesses) { return accesses + (accesses < 12 ? 1 : accesses < 200 ? 5 : 100); };
    for (std::int64_t accesses = 0; survived < 2 && accesses < 3000; accesses = next(accesses)) {
      SCOPED_TRACE(fmt::format("{} accesses, checkpoint {}", accesses, by_checkpoint));
      LosingPool losing(level);
      losing.write_all(1);
      losing.lose(1, accesses);
      ASSERT_EQ(by_checkpoint ? losing.pool().checkpoint() : losing.sync(), Status::ok);
      const bool lost = losing.device(0).accesses_left < 0;
      if (!lost) ++survived;
      losing.power_loss();
      losing.mount(true);
      losing.read_all();
      losing.close();
      losing.pool().unmount();
      if (HasFatalFailure()) return;
    }
    EXPECT_GE(survived, 1u) << "not all accesses were tried";
  }
}

TEST_P(LostDevices, AFailedFlushLosesTheDevice) {
  LosingPool losing(GetParam());
  losing.device(1).fails_flushes_only = true;
  losing.write_all(1);
  losing.lose(2, 0);
  EXPECT_EQ(losing.sync(), Status::ok);
  EXPECT_EQ(failed_mask(losing), 2u);
  losing.device(1).fails_flushes_only = false;
  expect_kept_after_power_loss(losing, 2);
}

// Pages of staged devices that are in frames could still be read. No command runs.
void forget_frames(LosingPool& losing) {
  const raid::LogicalSpace& space = losing.pool().engine()->fs.space;
  for (u32 d = 0; space.staged != nullptr && d < space.device_count; ++d) {
    EXPECT_EQ(device::discard(Lane{}, *space.staged, d, 0, device::device_page_max), 0u);
  }
}

// One more than the level can lose: pages that only lost devices hold are EIO, nothing is wrong, and everything
// acknowledged earlier returns.
TEST_P(LostDevices, OneTooManyIsAnError) {
  const Level level = GetParam();
  u32 refused_at_all = 0;
  // Devices of one chunk after the other: the allocator decides which of them hold files.
  u32 chunk_count = 1;
  for (u32 index = 0; index < std::min(chunk_count, 3u); ++index) {
    SCOPED_TRACE(index);
    LosingPool losing(level);
    chunk_count = losing.pool().engine()->fs.space.chunk_count;
    losing.write_all(1);
    EXPECT_EQ(losing.sync(), Status::ok);
    const raid::ChunkState& chunk = losing.pool().engine()->fs.space.chunks[index];
    u32 lost = 0;
    for (u32 column = 0; column < level.redundancy; ++column) lost |= 1u << chunk.columns[column].device;
    losing.lose(lost, 0);
    losing.write_all(2);
    EXPECT_EQ(losing.sync(), Status::ok);
    losing.lose(1u << chunk.columns[level.redundancy].device, 0);
    forget_frames(losing);
    u32 refused = 0;
    for (u32 file = 0; file < losing_file_count; ++file) {
      const Status status = losing.read(file);
      if (status == Status::ok) continue;
      EXPECT_EQ(to_errno(status), EIO) << status_name(status);
      ++refused;
    }
    refused_at_all += refused;
    if (level.device_count == level.redundancy + 1) {
      EXPECT_EQ(refused, losing_file_count);
      // A staged device takes the page into a frame without reading it; its error is the answer of a flush.
      if (losing.pool().engine()->fs.space.staged == nullptr) {
        EXPECT_NE(losing.write(3, 3), Status::ok);
      }
    }
    EXPECT_EQ(failed_mask(losing), lost) << "the last one is not given up";
    losing.power_loss();
    losing.mount(true);
    losing.read_all();
  }
  EXPECT_GT(refused_at_all, 0u);
}

INSTANTIATE_TEST_SUITE_P(Levels, LostDevices,
                         ::testing::Values(Level{"raid1", 2, 1}, Level{"raid1", 3, 1}, Level{"raid1c3", 3, 2},
                                           Level{"raid1c4", 4, 3}, Level{"raid5", 3, 1}, Level{"raid6", 4, 2}),
                         [](const auto& parameter) {
                           return fmt::format("{}_{}", parameter.param.profile, parameter.param.device_count);
                         });

// Without redundancy errors stay errors, and no device is given up.
TEST(LostDevicesWithoutRedundancy, AreNotGivenUp) {
  LosingPool losing({"single", 2, 0});
  losing.lose(1, 0);
  for (u32 file = 0; file < losing_file_count; ++file) (void)losing.read(file);
  EXPECT_NE(losing.sync() == Status::ok ? losing.write(0, 1) : Status::io_error, Status::ok);
  EXPECT_EQ(failed_mask(losing), 0u);
  losing.power_loss();
  losing.mount(false);
  for (u32 file = 0; file < losing_file_count; ++file) EXPECT_EQ(losing.read(file), Status::ok);
}

// Each half of a mirror was written without the other one. Neither has what the other one lacks.
TEST(HistoriesApart, AreNotMountedTogether) {
  TestPoolOptions options;
  options.profile = "raid1";
  options.degraded = true;
  TestPool pool(options);
  pool.unmount();
  const std::vector<std::string> paths = pool.device_paths();
  // In the devices' folder they would be found.
  const std::string away = std::filesystem::path(paths[0]).parent_path().string() + "/away";
  std::filesystem::create_directory(away);
  const auto work_without = [&](u32 device) {
    std::filesystem::rename(paths[device], away + "/lost");
    pool.mount();
    EXPECT_EQ(pool.checkpoint(), Status::ok);
    pool.unmount();
    std::filesystem::rename(away + "/lost", paths[device]);
  };
  pool::OpenPoolOptions open;
  open.device_paths = paths;
  open.read_only = true;
  open.lock = false;
  open.degraded = true;
  std::filesystem::copy_file(paths[0], away + "/0");
  work_without(1);
  EXPECT_NO_THROW(pool::open_pool(open)) << "device 1 has missed writes";
  std::filesystem::rename(paths[0], away + "/history");
  std::filesystem::rename(away + "/0", paths[0]);
  work_without(0);
  EXPECT_NO_THROW(pool::open_pool(open)) << "device 0 has missed writes";
  std::filesystem::rename(away + "/history", paths[0]);
  try {
    pool::open_pool(open);
    ADD_FAILURE() << "two histories were opened as one pool";
  } catch (const pool::PoolError& error) {
    EXPECT_EQ(error.status(), Status::wrong_pool) << error.what();
    EXPECT_NE(std::string(error.what()).find("each was written without the other"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace gpu4fs::test::degraded_test
