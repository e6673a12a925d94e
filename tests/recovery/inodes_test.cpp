// The parts of inodes besides content survive a crash by the log alone, and then by a checkpoint: times, flags and
// extended attributes.
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "support/file_client.hpp"
#include "support/test_pool.hpp"

namespace gpu4fs::test::inodes_test {
namespace {

using wire::Opcode;

class RecoveredInodes : public ::testing::Test {
 protected:
  RecoveredInodes() { open(); }
  ~RecoveredInodes() override { close(); }

  void open() {
    session_ = pool_.open_session();
    client_.emplace(*session_);
  }
  void close() {
    client_.reset();
    session_.reset();
  }
  // Synced changes are only in the log.
  void crash_and_mount() {
    ASSERT_EQ(client_->simple(Opcode::sync).status, Status::ok);
    close();
    pool_.crash();
    pool_.mount();
    open();
    EXPECT_NE(pool_.recovery().records_replayed, 0u);
  }
  void mount_again() {
    close();
    pool_.unmount();
    EXPECT_EQ(findings_text(pool_.check()), "");
    pool_.mount();
    open();
  }
  u64 create(const std::string& name) {
    FileOperation op;
    op.opcode = Opcode::create;
    op.inode = format::inode_number_root;
    op.name = name;
    op.mode = 0644;
    const client::Reply reply = client_->call(op);
    EXPECT_EQ(reply.status, Status::ok);
    return reply.result;
  }
  void set(u64 inode, u32 mask, const format::AttributeRecord& record) {
    FileOperation op;
    op.opcode = Opcode::setattr;
    op.inode = inode;
    op.mask = mask;
    op.attributes = record;
    ASSERT_EQ(client_->call(op).status, Status::ok);
  }
  format::AttributeRecord get(u64 inode) {
    EXPECT_EQ(client_->simple(Opcode::getattr, inode).status, Status::ok);
    return client_->attributes();
  }

  void set_value(u64 inode, const std::string& name, const std::string& value) {
    FileOperation op;
    op.opcode = Opcode::set_attribute;
    op.inode = inode;
    op.name = name;
    op.text = value;
    ASSERT_EQ(client_->call(op).status, Status::ok);
  }
  void expect_value(u64 inode, const std::string& name, const std::string& value) {
    FileOperation op;
    op.opcode = Opcode::get_attribute;
    op.inode = inode;
    op.name = name;
    op.length = 70000;
    const client::Reply reply = client_->call(op);
    ASSERT_EQ(reply.status, Status::ok) << name;
    EXPECT_TRUE(value == std::string(reinterpret_cast<const char*>(client_->data()), reply.result)) << name;
  }

  TestPool pool_;
  std::unique_ptr<client::Session> session_;
  std::optional<FileClient> client_;
};

TEST_F(RecoveredInodes, TimesBefore1970) {
  const i64 seconds[] = {-(i64{1} << 31), -1, 0, (i64{1} << 34) - (i64{1} << 31) - 1};
  u64 files[std::size(seconds)] = {};
  for (u32 i = 0; i < std::size(seconds); ++i) {
    files[i] = create("file" + std::to_string(i));
    format::AttributeRecord record{};
    record.access_seconds = record.modification_seconds = seconds[i];
    record.access_nanoseconds = 999999999;
    record.modification_nanoseconds = 1;
    set(files[i], format::set_access_time | format::set_modification_time, record);
  }
  const format::AttributeRecord born = get(files[0]);
  EXPECT_GT(born.birth_seconds, 1'600'000'000);
  const auto expect_all = [&] {
    for (u32 i = 0; i < std::size(seconds); ++i) {
      const format::AttributeRecord found = get(files[i]);
      EXPECT_EQ(found.access_seconds, seconds[i]);
      EXPECT_EQ(found.access_nanoseconds, 999999999u);
      EXPECT_EQ(found.modification_seconds, seconds[i]);
      EXPECT_EQ(found.modification_nanoseconds, 1u);
    }
    const format::AttributeRecord found = get(files[0]);
    EXPECT_EQ(found.birth_seconds, born.birth_seconds);
    EXPECT_EQ(found.birth_nanoseconds, born.birth_nanoseconds);
    EXPECT_EQ(found.change_seconds, born.change_seconds);
  };
  crash_and_mount();
  expect_all();
  mount_again();
  expect_all();
}

TEST_F(RecoveredInodes, Flags) {
  const u64 file = create("file");
  constexpr u32 flags = format::inode_flag_append_only | format::inode_flag_no_dump;
  format::AttributeRecord record{};
  record.flags = flags;
  set(file, format::set_flags, record);
  crash_and_mount();
  EXPECT_EQ(get(file).flags, flags);
  mount_again();
  EXPECT_EQ(get(file).flags, flags);
  record.flags = 0;
  set(file, format::set_flags, record);
  crash_and_mount();
  EXPECT_EQ(get(file).flags, 0u);
}

TEST_F(RecoveredInodes, GreatAttributes) {
  const u64 file = create("file");
  const std::string greatest(65536, 'g');
  set_value(file, "user.a", greatest);
  set_value(file, "user.b", "small");
  crash_and_mount();
  expect_value(file, "user.a", greatest);
  // Replaces values of the checkpoint: large by large, large by small, small by large; and removes one.
  set_value(file, "user.c", std::string(5000, 'c'));
  set_value(file, "user.d", std::string(30000, 'd'));
  mount_again();
  set_value(file, "user.a", std::string(9000, 'a'));
  set_value(file, "user.d", "d");
  set_value(file, "user.b", greatest);
  FileOperation op;
  op.opcode = Opcode::remove_attribute;
  op.inode = file;
  op.name = "user.c";
  ASSERT_EQ(client_->call(op).status, Status::ok);
  crash_and_mount();
  const auto expect_all = [&] {
    expect_value(file, "user.a", std::string(9000, 'a'));
    expect_value(file, "user.b", greatest);
    expect_value(file, "user.d", "d");
    op.opcode = Opcode::get_attribute;
    op.name = "user.c";
    EXPECT_EQ(client_->call(op).status, Status::no_attribute);
  };
  expect_all();
  mount_again();
  expect_all();
}

// The log wraps around several times: with the largest records before its end, and checkpoints in between.
TEST_F(RecoveredInodes, GreatAttributesFillTheLog) {
  const u64 file = create("file");
  for (u32 i = 0; i < 400; ++i) {
    // The last of them are in the log, however many checkpoints the log has requested before.
    if (i == 395) {
      ASSERT_EQ(pool_.checkpoint(), Status::ok);
    }
    set_value(file, "user.n" + std::to_string(i % 5), std::string(65536 - i, static_cast<char>('a' + i % 26)));
    if (i % 7 == 0) {
      ASSERT_EQ(client_->simple(Opcode::sync).status, Status::ok);
    }
  }
  crash_and_mount();
  for (u32 i = 395; i < 400; ++i) {
    expect_value(file, "user.n" + std::to_string(i % 5), std::string(65536 - i, static_cast<char>('a' + i % 26)));
  }
  mount_again();
}

}  // namespace
}  // namespace gpu4fs::test::inodes_test
