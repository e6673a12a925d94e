// The seed of the operation log's records: each mount for writing has one of its own, so a record of another mount is
// never accepted.
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "growth/growing_pool.hpp"
#include "pool/pool_open.hpp"
#include "server/recovery/log_scan.hpp"
#include "server/recovery/recovery.hpp"

namespace gpu4fs::test::log_seed_test {
namespace {

class LogSeed : public ::testing::Test {
 protected:
  LogSeed() {
    pool::MakePoolOptions make;
    make.device_paths = paths_;
    make.size_bytes = u64{48} << 20;
    make.chunk_size_bytes = u64{8} << 20;
    pool::make_pool(make);
  }

  pool::OpenedPool open() {
    pool::OpenPoolOptions open;
    open.device_paths = paths_;
    open.read_only = true;
    open.lock = false;
    return pool::open_pool(open);
  }
  u64 seed() { return open().superblock.log_seed; }
  void recover() {
    session::ServerOptions options;
    options.device_paths = paths_;
    server::recover_pool(options);
  }
  static void sync(FileClient& files) { EXPECT_EQ(files.simple(wire::Opcode::sync).status, Status::ok); }

  GrowthFolder folder_;
  std::vector<std::string> paths_{folder_ / "a", folder_ / "b"};
};

TEST_F(LogSeed, EveryMountForWritingHasItsOwn) {
  std::set<u64> seeds{seed()};
  for (u32 i = 0; i < 3; ++i) {
    GrowthMount mount(paths_);
    EXPECT_TRUE(seeds.insert(seed()).second) << "while it is mounted";
    EXPECT_TRUE(mount.stop());
  }
  GrowthMount(paths_).crash();
  recover();
  GrowthMount mount(paths_);
  EXPECT_TRUE(seeds.insert(seed()).second);
  EXPECT_TRUE(mount.stop());
}

// A crash tore the end of the log, and the pool continued without the record there. Its bytes return, for example on a
// device that had them in a cache: they are in the place of the next record.
TEST_F(LogSeed, ARecordThatWasGivenUpDoesNotComeBack) {
  {
    GrowthMount mount(paths_);
    make_file(mount.files(), "kept");
    sync(mount.files());
    make_file(mount.files(), "given_up");
    sync(mount.files());
    mount.crash();
  }
  const pool::OpenedPool crashed = open();
  const server::LogScan log = server::scan_log(crashed);
  ASSERT_EQ(log.record_count(), 2u);
  const format::LogRecord& record = log.record(1);
  const u64 place = record.lsn % log.capacity;
  const char* const bytes_of_record = reinterpret_cast<const char*>(&record);
  const std::vector<char> whole(bytes_of_record, bytes_of_record + record.length);
  const auto put = [&](const std::vector<char>& bytes) {
    for (u32 i = 0; i < paths_.size(); ++i) {
      std::fstream file(paths_[i], std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(static_cast<std::streamoff>(crashed.devices[i].part.log_offset + place));
      file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
      ASSERT_TRUE(file.good());
    }
  };
  put(std::vector<char>(whole.size()));
  recover();
  GrowthMount(paths_).crash();
  put(whole);
  EXPECT_EQ(open().superblock.log_start, record.lsn) << "it is where the next record would begin";
  EXPECT_EQ(server::scan_log(open()).record_count(), 0u);
  recover();
  GrowthMount mount(paths_);
  EXPECT_NE(find_file(mount.files(), "kept"), 0u);
  FileOperation look;
  look.opcode = wire::Opcode::lookup;
  look.inode = format::inode_number_root;
  look.name = "given_up";
  EXPECT_EQ(mount.files().call(look).status, Status::not_found);
  EXPECT_TRUE(mount.stop());
}

}  // namespace
}  // namespace gpu4fs::test::log_seed_test
