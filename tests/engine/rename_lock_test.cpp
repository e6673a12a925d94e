// Renames that move something to another directory run one after the other: their view of the tree stays valid until
// they end.
#include <gtest/gtest.h>

#include "engine/stepped_names.hpp"

namespace gpu4fs::test {
namespace {

class RenameLock : public SteppedNames {
 protected:
  u64 make_directory(u64 parent, const std::string& name) {
    wire::Command command = names().named(wire::Opcode::mkdir, parent, name);
    command.mode = 0755;
    const ring::Completion made = end_of(publish(command));
    EXPECT_EQ(made.status, Status::ok) << name;
    return made.result;
  }
  wire::Command move(u64 from, const std::string& name, u64 to, const std::string& new_name) {
    wire::Command command = names().named(wire::Opcode::rename, from, name, new_name);
    command.second_inode = to;
    return command;
  }
  u64 parent_of(u64 directory) { return inode(directory).inode->parent_or_device; }
};

// left/a is moved below b and right/b below a, concurrently. Each is valid by itself; after both there would be a cycle
// without a path to it.
TEST_F(RenameLock, OneWaitsForTheOther) {
  const u64 left = make_directory(root, "left");
  const u64 right = make_directory(root, "right");
  const u64 a = make_directory(left, "a");
  const u64 b = make_directory(right, "b");
  hold(inode(left));
  const u64 first = publish(move(left, "a", b, "a"));
  steps(20);
  EXPECT_FALSE(has_ended(first)) << "it waits for the directory";
  const u64 second = publish(move(right, "b", a, "b"));
  steps(20);
  EXPECT_FALSE(has_ended(second)) << "it waits for the first rename";
  EXPECT_EQ(parent_of(b), right);
  release();
  EXPECT_EQ(end_of(first).status, Status::ok);
  EXPECT_EQ(end_of(second).status, Status::would_orphan);
  EXPECT_EQ(parent_of(a), b);
  EXPECT_EQ(parent_of(b), right);
  EXPECT_TRUE(engine().rename_lock.is_idle());
}

// A rename inside one directory changes no parent.
TEST_F(RenameLock, ARenameInOneDirectoryDoesNotWait) {
  const u64 left = make_directory(root, "left");
  const u64 right = make_directory(root, "right");
  make_directory(left, "a");
  make_directory(right, "b");
  hold(inode(left));
  const u64 first = publish(move(left, "a", right, "a"));
  steps(20);
  EXPECT_FALSE(has_ended(first));
  EXPECT_EQ(end_of(publish(move(root, "right", root, "other"))).status, Status::ok);
  release();
  EXPECT_EQ(end_of(first).status, Status::ok);
}

}  // namespace
}  // namespace gpu4fs::test
