// The inode flags that users see (append-only, immutable, nodump and noatime): who sets them, and what they forbid.
#include <gtest/gtest.h>

#include <string>

#include "engine/name_fixture.hpp"

namespace gpu4fs::test {
namespace {

constexpr u32 append_only = format::inode_flag_append_only;
constexpr u32 immutable = format::inode_flag_immutable;
constexpr u32 no_dump = format::inode_flag_no_dump;

class InodeFlags : public ::testing::Test {
 protected:
  FileEngine engine_;
  NameClient super_{engine_};
  NameClient user_{engine_, false};

  void become(u32 uid) {
    engine::Session& session = engine_.engine().sessions[user_.session()];
    session.uid = session.gid = uid;
    session.group_count = 0;
  }
  u64 made(const ring::Completion& done) {
    EXPECT_EQ(done.status, Status::ok) << status_name(done.status);
    return done.result;
  }
  u64 new_file(const std::string& name, u32 uid = 0) {
    super_.uid = super_.gid = uid;
    const u64 inode = made(super_.create(root, name, 0666));
    super_.uid = super_.gid = 0;
    return inode;
  }
  static Status change(NameClient& client, u64 inode, u32 mask, const format::AttributeRecord& record) {
    std::memcpy(client.data(), &record, sizeof(record));
    wire::Command command = client.with_data(client.named(wire::Opcode::setattr, inode, ""), 0);
    command.mask = mask;
    return client.call(command).status;
  }
  static Status set(NameClient& client, u64 inode, u32 flags) {
    format::AttributeRecord record{};
    record.flags = flags;
    return change(client, inode, format::set_flags, record);
  }
  u32 flags_of(u64 inode) {
    EXPECT_EQ(super_.getattr(inode).status, Status::ok);
    return super_.attributes().flags;
  }
};

TEST_F(InodeFlags, AreSetAllAtOnceAndSeen) {
  const u64 file = new_file("file");
  EXPECT_EQ(flags_of(file), 0u) << "that content is inline is no flag of users";
  for (const u32 flags : {append_only | no_dump, immutable, append_only | immutable | no_dump, 0u}) {
    ASSERT_EQ(set(super_, file, flags), Status::ok);
    EXPECT_EQ(super_.attributes().flags, flags) << "the answer of setattr";
    EXPECT_EQ(flags_of(file), flags);
  }
  for (const u32 unknown : {u32{format::inode_flag_inline}, 1u << 5, 1u << 31}) {
    EXPECT_EQ(set(super_, file, unknown), Status::invalid_argument);
  }
}

TEST_F(InodeFlags, OfAdministratorsAreForTheSuperuserAlone) {
  const u64 own = new_file("own", 1000);
  const u64 foreign = new_file("foreign", 2000);
  become(1000);
  EXPECT_EQ(set(user_, own, no_dump), Status::ok);
  EXPECT_EQ(set(user_, foreign, no_dump), Status::permission);
  EXPECT_EQ(set(user_, own, no_dump | append_only), Status::permission);
  EXPECT_EQ(set(user_, own, immutable), Status::permission);
  // The front end's kernel may not have tested the capability.
  super_.uid = super_.gid = 1000;
  EXPECT_EQ(set(super_, own, append_only), Status::permission);
  super_.uid = super_.gid = 0;
  EXPECT_EQ(flags_of(own), no_dump);
  become(0);
  ASSERT_EQ(set(user_, own, append_only | no_dump), Status::ok);
  become(1000);
  EXPECT_EQ(set(user_, own, no_dump), Status::permission) << "taking it away is changing it";
  EXPECT_EQ(set(user_, own, append_only), Status::ok) << "what he does not change is not his business";
  EXPECT_EQ(flags_of(own), append_only);
}

constexpr u32 o_write = 01;
constexpr u32 o_truncate = 01000;
constexpr u32 o_append = 02000;

// Each operation with its expected answer, by the front end's session as the superuser: the flags apply to everybody.
class FlaggedInode : public InodeFlags {
 protected:
  Status write(u64 inode, u64 offset, u64 length, u16 flags = 0) {
    wire::Command command = super_.with_data(super_.named(wire::Opcode::write, inode, ""), length);
    command.output = 0;
    command.offset = offset;
    command.flags = flags;
    return super_.call(command).status;
  }
  Status with_offset(wire::Opcode opcode, u64 inode, u64 offset, u64 length = 0, u32 mode = 0) {
    wire::Command command = super_.named(opcode, inode, "");
    command.offset = offset;
    command.length = length;
    command.mode = mode;
    return super_.call(command).status;
  }
  Status copy(u64 from, u64 to) {
    wire::Command command = super_.named(wire::Opcode::copy_range, from, "");
    command.second_inode = to;
    command.length = 10;
    return super_.call(command).status;
  }
  Status change(u32 mask, u64 inode) {
    format::AttributeRecord record{};
    record.mode = 0600;
    return InodeFlags::change(super_, inode, mask, record);
  }
};

// Not even a trusted session of the server itself changes other attributes.
TEST_F(FlaggedInode, OnlyAttributesOfTheServerChangeWhateverTheFlags) {
  const u64 file = new_file("file");
  for (const u32 flags : {immutable, append_only}) {
    ASSERT_EQ(set(super_, file, flags), Status::ok);
    for (const char* name :
         {"trusted.a", "trusted.gpu4fs", "trusted.gpu4fsx.a", "user.gpu4fs.a", "security.gpu4fs.a"}) {
      EXPECT_EQ(super_.set_attribute(file, name, "1").status, Status::permission) << name;
    }
    EXPECT_EQ(super_.set_attribute(file, "trusted.gpu4fs.a", "1").status, Status::ok);
    become(0);
    EXPECT_EQ(user_.set_attribute(file, "trusted.gpu4fs.a", "1").status, Status::permission) << "a client";
    EXPECT_EQ(super_.remove_attribute(file, "trusted.gpu4fs.a").status, Status::ok);
  }
}

TEST_F(FlaggedInode, AnImmutableFileStaysAsItIs) {
  const u64 file = new_file("file");
  const u64 other = new_file("other");
  ASSERT_EQ(write(file, 0, 5000), Status::ok);
  ASSERT_EQ(write(other, 0, 5000), Status::ok);
  ASSERT_EQ(super_.set_attribute(file, "user.a", "1").status, Status::ok);
  ASSERT_EQ(set(super_, file, immutable), Status::ok);
  const auto before = [&] {
    EXPECT_EQ(super_.getattr(file).status, Status::ok);
    return super_.attributes();
  };
  const format::AttributeRecord record = before();
  for (const u32 flags : {o_write, o_write | o_append, 02u, o_truncate}) {
    EXPECT_EQ(super_.open(file, flags).status, Status::permission) << flags;
  }
  EXPECT_EQ(super_.create(root, "file", 0644, o_write).status, Status::permission) << "open(2) of what is there";
  EXPECT_EQ(super_.open(file, 0).status, Status::ok);
  EXPECT_EQ(super_.access(file, 2).status, Status::permission);
  EXPECT_EQ(super_.access(file, 4).status, Status::ok);
  EXPECT_EQ(write(file, 0, 10), Status::permission);
  EXPECT_EQ(write(file, 0, 10, wire::command_flag_append), Status::permission);
  EXPECT_EQ(with_offset(wire::Opcode::truncate, file, 100), Status::permission);
  EXPECT_EQ(with_offset(wire::Opcode::fallocate, file, 10000, 100), Status::permission);
  EXPECT_EQ(copy(other, file), Status::permission);
  for (const u32 mask :
       {format::set_mode, format::set_uid, format::set_gid, format::set_size, format::set_access_time,
        format::set_modification_time, format::set_access_time_now, format::set_modification_time_now}) {
    EXPECT_EQ(change(mask, file), Status::permission) << mask;
    EXPECT_EQ(change(mask | format::set_flags, file), Status::permission) << "the flag counts that was there before";
  }
  EXPECT_EQ(super_.set_attribute(file, "user.a", "2").status, Status::permission);
  EXPECT_EQ(super_.set_attribute(file, "security.a", "2").status, Status::permission);
  EXPECT_EQ(super_.remove_attribute(file, "user.a").status, Status::permission);
  EXPECT_EQ(super_.unlink(root, "file").status, Status::permission);
  EXPECT_EQ(super_.link(file, root, "second").status, Status::permission);
  EXPECT_EQ(super_.rename(root, "file", root, "new").status, Status::permission);
  EXPECT_EQ(super_.rename(root, "other", root, "file").status, Status::permission);
  EXPECT_EQ(super_.rename(root, "other", root, "file", 2).status, Status::permission);
  const format::AttributeRecord after = before();
  EXPECT_EQ(std::memcmp(&record, &after, sizeof(record)), 0);
  EXPECT_EQ(copy(file, other), Status::ok) << "reading";
  ASSERT_EQ(set(super_, file, 0), Status::ok);
  EXPECT_EQ(write(file, 0, 10), Status::ok);
  EXPECT_EQ(super_.unlink(root, "file").status, Status::ok);
}

TEST_F(FlaggedInode, AnAppendOnlyFileGrows) {
  const u64 file = new_file("file");
  const u64 other = new_file("other");
  ASSERT_EQ(write(file, 0, 5000), Status::ok);
  ASSERT_EQ(write(other, 0, 5000), Status::ok);
  ASSERT_EQ(set(super_, file, append_only), Status::ok);
  for (const u32 flags : {o_write, 02u, o_write | o_append | o_truncate, o_truncate}) {
    EXPECT_EQ(super_.open(file, flags).status, Status::permission) << flags;
  }
  EXPECT_EQ(super_.open(file, o_write | o_append).status, Status::ok);
  EXPECT_EQ(super_.open(file, 02 | o_append).status, Status::ok);
  EXPECT_EQ(super_.access(file, 2).status, Status::ok);
  EXPECT_EQ(write(file, 0, 10), Status::permission);
  EXPECT_EQ(write(file, 4999, 10), Status::permission);
  EXPECT_EQ(write(file, 5000, 10), Status::ok) << "the kernel's place of an append";
  EXPECT_EQ(write(file, 0, 20000, wire::command_flag_append), Status::ok);
  EXPECT_EQ(super_.getattr(file).status, Status::ok);
  EXPECT_EQ(super_.attributes().size_bytes, 25010u);
  EXPECT_EQ(with_offset(wire::Opcode::truncate, file, 100), Status::permission);
  EXPECT_EQ(with_offset(wire::Opcode::truncate, file, 100000), Status::permission);
  EXPECT_EQ(with_offset(wire::Opcode::fallocate, file, 30000, 100, 1), Status::ok);
  EXPECT_EQ(with_offset(wire::Opcode::fallocate, file, 0, 100, 3), Status::permission) << "a hole";
  EXPECT_EQ(with_offset(wire::Opcode::fallocate, file, 0, 100, 0x10), Status::permission) << "zeros";
  EXPECT_EQ(copy(other, file), Status::permission);
  for (const u32 mask : {format::set_mode, format::set_uid, format::set_gid, format::set_size, format::set_access_time,
                         format::set_modification_time}) {
    EXPECT_EQ(change(mask, file), Status::permission) << mask;
  }
  EXPECT_EQ(change(format::set_modification_time_now, file), Status::ok);
  EXPECT_EQ(super_.set_attribute(file, "user.a", "2").status, Status::permission);
  EXPECT_EQ(super_.unlink(root, "file").status, Status::permission);
  EXPECT_EQ(super_.link(file, root, "second").status, Status::permission);
  EXPECT_EQ(super_.rename(root, "file", root, "new").status, Status::permission);
  EXPECT_EQ(super_.rename(root, "other", root, "file").status, Status::permission);
}

// A session that writes for itself must use the flag to append; the offset alone does not suffice.
TEST_F(FlaggedInode, AnUntrustedWriterAppendsByTheFlag) {
  const u64 file = new_file("file");
  ASSERT_EQ(set(super_, file, append_only), Status::ok);
  become(1000);
  wire::Command command = user_.with_data(user_.named(wire::Opcode::write, file, ""), 10);
  command.output = 0;
  EXPECT_EQ(user_.call(command).status, Status::permission);
  command.aux = 1;
  EXPECT_EQ(user_.call(command).status, Status::permission) << "what a client says of parts does not count";
  command.flags = wire::command_flag_append;
  EXPECT_EQ(user_.call(command).status, Status::ok);
}

TEST_F(InodeFlags, ReadingLeavesTheAccessTimeOfNoatime) {
  format::AttributeRecord long_ago{};
  long_ago.access_seconds = 1000;
  const u64 file = new_file("file");
  const u64 directory = made(super_.mkdir(root, "directory"));
  const u64 link = made(super_.symlink(root, "link", "target"));
  const auto read_all = [&] {
    EXPECT_EQ(super_.call(super_.with_data(super_.named(wire::Opcode::read, file, ""), 100)).status, Status::ok);
    std::vector<ListedName> names;
    EXPECT_EQ(super_.list(directory, &names), Status::ok);
    std::string target;
    EXPECT_EQ(super_.readlink(link, &target).status, Status::ok);
  };
  for (const u64 inode : {file, directory, link}) {
    ASSERT_EQ(change(super_, inode, format::set_access_time, long_ago), Status::ok);
    ASSERT_EQ(set(super_, inode, format::inode_flag_no_access_time), Status::ok);
  }
  read_all();
  for (const u64 inode : {file, directory, link}) {
    EXPECT_EQ(flags_of(inode), u32{format::inode_flag_no_access_time});
    EXPECT_EQ(super_.attributes().access_seconds, 1000);
    ASSERT_EQ(set(super_, inode, 0), Status::ok);
  }
  read_all();
  for (const u64 inode : {file, directory, link}) {
    EXPECT_EQ(flags_of(inode), 0u);
    EXPECT_GT(super_.attributes().access_seconds, 1000);
  }
}

TEST_F(FlaggedInode, DirectoriesGetNamesOrNone) {
  for (const u32 flags : {append_only, immutable}) {
    const std::string name = "directory" + std::to_string(flags);
    const u64 directory = made(super_.mkdir(root, name));
    made(super_.create(directory, "file"));
    made(super_.mkdir(directory, "below"));
    const u64 loose = new_file("loose" + std::to_string(flags));
    ASSERT_EQ(set(super_, directory, flags), Status::ok);
    const Status grows = flags == append_only ? Status::ok : Status::permission;
    EXPECT_EQ(super_.create(directory, "new").status, grows);
    EXPECT_EQ(super_.mkdir(directory, "newer").status, grows);
    EXPECT_EQ(super_.symlink(directory, "link", "target").status, grows);
    EXPECT_EQ(super_.tmpfile(directory).status, grows);
    EXPECT_EQ(super_.link(loose, directory, "second").status, grows);
    EXPECT_EQ(super_.rename(root, "loose" + std::to_string(flags), directory, "moved").status, grows);
    EXPECT_EQ(super_.unlink(directory, "file").status, Status::permission);
    EXPECT_EQ(super_.rmdir(directory, "below").status, Status::permission);
    EXPECT_EQ(super_.rename(directory, "file", root, "out").status, Status::permission);
    EXPECT_EQ(super_.rename(directory, "file", directory, "other").status, Status::permission);
    EXPECT_EQ(super_.rename(root, name, root, "elsewhere").status, Status::permission);
    EXPECT_EQ(super_.rmdir(root, name).status, Status::permission);
    EXPECT_EQ(change(format::set_mode, directory), Status::permission);
    // Its entries have no flags.
    EXPECT_EQ(super_.lookup(directory, "file").status, Status::ok);
    EXPECT_EQ(write(super_.lookup(directory, "file").result, 0, 10), Status::ok);
    EXPECT_EQ(super_.unlink(super_.lookup(directory, "below").result, "nothing").status, Status::not_found);
  }
}

TEST_F(FlaggedInode, AnOpenFileWithoutANameIsFreed) {
  const u64 file = made(super_.tmpfile(root));
  ASSERT_EQ(set(super_, file, immutable | append_only), Status::ok);
  EXPECT_EQ(super_.link(file, root, "name").status, Status::permission);
  EXPECT_EQ(super_.reclaim(file).result, 1u);
}

}  // namespace
}  // namespace gpu4fs::test
