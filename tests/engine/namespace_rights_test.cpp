// The permissions of an untrusted session: mode bits with the kernel's rules, sticky directories, groups, access
// control lists.
#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/name_fixture.hpp"
#include "support/memory_folder.hpp"

namespace gpu4fs::test {
namespace {

class NamespaceRights : public ::testing::Test {
 protected:
  FileEngine engine_;
  NameClient super_{engine_};
  NameClient user_{engine_, false};
  engine::SessionGroups groups_;

  void become(u32 uid, u32 gid, const std::vector<u32>& groups = {}) {
    engine::Session& session = engine_.engine().sessions[user_.session()];
    session.uid = uid;
    session.gid = gid;
    groups_ = engine::SessionGroups(groups);
    session.group_count = groups_.count();
    session.groups = groups_.begin();
  }
  u64 made(const ring::Completion& done) {
    EXPECT_EQ(done.status, Status::ok) << status_name(done.status);
    return done.result;
  }
  u64 directory_of(u32 uid, u32 gid, const std::string& name, u32 mode) {
    super_.uid = uid;
    super_.gid = gid;
    const u64 inode = made(super_.mkdir(root, name, mode & 01777));
    made(super_.chmod(inode, mode));
    super_.uid = super_.gid = 0;
    return inode;
  }
};

struct Identity {
  u32 uid;
  u32 gid;
};
constexpr Identity identities[] = {{1001, 2001}, {1002, 2001}, {1002, 2002}, {0, 0}};

// The kernel's answers to access() for every mode and right, from a child with the identity `who`.
std::vector<u8> ask_kernel(const std::string& path, Identity who) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const bool changed = ::setgroups(0, nullptr) == 0 && ::setgid(who.gid) == 0 && ::setuid(who.uid) == 0;
    for (u32 mode = 0; changed && mode < 512; ++mode) {
      u8 allowed = 0;
      for (u32 wanted = 1; wanted < 8; ++wanted) {
        const std::string file = path + "/" + std::to_string(mode);
        if (::access(file.c_str(), static_cast<int>(wanted)) == 0) allowed = static_cast<u8>(allowed | 1u << wanted);
      }
      if (::write(ends[1], &allowed, 1) != 1) break;
    }
    ::_exit(0);
  }
  ::close(ends[1]);
  std::vector<u8> answers;
  u8 answer = 0;
  while (::read(ends[0], &answer, 1) == 1) answers.push_back(answer);
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return answers;
}

TEST_F(NamespaceRights, ModeBitsDecideAsInTheKernel) {
  if (::geteuid() != 0) GTEST_SKIP() << "becoming other users needs the superuser";
  std::string path = "/tmp/gpu4fs_rights_XXXXXX";
  ASSERT_NE(::mkdtemp(path.data()), nullptr);
  ASSERT_EQ(::chmod(path.c_str(), 0755), 0);
  std::vector<u64> files;
  super_.uid = 1001;
  super_.gid = 2001;
  for (u32 mode = 0; mode < 512; ++mode) {
    const std::string file = path + "/" + std::to_string(mode);
    const int descriptor = ::open(file.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    ASSERT_GE(descriptor, 0);
    ASSERT_EQ(::fchown(descriptor, 1001, 2001), 0);
    ASSERT_EQ(::fchmod(descriptor, mode), 0);
    ::close(descriptor);
    files.push_back(made(super_.create(root, std::to_string(mode), mode)));
  }
  for (const Identity who : identities) {
    const std::vector<u8> answers = ask_kernel(path, who);
    ASSERT_EQ(answers.size(), 512u);
    become(who.uid, who.gid);
    for (u32 mode = 0; mode < 512; ++mode) {
      u32 allowed = 0;
      for (u32 wanted = 1; wanted < 8; ++wanted) {
        const Status status = user_.access(files[mode], wanted).status;
        ASSERT_TRUE(status == Status::ok || status == Status::access);
        allowed |= status == Status::ok ? 1u << wanted : 0;
      }
      ASSERT_EQ(allowed, answers[mode]) << "mode " << mode << " uid " << who.uid << " gid " << who.gid;
    }
  }
  std::filesystem::remove_all(path);
}

TEST_F(NamespaceRights, SupplementaryGroupsCount) {
  const u64 directory = directory_of(1001, 2001, "d", 0770);
  become(1002, 2002);
  EXPECT_EQ(user_.access(directory, 7).status, Status::access);
  become(1002, 2002, {5, 2001});
  EXPECT_EQ(user_.access(directory, 7).status, Status::ok);
}

TEST_F(NamespaceRights, NamesNeedRightsOnTheDirectory) {
  const u64 readable = directory_of(1001, 2001, "readable", 0744);
  const u64 searchable = directory_of(1001, 2001, "searchable", 0711);
  made(super_.create(readable, "f"));
  made(super_.create(searchable, "f"));
  become(1002, 2002);
  std::vector<ListedName> names;
  EXPECT_EQ(user_.list(readable, &names), Status::ok);
  EXPECT_EQ(user_.lookup(readable, "f").status, Status::access);
  EXPECT_EQ(user_.list(searchable, &names), Status::access);
  EXPECT_EQ(user_.lookup(searchable, "f").status, Status::ok);
  EXPECT_EQ(user_.lookup_path(root, "readable/f").status, Status::access);
  EXPECT_EQ(user_.lookup_path(root, "searchable/f").status, Status::ok);
  for (const u64 directory : {readable, searchable}) {
    EXPECT_EQ(user_.mkdir(directory, "x").status, Status::access);
    EXPECT_EQ(user_.create(directory, "x").status, Status::access);
    EXPECT_EQ(user_.symlink(directory, "x", "y").status, Status::access);
    EXPECT_EQ(user_.unlink(directory, "f").status, Status::access);
    EXPECT_EQ(user_.rename(directory, "f", directory, "g").status, Status::access);
    EXPECT_EQ(user_.tmpfile(directory).status, Status::access);
  }
  become(1001, 2001);
  EXPECT_EQ(user_.unlink(searchable, "f").status, Status::ok);
  EXPECT_EQ(user_.mknod(searchable, "device", 0020666, 1).status, Status::permission);
  EXPECT_EQ(user_.mknod(searchable, "fifo", 0010666).status, Status::ok);
}

TEST_F(NamespaceRights, StickyDirectoriesProtectTheFilesOfOthers) {
  const u64 sticky = directory_of(1001, 2001, "sticky", 01777);
  super_.uid = 1002;
  made(super_.create(sticky, "of 1002", 0666));
  made(super_.create(sticky, "also of 1002", 0666));
  super_.uid = 1003;
  made(super_.create(sticky, "of 1003", 0666));
  super_.uid = 0;
  become(1003, 2003);
  EXPECT_EQ(user_.unlink(sticky, "of 1002").status, Status::permission);
  EXPECT_EQ(user_.rename(sticky, "of 1002", sticky, "x").status, Status::permission);
  EXPECT_EQ(user_.rename(sticky, "of 1003", sticky, "of 1002").status, Status::permission);
  EXPECT_EQ(user_.rename(sticky, "of 1003", sticky, "of 1002", 2).status, Status::permission);
  EXPECT_EQ(user_.rename(sticky, "of 1003", sticky, "x").status, Status::ok);
  become(1002, 2003);
  EXPECT_EQ(user_.unlink(sticky, "of 1002").status, Status::ok);
  become(1001, 2003);
  EXPECT_EQ(user_.unlink(sticky, "also of 1002").status, Status::ok) << "the directory's owner";
}

TEST_F(NamespaceRights, SetGidDirectoriesHandDownTheirGroup) {
  const u64 directory = directory_of(1001, 2001, "group", 02777);
  become(1002, 2002);
  made(user_.mkdir(directory, "below", 0755));
  EXPECT_EQ(user_.attributes().gid, 2001u);
  EXPECT_EQ(user_.attributes().mode, 0042755u);
  EXPECT_EQ(user_.attributes().uid, 1002u);
  made(user_.create(directory, "file", 0644));
  EXPECT_EQ(user_.attributes().gid, 2001u);
  made(user_.create(directory, "program", 02755));
  EXPECT_EQ(user_.attributes().mode, 0100755u) << "not a member of the group";
  become(1002, 2002, {2001});
  made(user_.create(directory, "other program", 02755));
  EXPECT_EQ(user_.attributes().mode, 0102755u);
}

// The number of groups that Linux allows for a process.
TEST_F(NamespaceRights, AllGroupsOfASessionCount) {
  constexpr u32 count = 65536;
  std::vector<u32> groups;
  for (u32 i = 0; i < count; ++i) groups.push_back(100000 + 3 * (i * 7919 % count));
  Client member(engine_, {.trusted = false, .uid = 1005, .gid = 2005, .groups = groups});
  const auto may_read = [&](u64 file) {
    wire::Command command = make_command(wire::Opcode::access);
    command.inode = file;
    command.mode = 4;
    return member.call(command).status;
  };
  u32 number = 0;
  for (const u32 index : {0u, 1u, 31u, 32u, 33u, 1000u, count - 1}) {
    const std::string name = "file" + std::to_string(++number);
    super_.gid = groups[index];
    EXPECT_EQ(may_read(made(super_.create(root, name, 0040))), Status::ok) << index;
    super_.gid = groups[index] + 1;
    EXPECT_EQ(may_read(made(super_.create(root, name + " of others", 0040))), Status::access) << index;
  }
}

std::string access_list(const std::vector<std::vector<u32>>& entries) {
  std::string value("\2\0\0\0", 4);
  for (const std::vector<u32>& e : entries) {
    for (const u32 byte : {e[0], 0u, e[1], 0u, e[2] & 255, e[2] >> 8 & 255, e[2] >> 16 & 255, e[2] >> 24}) {
      value.push_back(static_cast<char>(byte));
    }
  }
  return value;
}
constexpr u32 nobody = 0xffffffff;

TEST_F(NamespaceRights, AccessListsAreAppliedAndFollowTheMode) {
  super_.uid = 1001;
  const u64 file = made(super_.create(root, "file", 0640));
  const std::string name = "system.posix_acl_access";
  const std::string list =
      access_list({{1, 6, nobody}, {2, 4, 1002}, {4, 0, nobody}, {0x10, 4, nobody}, {0x20, 0, nobody}});
  EXPECT_EQ(super_.set_attribute(file, name, list).status, Status::ok);
  made(super_.getattr(file));
  EXPECT_EQ(super_.attributes().mode, 0100640u);
  become(1002, 2002);
  EXPECT_EQ(user_.access(file, 4).status, Status::ok);
  EXPECT_EQ(user_.access(file, 2).status, Status::access);
  become(1003, 2003);
  EXPECT_EQ(user_.access(file, 4).status, Status::access);
  EXPECT_EQ(user_.set_attribute(file, name, list).status, Status::permission);
  // The mask follows the mode's group bits.
  made(super_.chmod(file, 0600));
  become(1002, 2002);
  EXPECT_EQ(user_.access(file, 4).status, Status::access);
  // A list that contains no more than a mode becomes a mode.
  EXPECT_EQ(super_.set_attribute(file, name, access_list({{1, 7, nobody}, {4, 5, nobody}, {0x20, 1, nobody}})).status,
            Status::ok);
  made(super_.getattr(file));
  EXPECT_EQ(super_.attributes().mode, 0100751u);
  std::string value;
  EXPECT_EQ(super_.get_attribute(file, name, &value).status, Status::no_attribute);
  EXPECT_EQ(super_.set_attribute(file, name, list.substr(0, 20)).status, Status::invalid_argument);
  EXPECT_EQ(super_.set_attribute(file, "system.posix_acl_default", list).status, Status::access);
}

// Commands on content evaluate the list like those on names.
TEST_F(NamespaceRights, AccessListsDecideAboutContent) {
  super_.uid = 1001;
  super_.gid = 2001;
  const u64 file = made(super_.create(root, "file", 0640));
  const std::string list = access_list(
      {{1, 6, nobody}, {2, 6, 1002}, {2, 4, 1003}, {2, 0, 1004}, {4, 6, nobody}, {0x10, 6, nobody}, {0x20, 0, nobody}});
  ASSERT_EQ(super_.set_attribute(file, "system.posix_acl_access", list).status, Status::ok);
  made(super_.getattr(file));
  ASSERT_EQ(super_.attributes().mode, 0100660u);
  const auto on_file = [&](wire::Opcode opcode, u64 length) {
    wire::Command command = user_.with_data(user_.named(opcode, file, ""), length);
    command.second_inode = file;  // copy_range
    command.aux = 8192;
    return command;
  };
  const auto set_attribute = [&](u32 mask) {
    format::AttributeRecord record{};
    record.size_bytes = 4000;
    std::memcpy(user_.data(), &record, sizeof(record));
    wire::Command command = on_file(wire::Opcode::setattr, 0);
    command.mask = mask;
    return user_.call(command).status;
  };
  const auto changes = [&] {
    return std::vector<Status>{user_.call(on_file(wire::Opcode::write, 5000)).status,
                               user_.call(on_file(wire::Opcode::truncate, 0)).status,
                               user_.call(on_file(wire::Opcode::fallocate, 100)).status,
                               user_.call(on_file(wire::Opcode::copy_range, 100)).status,
                               set_attribute(format::set_size),
                               set_attribute(format::set_modification_time_now)};
  };
  const auto reads = [&] { return user_.call(on_file(wire::Opcode::read, 100)).status; };
  const std::vector<Status> all_allowed(6, Status::ok);
  const std::vector<Status> all_refused(6, Status::access);
  become(1002, 2002);
  EXPECT_EQ(changes(), all_allowed) << "named, though of no group";
  EXPECT_EQ(reads(), Status::ok);
  become(1003, 2001);
  EXPECT_EQ(changes(), all_refused) << "named to read only, though of the group";
  EXPECT_EQ(reads(), Status::ok);
  become(1004, 2001);
  EXPECT_EQ(changes(), all_refused);
  EXPECT_EQ(reads(), Status::access) << "named to do nothing";
  become(1005, 2001);
  EXPECT_EQ(changes(), all_allowed) << "of the group";
  become(1005, 2005);
  EXPECT_EQ(changes(), all_refused);
  EXPECT_EQ(reads(), Status::access);
}

TEST_F(NamespaceRights, DefaultListsAreInheritedThroughCommands) {
  const u64 directory = directory_of(1001, 2001, "d", 0755);
  const std::string list =
      access_list({{1, 7, nobody}, {2, 6, 1002}, {4, 5, nobody}, {0x10, 7, nobody}, {0x20, 0, nobody}});
  ASSERT_EQ(super_.set_attribute(directory, "system.posix_acl_default", list).status, Status::ok);
  super_.umask_bits = 077;
  const u64 file = made(super_.create(directory, "file", 0666));
  EXPECT_EQ(super_.attributes().mode, 0100660u) << "the default list takes the place of the umask";
  const u64 below = made(super_.mkdir(directory, "below", 0777));
  std::string value;
  EXPECT_EQ(super_.get_attribute(file, "system.posix_acl_access", &value).status, Status::ok);
  EXPECT_EQ(super_.get_attribute(file, "system.posix_acl_default", &value).status, Status::no_attribute);
  EXPECT_EQ(super_.get_attribute(below, "system.posix_acl_default", &value).status, Status::ok);
  EXPECT_EQ(value, list);
  become(1002, 2002);
  EXPECT_EQ(user_.access(file, 6).status, Status::ok);
  made(super_.symlink(directory, "link", "file"));
  EXPECT_EQ(super_.attributes().mode, 0120777u);
}

TEST_F(NamespaceRights, AttributeSpacesHaveTheirOwnRules) {
  super_.uid = 1001;
  const u64 file = made(super_.create(root, "file", 0644));
  const u64 link = made(super_.symlink(root, "link", "file"));
  super_.uid = 0;
  std::string value;
  ASSERT_EQ(super_.set_attribute(file, "trusted.x", "secret").status, Status::ok);
  ASSERT_EQ(super_.set_attribute(file, "user.x", "open").status, Status::ok);
  ASSERT_EQ(super_.set_attribute(file, "security.x", "label").status, Status::ok);
  EXPECT_EQ(super_.set_attribute(file, "other.x", "1").status, Status::not_supported);
  EXPECT_EQ(super_.set_attribute(file, "user.", "1").status, Status::not_supported);
  become(1002, 2002);
  EXPECT_EQ(user_.get_attribute(file, "trusted.x", &value).status, Status::no_attribute);
  EXPECT_EQ(user_.set_attribute(file, "trusted.x", "1").status, Status::permission);
  EXPECT_EQ(user_.get_attribute(file, "user.x", &value).status, Status::ok);
  EXPECT_EQ(value, "open");
  EXPECT_EQ(user_.set_attribute(file, "user.x", "1").status, Status::access);
  EXPECT_EQ(user_.get_attribute(file, "security.x", &value).status, Status::ok);
  EXPECT_EQ(user_.set_attribute(file, "security.x", "1").status, Status::permission);
  EXPECT_EQ(user_.remove_attribute(file, "user.x").status, Status::access);
  std::string names;
  EXPECT_EQ(user_.list_attributes(file, &names).status, Status::ok);
  EXPECT_EQ(names.find("trusted"), std::string::npos);
  EXPECT_NE(names.find("user.x"), std::string::npos);
  become(1001, 2001);
  EXPECT_EQ(user_.set_attribute(link, "user.x", "1").status, Status::permission);
  EXPECT_EQ(user_.set_attribute(file, "user.x", "2", 1).status, Status::exists);
  EXPECT_EQ(user_.set_attribute(file, "user.y", "2", 2).status, Status::no_attribute);
  EXPECT_EQ(user_.set_attribute(file, "user.x", "22", 2).status, Status::ok);
  EXPECT_EQ(made(user_.get_attribute(file, "user.x", &value, 0)), 2u);
  EXPECT_EQ(user_.get_attribute(file, "user.x", &value, 1).status, Status::attribute_range);
  EXPECT_EQ(user_.set_attribute(file, "user.big", std::string(4096, 'x')).status, Status::ok);
  EXPECT_EQ(user_.remove_attribute(file, "user.x").status, Status::ok);
  EXPECT_EQ(user_.remove_attribute(file, "user.x").status, Status::no_attribute);
}

// A caller, and its request to setattr.
struct Caller {
  u32 uid;
  u32 gid;
  std::vector<u32> groups;
};
struct Change {
  const char* name;
  u32 mask;
  u32 mode;
  u32 uid;
  u32 gid;
};
struct Outcome {
  int error;
  u32 mode;
  u32 uid;
  u32 gid;
  bool operator==(const Outcome&) const = default;
};
constexpr u32 times_now = format::set_access_time_now | format::set_modification_time_now;
constexpr Change changes[] = {
    {"chmod", format::set_mode, 0640, 0, 0},
    {"chmod with set-group-id", format::set_mode, 02755, 0, 0},
    {"chmod with both set-id bits", format::set_mode, 06755, 0, 0},
    {"chown to another", format::set_uid, 0, 1002, 0},
    {"chown to its owner", format::set_uid, 0, 1001, 0},
    {"chgrp to its group", format::set_gid, 0, 0, 2001},
    {"chgrp to another one", format::set_gid, 0, 0, 2002},
    {"chgrp to a supplementary one", format::set_gid, 0, 0, 3001},
    {"chgrp to a foreign one", format::set_gid, 0, 0, 4001},
    {"chown and chgrp", format::set_uid | format::set_gid, 0, 1001, 2001},
    {"utimes now", times_now, 0, 0, 0},
    {"utimes", format::set_access_time | format::set_modification_time, 0, 0, 0},
};

// The kernel's result of the change for a file of 1001:2001 with `mode`, in a folder whose parents may be closed to the
// caller.
Outcome ask_kernel_for(const std::string& folder, u32 mode, const Caller& caller, const Change& change) {
  const std::string path = folder + "/file";
  const int descriptor = ::open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
  EXPECT_TRUE(::fchown(descriptor, 1001, 2001) == 0 && ::fchmod(descriptor, mode) == 0);
  ::close(descriptor);
  const pid_t child = ::fork();
  if (child == 0) {
    const bool changed = ::chdir(folder.c_str()) == 0 && ::setgroups(caller.groups.size(), caller.groups.data()) == 0 &&
                         ::setgid(caller.gid) == 0 && ::setuid(caller.uid) == 0;
    if (!changed) ::_exit(255);
    const timespec given[2] = {{1, 2}, {3, 4}};
    int result = 0;
    if ((change.mask & format::set_mode) != 0) result = ::chmod("file", change.mode);
    if ((change.mask & (format::set_uid | format::set_gid)) != 0) {
      const uid_t uid = (change.mask & format::set_uid) != 0 ? change.uid : static_cast<uid_t>(-1);
      const gid_t gid = (change.mask & format::set_gid) != 0 ? change.gid : static_cast<gid_t>(-1);
      result = ::chown("file", uid, gid);
    }
    if ((change.mask & times_now) != 0) result = ::utimensat(AT_FDCWD, "file", nullptr, 0);
    if ((change.mask & format::set_access_time) != 0) result = ::utimensat(AT_FDCWD, "file", given, 0);
    ::_exit(result == 0 ? 0 : errno);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  struct stat found {};
  EXPECT_EQ(::stat(path.c_str(), &found), 0);
  ::unlink(path.c_str());
  return {WEXITSTATUS(status), found.st_mode & 07777u, found.st_uid, found.st_gid};
}

TEST_F(NamespaceRights, ModeAndOwnerAreChangedByWhomTheKernelLets) {
  if (::geteuid() != 0) GTEST_SKIP() << "becoming other users needs the superuser";
  std::string folder = memory_folder() + "/gpu4fs_rights_XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  ASSERT_EQ(::chmod(folder.c_str(), 0755), 0);
  const Caller callers[] = {{1001, 2001, {}}, {1001, 2002, {}}, {1001, 2002, {3001}}, {1002, 2001, {}}, {0, 0, {}}};
  for (const u32 mode : {0644u, 0755u, 06755u, 02745u}) {
    for (const Caller& caller : callers) {
      for (const Change& change : changes) {
        const Outcome expected = ask_kernel_for(folder, mode, caller, change);
        super_.uid = 1001;
        super_.gid = 2001;
        const u64 file = made(super_.create(root, "file", 0600));
        super_.uid = super_.gid = 0;
        made(super_.chmod(file, mode));
        become(caller.uid, caller.gid, caller.groups);
        format::AttributeRecord record{};
        record.mode = change.mode;
        record.uid = change.uid;
        record.gid = change.gid;
        std::memcpy(user_.data(), &record, sizeof(record));
        wire::Command command = user_.with_data(user_.named(wire::Opcode::setattr, file, ""), sizeof(record));
        command.mask = change.mask;
        const Status status = user_.call(command).status;
        made(super_.getattr(file));
        const format::AttributeRecord& after = super_.attributes();
        const Outcome found{to_errno(status), after.mode & 07777u, after.uid, after.gid};
        EXPECT_TRUE(found == expected) << change.name << " by " << caller.uid << ":" << caller.gid << " of mode "
                                       << std::oct << mode << ": errno " << std::dec << found.error << " instead of "
                                       << expected.error << ", mode " << std::oct << found.mode << " instead of "
                                       << expected.mode;
        made(super_.reclaim(made(super_.unlink(root, "file"))));
      }
    }
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace gpu4fs::test
