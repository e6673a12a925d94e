#include "frontend/fuse/inode_table.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace gpu4fs::frontend {
namespace {

TEST(InodeTable, ForgetWithoutOrphanReclaimsNothing) {
  InodeTable table;
  table.add_lookup(17);
  table.add_lookup(17);
  EXPECT_EQ(table.size(), 1u);
  EXPECT_FALSE(table.forget(17, 1));
  EXPECT_FALSE(table.forget(17, 1));
  EXPECT_EQ(table.size(), 0u);
}

TEST(InodeTable, OrphanIsReclaimedByTheLastForget) {
  InodeTable table;
  table.add_lookup(17);
  table.add_lookup(17);
  EXPECT_FALSE(table.mark_orphan(17));
  EXPECT_EQ(table.orphan_count(), 1u);
  EXPECT_FALSE(table.forget(17, 1));
  EXPECT_TRUE(table.forget(17, 1));
  EXPECT_EQ(table.orphan_count(), 1u);  // until its space is free
  table.reclaimed();
  EXPECT_EQ(table.orphan_count(), 0u);
  EXPECT_FALSE(table.forget(17, 1));
}

TEST(InodeTable, OrphanUnknownToTheKernelIsReclaimedAtOnce) {
  InodeTable table;
  EXPECT_TRUE(table.mark_orphan(99));
  table.reclaimed();
  EXPECT_EQ(table.orphan_count(), 0u);
}

TEST(InodeTable, AnInodeThatGotANameAgainIsKept) {
  InodeTable table;
  table.add_lookup(5);
  EXPECT_FALSE(table.mark_orphan(5));
  table.clear_orphan(5);
  EXPECT_EQ(table.orphan_count(), 0u);
  EXPECT_FALSE(table.forget(5, 1));
}

TEST(InodeTable, TooLargeForgetIsClamped) {
  InodeTable table;
  table.add_lookup(5);
  EXPECT_FALSE(table.mark_orphan(5));
  EXPECT_TRUE(table.forget(5, ~u64{0}));
  EXPECT_FALSE(table.forget(5, 1));
}

TEST(InodeTable, TakeOrphansEmptiesTheTable) {
  InodeTable table;
  for (u64 inode = 1; inode <= 200; ++inode) table.add_lookup(inode);
  for (u64 inode = 1; inode <= 200; inode += 2) EXPECT_FALSE(table.mark_orphan(inode));
  EXPECT_EQ(table.take_orphans().size(), 100u);
  EXPECT_EQ(table.size(), 0u);
  EXPECT_EQ(table.orphan_count(), 0u);
}

// Each inode is looked up, orphaned and forgotten by different threads: exactly one of them reclaims it.
TEST(InodeTable, ConcurrentForgetsReclaimOnce) {
  constexpr unsigned thread_count = 4;
  constexpr u64 inode_count = 2000;
  InodeTable table;
  for (u64 inode = 0; inode < inode_count; ++inode) {
    for (unsigned i = 0; i < thread_count; ++i) table.add_lookup(inode);
  }
  std::atomic<u64> reclaimed{0};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < thread_count; ++i) {
    threads.emplace_back([&, i] {
      for (u64 inode = 0; inode < inode_count; ++inode) {
        if (i == 0 && table.mark_orphan(inode)) ++reclaimed;
        if (table.forget(inode, 1)) ++reclaimed;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(reclaimed, inode_count);
  EXPECT_EQ(table.orphan_count(), inode_count);
}

}  // namespace
}  // namespace gpu4fs::frontend
