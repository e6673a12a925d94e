// Pages of the inode file are given back when their inodes are free, and no generation of a number is used twice.
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "base/emulated_warp.hpp"
#include "support/small_file_system.hpp"

namespace gpu4fs::test::inode_give_back_test {
namespace {

template <class Group>
class Inodes {
 public:
  Inodes(Group g, SmallFileSystem& small, fs::Operation& op) : g_(g), small_(small), op_(op) {}

  u64 make() {
    begin();
    u64 number = 0;
    expect_ok(fs::claim_inode(g_, fs(), op_, &number));
    expect_ok(fs::prepare_new_inode(g_, fs(), op_, number));
    expect_ok(fs::reserve_metadata(g_, fs(), op_, {1, 0, 0}));
    const fs::NewInode values{0100600, 0, 10, 20, 1, 1, 0, 0};
    const fs::InodeRef ref = fs::commit_new_inode(g_, fs(), op_, number, values);
    on_leader(g_, [&] {
      u32& last = generations_[number];
      EXPECT_TRUE(format::generation_is_later(ref.inode->generation, last)) << "inode " << number << ": " << last;
      last = ref.inode->generation;
    });
    end();
    return number;
  }
  void free(u64 number) {
    begin();
    const fs::InodeRef ref = get(number);
    expect_ok(fs::prepare_free_inode(g_, fs(), op_, number));
    expect_ok(fs::reserve_metadata(g_, fs(), op_, {1, 0, 0}));
    fs::commit_free_inode(g_, fs(), op_, ref);
    end();
  }
  fs::InodeRef get(u64 number) {
    fs::InodeRef ref{};
    expect_ok(fs::get_inode(g_, fs(), op_, number, &ref));
    return ref;
  }
  bool exists(u64 number) {
    fs::InodeRef ref{};
    const Status status = fs::get_inode(g_, fs(), op_, number, &ref);
    return status == Status::ok;
  }
  u64 file_pages() {
    return on_leader(g_, [&] { return fs().inode_file.page_count; });
  }
  void checkpoint() { expect_ok(small_.checkpoint(g_)); }

  // Creates `count` inodes, writes them, frees them all.
  std::vector<u64> come_and_go(u32 count) {
    std::vector<u64> numbers;
    for (u32 i = 0; i < count; ++i) numbers.push_back(make());
    checkpoint();
    for (const u64 number : numbers) free(number);
    return numbers;
  }

 private:
  fs::FileSystem& fs() { return small_.fs(); }
  void begin() {
    on_leader(g_, [&] { op_ = small_.operation(); });
  }
  void end() {
    on_leader(g_, [&] { fs::release_reservations(fs(), op_); });
  }
  void expect_ok(Status status) {
    if (g_.leader()) {
      EXPECT_STREQ(status_name(status), "ok");
    }
  }

  Group g_;
  SmallFileSystem& small_;
  fs::Operation& op_;
  std::map<u64, u32> generations_;
};

template <class Group>
void expect_pages_go(Group g, SmallFileSystem& small, fs::Operation& op) {
  Inodes<Group> inodes(g, small, op);
  const u64 pages_before = inodes.file_pages();
  for (u32 round = 0; round < 3; ++round) {
    const std::vector<u64> numbers = inodes.come_and_go(300);
    EXPECT_GT(inodes.file_pages(), pages_before + 300 / format::inodes_per_page - 1);
    inodes.checkpoint();
    EXPECT_EQ(inodes.file_pages(), pages_before) << "round " << round;
    EXPECT_FALSE(inodes.exists(numbers.front()));
  }
  const u64 given_back = on_leader(g, [&] { return small.fs().inode_pages_given_back; });
  EXPECT_GE(given_back, u64{3} * 300 / format::inodes_per_page);
}

TEST(InodeGiveBack, FreePagesGoAndNumbersComeAgain) {
  SmallFileSystem small;
  ASSERT_EQ(small.load_status(), Status::ok);
  fs::Operation op{};
  expect_pages_go(Lane{}, small, op);
  // A number from a later mount is another file for a client that knew the old one.
  const u32 greatest = small.fs().inode_file.generation;
  EXPECT_GE(greatest, 3u);
  SmallFileSystem again(small.options(), small.images());
  ASSERT_EQ(again.load_status(), Status::ok);
  EXPECT_EQ(again.fs().inode_file.generation, greatest);
  Inodes<Lane> inodes(Lane{}, again, op);
  for (u32 i = 0; i < 20; ++i) EXPECT_GT(inodes.get(inodes.make()).inode->generation, greatest);
}

TEST(InodeGiveBack, AWarpDoesTheSame) {
  SmallFileSystem small;
  ASSERT_EQ(small.load_status(), Status::ok);
  fs::Operation op{};
  run_emulated_warp([&](EmulatedWarp g) { expect_pages_go(g, small, op); });
}

// A page with one inode stays, and so does one with a lock that is held or waited for, until a later checkpoint.
TEST(InodeGiveBack, WhatIsInUseStays) {
  SmallFileSystem small;
  ASSERT_EQ(small.load_status(), Status::ok);
  fs::Operation op{};
  Inodes<Lane> inodes(Lane{}, small, op);
  const u64 pages_before = inodes.file_pages();
  const u64 kept = inodes.make();
  const std::vector<u64> numbers = inodes.come_and_go(64);
  CommandLock* lock = inodes.get(numbers.back()).lock;
  ASSERT_NE(numbers.back() / format::inodes_per_page, kept / format::inodes_per_page);
  lock->word = 1;
  inodes.checkpoint();
  EXPECT_EQ(inodes.file_pages(), pages_before + 2) << "the page of the inode in use, and the locked one";
  EXPECT_TRUE(inodes.exists(numbers.back()));
  lock->word = 0;
  inodes.checkpoint();
  EXPECT_EQ(inodes.file_pages(), pages_before + 1);
  EXPECT_FALSE(inodes.exists(numbers.back()));
  EXPECT_EQ(inodes.get(kept).inode->mode, 0100600);
}

// After the greatest generation they restart and continue from there: no number gets the same one repeatedly.
TEST(InodeGiveBack, GenerationsGoRound) {
  SmallFileSystem small;
  ASSERT_EQ(small.load_status(), Status::ok);
  small.fs().inode_file.generation = ~u32{0} - 2;
  fs::Operation op{};
  Inodes<Lane> inodes(Lane{}, small, op);
  const u64 pages_before = inodes.file_pages();
  for (u32 round = 0; round < 6; ++round) {
    (void)inodes.come_and_go(40);
    inodes.checkpoint();
    EXPECT_EQ(inodes.file_pages(), pages_before);
  }
  EXPECT_NE(small.fs().inode_file.generation, 0u);
  EXPECT_LT(small.fs().inode_file.generation, 100u);
  small.fs().generation_skip = ~u32{0};
  EXPECT_NE(inodes.get(inodes.make()).inode->generation, 0u);
}

// A frame is in the list twice if it held another page in between. Two tasks may process its entries concurrently: one
// gives the page back.
TEST(InodeGiveBack, AFrameThatIsListedTwiceIsJudgedOnce) {
  SmallFileSystem small;
  ASSERT_EQ(small.load_status(), Status::ok);
  fs::Operation op{};
  Inodes<Lane> inodes(Lane{}, small, op);
  const u64 pages_before = inodes.file_pages();
  (void)inodes.come_and_go(64);
  fs::PageTable& table = small.fs().pages;
  const u32 count = table.emptied_count;
  ASSERT_GT(count, 1u);
  for (u32 i = 0; i < count; ++i) table.emptied_list[table.emptied_count++] = table.emptied_list[i];
  const u32 frame = table.emptied_list[0];
  fs::Operation task = small.operation();
  EXPECT_EQ(fs::detail::judge_emptied(small.fs(), task, frame), fs::detail::EmptiedVerdict::give_back);
  EXPECT_EQ(fs::detail::judge_emptied(small.fs(), task, frame), fs::detail::EmptiedVerdict::forget);
  table.frames[frame].referenced |= fs::frame_emptied;
  inodes.checkpoint();
  EXPECT_EQ(inodes.file_pages(), pages_before);
  EXPECT_EQ(small.fs().inode_pages_given_back, count);
  EXPECT_EQ(table.emptied_count, 0u);
  EXPECT_EQ(small.fs().had_error, 0u);
}

// A damaged medium has a count of the inode file's pages that is too small.
TEST(InodeGiveBack, TheCountOfPagesStaysAtZero) {
  SmallFileSystem small;
  ASSERT_EQ(small.load_status(), Status::ok);
  fs::Operation op{};
  Inodes<Lane> inodes(Lane{}, small, op);
  (void)inodes.come_and_go(64);
  small.fs().inode_file.page_count = 1;
  inodes.checkpoint();
  EXPECT_GT(small.fs().inode_pages_given_back, 1u);
  EXPECT_EQ(inodes.file_pages(), 0u);
  EXPECT_EQ(small.fs().had_error, 1u);
}

// A page in which inodes were created again is not given back.
TEST(InodeGiveBack, APageThatIsUsedAgainStays) {
  SmallFileSystem small;
  ASSERT_EQ(small.load_status(), Status::ok);
  fs::Operation op{};
  Inodes<Lane> inodes(Lane{}, small, op);
  const u64 first = inodes.make();
  inodes.free(first);
  const u64 second = inodes.make();
  ASSERT_EQ(first / format::inodes_per_page, second / format::inodes_per_page);
  inodes.checkpoint();
  EXPECT_EQ(inodes.get(second).inode->mode, 0100600);
  EXPECT_EQ(small.fs().inode_pages_given_back, 0u);
}

}  // namespace
}  // namespace gpu4fs::test::inode_give_back_test
