// Part raid of gpu4fs bench drives: a small run, of which nothing is judged; its rows; what it refuses; what is left
// after a signal.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "bench/array_mount.hpp"
#include "bench/btrfs_mount.hpp"
#include "bench/cpu_binding.hpp"
#include "bench/drives.hpp"
#include "bench/held_signals.hpp"
#include "bench/loop_device.hpp"
#include "bench/mounts.hpp"
#include "bench/raid_files.hpp"
#include "bench/raid_sides.hpp"

namespace gpu4fs::bench {
namespace {

constexpr DrivesScale tiny_raid{.file_bytes = u64{8} << 20,
                                .random_bytes = u64{1} << 20,
                                .page_cache_bytes = u64{2} << 20,
                                .rounds = 1,
                                .medium_s_max = 1000,
                                .raid_s_max = 1000,
                                .appends = 50,
                                .idle_ms = 20,
                                .hit_bytes = u64{1} << 20,
                                .miss_reads = 20,
                                .recovered_bytes = u64{2} << 20};

// Why the part cannot run here, "" if it can.
std::string problem_here() {
  try {
    check_drive_folder(std::filesystem::current_path().string());
    check_loop_devices();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return ::access("/dev/fuse", R_OK | W_OK) == 0 ? "" : "there is no /dev/fuse";
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Loop devices over files of the folder.
u32 count_loops(const std::string& folder) {
  u32 count = 0;
  for (const auto& block : std::filesystem::directory_iterator("/sys/block")) {
    if (text_of(block.path() / "loop/backing_file").find(folder) != std::string::npos) ++count;
  }
  return count;
}

bool has_mounts(const std::string& folder) {
  return text_of("/proc/self/mounts").find(folder) != std::string::npos;
}

TEST(BenchDriveRaid, RowsCompareWithTheFastestPeer) {
  const RaidPeer slow{"slow", "", {1, 2, 3}};
  const RaidPeer fast{"fast", "", {5, 4, 3}};
  const RaidPeer absent{"absent", "it is not here", {}};
  const BenchRow row = raid_row("name", "what", {3, 1, 2}, {slow, fast, absent}, true);
  EXPECT_EQ(row.value, 2);
  EXPECT_EQ(row.limit, 4);
  EXPECT_EQ(row.limit_what, "fast");
  EXPECT_EQ(row.judged(), 0.5);
  EXPECT_FALSE(row.is_met());
  EXPECT_EQ(row.remark,
            "slow 2.00 GB/s (1.00 to 3.00), fast 4.00 GB/s (3.00 to 5.00), absent not available: it is not here");
  EXPECT_TRUE(raid_row("name", "what", {4}, {slow, fast}, true).is_met());
  EXPECT_EQ(raid_row("name", "what", {1}, {fast}, false).requirement, Requirement::none);
  const BenchRow alone = raid_row("name", "what", {1}, {absent}, true);
  EXPECT_EQ(alone.limit, 0);
  EXPECT_EQ(alone.requirement, Requirement::none);
  EXPECT_EQ(alone.remark, "absent not available: it is not here");
}

TEST(BenchDriveRaid, DevicesHaveRoomForTheFiles) {
  for (const RaidLevel& level : raid_levels) {
    EXPECT_GT(level.data_devices * raid_device_bytes(level, u64{1} << 30), u64{3} << 29) << level.profile;
    EXPECT_EQ(raid_device_bytes(level, 12345) % (u64{1} << 20), 0u) << level.profile;
  }
}

TEST(BenchDriveRaid, TooLittleSpaceIsSaidBefore) {
  const TemporaryFolder folder("/dev/shm");
  EXPECT_NO_THROW(check_raid_space(folder.path(), 0));
  try {
    check_raid_space(folder.path(), u64{1} << 60);
    FAIL() << "there is an exbibyte";
  } catch (const std::runtime_error& error) {
    const std::string text = error.what();
    EXPECT_TRUE(text.starts_with(folder.path() + " has ")) << text;
    EXPECT_NE(text.find("1099511627840 MiB are needed"), std::string::npos) << text;
  }
  EXPECT_THROW(check_raid_space(folder.path() + "/absent", 0), std::runtime_error);
}

TEST(BenchDriveRaid, ProgramsAreLookedForInThePath) {
  EXPECT_TRUE(has_program("sh"));
  EXPECT_FALSE(has_program("gpu4fs-has-no-such-program"));
}

TEST(BenchDriveRaid, ABindingEndsWithItsObject) {
  cpu_set_t before;
  cpu_set_t now;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(before), &before), 0);
  {
    const CpuBinding binding(1);
    EXPECT_EQ(binding.count(), 1u);
    ASSERT_EQ(::sched_getaffinity(0, sizeof(now), &now), 0);
    EXPECT_EQ(CPU_COUNT(&now), 1);
  }
  ASSERT_EQ(::sched_getaffinity(0, sizeof(now), &now), 0);
  EXPECT_TRUE(CPU_EQUAL(&before, &now));
}

TEST(BenchDriveRaid, SignalsWaitForTheCleanUp) {
  EXPECT_NO_THROW(HeldSignals::check());
  const auto interrupt = [] {
    const HeldSignals held;
    HeldSignals::check();
    std::raise(SIGTERM);
    std::raise(SIGINT);
    try {
      HeldSignals::check();
    } catch (const Interrupted&) {
      std::fputs("cleaned up", stderr);
    }
  };
  EXPECT_EXIT(interrupt(), testing::KilledBySignal(SIGTERM), "cleaned up");
}

// Somebody else's bytes in a file of the mount.
class ForgingMount final : public Mount {
 public:
  explicit ForgingMount(const std::string& folder) : Mount(folder) {}
  void up() override {
    if (++ups_ == 2) std::ofstream(folder_ + "/file1", std::ios::in | std::ios::out).seekp(5000) << '!';
  }
  void down() override {}

 private:
  u32 ups_ = 0;
};

TEST(BenchDriveRaid, WrongBytesAreFound) {
  const TemporaryFolder folder("/dev/shm");
  RaidFiles files({u64{4} << 20, 2});
  ForgingMount mount(folder.path());
  EXPECT_THROW(files.run(mount), std::runtime_error);
}

TEST(BenchDriveRaid, ARunHasItsRows) {
  const std::string problem = problem_here();
  if (!problem.empty()) GTEST_SKIP() << problem;
  const TemporaryFolder own(std::filesystem::current_path().string());
  const std::unique_ptr<DrivePeer> peer = new_drive_peer("bare");
  BenchResult result = new_result("drives", "cpu", true);
  DrivesContext context{own.path(), tiny_raid, *peer, result};
  run_drive_parts(context, {"raid"});
  std::set<std::string> expected;
  for (const char* level : {"raid1", "raid5"}) {
    for (const char* way : {"mount-write", "mount-read", "ring-write", "ring-read"}) {
      for (const char* count : {"1", "4"}) expected.insert(fmt::format("drives-{}-{}-{}", level, way, count));
    }
  }
  const bool has_peer = BtrfsMount::problem().empty() || ArrayMount::problem().empty();
  std::set<std::string> names;
  for (const BenchRow& row : result.rows) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_GT(row.value, 0) << row.name;
    EXPECT_EQ(row.limit > 0, has_peer) << row.name << ": " << row.remark;
    EXPECT_EQ(row.requirement != Requirement::none, has_peer && row.name.find("-write-") != std::string::npos);
  }
  EXPECT_EQ(names, expected);
  for (const std::string& text : result.left_out) EXPECT_NE(text.find(" not available: "), std::string::npos) << text;
  EXPECT_TRUE(std::filesystem::is_empty(own.path()));
  EXPECT_EQ(count_loops(own.path()), 0u);
  EXPECT_FALSE(has_mounts(own.path()));
}

TEST(BenchDriveRaid, ASignalLeavesNothing) {
  const std::string problem = problem_here();
  if (!problem.empty()) GTEST_SKIP() << problem;
  const TemporaryFolder own(std::filesystem::current_path().string());
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "gpu4fs-bench";
  const pid_t child = start_program({program, "drives", "--only", "raid", "--quick", "--folder", own.path()}, true);
  for (u32 i = 0; i < 6000 && !has_mounts(own.path()); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(has_mounts(own.path()));
  EXPECT_GT(count_loops(own.path()), 0u);
  ::kill(child, SIGINT);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) << status;
  EXPECT_FALSE(has_mounts(own.path()));
  EXPECT_EQ(count_loops(own.path()), 0u);
  EXPECT_TRUE(std::filesystem::is_empty(own.path()));
}

}  // namespace
}  // namespace gpu4fs::bench
