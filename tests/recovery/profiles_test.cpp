// Pools whose data and metadata have profiles of their own, and files with their own profiles: the places of pages, the
// behaviour when one kind of chunk is full, and what of it survives a crash.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "support/file_client.hpp"
#include "support/group_runner.hpp"
#include "support/test_pool.hpp"

namespace gpu4fs::test::profiles_test {
namespace {

using format::Profile;
using wire::Opcode;

constexpr u64 root = format::inode_number_root;
const std::string own = "user.gpu4fs.raid";
const std::string effective = "user.gpu4fs.raid.effective";

TestPoolOptions options_of(const std::string& profile, u32 warp_count) {
  TestPoolOptions options;
  options.device_count = 4;
  options.device_bytes = u64{30} << 20;
  options.profile = profile;
  options.more_profiles = {{"raid1", 0.25}};
  options.warp_count = warp_count;
  options.memory = {.frame_count = 1024, .staging_count = 512, .shard_count = 2};
  return options;
}

class ProfilePool {
 public:
  explicit ProfilePool(const std::string& profile, u32 warp_count = 0) : ProfilePool(options_of(profile, warp_count)) {}
  explicit ProfilePool(const TestPoolOptions& options) : pool_(options) { open(); }
  ~ProfilePool() { close(); }

  void open() {
    session_ = pool_.open_session();
    client_.emplace(*session_);
  }
  void close() {
    client_.reset();
    session_.reset();
  }
  void crash_and_mount() {
    close();
    pool_.crash();
    pool_.mount();
    open();
  }
  void expect_sound() {
    close();
    pool_.unmount();
    const fsck::CheckResult result = pool_.check();
    EXPECT_EQ(findings_text(result), "");
    pool_.mount();
    open();
  }

  client::Reply make(Opcode opcode, u64 directory, const std::string& name) {
    FileOperation op;
    op.opcode = opcode;
    op.inode = directory;
    op.name = name;
    op.mode = opcode == Opcode::mkdir ? 0755 : 0644;
    return client_->call(op);
  }
  u64 made(Opcode opcode, u64 directory, const std::string& name) {
    const client::Reply reply = make(opcode, directory, name);
    EXPECT_EQ(reply.status, Status::ok) << name;
    return reply.result;
  }
  Status remove(u64 directory, const std::string& name) {
    FileOperation op;
    op.opcode = Opcode::unlink;
    op.inode = directory;
    op.name = name;
    const client::Reply reply = client_->call(op);
    if (reply.status != Status::ok) return reply.status;
    return reply.result == 0 ? Status::ok : client_->simple(Opcode::reclaim, reply.result).status;
  }
  client::Reply write(u64 file, u64 offset, u64 length) {
    FileOperation op;
    op.opcode = Opcode::write;
    op.inode = file;
    op.offset = offset;
    op.length = length;
    std::vector<u8> bytes(length);
    fill_random(bytes.data(), length, file + offset);
    return client_->call(op, bytes);
  }
  Status sync() { return client_->simple(Opcode::sync).status; }
  Status set(u64 inode, const std::string& value, u32 mask = 0, const std::string& name = own) {
    FileOperation op;
    op.opcode = Opcode::set_attribute;
    op.inode = inode;
    op.name = name;
    op.text = value;
    op.mask = mask;
    return client_->call(op).status;
  }
  Status unset(u64 inode, const std::string& name = own) {
    FileOperation op;
    op.opcode = Opcode::remove_attribute;
    op.inode = inode;
    op.name = name;
    return client_->call(op).status;
  }
  // Value, or the status in angle brackets.
  std::string get(u64 inode, const std::string& name = own, u64 capacity = 64) {
    FileOperation op;
    op.opcode = Opcode::get_attribute;
    op.inode = inode;
    op.name = name;
    op.length = capacity;
    const client::Reply reply = client_->call(op);
    if (reply.status != Status::ok) return std::string("<") + status_name(reply.status) + ">";
    if (capacity == 0) return std::to_string(reply.result);
    return std::string(reinterpret_cast<const char*>(client_->data()), reply.result);
  }
  std::string list(u64 inode) {
    const client::Reply reply = client_->simple(Opcode::list_attributes, inode, 0, 4096);
    EXPECT_EQ(reply.status, Status::ok);
    std::string names(reinterpret_cast<const char*>(client_->data()), reply.result);
    for (char& byte : names) byte = byte == 0 ? ' ' : byte;
    return names;
  }
  const fs::FileSystem& fs() { return pool_.engine()->fs; }
  u64 used(Profile profile) { return fs().counters[static_cast<u32>(profile) - 1].used; }

  TestPool& pool() { return pool_; }
  FileClient& client() { return *client_; }

 private:
  TestPool pool_;
  std::unique_ptr<client::Session> session_;
  std::optional<FileClient> client_;
};

class Profiles : public ::testing::TestWithParam<u32> {};

TEST_P(Profiles, AreAttributesOfFilesAndDirectories) {
  ProfilePool p("raid5+raid1c3", GetParam());
  const u64 file = p.made(Opcode::create, root, "file");
  EXPECT_EQ(p.get(file), "<no_attribute>");
  EXPECT_EQ(p.get(file, effective), "raid5");
  EXPECT_EQ(p.list(file), "");
  EXPECT_EQ(p.unset(file), Status::no_attribute);
  EXPECT_EQ(p.set(file, "raid1", fs::attribute_replace), Status::no_attribute);
  EXPECT_EQ(p.set(file, "raid1"), Status::ok);
  EXPECT_EQ(p.set(file, "raid5", fs::attribute_create), Status::exists);
  EXPECT_EQ(p.get(file), "raid1");
  EXPECT_EQ(p.get(file, effective), "raid1");
  EXPECT_EQ(p.get(file, own, 0), "5");
  EXPECT_EQ(p.get(file, own, 4), "<attribute_range>");
  EXPECT_EQ(p.set(file, "blue", 0, "user.colour"), Status::ok);
  EXPECT_EQ(p.list(file), "user.colour " + own + " ");
  for (const char* value : {"", "raid", "raid11", "RAID1", "raid1 ", "none", "0"}) {
    EXPECT_EQ(p.set(file, value), Status::invalid_argument) << value;
  }
  for (const char* value : {"raid7", "single", "raid1c3"})
    EXPECT_EQ(p.set(file, value), Status::not_supported) << value;
  EXPECT_EQ(p.set(file, "raid1", 0, effective), Status::permission);
  EXPECT_EQ(p.unset(file, effective), Status::permission);
  EXPECT_EQ(p.get(file), "raid1");
  EXPECT_EQ(p.unset(file), Status::ok);
  EXPECT_EQ(p.get(file), "<no_attribute>");
  EXPECT_EQ(p.list(file), "user.colour ");

  // New inodes in a directory get its profile.
  const u64 directory = p.made(Opcode::mkdir, root, "directory");
  EXPECT_EQ(p.set(directory, "raid1"), Status::ok);
  const u64 below = p.made(Opcode::mkdir, directory, "below");
  EXPECT_EQ(p.get(below), "raid1");
  const u64 leaf = p.made(Opcode::create, below, "leaf");
  EXPECT_EQ(p.get(leaf), "raid1");
  EXPECT_EQ(p.unset(directory), Status::ok);
  EXPECT_EQ(p.get(leaf), "raid1");
  EXPECT_EQ(p.get(p.made(Opcode::create, directory, "later")), "<no_attribute>");
  p.expect_sound();
}

TEST_P(Profiles, DecideWhereNewBlocksGo) {
  ProfilePool p("raid5+raid1c3", GetParam());
  const u64 file = p.made(Opcode::create, root, "file");
  const u64 length = 16 * page_size;
  EXPECT_EQ(p.write(file, 0, length).status, Status::ok);
  EXPECT_EQ(p.used(Profile::raid5), 16u);
  EXPECT_EQ(p.used(Profile::raid1), 0u);
  const u64 metadata = p.used(Profile::raid1c3);
  EXPECT_GT(metadata, 0u);
  EXPECT_EQ(p.set(file, "raid1"), Status::ok);
  EXPECT_EQ(p.used(Profile::raid5), 16u) << "what there is stays";
  EXPECT_EQ(p.pool().checkpoint(), Status::ok);
  EXPECT_EQ(p.write(file, 4 * page_size, 4 * page_size).status, Status::ok);
  EXPECT_EQ(p.write(file, length + 5, 10 * page_size).status, Status::ok);
  EXPECT_EQ(p.used(Profile::raid5), 12u);
  EXPECT_EQ(p.used(Profile::raid1), 15u);
  FileOperation op;
  op.opcode = Opcode::fallocate;
  op.inode = file;
  op.offset = 100 * page_size;
  op.length = 7 * page_size;
  EXPECT_EQ(p.client().call(op).status, Status::ok);
  EXPECT_EQ(p.used(Profile::raid1), 22u);
  p.expect_sound();
  EXPECT_EQ(p.used(Profile::raid5), 12u);
  EXPECT_EQ(p.used(Profile::raid1), 22u);
}

TEST_P(Profiles, OutliveACrashBehindASync) {
  ProfilePool p("raid5+raid1c3", GetParam());
  const u64 file = p.made(Opcode::create, root, "file");
  const u64 other = p.made(Opcode::create, root, "other");
  EXPECT_EQ(p.pool().checkpoint(), Status::ok);
  EXPECT_EQ(p.set(file, "raid1"), Status::ok);
  EXPECT_EQ(p.write(file, 0, 9 * page_size).status, Status::ok);
  EXPECT_EQ(p.write(file, 20 * page_size, 300).status, Status::ok);  // in the log with its bytes
  EXPECT_EQ(p.set(other, "raid1"), Status::ok);
  EXPECT_EQ(p.unset(other), Status::ok);
  EXPECT_EQ(p.sync(), Status::ok);
  p.crash_and_mount();
  EXPECT_GT(p.pool().recovery().records_replayed, 0u);
  EXPECT_EQ(p.get(file), "raid1");
  EXPECT_EQ(p.get(other), "<no_attribute>");
  EXPECT_EQ(p.used(Profile::raid1), 10u);
  EXPECT_EQ(p.used(Profile::raid5), 0u);
  p.expect_sound();
}

// Blocks without content, and blocks to which no checkpoint refers, are written to the places for new ones.
TEST_P(Profiles, CountForBlocksThatCouldBeWrittenWhereTheyAre) {
  ProfilePool p("single+raid1c3", GetParam());
  const u64 file = p.made(Opcode::create, root, "file");
  ASSERT_EQ(p.client().simple(Opcode::fallocate, file, 0, 64 * page_size).status, Status::ok);
  EXPECT_EQ(p.write(file, 64 * page_size, 4 * page_size).status, Status::ok);
  EXPECT_EQ(p.used(Profile::single), 68u);
  EXPECT_EQ(p.set(file, "raid1"), Status::ok);
  EXPECT_EQ(p.write(file, 0, 16 * page_size).status, Status::ok);
  EXPECT_EQ(p.used(Profile::raid1), 16u);
  EXPECT_EQ(p.write(file, 65 * page_size, page_size).status, Status::ok);
  EXPECT_EQ(p.used(Profile::raid1), 17u);
  EXPECT_EQ(p.used(Profile::single), 51u);
  p.crash_and_mount();
  EXPECT_EQ(p.sync(), Status::ok);
  p.expect_sound();
}

// Every page of the file lies there, also after a crash.
TEST_P(Profiles, OfADeviceKeepFilesThere) {
  TestPoolOptions options = options_of("raid5+raid1c3", GetParam());
  options.more_profiles = {{"physical:0", 0.1}, {"physical:3", 0.1}};
  ProfilePool p(options);
  EXPECT_EQ(p.set(root, "physical:3"), Status::ok);
  const u64 file = p.made(Opcode::create, root, "file");
  EXPECT_EQ(p.get(file, effective), "physical:3");
  EXPECT_EQ(p.set(file, "physical:1"), Status::not_supported);
  EXPECT_EQ(p.write(file, 0, 40 * page_size).status, Status::ok);
  EXPECT_EQ(p.client().simple(Opcode::fsync, file).status, Status::ok);
  p.crash_and_mount();
  EXPECT_EQ(p.get(file), "physical:3");
  EXPECT_EQ(p.used(format::physical_profile(3)), 40u);
  EXPECT_EQ(p.used(format::physical_profile(0)), 0u);
  const raid::LogicalSpace& space = p.fs().space;
  u32 chunks = 0;
  for (u32 i = 0; i < space.chunk_count; ++i) {
    const raid::ChunkState& chunk = space.chunks[i];
    if (chunk.page_class + 1 != static_cast<u32>(format::physical_profile(3))) continue;
    EXPECT_EQ(chunk.column_count, 1u);
    EXPECT_EQ(chunk.columns[0].device, 3u);
    ++chunks;
  }
  EXPECT_GT(chunks, 0u);
  p.expect_sound();
}

INSTANTIATE_TEST_SUITE_P(Engines, Profiles, ::testing::Values(0u, 1u),
                         [](const auto& count) { return count.param == 0 ? "threads" : "warp"; });

TEST(FullProfiles, NoRoomForDataLeavesNamesAlone) {
  ProfilePool p("raid5+raid1c3");
  const u64 big = p.made(Opcode::create, root, "big");
  u64 end = 0;
  for (u64 length = u64{1} << 20; length >= page_size; length /= 2) {
    for (;;) {
      const client::Reply reply = p.write(big, end, length);
      end += reply.status == Status::ok ? reply.result : 0;
      if (reply.status != Status::ok || reply.result < length) break;
    }
  }
  EXPECT_EQ(p.write(big, end, page_size).status, Status::no_space);
  p.client().simple(Opcode::statfs);
  EXPECT_LT(p.client().statistics().page_available, 64u);
  EXPECT_GT(p.client().statistics().inode_free, 1000u);
  for (u32 i = 0; i < 50; ++i) {
    const u64 file = p.made(Opcode::create, root, "name" + std::to_string(i));
    EXPECT_EQ(p.write(file, 0, 100).status, Status::ok) << "it stands in the inode";
    EXPECT_EQ(p.write(file, 0, 2 * page_size).status, Status::no_space);
    EXPECT_EQ(p.set(file, "x", 0, "user.x"), Status::ok);
  }
  // Another profile has room.
  const u64 elsewhere = p.made(Opcode::create, root, "elsewhere");
  EXPECT_EQ(p.set(elsewhere, "raid1"), Status::ok);
  EXPECT_EQ(p.write(elsewhere, 0, 32 * page_size).status, Status::ok);
  EXPECT_EQ(p.remove(root, "big"), Status::ok);
  const u64 again = p.made(Opcode::create, root, "again");
  EXPECT_EQ(p.write(again, 0, u64{1} << 20).status, Status::ok);
  p.expect_sound();
}

TEST(FullProfiles, NoRoomForNamesLeavesFilesReadableAndCanBeFreed) {
  ProfilePool p("raid5+raid1c3");
  const u64 file = p.made(Opcode::create, root, "file");
  EXPECT_EQ(p.write(file, 0, 8 * page_size).status, Status::ok);
  Status status = Status::ok;
  std::vector<std::string> names;
  // One page of attributes for each.
  while (status == Status::ok) {
    const std::string name = fmt::format("a long name that takes some room in a directory {}", names.size());
    const client::Reply reply = p.make(Opcode::create, root, name);
    status = reply.status;
    if (status != Status::ok) break;
    names.push_back(name);
    status = p.set(reply.result, std::string(3000, 'v'), 0, "user.v");
  }
  EXPECT_EQ(status, Status::no_space);
  EXPECT_GT(names.size(), 200u);
  p.client().simple(Opcode::statfs);
  EXPECT_GT(p.client().statistics().page_free, 1000u) << "there is room for data";
  EXPECT_EQ(p.client().simple(Opcode::read, file, 0, 8 * page_size).status, Status::ok);
  for (const std::string& name : names) ASSERT_EQ(p.remove(root, name), Status::ok) << name;
  EXPECT_EQ(p.write(file, 0, 64 * page_size).status, Status::ok);
  p.expect_sound();
}

}  // namespace
}  // namespace gpu4fs::test::profiles_test
