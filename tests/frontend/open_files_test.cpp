// Which descriptions report a lost change, and how many times.
#include "frontend/fuse/open_files.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace gpu4fs::frontend {
namespace {

TEST(OpenFiles, EachDescriptionOfAChangedFileReportsOnce) {
  OpenFiles files;
  auto* writer = files.open(7, 0);
  auto* other = files.open(7, 0);
  auto* elsewhere = files.open(8, 0);
  files.changed(writer, 0);
  EXPECT_FALSE(files.take_error(writer, 0)) << "nothing was lost yet";
  auto* late = files.open(7, 1);
  EXPECT_TRUE(files.take_error(writer, 1));
  EXPECT_FALSE(files.take_error(writer, 1)) << "once";
  EXPECT_TRUE(files.take_error(other, 1)) << "it had the file open as well";
  EXPECT_FALSE(files.take_error(late, 1)) << "opened after the failure";
  EXPECT_FALSE(files.take_error(elsewhere, 1)) << "that file had not changed";
  // Again, for those that have reported the first one too.
  files.changed(other, 1);
  EXPECT_TRUE(files.take_error(late, 2));
  EXPECT_TRUE(files.take_error(writer, 3));
  EXPECT_FALSE(files.take_error(writer, 3));
  for (auto* description : {writer, other, elsewhere, late}) files.close(description);
  EXPECT_EQ(files.size(), 0u);
}

TEST(OpenFiles, WhatWasSyncedIsNotLost) {
  OpenFiles files;
  auto* file = files.open(7, 0);
  files.changed(file, 0);
  files.begin_sync(file, 0);
  EXPECT_FALSE(files.end_sync(file, 0, true));
  EXPECT_FALSE(files.take_error(file, 1));
  // A failed sync reports, whether or not the command did, and the close does not report again.
  files.changed(file, 1);
  files.begin_sync(file, 1);
  EXPECT_TRUE(files.end_sync(file, 2, false));
  EXPECT_FALSE(files.take_error(file, 2));
  // A change during the sync is not covered by its success.
  files.changed(file, 2);
  files.begin_sync(file, 2);
  files.changed(file, 2);
  EXPECT_FALSE(files.end_sync(file, 2, true));
  EXPECT_TRUE(files.take_error(file, 3));
  // Lost before the sync, which then has nothing to do.
  files.changed(file, 3);
  files.begin_sync(file, 4);
  EXPECT_TRUE(files.end_sync(file, 4, true));
  // A failed sync without a failed checkpoint (a deadline): the change still has to be made durable.
  files.changed(file, 4);
  files.begin_sync(file, 4);
  EXPECT_FALSE(files.end_sync(file, 4, false));
  EXPECT_TRUE(files.take_error(file, 5));
  files.close(file);
}

TEST(OpenFiles, SyncsSideBySideHideNothing) {
  OpenFiles files;
  auto* first = files.open(7, 0);
  auto* second = files.open(7, 0);
  files.changed(first, 0);
  files.begin_sync(first, 0);
  files.changed(second, 0);
  files.begin_sync(second, 0);
  EXPECT_FALSE(files.end_sync(first, 0, true));
  EXPECT_TRUE(files.end_sync(second, 1, false));
  EXPECT_TRUE(files.take_error(first, 1));
  files.close(first);
  files.close(second);
}

TEST(OpenFiles, ThreadsOpenWriteAndCloseTheSameFiles) {
  OpenFiles files;
  std::atomic<u64> sequence{0};
  std::vector<std::thread> threads;
  std::atomic<u64> reports{0};
  for (u32 t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (u64 round = 0; round < 5000; ++round) {
        auto* description = files.open(round % 3, sequence);
        files.changed(description, sequence);
        if (t == 0 && round % 100 == 0) ++sequence;
        if (files.take_error(description, sequence)) ++reports;
        files.begin_sync(description, sequence);
        if (files.end_sync(description, sequence, round % 2 == 0)) ++reports;
        files.close(description);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(files.size(), 0u);
  EXPECT_GE(reports, 50u) << "the thread that saw the sequence grow had changed its file";
}

}  // namespace
}  // namespace gpu4fs::frontend
