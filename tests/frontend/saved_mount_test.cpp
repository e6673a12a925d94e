// The state that a mount passes to the next process: lookups, lost inodes, descriptions with the errors that they have
// to report.
#include "frontend/fuse/saved_mount.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

#include "frontend/fuse/inode_table.hpp"
#include "frontend/fuse/open_files.hpp"

namespace gpu4fs::frontend {
namespace {

SavedMount through_bytes(const SavedMount& saved) {
  return saved_mount_from(to_bytes(saved));
}

TEST(SavedMount, BytesComeBackAndCutOnesAreRefused) {
  SavedMount saved;
  saved.init_request = std::string("init\0request", 12);
  saved.write_errors = 7;
  saved.inodes = {{5, 2, 3, true, false}, {6, 1, 0, false, true}};
  saved.descriptions = {{0x1000, 5, 6, 7, true}};
  const std::string bytes = to_bytes(saved);
  const SavedMount back = saved_mount_from(bytes);
  EXPECT_EQ(back.init_request, saved.init_request);
  EXPECT_EQ(back.write_errors, 7u);
  ASSERT_EQ(back.inodes.size(), 2u);
  EXPECT_EQ(back.inodes[0].inode, 5u);
  EXPECT_EQ(back.inodes[0].lookups, 2u);
  EXPECT_EQ(back.inodes[0].generation, 3u);
  EXPECT_TRUE(back.inodes[0].orphan);
  EXPECT_TRUE(back.inodes[1].lost);
  ASSERT_EQ(back.descriptions.size(), 1u);
  EXPECT_EQ(back.descriptions[0].handle, 0x1000u);
  EXPECT_TRUE(back.descriptions[0].file_changed);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_THROW(saved_mount_from(bytes.substr(0, length)), std::runtime_error) << length;
  }
  EXPECT_THROW(saved_mount_from(bytes + "x"), std::runtime_error);
}

TEST(SavedMount, InodesKeepTheirLookups) {
  InodeTable before;
  before.add_lookup(5, 1);
  before.add_lookup(5, 1);
  before.add_lookup(6, 1);
  EXPECT_FALSE(before.mark_orphan(6));
  SavedMount saved;
  saved.inodes = before.save();
  InodeTable after;
  for (const SavedInode& inode : through_bytes(saved).inodes) after.restore(inode);
  EXPECT_EQ(after.orphan_count(), 1u);
  EXPECT_FALSE(after.forget(5, 1));
  EXPECT_EQ(after.size(), 2u);
  EXPECT_FALSE(after.forget(5, 1));
  EXPECT_TRUE(after.forget(6, 1)) << "it is an orphan";
  EXPECT_EQ(after.size(), 0u);
}

TEST(SavedMount, ALostInodeStaysLostUntilForgottenOrMadeAnew) {
  InodeTable table;
  table.restore({5, 1, 9, false, true});
  table.restore({6, 1, 9, false, true});
  table.restore({7, 1, 9, false, false});
  EXPECT_TRUE(table.is_lost(5));
  EXPECT_FALSE(table.is_lost(7));
  EXPECT_FALSE(table.is_lost(8));
  EXPECT_FALSE(table.forget(5, 1));
  EXPECT_FALSE(table.is_lost(5));
  table.add_lookup(6, 10);
  EXPECT_FALSE(table.is_lost(6)) << "another file with this number";
  EXPECT_FALSE(table.forget(6, 1));
  EXPECT_EQ(table.size(), 2u) << "the kernel still holds one of its two lookups";
}

TEST(SavedMount, ChangedFilesReportOnceAfterwards) {
  OpenFiles before;
  auto* changed = before.open(5, 3);
  auto* reader = before.open(5, 3);
  auto* synced = before.open(6, 3);
  before.changed(changed, 3);
  before.changed(synced, 3);
  before.begin_sync(synced, 3);
  EXPECT_FALSE(before.end_sync(synced, 3, true));
  const u64 handles[] = {OpenFiles::handle_of(changed), OpenFiles::handle_of(reader), OpenFiles::handle_of(synced)};
  SavedMount saved;
  saved.write_errors = 3;
  saved.descriptions = before.save();

  OpenFiles after;
  for (const SavedDescription& description : through_bytes(saved).descriptions) after.restore(description, 3);
  EXPECT_EQ(after.size(), 3u);
  for (u32 i = 0; i < 2; ++i) {
    EXPECT_TRUE(after.take_error(after.find(handles[i]), 4)) << i;
    EXPECT_FALSE(after.take_error(after.find(handles[i]), 4)) << i;
  }
  EXPECT_FALSE(after.take_error(after.find(handles[2]), 4)) << "nothing of it was lost";
  auto* late = after.open(5, 4);
  EXPECT_FALSE(after.take_error(late, 4));
  EXPECT_EQ(after.find(OpenFiles::handle_of(late)), late);
  // Handles survive a second time.
  const auto again = after.save();
  OpenFiles last;
  for (const SavedDescription& description : again) last.restore(description, 4);
  for (const u64 handle : handles) last.close(last.find(handle));
  last.close(last.find(OpenFiles::handle_of(late)));
  EXPECT_EQ(last.size(), 0u);
  for (const u64 handle : handles) after.close(after.find(handle));
  after.close(late);
  for (const u64 handle : handles) before.close(before.find(handle));
}

}  // namespace
}  // namespace gpu4fs::frontend
