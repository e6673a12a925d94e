// A number and its generation identify one file forever: across a crash, and across pages of the inode file that are
// given back.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "growth/growing_pool.hpp"
#include "support/file_client.hpp"
#include "support/test_pool.hpp"

namespace gpu4fs::test::generations_test {
namespace {

constexpr u64 root = format::inode_number_root;

u64 create(FileClient& client, const std::string& name) {
  FileOperation op;
  op.opcode = wire::Opcode::create;
  op.inode = root;
  op.name = name;
  op.mode = 0644;
  const client::Reply reply = client.call(op);
  EXPECT_EQ(reply.status, Status::ok) << name;
  return reply.result;
}

void remove(FileClient& client, const std::string& name, u64 file) {
  FileOperation op;
  op.opcode = wire::Opcode::unlink;
  op.inode = root;
  op.name = name;
  ASSERT_EQ(client.call(op).status, Status::ok);
  ASSERT_EQ(client.simple(wire::Opcode::reclaim, file).status, Status::ok);
}

std::vector<u32> generations_of(FileClient& client, const std::vector<u64>& files) {
  std::vector<u32> list;
  for (const u64 file : files) {
    EXPECT_EQ(client.simple(wire::Opcode::getattr, file).status, Status::ok);
    list.push_back(client.attributes().generation);
  }
  return list;
}

// Numbers on pages that were given back, numbers used twice, and an engine that skips some generations: after a crash a
// handle refers to its own file, and never to a new one.
TEST(Generations, AreTheSameBehindACrash) {
  TestPool pool;
  std::vector<u64> files;
  std::vector<u32> before;
  {
    const auto session = pool.open_session();
    FileClient client(*session);
    std::map<u64, u32> last;
    for (u32 round = 0; round < 3; ++round) {
      files.clear();
      for (u32 i = 0; i < 40; ++i) files.push_back(create(client, fmt::format("g{}", i)));
      before = generations_of(client, files);
      for (u32 i = 0; i < 40; ++i) {
        EXPECT_GT(before[i], last[files[i]]) << "inode " << files[i];
        last[files[i]] = before[i];
      }
      if (round == 2) break;
      for (u32 i = 0; i < 40; ++i) remove(client, fmt::format("g{}", i), files[i]);
      if (round == 0) {
        ASSERT_EQ(pool.checkpoint(), Status::ok);
      }
      pool.engine()->fs.generation_skip = 50;
    }
    EXPECT_GE(pool.engine()->fs.inode_pages_given_back, 2u);
    ASSERT_EQ(client.simple(wire::Opcode::sync).status, Status::ok);
  }
  pool.crash();
  pool.mount();
  const auto session = pool.open_session();
  FileClient client(*session);
  EXPECT_EQ(generations_of(client, files), before);
}

// The inode that a rename leaves under the old name is created by the rename: its record contains the generation.
TEST(Generations, OfAWhiteoutIsTheSameBehindACrash) {
  TestPool pool;
  u64 whiteout = 0;
  u32 generation = 0;
  {
    const auto session = pool.open_session();
    FileClient client(*session);
    // A number that was used before, and one that a mount would not choose by itself.
    const u64 before = create(client, "before");
    remove(client, "before", before);
    (void)create(client, "file");
    ASSERT_EQ(pool.checkpoint(), Status::ok);
    pool.engine()->fs.generation_skip = 1234;
    FileOperation op;
    op.opcode = wire::Opcode::rename;
    op.inode = op.second_inode = root;
    op.name = "file";
    op.second_name = "other";
    op.mask = format::rename_whiteout;
    ASSERT_EQ(client.call(op).status, Status::ok);
    whiteout = client.attributes().inode;
    generation = client.attributes().generation;
    EXPECT_GT(generation, 1234u);
    ASSERT_EQ(client.simple(wire::Opcode::sync).status, Status::ok);
  }
  pool.crash();
  pool.mount();
  EXPECT_GT(pool.recovery().records_replayed, 0u);
  const auto session = pool.open_session();
  FileClient client(*session);
  FileOperation op;
  op.opcode = wire::Opcode::lookup;
  op.inode = root;
  op.name = "file";
  EXPECT_EQ(client.call(op).result, whiteout);
  EXPECT_EQ(generations_of(client, {whiteout}), std::vector<u32>{generation});
}

// Clients knew the files that an unclean end has lost: a later file with the same number is another one.
class GenerationsBehindACrash : public ::testing::Test {
 protected:
  static constexpr u32 file_count = 40;
  GenerationsBehindACrash() {
    pool::MakePoolOptions make;
    make.device_paths = {folder_ / "device"};
    make.size_bytes = u64{64} << 20;
    make.chunk_size_bytes = u64{8} << 20;
    make.root_uid = make.root_gid = 0;
    pool::make_pool(make);
    paths_ = make.device_paths;
  }
  // By inode number.
  static std::map<u64, u32> make_files(FileClient& client) {
    std::map<u64, u32> made;
    for (u32 i = 0; i < file_count; ++i) {
      const u64 file = create(client, fmt::format("lost{}", i));
      made[file] = generations_of(client, {file})[0];
    }
    return made;
  }
  static void expect_others(const std::map<u64, u32>& before, const std::map<u64, u32>& after) {
    u32 common = 0;
    for (const auto& [file, generation] : after) {
      const auto found = before.find(file);
      if (found == before.end()) continue;
      ++common;
      EXPECT_GT(generation, found->second) << "inode " << file;
    }
    EXPECT_GT(common, 0u) << "no number was used again";
  }

  const GrowthFolder folder_;
  std::vector<std::string> paths_;
};

TEST_F(GenerationsBehindACrash, AreNotThoseThatWereLost) {
  std::map<u64, u32> before;
  for (u32 round = 0; round < 2; ++round) {
    GrowthMount mount(paths_);
    const std::map<u64, u32> made = make_files(mount.files());
    if (round == 1) expect_others(before, made);
    before = made;
    mount.crash();
  }
}

TEST_F(GenerationsBehindACrash, AreNotThoseThatWereLostBehindWhatIsReplayed) {
  u64 kept = 0;
  std::vector<u32> kept_generation;
  std::map<u64, u32> before;
  {
    GrowthMount mount(paths_);
    kept = create(mount.files(), "kept");
    kept_generation = generations_of(mount.files(), {kept});
    ASSERT_EQ(mount.files().simple(wire::Opcode::sync).status, Status::ok);
    before = make_files(mount.files());
    mount.crash();
  }
  GrowthMount mount(paths_);
  ASSERT_EQ(find_file(mount.files(), "kept"), kept);
  EXPECT_EQ(generations_of(mount.files(), {kept}), kept_generation);
  expect_others(before, make_files(mount.files()));
  EXPECT_TRUE(mount.stop());
  EXPECT_EQ(find_problems(paths_), "");
}

// Clients know no more than the pool; no generations are skipped.
TEST_F(GenerationsBehindACrash, AreTheNextOnesBehindACleanEnd) {
  u32 last = 0;
  u64 file = 0;
  for (u32 round = 0; round < 3; ++round) {
    GrowthMount mount(paths_);
    const u64 made = create(mount.files(), "file");
    const u32 generation = generations_of(mount.files(), {made})[0];
    if (round != 0) {
      EXPECT_EQ(made, file);
      EXPECT_EQ(generation, last + 1);
    }
    file = made;
    last = generation;
    remove(mount.files(), "file", file);
    ASSERT_TRUE(mount.stop());
  }
}

}  // namespace
}  // namespace gpu4fs::test::generations_test
