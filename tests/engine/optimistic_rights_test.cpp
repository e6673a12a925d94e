// Rights and commands without locks. The oracle is the ordinary way: a flag that only lookup_path knows sends the same
// command there.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/bits.hpp"
#include "engine/name_fixture.hpp"
#include "engine/warp_workers.hpp"

namespace gpu4fs::test::optimistic_rights_test {
namespace {

struct Identity {
  u32 uid;
  u32 gid;
  std::vector<u32> groups;
};
const Identity identities[] = {{1001, 2001, {}},        {1002, 2001, {}}, {1003, 2003, {7, 2001}},
                               {1004, 2004, {7, 3000}}, {1005, 2005, {}}, {0, 0, {}}};

// A list that grants user 1005, refuses user 1004 and leaves the group what `mask` leaves it.
std::string list_with_mask(u8 mask) {
  constexpr u32 nobody = 0xffffffff;
  std::string value("\2\0\0\0", 4);
  const auto add = [&](u8 tag, u8 rights, u32 id) {
    const char entry[8] = {static_cast<char>(tag), 0, static_cast<char>(rights), 0};
    value.append(entry, 4);
    value.append(reinterpret_cast<const char*>(&id), 4);
  };
  add(0x01, 7, nobody);
  add(0x02, 0, 1004);
  add(0x02, 7, 1005);
  add(0x04, 5, nobody);
  add(0x10, mask, nobody);
  add(0x20, 4, nobody);
  return value;
}

template <class Connection>
void become(engine::Engine& engine, BasicNameClient<Connection>& client, const Identity& who,
            engine::SessionGroups& groups) {
  engine::Session& session = engine.sessions[client.session()];
  groups = engine::SessionGroups(who.groups);
  session.uid = who.uid;
  session.gid = who.gid;
  session.group_count = groups.count();
  session.groups = groups.begin();
}

class OptimisticRights : public ::testing::Test {
 protected:
  OptimisticRights() {
    super_.uid = 1001;
    super_.gid = 2001;
  }

  u64 optimistic_count() { return engine_.host().counters().commands_optimistic; }

  u64 made(const ring::Completion& done) {
    EXPECT_EQ(done.status, Status::ok) << status_name(done.status);
    return done.result;
  }

  struct Answer {
    ring::Completion done;
    std::vector<u8> bytes;  // attributes and data
  };
  Answer ask(const wire::Command& command) {
    u8* const begin = user_.data() - NameClient::data_offset;
    std::memset(begin + NameClient::record_offset, 0xaa, sizeof(format::AttributeRecord));
    std::memset(user_.data(), 0xaa, page_size);
    Answer answer{user_.call(command), {}};
    answer.bytes.assign(begin + NameClient::record_offset,
                        begin + NameClient::record_offset + sizeof(format::AttributeRecord));
    answer.bytes.insert(answer.bytes.end(), user_.data(), user_.data() + page_size);
    return answer;
  }
  // The same command both ways. `other`: a command that means the same and goes the ordinary way.
  void compare(const wire::Command& command, const wire::Command& other, const std::string& what) {
    const Answer expected = ask(other);
    const u64 before = optimistic_count();
    const Answer again = ask(other);
    ASSERT_EQ(optimistic_count(), before) << what << " was to go the ordinary way";
    const Answer found = ask(command);
    EXPECT_EQ(status_name(found.done.status), status_name(expected.done.status)) << what;
    EXPECT_EQ(found.done.result, expected.done.result) << what;
    EXPECT_EQ(found.bytes, again.bytes) << what;
  }
  void compare(const wire::Command& command, const std::string& what) {
    wire::Command other = command;
    other.flags = wire::command_flag_follow;
    compare(command, other, what);
  }

  void compare_file(u64 file, const std::string& what) {
    compare(user_.named(wire::Opcode::getattr, file, ""), what + " getattr");
    compare(user_.with_data(user_.named(wire::Opcode::read, file, ""), page_size), what + " read");
    for (u32 wanted = 0; wanted < 8; ++wanted) {
      wire::Command command = user_.named(wire::Opcode::access, file, "");
      command.mode = wanted;
      compare(command, what + " access " + std::to_string(wanted));
    }
    for (const u32 flags : {0u, 1u, 2u, 01000u, 02001u, 0200000u, 01000000u}) {
      wire::Command command = user_.named(wire::Opcode::open, file, "");
      command.mask = flags;
      compare(command, what + " open " + std::to_string(flags));
    }
  }
  void compare_directory(u64 directory, const std::string& name, const std::string& what) {
    compare(user_.named(wire::Opcode::lookup, directory, "f"), what + " lookup");
    compare(user_.named(wire::Opcode::lookup, directory, "none"), what + " lookup of nothing");
    for (const char* end : {"f", "none", "below/f"}) {
      // One client sends one name at a time, so the ordinary way's is written last and again.
      wire::Command command = user_.named(wire::Opcode::lookup_path, root, name + "/" + end);
      wire::Command other = command;
      other.name_length = static_cast<u16>(name.size() + std::strlen(end) + 3);
      const std::string dotted = "./" + name + "/" + end;
      std::memcpy(user_.data() - NameClient::data_offset + NameClient::name_offset + 512, dotted.data(), dotted.size());
      other.name += 512;
      compare(command, other, what + " path to " + end);
    }
    wire::Command command = user_.named(wire::Opcode::access, directory, "");
    command.mode = 1;
    compare(command, what + " access");
  }

  // Its one worker is the client that waits, so it remembers all files.
  FileEngine engine_{FileEngineOptions{.worker_count = 1, .start = false}};
  NameClient super_{engine_};
  NameClient user_{engine_, false};
  engine::SessionGroups groups_;
};

TEST_F(OptimisticRights, FilesAreUsedByThoseWhoMay) {
  std::vector<std::pair<u64, std::string>> files;
  for (const u32 mode : {0600u, 0640u, 0644u, 0060u, 0006u, 0111u, 0770u, 0404u}) {
    for (const bool has_list : {false, true}) {
      const std::string name = "file" + std::to_string(mode) + (has_list ? " with a list" : "");
      const u64 file = made(super_.create(root, name, mode));
      std::memset(super_.data(), 7, 3 * page_size);
      made(super_.call(super_.with_data(super_.named(wire::Opcode::write, file, ""), 3 * page_size)));
      if (has_list) {
        ASSERT_EQ(super_.set_attribute(file, "system.posix_acl_access", list_with_mask(mode >> 3 & 7)).status,
                  Status::ok);
      }
      files.emplace_back(file, name);
    }
  }
  const u64 before = optimistic_count();
  for (const Identity& who : identities) {
    become(engine_.engine(), user_, who, groups_);
    for (const auto& [file, name] : files) compare_file(file, "uid " + std::to_string(who.uid) + " " + name);
  }
  EXPECT_GT(optimistic_count(), before + 300);
}

TEST_F(OptimisticRights, DirectoriesAreSearchedByThoseWhoMay) {
  std::vector<std::pair<u64, std::string>> directories;
  for (const u32 mode : {0700u, 0710u, 0711u, 0770u, 0701u, 0070u, 0744u}) {
    for (const bool has_list : {false, true}) {
      const std::string name = "d" + std::to_string(mode) + (has_list ? "l" : "");
      const u64 directory = made(super_.mkdir(root, name, mode));
      made(super_.create(directory, "f"));
      made(super_.create(made(super_.mkdir(directory, "below", 0755)), "f"));
      if (has_list) {
        ASSERT_EQ(super_.set_attribute(directory, "system.posix_acl_access", list_with_mask(mode >> 3 & 7)).status,
                  Status::ok);
      }
      directories.emplace_back(directory, name);
    }
  }
  const u64 before = optimistic_count();
  for (const Identity& who : identities) {
    become(engine_.engine(), user_, who, groups_);
    for (const auto& [directory, name] : directories) {
      compare_directory(directory, name, "uid " + std::to_string(who.uid) + " " + name);
    }
  }
  EXPECT_GT(optimistic_count(), before + 100);
}

// Flags that hold for everybody, of a pool that is written.
TEST_F(OptimisticRights, FlagsOfInodesAreObeyed) {
  for (const u32 flags : {u32{format::inode_flag_immutable}, u32{format::inode_flag_append_only}}) {
    const u64 file = made(super_.create(root, "flags" + std::to_string(flags), 0666));
    fs::Operation op{};
    fs::InodeRef ref{};
    ASSERT_EQ(fs::get_inode(Lane{}, engine_.fs(), op, file, &ref), Status::ok);
    ref.inode->flags |= flags;
    for (const Identity& who : identities) {
      become(engine_.engine(), user_, who, groups_);
      compare_file(file, "uid " + std::to_string(who.uid) + " flags " + std::to_string(flags));
    }
    ref.inode->flags &= ~flags;
  }
}

// One worker serves both sessions and remembers the file.
TEST(OptimisticRightsOfSessions, WhatOneMayReadIsNotReadByAnother) {
  FileEngine engine(FileEngineOptions{.worker_count = 1, .start = false});
  BasicNameClient<WaitingClient> super(engine);
  BasicNameClient<WaitingClient> user(engine, false);
  engine::SessionGroups groups;
  become(engine.engine(), user, identities[1], groups);
  {
    const KernelWarp warp(engine.engine());
    const u64 file = super.create(root, "secret", 0600).result;
    std::memset(super.data(), 7, 3 * page_size);
    ASSERT_EQ(super.call(super.with_data(super.named(wire::Opcode::write, file, ""), 3 * page_size)).status,
              Status::ok);
    const auto read = [&](auto& client) {
      return client.call(client.with_data(client.named(wire::Opcode::read, file, ""), page_size)).status;
    };
    for (u32 i = 0; i < 3; ++i) {
      EXPECT_EQ(read(super), Status::ok);
      EXPECT_EQ(read(user), Status::access);
    }
  }
  EXPECT_EQ(engine.host().counters().commands_optimistic, 2u) << "all reads of the owner but the first";
}

}  // namespace
}  // namespace gpu4fs::test::optimistic_rights_test
