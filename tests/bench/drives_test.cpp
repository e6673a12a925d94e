// gpu4fs bench drives: a small run of all parts but raid, of which nothing is judged; wrong bytes are found; what it
// refuses.
#include "bench/drives.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/limits.hpp"
#include "bench/client.hpp"
#include "bench/drive_pool.hpp"
#include "bench/limits.hpp"
#include "bench/mounts.hpp"
#include "bench/verbs.hpp"
#include "format/inode_format.hpp"
#include "frontend/local_session.hpp"
#include "tiny_drives_scale.hpp"

namespace gpu4fs::bench {
namespace {

constexpr const DrivesScale& tiny = tiny_drives_scale;

// The current folder if it is on a disk.
std::optional<std::string> disk_folder() {
  const std::string folder = std::filesystem::current_path().string();
  try {
    check_drive_folder(folder);
  } catch (const std::runtime_error&) {
    return std::nullopt;
  }
  return folder;
}

TEST(BenchDrives, EveryPartHasItsRows) {
  const std::optional<std::string> folder = disk_folder();
  if (!folder) GTEST_SKIP() << "the current folder is not on a disk";
  const TemporaryFolder own(*folder);
  const std::unique_ptr<DrivePeer> peer = new_drive_peer("bare");
  BenchResult result = new_result("drives", "cpu", true);
  DrivesContext context{own.path(), tiny, *peer, result};
  run_drive_parts(context, {"file", "block", "idle", "sync", "hits"});  // raid: drive_raid_test.cpp
  std::set<std::string> names;
  for (const BenchRow& row : result.rows) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_TRUE(row.value > 0 || row.name == "drives-idle-cpu") << row.name;
    const bool has_limit = !row.name.ends_with("-cpu");
    EXPECT_TRUE(row.limit > 0 || !has_limit) << row.name;
  }
  // Loop devices are not everywhere.
  for (const std::string& text : result.left_out) EXPECT_TRUE(text.starts_with("block: ")) << text;
  for (const char* name :
       {"drives-file-write", "drives-file-read", "drives-file-read-random", "drives-file-write-random",
        "drives-file-write-cpu", "drives-file-read-cpu", "drives-idle-cpu", "drives-append-fsync-p50",
        "drives-append-fsync-p99", "drives-hit-1", "drives-hit-64"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
  EXPECT_TRUE(std::filesystem::is_empty(own.path()));
}

TEST(BenchDrives, EmulatedDrivesAreComparedWithTheDriverAlone) {
  const TemporaryFolder own("/dev/shm");
  const std::unique_ptr<DrivePeer> peer = new_drive_peer("bare");
  BenchResult result = new_result("drives", "cpu", true);
  DrivesContext context{own.path(), tiny, *peer, result};
  context.drive = "unlimited";
  run_emulated_parts(context, {"emulated"});
  EXPECT_TRUE(result.left_out.empty());
  std::set<std::string> names;
  for (const BenchRow& row : result.rows) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_GT(row.value, 0) << row.name;
    EXPECT_GT(row.limit, 0) << row.name;
    EXPECT_NE(row.remark.find("emulated NVMe drives"), std::string::npos) << row.remark;
  }
  EXPECT_EQ(names, (std::set<std::string>{"drives-emulated-raid5-write", "drives-emulated-raid5-read",
                                          "drives-emulated-raid5-write-large", "drives-emulated-raid5-read-large",
                                          "drives-emulated-read-random"}));
  EXPECT_TRUE(std::filesystem::is_empty(own.path()));
  context.drive = "floppy";
  run_emulated_parts(context, {"emulated"});
  ASSERT_EQ(result.left_out.size(), 1u);
  EXPECT_NE(result.left_out[0].find("floppy"), std::string::npos) << result.left_out[0];
}

TEST(BenchDrives, BytesOfOthersAreFound) {
  const TemporaryFolder folder("/dev/shm");
  const std::string path = folder.path() + "/pool";
  { const OpenFile file(path, O_RDWR | O_CREAT); }
  std::filesystem::resize_file(path, u64{192} << 20);
  DrivePool pool({.paths = {path}, .access = session::DeviceAccess::mapped});
  {
    DriveFile file(pool.server(), u64{1} << 20);
    file.write_whole(64 << 10, 4);
    file.write_pages({7, 3, 200}, 2);
    EXPECT_NO_THROW(file.read_whole(64 << 10, 4));
    EXPECT_NO_THROW(file.read_pages({0, 3, 7}, 2));
    BenchClient other(frontend::open_local_session(pool.server(), page_size + BenchClient::control_bytes));
    const u64 inode = other.call(other.named(wire::Opcode::lookup, format::inode_number_root, "file"), "lookup").result;
    other.buffer()[0] = 1;
    other.call(BenchClient::transfer(wire::Opcode::write, inode, 3 * page_size, 1, other.buffer_address(0)), "write");
    EXPECT_THROW(file.read_pages({0, 3, 7}, 2), std::runtime_error);
    EXPECT_NO_THROW(file.read_pages({0, 7}, 2));
    EXPECT_THROW(file.read_whole(64 << 10, 4), std::runtime_error);
  }
  pool.stop();
}

TEST(BenchDrives, PeersTransferTheirLoads) {
  const std::optional<std::string> folder = disk_folder();
  if (!folder) GTEST_SKIP() << "the current folder is not on a disk";
  const TemporaryFolder own(*folder);
  const std::string path = own.path() + "/file";
  for (const char* kind : {"bare", "auto"}) {
    const std::unique_ptr<DrivePeer> peer = new_drive_peer(kind);
    for (const bool is_random : {false, true}) {
      for (const bool writes : {true, false}) {
        write_all_blocks(path, u64{4} << 20);
        const DriveRate rate = peer->run(path, {.writes = writes,
                                                .is_random = is_random,
                                                .file_bytes = u64{4} << 20,
                                                .total_bytes = u64{4} << 20,
                                                .block_bytes = 64 << 10,
                                                .depth = 4});
        EXPECT_GT(rate.gb_per_s, 0) << peer->name();
        std::vector<u8> bytes(u64{4} << 20);
        const OpenFile file(path, O_RDONLY);
        ASSERT_EQ(::pread(file.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
        for (u64 at = 0; at < bytes.size(); at += 64 << 10) {
          const bool is_unchanged = std::all_of(&bytes[at], &bytes[at] + (64 << 10), [](u8 x) { return x == 0xa5; });
          EXPECT_EQ(is_unchanged, !writes) << peer->name() << " " << at;
        }
      }
    }
  }
  EXPECT_THROW(new_drive_peer("bare")->run(own.path() + "/absent",
                                           {.file_bytes = 4096, .total_bytes = 4096, .block_bytes = 4096}),
               std::runtime_error);
}

TEST(BenchDrives, RefusesMemory) {
  EXPECT_THROW(check_drive_folder("/dev/shm"), std::runtime_error);
}

// Before it writes anything.
TEST(BenchDrives, RefusesAGpuThatIsNotThere) {
  const std::string problem = gpu_problem();
  if (problem.empty()) GTEST_SKIP() << "there is a GPU";
  BenchDrivesOptions options;
  options.engine = "cuda";
  try {
    (void)bench_drives(options);
    FAIL() << "it was measured without a GPU";
  } catch (const std::runtime_error& error) {
    EXPECT_EQ(error.what(), "engine cuda: " + problem);
  }
}

TEST(BenchDrives, RoundsEndByNumberAndByTime) {
  Rounds three(3, 1000);
  u32 count = 0;
  while (three.next()) EXPECT_EQ(three.number(), ++count);
  EXPECT_EQ(count, 3u);
  Rounds one(3, 0);
  EXPECT_TRUE(one.next());
  EXPECT_FALSE(one.next());
}

TEST(BenchDrives, MissesAndAMountAfterACrashAreMeasured) {
  const TemporaryFolder own("/dev/shm");
  const std::unique_ptr<DrivePeer> peer = new_drive_peer("bare");
  BenchResult result = new_result("drives", "cpu", true);
  DrivesContext context{own.path(), tiny, *peer, result};
  run_emulated_parts(context, {"misses", "recovery"});
  EXPECT_EQ(result.left_out, std::vector<std::string>{});
  std::set<std::string> names;
  for (const BenchRow& row : result.rows) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_NE(row.requirement, Requirement::none) << row.name;
  }
  EXPECT_EQ(names, (std::set<std::string>{"drives-miss-10us", "drives-miss-dirty-10us", "drives-miss-tail-10us",
                                          "drives-miss-100us", "drives-miss-dirty-100us", "drives-miss-tail-100us",
                                          "drives-mount-after-crash"}));
  EXPECT_TRUE(std::filesystem::is_empty(own.path()));
}

TEST(BenchDrives, ReadAheadIsMeasuredWithAndWithout) {
  const TemporaryFolder own("/dev/shm");
  const std::unique_ptr<DrivePeer> peer = new_drive_peer("bare");
  BenchResult result = new_result("drives", "cpu", true);
  DrivesContext context{own.path(), tiny, *peer, result};
  run_emulated_parts(context, {"readahead"});
  EXPECT_EQ(result.left_out, std::vector<std::string>{});
  std::set<std::string> names;
  for (const BenchRow& row : result.rows) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_GT(row.value, 0) << row.name;
    EXPECT_GT(row.limit, 0) << row.name;
    EXPECT_EQ(row.requirement, Requirement::at_least) << row.name;
  }
  EXPECT_EQ(names, (std::set<std::string>{"drives-readahead-4k", "drives-readahead-128k"}));
  EXPECT_TRUE(std::filesystem::is_empty(own.path()));
}

}  // namespace
}  // namespace gpu4fs::bench
