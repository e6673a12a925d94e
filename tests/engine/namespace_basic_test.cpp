// Name commands one at a time, on a CPU engine with a pool: their effects and their errors.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/name_fixture.hpp"

namespace gpu4fs::test {
namespace {

class NamespaceBasic : public ::testing::Test {
 protected:
  FileEngine engine_;
  NameClient client_{engine_};

  u64 made(const ring::Completion& done) {
    EXPECT_EQ(done.status, Status::ok) << status_name(done.status);
    return done.result;
  }
  format::AttributeRecord attributes(u64 inode) {
    EXPECT_EQ(client_.getattr(inode).status, Status::ok);
    return client_.attributes();
  }
};

u64 time_of(i64 seconds, u32 nanoseconds) {
  return format::encode_time(seconds, nanoseconds);
}
u64 change_time(const format::AttributeRecord& a) {
  return time_of(a.change_seconds, a.change_nanoseconds);
}
u64 modification_time(const format::AttributeRecord& a) {
  return time_of(a.modification_seconds, a.modification_nanoseconds);
}
u64 access_time(const format::AttributeRecord& a) {
  return time_of(a.access_seconds, a.access_nanoseconds);
}

TEST_F(NamespaceBasic, MkdirMakesADirectoryWithItsParent) {
  const u64 a = made(client_.mkdir(root, "a", 0750));
  EXPECT_EQ(client_.attributes().mode, 0040750u);
  EXPECT_EQ(client_.attributes().link_count, 2u);
  EXPECT_EQ(client_.attributes().parent, root);
  EXPECT_EQ(attributes(root).link_count, 3u);
  const u64 b = made(client_.mkdir(a, "b"));
  EXPECT_EQ(made(client_.lookup(b, "..")), a);
  EXPECT_EQ(made(client_.lookup(b, ".")), b);
  EXPECT_EQ(made(client_.lookup(root, "..")), root);
  EXPECT_EQ(client_.mkdir(root, "a").status, Status::exists);
  EXPECT_EQ(client_.rmdir(root, "a").status, Status::directory_not_empty);
  EXPECT_EQ(made(client_.rmdir(a, "b")), b);
  EXPECT_EQ(client_.lookup(a, "b").status, Status::not_found);
  EXPECT_EQ(attributes(b).link_count, 0u);
  EXPECT_EQ(client_.mkdir(b, "c").status, Status::not_found) << "a removed directory takes no names";
  EXPECT_EQ(client_.reclaim(b).status, Status::ok);
  EXPECT_EQ(client_.getattr(b).status, Status::stale);
}

TEST_F(NamespaceBasic, NamesAreChecked) {
  EXPECT_EQ(client_.mkdir(root, "").status, Status::not_found);
  EXPECT_EQ(client_.mkdir(root, std::string(256, 'x')).status, Status::name_too_long);
  EXPECT_EQ(client_.mkdir(root, "a/b").status, Status::invalid_argument);
  EXPECT_EQ(client_.mkdir(root, std::string("a\0b", 3)).status, Status::invalid_argument);
  EXPECT_EQ(client_.mkdir(root, ".").status, Status::exists);
  EXPECT_EQ(client_.mkdir(root, "..").status, Status::exists);
  EXPECT_EQ(client_.unlink(root, ".").status, Status::is_directory);
  EXPECT_EQ(client_.rmdir(root, ".").status, Status::invalid_argument);
  EXPECT_EQ(client_.rmdir(root, "..").status, Status::directory_not_empty);
  EXPECT_EQ(client_.rename(root, ".", root, "x").status, Status::busy);
  EXPECT_EQ(client_.rename(root, "x", root, "..").status, Status::busy);
  EXPECT_EQ(client_.mkdir(root, std::string(255, 'x')).status, Status::ok);
  EXPECT_EQ(client_.lookup(root, std::string(255, 'x')).status, Status::ok);
}

TEST_F(NamespaceBasic, InodesThatClientsMustNotNameAreStale) {
  for (const u64 inode : {u64{0}, u64{2}, u64{3}, u64{15}, u64{16}, u64{1} << 30, u64{1} << 40, ~u64{0}}) {
    EXPECT_EQ(client_.getattr(inode).status, Status::stale) << inode;
    EXPECT_EQ(client_.lookup(inode, "x").status, Status::stale) << inode;
    EXPECT_EQ(client_.link(inode, root, "x").status, Status::stale) << inode;
    EXPECT_EQ(client_.rename(inode, "x", root, "x").status, Status::stale) << inode;
    EXPECT_EQ(client_.unlink(inode, "x").status, Status::stale) << inode;
  }
}

TEST_F(NamespaceBasic, FilesAreNoDirectories) {
  const u64 file = made(client_.create(root, "file"));
  EXPECT_EQ(client_.lookup(file, "x").status, Status::not_directory);
  EXPECT_EQ(client_.create(file, "x").status, Status::not_directory);
  EXPECT_EQ(client_.rename(file, "x", root, "y").status, Status::not_directory);
  EXPECT_EQ(client_.rmdir(root, "file").status, Status::not_directory);
  std::vector<ListedName> names;
  EXPECT_EQ(client_.readdir(file, 0, 4096, false, &names), Status::not_directory);
  const u64 directory = made(client_.mkdir(root, "directory"));
  EXPECT_EQ(client_.unlink(root, "directory").status, Status::is_directory);
  EXPECT_EQ(client_.link(directory, root, "second").status, Status::permission);
}

TEST_F(NamespaceBasic, CreateOpensWhatIsThere) {
  const u64 file = made(client_.create(root, "file", 0640));
  EXPECT_EQ(client_.attributes().mode, 0100640u);
  EXPECT_EQ(client_.create(root, "file").status, Status::exists);
  EXPECT_EQ(made(client_.create(root, "file", 0600, 0)), file);
  EXPECT_EQ(client_.attributes().mode, 0100640u);
  made(client_.mkdir(root, "directory"));
  EXPECT_EQ(client_.create(root, "directory", 0600, 0).status, Status::is_directory);
  client_.umask_bits = 027;
  made(client_.create(root, "masked", 0666));
  EXPECT_EQ(client_.attributes().mode, 0100640u);
}

TEST_F(NamespaceBasic, NodesKeepTheirTypeAndDevice) {
  made(client_.mknod(root, "null", 0020666, 0x103));
  EXPECT_EQ(client_.attributes().device, 0x103u);
  EXPECT_EQ(client_.attributes().mode, 0020666u);
  for (const u32 type : {0010000u, 0060000u, 0100000u, 0140000u}) {
    const std::string name = "node " + std::to_string(type);
    made(client_.mknod(root, name, type | 0600));
    EXPECT_EQ(client_.attributes().mode, type | 0600);
    made(client_.lookup(root, name));
  }
  EXPECT_EQ(client_.mknod(root, "x", 0040755).status, Status::permission);
  EXPECT_EQ(client_.mknod(root, "x", 0120777).status, Status::invalid_argument);
  EXPECT_EQ(client_.mknod(root, "x", 0150777).status, Status::invalid_argument);
}

TEST_F(NamespaceBasic, SymbolicLinksOfEveryLength) {
  for (const std::size_t length : {1u, 127u, 128u, 129u, 4000u, 4095u}) {
    const std::string target(length, static_cast<char>('a' + length % 26));
    const u64 link = made(client_.symlink(root, "link" + std::to_string(length), target));
    EXPECT_EQ(client_.attributes().size_bytes, length);
    EXPECT_EQ(client_.attributes().mode, 0120777u);
    EXPECT_EQ(client_.attributes().blocks_512, length <= 128 ? 0u : 8u);
    std::string found;
    EXPECT_EQ(made(client_.readlink(link, &found)), length);
    EXPECT_EQ(found, target);
    made(client_.readlink(link, &found, 1));
    EXPECT_EQ(found, target.substr(0, 1));
    EXPECT_EQ(client_.open(link, 0).status, Status::loop);
  }
  EXPECT_EQ(client_.symlink(root, "x", "").status, Status::not_found);
  EXPECT_EQ(client_.symlink(root, "x", std::string(4096, 'x')).status, Status::name_too_long);
  std::string found;
  EXPECT_EQ(client_.readlink(root, &found).status, Status::not_a_symlink);
}

TEST_F(NamespaceBasic, LinksAreCounted) {
  const u64 file = made(client_.create(root, "a"));
  EXPECT_EQ(made(client_.link(file, root, "b")), file);
  EXPECT_EQ(client_.attributes().link_count, 2u);
  EXPECT_EQ(client_.link(file, root, "a").status, Status::exists);
  EXPECT_EQ(made(client_.unlink(root, "a")), 0u);
  EXPECT_EQ(attributes(file).link_count, 1u);
  EXPECT_EQ(made(client_.unlink(root, "b")), file);
  EXPECT_EQ(attributes(file).link_count, 0u);
  EXPECT_EQ(client_.unlink(root, "b").status, Status::not_found);
  EXPECT_EQ(client_.reclaim(file).status, Status::ok);
  EXPECT_EQ(client_.getattr(file).status, Status::stale);
  EXPECT_EQ(client_.link(file, root, "c").status, Status::stale);
}

TEST_F(NamespaceBasic, ATemporaryFileGetsItsNameByLink) {
  const u64 file = made(client_.tmpfile(root, 0640));
  EXPECT_EQ(client_.attributes().link_count, 0u);
  EXPECT_EQ(made(client_.link(file, root, "named")), file);
  EXPECT_EQ(attributes(file).link_count, 1u);
  EXPECT_EQ(made(client_.lookup(root, "named")), file);
  (void)client_.reclaim(file);
  EXPECT_EQ(attributes(file).link_count, 1u) << "a file with a name is not reclaimed";
  const u64 other = made(client_.tmpfile(root));
  EXPECT_EQ(client_.reclaim(other).status, Status::ok);
  EXPECT_EQ(client_.getattr(other).status, Status::stale);
}

TEST_F(NamespaceBasic, OpenChecksTypes) {
  const u64 file = made(client_.create(root, "file"));
  EXPECT_EQ(client_.open(file, 02).status, Status::ok);
  EXPECT_EQ(client_.open(file, 0200000).status, Status::not_directory);
  EXPECT_EQ(client_.open(root, 0).status, Status::ok);
  EXPECT_EQ(client_.open(root, 01).status, Status::is_directory);
  EXPECT_EQ(client_.access(file, 6).status, Status::ok);
  EXPECT_EQ(client_.access(file, 8).status, Status::invalid_argument);
}

TEST_F(NamespaceBasic, TimesChangeAsPosixWants) {
  const u64 a = made(client_.mkdir(root, "a"));
  const u64 b = made(client_.mkdir(root, "b"));
  const u64 file = made(client_.create(a, "file"));
  std::map<u64, format::AttributeRecord> before;
  const auto remember = [&] {
    for (const u64 inode : {a, b, file}) before[inode] = attributes(inode);
  };
  // The changed times as "mc", of a, b and the file in turn.
  const auto moved = [&] {
    std::string text;
    for (const u64 inode : {a, b, file}) {
      const format::AttributeRecord now = attributes(inode);
      text += modification_time(now) > modification_time(before[inode]) ? 'm' : '-';
      text += change_time(now) > change_time(before[inode]) ? 'c' : '-';
      text += ' ';
    }
    return text;
  };
  remember();
  made(client_.link(file, b, "second"));
  EXPECT_EQ(moved(), "-- mc -c ");
  remember();
  made(client_.rename(a, "file", a, "renamed"));
  EXPECT_EQ(moved(), "mc -- -c ");
  remember();
  made(client_.rename(a, "renamed", b, "third"));
  EXPECT_EQ(moved(), "mc mc -c ");
  remember();
  made(client_.rename(b, "third", b, "second"));
  EXPECT_EQ(moved(), "-- -- -- ") << "two names of one file";
  remember();
  made(client_.unlink(b, "second"));
  EXPECT_EQ(moved(), "-- mc -c ");
  remember();
  made(client_.set_attribute(a, "user.x", "1"));
  EXPECT_EQ(moved(), "-c -- -- ");
  remember();
  EXPECT_EQ(client_.mkdir(b, "third").status, Status::exists);
  made(client_.lookup(b, "third"));
  EXPECT_EQ(moved(), "-- -- -- ");
}

TEST_F(NamespaceBasic, AWhiteoutTakesTheOldName) {
  constexpr u32 whiteout = 4;
  client_.uid = 1001;
  client_.gid = 2001;
  const u64 a = made(client_.mkdir(root, "a"));
  const u64 file = made(client_.create(root, "file", 0644));
  const u64 target = made(client_.create(a, "target", 0644));
  EXPECT_EQ(made(client_.rename(root, "file", a, "target", whiteout)), target);
  const format::AttributeRecord made_here = client_.attributes();
  EXPECT_EQ(made_here.mode, 0020000u);
  EXPECT_EQ(made_here.device, 0u);
  EXPECT_EQ(made_here.link_count, 1u);
  EXPECT_EQ(made_here.uid, 1001u);
  EXPECT_EQ(made_here.gid, 2001u);
  EXPECT_EQ(made(client_.lookup(root, "file")), made_here.inode);
  EXPECT_EQ(made(client_.lookup(a, "target")), file);
  EXPECT_EQ(attributes(root).link_count, 3u);
  made(client_.rename(root, "a", root, "b", whiteout));
  EXPECT_EQ(client_.attributes().mode, 0020000u);
  EXPECT_EQ(attributes(root).link_count, 3u);
  EXPECT_EQ(client_.rename(root, "b", root, "file", whiteout | 2).status, Status::invalid_argument);
  EXPECT_EQ(client_.rename(root, "b", root, "file", whiteout | 1).status, Status::exists);
  EXPECT_EQ(made(client_.unlink(root, "file")), made_here.inode);
  EXPECT_EQ(made(client_.reclaim(target)), 1u);
  EXPECT_EQ(engine_.engine().fs.had_error, 0u);
}

TEST_F(NamespaceBasic, AccessTimesAreRelative) {
  const u64 a = made(client_.mkdir(root, "a"));
  const auto read_directory = [&] {
    std::vector<ListedName> names;
    EXPECT_EQ(client_.list(a, &names), Status::ok);
    return access_time(attributes(a));
  };
  const u64 first = read_directory();
  EXPECT_GE(first, modification_time(attributes(a)));
  const u64 second = read_directory();
  EXPECT_EQ(read_directory(), second) << "not older than the modification";
  made(client_.create(a, "x"));
  EXPECT_GT(read_directory(), second);
}

TEST_F(NamespaceBasic, ReaddirGivesEverythingOnceInAnyBuffer) {
  const u64 a = made(client_.mkdir(root, "a"));
  std::map<std::string, u64> inodes;
  for (u32 i = 0; i < 700; ++i) {
    const std::string name = "name " + std::to_string(i) + std::string(i % 90, 'n');
    inodes[name] = made(i % 3 == 0 ? client_.mkdir(a, name) : client_.create(a, name));
  }
  for (const u64 length : {u64{512}, u64{4096}, u64{100000}}) {
    for (const bool with_attributes : {false, true}) {
      std::vector<ListedName> names;
      ASSERT_EQ(client_.list(a, &names, length, with_attributes), Status::ok);
      ASSERT_EQ(names.size(), inodes.size() + 2);
      EXPECT_EQ(names[0].name, ".");
      EXPECT_EQ(names[0].inode, a);
      EXPECT_EQ(names[1].name, "..");
      EXPECT_EQ(names[1].inode, root);
      std::set<std::string> seen;
      for (std::size_t i = 2; i < names.size(); ++i) {
        ASSERT_TRUE(seen.insert(names[i].name).second);
        ASSERT_EQ(inodes.at(names[i].name), names[i].inode);
        ASSERT_EQ(names[i].has_attributes, with_attributes);
        if (!with_attributes) continue;
        ASSERT_EQ(names[i].attributes.inode, names[i].inode);
        ASSERT_EQ(names[i].attributes.mode >> 12, names[i].type);
      }
    }
  }
  std::vector<ListedName> names;
  EXPECT_EQ(client_.readdir(a, 0, 31, false, &names), Status::invalid_argument) << "no room for one record";
  EXPECT_EQ(client_.readdir(a, 5, 4096, false, &names), Status::invalid_argument) << "no cursor";
}

TEST_F(NamespaceBasic, PathsAreWalked) {
  const u64 a = made(client_.mkdir(root, "a"));
  const u64 b = made(client_.mkdir(a, "b"));
  const u64 file = made(client_.create(b, "file"));
  const u64 relative = made(client_.symlink(a, "relative", "b/../b"));
  made(client_.symlink(a, "absolute", "/a/relative"));
  made(client_.symlink(b, "self", "self"));
  made(client_.symlink(b, "broken", "nothing"));
  EXPECT_EQ(made(client_.lookup_path(root, "a/b/file")), file);
  EXPECT_EQ(client_.attributes().inode, file);
  EXPECT_EQ(made(client_.lookup_path(b, "/a//b/./file")), file);
  EXPECT_EQ(made(client_.lookup_path(b, "../../a/b/file")), file);
  EXPECT_EQ(made(client_.lookup_path(root, "../..")), root);
  EXPECT_EQ(made(client_.lookup_path(b, "")), b);
  EXPECT_EQ(made(client_.lookup_path(b, "/")), root);
  EXPECT_EQ(made(client_.lookup_path(root, "a/b/")), b);
  EXPECT_EQ(client_.lookup_path(root, "a/b/file/").status, Status::not_directory);
  EXPECT_EQ(client_.lookup_path(root, "a/b/file/x").status, Status::not_directory);
  EXPECT_EQ(client_.lookup_path(root, "a/c/file").status, Status::not_found);
  EXPECT_EQ(made(client_.lookup_path(a, "relative")), b);
  EXPECT_EQ(made(client_.lookup_path(a, "relative", false)), relative);
  EXPECT_EQ(made(client_.lookup_path(a, "relative/", false)), b);
  EXPECT_EQ(made(client_.lookup_path(b, "/a/absolute/file")), file);
  EXPECT_EQ(client_.lookup_path(b, "self").status, Status::loop);
  EXPECT_EQ(client_.lookup_path(b, "broken").status, Status::not_found);
  EXPECT_EQ(client_.lookup_path(root, std::string(256, 'x')).status, Status::name_too_long);
  std::string deep = "/a";
  while (deep.size() < 4080) deep += "/.";
  EXPECT_EQ(made(client_.lookup_path(root, deep)), a);
  EXPECT_EQ(client_.lookup_path(root, deep + std::string(16, '/')).status, Status::name_too_long);
}

TEST_F(NamespaceBasic, FortySymbolicLinksAreTheLimit) {
  made(client_.mkdir(root, "end"));
  std::string target = "end";
  for (u32 i = 1; i <= 41; ++i) {
    const std::string name = "link" + std::to_string(i);
    made(client_.symlink(root, name, target));
    target = name;
  }
  EXPECT_EQ(client_.lookup_path(root, "link40").status, Status::ok);
  EXPECT_EQ(client_.lookup_path(root, "link41").status, Status::loop);
}

// Impossible bytes in an inode are damage for every access, by a name or by its number.
TEST_F(NamespaceBasic, DamagedInodesAreNotWorkedWith) {
  const u64 directory = made(client_.mkdir(root, "directory"));
  const u64 file = made(client_.create(directory, "file"));
  fs::Operation op{};
  const auto inode_of = [&](u64 number) -> format::Inode& {
    fs::InodeRef ref{};
    EXPECT_EQ(fs::get_inode(Lane{}, engine_.fs(), op, number, &ref), Status::ok);
    return *ref.inode;
  };
  const auto changes = {+[](format::Inode& inode) { inode.version = 2; },
                        +[](format::Inode& inode) { inode.flags |= 1u << 30; },
                        +[](format::Inode& inode) { inode.height = 99; }};
  for (const auto change : changes) {
    for (const u64 damaged : {directory, file}) {
      const format::Inode before = inode_of(damaged);
      change(inode_of(damaged));
      EXPECT_EQ(client_.lookup(directory, "file").status, Status::corrupt_structure);
      EXPECT_EQ(client_.unlink(directory, "file").status, Status::corrupt_structure);
      EXPECT_EQ(client_.rename(directory, "file", directory, "other").status, Status::corrupt_structure);
      EXPECT_EQ(client_.open(damaged, 0).status, Status::corrupt_structure);
      EXPECT_EQ(client_.set_attribute(damaged, "user.x", "1").status, Status::corrupt_structure);
      if (damaged == directory) {
        EXPECT_EQ(client_.create(directory, "new").status, Status::corrupt_structure);
        EXPECT_EQ(client_.rmdir(root, "directory").status, Status::corrupt_structure);
      } else {
        EXPECT_EQ(client_.link(file, root, "link").status, Status::corrupt_structure);
      }
      inode_of(damaged) = before;
    }
  }
  EXPECT_EQ(made(client_.unlink(directory, "file")), file);
}

TEST_F(NamespaceBasic, AReadOnlyPoolChangesNothing) {
  const u64 file = made(client_.create(root, "file"));
  const u64 link = made(client_.symlink(root, "link", "file"));
  engine_.fs().read_only = 1;
  EXPECT_EQ(client_.create(root, "new").status, Status::read_only);
  EXPECT_EQ(made(client_.create(root, "file", 0644, 0)), file);
  EXPECT_EQ(client_.mkdir(root, "new").status, Status::read_only);
  EXPECT_EQ(client_.unlink(root, "file").status, Status::read_only);
  EXPECT_EQ(client_.rename(root, "file", root, "new").status, Status::read_only);
  EXPECT_EQ(client_.link(file, root, "new").status, Status::read_only);
  EXPECT_EQ(client_.set_attribute(file, "user.x", "1").status, Status::read_only);
  EXPECT_EQ(client_.open(file, 01).status, Status::read_only);
  EXPECT_EQ(client_.open(file, 0).status, Status::ok);
  EXPECT_EQ(client_.access(file, 2).status, Status::read_only);
  std::string target;
  EXPECT_EQ(client_.readlink(link, &target).status, Status::ok);
  engine_.fs().read_only = 0;
}

}  // namespace
}  // namespace gpu4fs::test
