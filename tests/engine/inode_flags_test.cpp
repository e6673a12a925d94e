// The flags of inodes that users see, append-only, immutable and nodump: who sets them, and what they forbid.
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
    format::Command command = client.with_data(client.named(format::Opcode::setattr, inode, ""), 0);
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
  for (const u32 unknown : {u32{format::inode_flag_inline}, 1u << 4, 1u << 31}) {
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
  // The front end's kernel may not have asked for the capability.
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

}  // namespace
}  // namespace gpu4fs::test
