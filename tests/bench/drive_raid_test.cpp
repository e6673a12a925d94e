// Part raid of gpu4fs bench drives: a small run, of which nothing is judged; its rows; wrong bytes are found.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

#include "bench/array_mount.hpp"
#include "bench/btrfs_mount.hpp"
#include "bench/cpu_binding.hpp"
#include "bench/drives.hpp"
#include "bench/loop_device.hpp"
#include "bench/mounts.hpp"
#include "bench/raid_sides.hpp"
#include "tiny_drives_scale.hpp"

namespace gpu4fs::bench {
namespace {

// The file is larger than twice the page cache, so its size can be chosen.
constexpr DrivesScale tiny_raid_scale() {
  DrivesScale scale = tiny_drives_scale;
  scale.page_cache_bytes = u64{2} << 20;
  return scale;
}
constexpr DrivesScale tiny_raid = tiny_raid_scale();

// Why the part cannot run here, "" if it can.
std::string problem_here() {
  try {
    const std::string folder = std::filesystem::current_path().string();
    check_drive_folder(folder);
    const TemporaryFolder own(folder);
    write_all_blocks(own.path() + "/device", u64{1} << 20);
    const LoopDevice device(own.path() + "/device", true);
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

TEST(BenchDriveRaid, RowsCompareWithTheFastestPeer) {
  const RaidSide slow{"slow", "", {1, 2, 3}};
  const RaidSide fast{"fast", "", {5, 4, 3}};
  const BenchRow row = raid_row("name", "what", {"own", "", {3, 1, 2}}, {slow, fast});
  EXPECT_EQ(row.value, 2);
  EXPECT_EQ(row.limit, 4);
  EXPECT_EQ(row.limit_what, "fast");
  EXPECT_EQ(row.requirement, Requirement::at_least);
  EXPECT_FALSE(row.is_met());
  EXPECT_EQ(row.remark, "0.25 to 0.67 by round, slow 2 GB/s (1 to 3), fast 4 GB/s (3 to 5)");
  EXPECT_TRUE(raid_row("name", "what", {"own", "", {4}}, {slow, fast}).is_met());
}

// The peer that is missing may be the faster one.
TEST(BenchDriveRaid, RowsAreNotMetWithoutAPeer) {
  const RaidSide present{"present", "", {2}};
  const RaidSide absent{"absent", "it is not here"};
  const BenchRow good = raid_row("name", "what", {"own", "", {3}}, {present, absent});
  EXPECT_EQ(good.limit, 2);
  EXPECT_EQ(good.requirement, Requirement::none);
  EXPECT_TRUE(good.remark.ends_with("absent not measured: it is not here")) << good.remark;
  EXPECT_FALSE(raid_row("name", "what", {"own", "", {1}}, {present, absent}).is_met());
  const BenchRow alone = raid_row("name", "what", {"own", "", {3}}, {absent});
  EXPECT_EQ(alone.limit, 0);
  EXPECT_EQ(alone.requirement, Requirement::none);
  EXPECT_EQ(alone.remark, "absent not measured: it is not here");
}

TEST(BenchDriveRaid, TooLittleSpaceIsSaid) {
  const TemporaryFolder folder("/dev/shm");
  EXPECT_NO_THROW(check_free_space(folder.path(), 0));
  EXPECT_THROW(check_free_space(folder.path(), u64{1} << 60), std::runtime_error);
  EXPECT_THROW(check_free_space(folder.path() + "/absent", 0), std::runtime_error);
}

TEST(BenchDriveRaid, ProgramsAreLookedFor) {
  EXPECT_TRUE(has_program("losetup"));
  EXPECT_FALSE(has_program("gpu4fs-has-no-such-program"));
}

TEST(BenchDriveRaid, ABindingEndsWithItsObject) {
  cpu_set_t before;
  cpu_set_t now;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(before), &before), 0);
  {
    const CpuBinding binding(1);
    ASSERT_EQ(::sched_getaffinity(0, sizeof(now), &now), 0);
    EXPECT_EQ(CPU_COUNT(&now), 1);
  }
  ASSERT_EQ(::sched_getaffinity(0, sizeof(now), &now), 0);
  EXPECT_TRUE(CPU_EQUAL(&before, &now));
}

// Somebody else's byte is in the file after the first mount, if it is told to.
class PlainFolder final : public Mount {
 public:
  PlainFolder(const std::string& folder, bool forges) : Mount(folder), forges_(forges) {}
  void up() override {}
  void down() override {
    if (forges_) std::fstream(folder_ + "/file", std::ios::in | std::ios::out).seekp(5000) << '!';
    forges_ = false;
  }

 private:
  bool forges_;
};

TEST(BenchDriveRaid, WrongBytesAreFound) {
  const TemporaryFolder folder("/dev/shm");
  PlainFolder right(folder.path() + "/right", false);
  EXPECT_GT(write_and_compare(right, u64{4} << 20, 1), 0);
  PlainFolder wrong(folder.path() + "/wrong", true);
  EXPECT_THROW(write_and_compare(wrong, u64{4} << 20, 1), std::runtime_error);
}

// A machine without a peer says so, and has the rows all the same.
TEST(BenchDriveRaid, ARunHasItsRows) {
  const std::string problem = problem_here();
  if (!problem.empty()) GTEST_SKIP() << problem;
  const TemporaryFolder own(std::filesystem::current_path().string());
  const std::unique_ptr<DrivePeer> peer = new_drive_peer("bare");
  BenchResult result = new_result("drives", "cpu", true);
  DrivesContext context{own.path(), tiny_raid, *peer, result};
  run_drive_parts(context, {"raid"});
  std::set<std::string> names;
  for (const BenchRow& row : result.rows) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_GT(row.value, 0) << row.name;
    EXPECT_EQ(row.sample_count, 2u) << row.name;
    EXPECT_NE(row.remark.find("btrfs "), std::string::npos) << row.remark;
    EXPECT_NE(row.remark.find("ext4 on md "), std::string::npos) << row.remark;
  }
  EXPECT_EQ(names, (std::set<std::string>{"drives-raid1-write", "drives-raid1-mount-write", "drives-raid5-write",
                                          "drives-raid5-mount-write"}));
  for (const char* level : {"raid1", "raid5"}) {
    for (const auto& [name, reason] :
         {std::pair{"btrfs", BtrfsMount::problem()}, std::pair{"ext4 on md", ArrayMount::problem()}}) {
      const std::string text = fmt::format("raid, {}, {}: {}", level, name, reason);
      EXPECT_TRUE(reason.empty() || std::ranges::count(result.left_out, text) == 1) << text;
    }
  }
  // A kernel may refuse what the programs ask for.
  for (const std::string& text : result.left_out) {
    EXPECT_TRUE(text.find(", btrfs: ") != std::string::npos || text.find(", ext4 on md: ") != std::string::npos)
        << text;
  }
  EXPECT_TRUE(std::filesystem::is_empty(own.path()));
  EXPECT_EQ(count_loops(own.path()), 0u);
  EXPECT_EQ(text_of("/proc/self/mounts").find(own.path()), std::string::npos);
}

}  // namespace
}  // namespace gpu4fs::bench
