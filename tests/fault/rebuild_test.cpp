// Lost devices are filled again while the pool is mounted: every level with redundancy, every set of devices that it
// can lose, with the old files and with new ones. Removing other devices afterwards shows that the filled content is
// right and is used.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "fault/losing_pool.hpp"
#include "support/saved_devices.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test::rebuild_test {
namespace {

using Level = LosingLevel;

// One of this number of cases is run; sanitizers run fewer.
u32 stride() {
  return 100 / std::clamp(scaled(100), 1u, 100u);
}

std::vector<u32> sets_of(u32 devices, u32 count) {
  std::vector<u32> sets;
  for (u32 set = 1; set < 1u << devices; ++set) {
    if (static_cast<u32>(popcount(u64{set})) == count) sets.push_back(set);
  }
  return sets;
}

void find_devices_again(LosingPool& losing, u32 devices) {
  losing.lose(devices, std::int64_t{1} << 60);
}

// Begins with each device of the set, and runs rounds until nothing is left.
void rebuild_all(LosingPool& losing, u32 devices, bool is_new) {
  for (u32 left = devices; left != 0; left &= left - 1) {
    const u32 device = count_trailing_zeros(u64{left});
    ASSERT_EQ(losing.pool().begin_rebuild(device, is_new), Status::ok) << device;
  }
  for (u32 round = 0; round < 5; ++round) {
    const TestPool::RebuildRound done = losing.pool().rebuild_round(is_new);
    ASSERT_EQ(done.status, Status::ok);
    EXPECT_EQ(done.unreadable, 0u);
    EXPECT_EQ(done.unverified, 0u);
    if (done.left == 0) {
      EXPECT_EQ(failed_mask(losing), 0u);
      return;
    }
  }
  FAIL() << "the rebuild does not end";
}

// Unmounts; everything is present without any set of as many devices as may be lost.
void expect_redundant(LosingPool& losing, const Level& level) {
  losing.close();
  losing.pool().unmount();
  const fsck::CheckResult check = losing.pool().check();
  EXPECT_EQ(check.findings.error_count(), 0u) << findings_text(check);
  const SavedDevices saved(losing.pool().device_paths());
  for (const u32 away : sets_of(level.device_count, level.redundancy)) {
    SCOPED_TRACE(fmt::format("afterwards without {:#b}", away));
    saved.restore(away);
    losing.mount(true);
    EXPECT_EQ(failed_mask(losing), away);
    losing.read_all();
    losing.power_loss();
    if (::testing::Test::HasFailure()) return;
  }
  saved.restore(0);
  losing.mount(false);
  losing.read_all();
}

class Rebuilt : public ::testing::TestWithParam<Level> {
 protected:
  template <class Visit>
  void for_each_set(Visit visit) {
    const Level level = GetParam();
    for (u32 count = 1; count <= level.redundancy; ++count) {
      for (const u32 lost : sets_of(level.device_count, count)) {
        for (const bool is_new : {false, true}) {
          // A part of the many sets of large pools suffices.
          if (level.device_count > 4 && (lost * 2 + is_new) % 5 != 0) continue;
          if (level.device_count > 2 && (lost * 2 + is_new) % stride() != 0) continue;
          SCOPED_TRACE(fmt::format("lost {:#b}, new files {}", lost, is_new));
          LosingPool losing(level);
          visit(losing, lost, is_new);
          if (HasFailure()) return;
        }
      }
    }
  }
};

void lose_and_rebuild(LosingPool& losing, const Level& level, u32 lost, bool is_new) {
  losing.lose(lost, 0);
  losing.write_all(1);
  ASSERT_EQ(losing.sync(), Status::ok);
  ASSERT_EQ(failed_mask(losing), lost);
  find_devices_again(losing, lost);
  rebuild_all(losing, lost, is_new);
  losing.read_all();
  for (u32 file = 0; file < losing_file_count; file += 3) ASSERT_EQ(losing.write(file, 2), Status::ok);
  losing.read_all();
  expect_redundant(losing, level);
}

TEST_P(Rebuilt, ThenOthersAreLost) {
  for_each_set([&](LosingPool& losing, u32 lost, bool is_new) { lose_and_rebuild(losing, GetParam(), lost, is_new); });
}

// With an engine of warps, which does nothing else.
TEST(RebuiltByWarps, ThenOthersAreLost) {
  for (const Level& level : {Level{"raid1", 2, 1}, Level{"raid6", 4, 2}}) {
    SCOPED_TRACE(level.profile);
    const u32 lost = sets_of(level.device_count, level.redundancy).back();
    LosingPool losing(level);
    losing.lose(lost, 0);
    losing.write_all(1);
    losing.close();
    losing.pool().unmount();
    find_devices_again(losing, lost);
    losing.pool().options().warp_count = 1;
    losing.mount(true);
    rebuild_all(losing, lost, level.redundancy == 2);
    losing.close();
    losing.pool().unmount();
    losing.pool().options().warp_count = 0;
    losing.mount(false);
    losing.read_all();
    expect_redundant(losing, level);
    if (::testing::Test::HasFailure()) return;
  }
}

// Files are continuously written, allocated, deleted and synced.
TEST_P(Rebuilt, WhileFilesChange) {
  for (const bool is_new : {false, true}) {
    SCOPED_TRACE(is_new);
    LosingPool losing(GetParam());
    losing.lose(2, 0);
    losing.write_all(1);
    ASSERT_EQ(losing.sync(), Status::ok);
    find_devices_again(losing, 2);
    // If the file is a new one, its mapping changes: no flush may happen meanwhile.
    if (is_new) {
      ASSERT_EQ(losing.pool().begin_rebuild(1, true), Status::ok);
    }
    std::atomic<bool> ends{false};
    std::atomic<u32> changes{0};
    std::thread writer([&] {
      Sequence sequence(77);
      for (u32 version = 2; !ends; ++version) {
        const u32 file = static_cast<u32>(sequence.next() % losing_file_count);
        if (sequence.next() % 3 == 0) {
          ASSERT_EQ(losing.recreate(file), Status::ok);
        }
        ASSERT_EQ(losing.write(file, version), Status::ok);
        if (sequence.next() % 8 == 0) {
          ASSERT_EQ(losing.sync(), Status::ok);
        }
        ++changes;
      }
    });
    if (!is_new) {
      EXPECT_EQ(losing.pool().begin_rebuild(1, false), Status::ok);
    }
    bool is_done = false;
    for (u32 round = 0; round < 200 && !is_done; ++round) {
      const TestPool::RebuildRound done = losing.pool().rebuild_round(is_new && round == 0);
      EXPECT_EQ(done.status, Status::ok);
      if (done.status != Status::ok) break;
      is_done = done.left == 0;
    }
    EXPECT_TRUE(is_done) << "a rebuild ends although files change";
    while (is_done && changes < 50) std::this_thread::yield();
    ends = true;
    writer.join();
    EXPECT_EQ(failed_mask(losing), 0u);
    losing.read_all();
    expect_redundant(losing, GetParam());
    if (HasFailure()) return;
  }
}

// The device fails again at some time of the rebuild: the pool is as before, and the rebuild can be restarted.
TEST_P(Rebuilt, TheTargetFailsAgain) {
  u32 survived = 0;
  for (std::int64_t accesses = 0; survived < 2; accesses = is_short() ? accesses * 3 + 1 : accesses * 5 / 3 + 1) {
    SCOPED_TRACE(accesses);
    LosingPool losing(GetParam());
    losing.lose(1, 0);
    losing.write_all(1);
    ASSERT_EQ(losing.sync(), Status::ok);
    find_devices_again(losing, 1);
    ASSERT_EQ(losing.pool().begin_rebuild(0, false), Status::ok);
    losing.lose(1, accesses);
    for (u32 file = 0; file < losing_file_count; file += 5) ASSERT_EQ(losing.write(file, 2), Status::ok);
    TestPool::RebuildRound done{};
    for (u32 round = 0; round < 5; ++round) {
      done = losing.pool().rebuild_round(false);
      if (done.status != Status::ok || done.left == 0) break;
    }
    losing.read_all();
    if (losing.device(0).accesses_left >= 0) {
      ++survived;
      find_devices_again(losing, 1);
      EXPECT_EQ(done.status, Status::ok);
      EXPECT_EQ(failed_mask(losing), 0u);
    } else {
      losing.write_all(3);
      ASSERT_EQ(losing.sync(), Status::ok);
      EXPECT_EQ(failed_mask(losing), 1u);
      find_devices_again(losing, 1);
      rebuild_all(losing, 1, false);
    }
    expect_redundant(losing, GetParam());
    if (HasFailure()) return;
  }
}

// Another device fails during the rebuild.
TEST_P(Rebuilt, AnotherOneFailsMeanwhile) {
  const Level level = GetParam();
  for (const std::int64_t accesses : {0, 9, 30}) {
    SCOPED_TRACE(accesses);
    LosingPool losing(level);
    losing.lose(1, 0);
    losing.write_all(1);
    ASSERT_EQ(losing.sync(), Status::ok);
    find_devices_again(losing, 1);
    ASSERT_EQ(losing.pool().begin_rebuild(0, false), Status::ok);
    losing.lose(2, accesses);
    TestPool::RebuildRound done{};
    u64 unreadable = 0;
    for (u32 round = 0; round < 5; ++round) {
      done = losing.pool().rebuild_round(false);
      unreadable += done.unreadable;
      if (done.status != Status::ok || done.left == 0) break;
    }
    if (losing.device(1).accesses_left >= 0) {
      EXPECT_EQ(done.status, Status::ok);
      EXPECT_EQ(failed_mask(losing), 0u);
      continue;
    }
    if (level.redundancy == 1) {
      // Too little is left: no false promise is made.
      EXPECT_TRUE(done.status != Status::ok || unreadable != 0 || done.left != 0);
      losing.power_loss();
      losing.mount(true);
      losing.read_all();
      continue;
    }
    ASSERT_EQ(done.status, Status::ok);
    EXPECT_EQ(failed_mask(losing), 2u);
    losing.read_all();
    losing.write_all(2);
    ASSERT_EQ(losing.sync(), Status::ok);
    find_devices_again(losing, 2);
    rebuild_all(losing, 2, true);
    expect_redundant(losing, level);
    if (HasFailure()) return;
  }
}

// Power fails at some access of the rebuild; then it is restarted.
TEST_P(Rebuilt, PowerGoes) {
  for (const bool is_new : {false, true}) {
    for (std::int64_t accesses = is_new ? 1 : 0;; accesses += (accesses < 12 ? 2 : accesses / 3) * stride()) {
      SCOPED_TRACE(fmt::format("{} accesses, new files {}", accesses, is_new));
      LosingPool losing(GetParam());
      losing.lose(2, 0);
      losing.write_all(1);
      ASSERT_EQ(losing.sync(), Status::ok);
      find_devices_again(losing, 2);
      losing.cut_power(accesses);
      Status status = losing.pool().begin_rebuild(1, is_new);
      for (u32 round = 0; round < 5 && status == Status::ok; ++round) {
        const TestPool::RebuildRound done = losing.pool().rebuild_round(is_new);
        status = done.status;
        if (done.left == 0) break;
      }
      const bool was_cut = !losing.has_power();
      if (!was_cut) {
        EXPECT_EQ(status, Status::ok);
      }
      losing.power_loss();
      const pool::SuperblockProbe probe = pool::probe_superblocks(losing.pool().device_paths()[1]);
      const bool is_blank = probe.newest() == nullptr;
      if (is_blank) std::filesystem::remove(losing.pool().device_paths()[1]);
      losing.mount(true);
      losing.read_all();
      const u32 lost = failed_mask(losing);
      EXPECT_TRUE(lost == 0 || lost == 2) << lost;
      if (!was_cut) {
        EXPECT_EQ(lost, 0u);
      }
      if (lost != 0) rebuild_all(losing, lost, is_blank);
      expect_redundant(losing, GetParam());
      if (HasFailure()) return;
      if (!was_cut) break;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, Rebuilt,
                         ::testing::Values(Level{"raid1", 2, 1}, Level{"raid1", 3, 1}, Level{"raid1c3", 3, 2},
                                           Level{"raid5", 3, 1}, Level{"raid6", 4, 2}, Level{"raid7", 5, 3}),
                         [](const auto& parameter) {
                           return fmt::format("{}_{}", parameter.param.profile, parameter.param.device_count);
                         });

}  // namespace
}  // namespace gpu4fs::test::rebuild_test
