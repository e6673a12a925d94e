// Extended attributes by commands: their limits, large values, what a freed inode gives back, long access control
// lists.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>

#include "engine/name_fixture.hpp"

namespace gpu4fs::test {
namespace {

constexpr u64 value_max = 65536;
constexpr u64 list_max = 65536;

class Attributes : public ::testing::Test {
 protected:
  FileEngine engine_;
  NameClient client_{engine_};

  u64 made(const ring::Completion& done) {
    EXPECT_EQ(done.status, Status::ok) << status_name(done.status);
    return done.result;
  }
  void checkpoint() { ASSERT_EQ(client_.call(client_.named(wire::Opcode::checkpoint, 0, "")).status, Status::ok); }
  u64 free_pages() {
    checkpoint();
    checkpoint();
    wire::Command command = client_.named(wire::Opcode::statfs, 0, "");
    EXPECT_EQ(client_.call(command).status, Status::ok);
    return reinterpret_cast<const wire::StatfsRecord*>(&client_.attributes())->page_free;
  }
  std::string get(u64 inode, const std::string& name) {
    std::string value;
    EXPECT_EQ(client_.get_attribute(inode, name, &value, value_max).status, Status::ok) << name;
    return value;
  }
  std::set<std::string> list(u64 inode) {
    std::string names;
    EXPECT_EQ(client_.list_attributes(inode, &names, list_max).status, Status::ok);
    std::set<std::string> found;
    for (u64 at = 0; at < names.size(); at += std::strlen(&names[at]) + 1) found.insert(&names[at]);
    return found;
  }
  static std::string bytes(u64 length, u64 seed) {
    std::mt19937_64 random(seed);
    std::string value(length, '\0');
    for (char& byte : value) byte = static_cast<char>(random());
    return value;
  }
};

TEST_F(Attributes, TheGreatestValue) {
  const u64 file = made(client_.create(root, "file"));
  const std::string greatest = bytes(value_max, 1);
  EXPECT_EQ(client_.set_attribute(file, "user.x", greatest + "x").status, Status::attribute_too_big);
  ASSERT_EQ(client_.set_attribute(file, "user.x", greatest).status, Status::ok);
  EXPECT_TRUE(get(file, "user.x") == greatest);
  std::string value;
  EXPECT_EQ(client_.get_attribute(file, "user.x", &value, 0).result, value_max) << "its size";
  EXPECT_EQ(client_.get_attribute(file, "user.x", &value, value_max - 1).status, Status::attribute_range);
  EXPECT_EQ(client_.get_attribute(file, "user.x", &value, 1).status, Status::attribute_range);
  EXPECT_EQ(client_.set_attribute(file, "user.x", "1", 1).status, Status::exists);
  EXPECT_TRUE(get(file, "user.x") == greatest);
  ASSERT_EQ(client_.set_attribute(file, "user.x", "small").status, Status::ok);
  EXPECT_EQ(get(file, "user.x"), "small");
  ASSERT_EQ(client_.set_attribute(file, "user.x", bytes(1025, 2)).status, Status::ok);
  EXPECT_TRUE(get(file, "user.x") == bytes(1025, 2));
  ASSERT_EQ(client_.remove_attribute(file, "user.x").status, Status::ok);
  EXPECT_EQ(client_.get_attribute(file, "user.x", &value).status, Status::no_attribute);
  EXPECT_EQ(client_.getattr(file).status, Status::ok);
  EXPECT_EQ(client_.attributes().blocks_512, 0u);
}

TEST_F(Attributes, NamesFillAListOfLinux) {
  const u64 file = made(client_.create(root, "file"));
  std::set<std::string> names;
  Status status = Status::ok;
  for (u32 i = 0; status == Status::ok; ++i) {
    std::string name = "user." + std::to_string(i) + ".";
    name.resize(255, 'n');
    status = client_.set_attribute(file, name, std::to_string(i)).status;
    if (status == Status::ok) names.insert(name);
    ASSERT_LT(i, 1000u);
  }
  EXPECT_EQ(status, Status::no_space);
  EXPECT_EQ(names.size(), (list_max - 24) / 256);
  EXPECT_TRUE(list(file) == names);
  std::string text;
  const u64 length = client_.list_attributes(file, &text, 0).result;
  EXPECT_EQ(length, names.size() * 256);
  EXPECT_EQ(client_.list_attributes(file, &text, length - 1).status, Status::attribute_range);
  EXPECT_EQ(client_.list_attributes(file, &text, length).status, Status::ok);
  // The name of the profile is added, and the list still fits.
  const std::string profile = "user.gpu4fs.raid";
  ASSERT_EQ(client_.set_attribute(file, profile, "single").status, Status::ok);
  EXPECT_EQ(client_.list_attributes(file, &text, list_max).status, Status::ok);
  EXPECT_EQ(client_.set_attribute(file, profile, bytes(2000, 1)).status, Status::invalid_argument);
  for (const std::string& name : names) ASSERT_EQ(client_.remove_attribute(file, name).status, Status::ok);
  EXPECT_EQ(list(file), std::set<std::string>{profile});
}

TEST_F(Attributes, AFreedInodeGivesAllPagesBack) {
  // The page of inodes stays.
  ASSERT_EQ(client_.reclaim(made(client_.tmpfile(root))).result, 1u);
  const u64 before = free_pages();
  for (const u32 count : {1u, 40u}) {
    const u64 file = made(client_.create(root, "file"));
    for (u32 i = 0; i < count; ++i) {
      ASSERT_EQ(client_.set_attribute(file, "user.great" + std::to_string(i), bytes(value_max, i)).status, Status::ok);
    }
    for (u32 i = 0; i < count; ++i) EXPECT_TRUE(get(file, "user.great" + std::to_string(i)) == bytes(value_max, i));
    // Some of them have places on the medium, the others do not have any yet.
    if (count > 1) checkpoint();
    ASSERT_EQ(client_.set_attribute(file, "user.small", "1").status, Status::ok);
    EXPECT_LT(free_pages(), before - 16 * count);
    ASSERT_EQ(client_.set_attribute(file, "user.great0", bytes(5000, 7)).status, Status::ok);
    ASSERT_EQ(client_.unlink(root, "file").result, file);
    ASSERT_EQ(client_.reclaim(file).result, 1u);
    EXPECT_EQ(free_pages(), before);
    EXPECT_EQ(engine_.fs().had_error, 0u);
  }
}

// Values and their absence, one file each, from several threads' worth of commands in turn.
TEST_F(Attributes, FollowAMapOfEachFile) {
  std::mt19937_64 random(3);
  constexpr u32 file_count = 4;
  u64 files[file_count];
  std::map<std::string, std::string> models[file_count];
  for (u32 i = 0; i < file_count; ++i) files[i] = made(client_.create(root, "file" + std::to_string(i)));
  for (u32 step = 0; step < 600; ++step) {
    const u32 f = random() % file_count;
    const std::string name = "user.n" + std::to_string(random() % 12);
    if (random() % 3 == 0) {
      const bool is_there = models[f].erase(name) != 0;
      ASSERT_EQ(client_.remove_attribute(files[f], name).status, is_there ? Status::ok : Status::no_attribute);
    } else {
      const u64 bounds[] = {100, 1200, 9000, value_max + 1};
      models[f][name] = bytes(random() % bounds[random() % 4], step);
      ASSERT_EQ(client_.set_attribute(files[f], name, models[f][name]).status, Status::ok);
    }
    if (step % 50 == 0) checkpoint();
  }
  for (u32 i = 0; i < file_count; ++i) {
    EXPECT_EQ(list(files[i]).size(), models[i].size());
    for (const auto& [name, value] : models[i]) EXPECT_TRUE(get(files[i], name) == value) << name;
  }
}

// One user's entry is 8 bytes: two such lists do not fit into one page.
TEST_F(Attributes, LongAccessListsAreInherited) {
  constexpr u32 count = 500;
  std::string list("\2\0\0\0", 4);
  const auto add = [&](u16 tag, u16 permissions, u32 id) {
    list.append(reinterpret_cast<const char*>(&tag), 2);
    list.append(reinterpret_cast<const char*>(&permissions), 2);
    list.append(reinterpret_cast<const char*>(&id), 4);
  };
  add(1, 7, ~u32{0});
  for (u32 i = 0; i < count; ++i) add(2, 6, 1000 + i);
  add(4, 5, ~u32{0});
  add(16, 7, ~u32{0});
  add(32, 0, ~u32{0});
  const u64 directory = made(client_.mkdir(root, "directory"));
  ASSERT_EQ(client_.set_attribute(directory, "system.posix_acl_default", list).status, Status::ok);
  const u64 below = made(client_.mkdir(directory, "below", 0770));
  EXPECT_EQ(get(below, "system.posix_acl_default"), list);
  EXPECT_EQ(get(below, "system.posix_acl_access").size(), list.size());
  ASSERT_EQ(client_.chmod(below, 0710).status, Status::ok);
  const std::string changed = get(below, "system.posix_acl_access");
  EXPECT_EQ(changed[list.size() - 16 + 2], 1) << "the mask follows the mode";
  EXPECT_EQ(get(below, "system.posix_acl_default"), list);
  list.insert(4 + 8, 8 * 100, '\0');
  EXPECT_EQ(client_.set_attribute(directory, "system.posix_acl_default", list).status, Status::no_space);
}

}  // namespace
}  // namespace gpu4fs::test
