// Single rules of the page functions: reservations, growth, eviction, damage, concurrent creation.
#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>

#include "support/page_walk.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test {
namespace {

using fs::InodeRef;
using fs::no_frame;

// Runs the body with a lane and with a warp, each on a pool of its own.
template <class Body>
void on_both_groups(const SmallPoolOptions& options, Body&& body) {
  {
    SCOPED_TRACE("lane");
    SmallFileSystem small(options);
    fs::Operation op = small.operation();
    body(Lane{}, small, op);
  }
  SCOPED_TRACE("warp");
  SmallFileSystem small(options);
  fs::Operation op = small.operation();
  run_emulated_warp([&](EmulatedWarp g) { body(g, small, op); });
}

template <class Group>
void expect(Group g, bool holds, const char* what) {
  if (g.leader()) {
    EXPECT_TRUE(holds) << what;
  }
}

template <class Group>
u64 make_file(Group g, SmallFileSystem& small, fs::Operation& op) {
  u64 number = 0;
  Status status = fs::claim_inode(g, small.fs(), op, &number);
  if (status == Status::ok) status = fs::prepare_new_inode(g, small.fs(), op, number);
  if (status == Status::ok) status = fs::reserve_metadata(g, small.fs(), op, {1, 0, 0});
  expect(g, status == Status::ok, "a file is made");
  fs::commit_new_inode(g, small.fs(), op, number, fs::NewInode{0040700, 0, 0, 0, 1, 1, 0, 0});
  on_leader(g, [&] { fs::release_reservations(small.fs(), op); });
  return number;
}

template <class Group>
void add_one_page(Group g, SmallFileSystem& small, fs::Operation& op, u64 number, u64 index, u64 pattern) {
  InodeRef ref{};
  u32 frame = no_frame;
  expect(g, fs::get_inode(g, small.fs(), op, number, &ref) == Status::ok, "its inode");
  expect(g, fs::get_page(g, small.fs(), op, ref, {0, index}, &frame) == Status::page_absent, "a hole");
  expect(g, fs::reserve_metadata(g, small.fs(), op, {1, 0, 1}) == Status::ok, "room");
  frame = fs::add_page(g, small.fs(), op, ref, {0, index});
  on_leader(g, [&] {
    fill_pattern(fs::page_data(small.fs(), frame), pattern);
    fs::release_reservations(small.fs(), op);
  });
}

// From one page at height 0 to the far end of height 5: eleven new pages at once fit into the reservation.
TEST(PagesTable, GrowthOverAllLevelsFitsTheReservation) {
  on_both_groups({}, [](auto g, SmallFileSystem& small, fs::Operation& op) {
    const u64 number = make_file(g, small, op);
    add_one_page(g, small, op, number, 0, 1);
    expect(g, small.checkpoint(g) == Status::ok, "a checkpoint");
    constexpr u64 far = 7 * (u64{1} << 45) - 1;
    add_one_page(g, small, op, number, far, 2);
    InodeRef ref{};
    u32 frame = no_frame;
    expect(g, fs::get_inode(g, small.fs(), op, number, &ref) == Status::ok, "its inode");
    expect(g, on_leader(g, [&] { return ref.inode->height == 5 && ref.inode->page_count == 12; }), "12 pages");
    expect(g, fs::get_page(g, small.fs(), op, ref, {0, far + 1}, &frame) == Status::page_absent, "beyond the end");
    expect(g, small.checkpoint(g) == Status::ok, "a checkpoint");
    on_leader(g, [&] {
      expect_page_table_holds(small);
      const SmallFileSystem again(small.options(), small.images());
      EXPECT_EQ(again.load_status(), Status::ok);
    });
  });
}

// The number of dirty pages is the number of pages that a checkpoint writes.
TEST(PagesTable, CheckpointWritesTheDirtyPages) {
  on_both_groups({}, [](auto g, SmallFileSystem& small, fs::Operation& op) {
    const u64 number = make_file(g, small, op);
    for (u64 index = 0; index < 9; ++index) add_one_page(g, small, op, number, index, index + 1);
    const u32 dirty = on_leader(g, [&] { return small.fs().dirty.count; });
    expect(g, small.checkpoint(g) == Status::ok, "a checkpoint");
    const u32 written = on_leader(g, [&] {
      const fs::PageTable& table = small.fs().pages;
      u32 count = 0;
      std::set<u64> places;
      for (u32 i = 0; i < table.staged_count; ++i) {
        if (table.staged_addresses[i] == 0) continue;
        ++count;
        EXPECT_TRUE(places.insert(table.staged_addresses[i]).second) << "two pages at one place";
      }
      return count;
    });
    // Nine pages and their map page, the file's inode page, three map pages above it, both pages of the
    // inode bitmap that lead to its bit, its content, and the page of inode 2.
    expect(g, dirty == written, "all of them");
    expect(g, dirty == 9 + 1 + 1 + 3 + 3 + 1, "and no others");
    expect(g, on_leader(g, [&] { return small.fs().dirty.count == 0; }), "nothing is dirty");
    expect(g, on_leader(g, [&] { return !fs::has_changes(small.fs()); }), "nothing has changed");
  });
}

TEST(PagesTable, EpochOfChanges) {
  SmallFileSystem small;
  fs::Operation op = small.operation();
  const u64 mounted = small.fs().epoch_durable;
  EXPECT_EQ(fs::epoch_of_changes(small.fs()), mounted);
  make_file(Lane{}, small, op);
  EXPECT_EQ(fs::epoch_of_changes(small.fs()), mounted + 1);
  bool looked = false;
  const Status status = small.checkpoint(Lane{}, [&](const char* name) {
    // As soon as the next epoch is open, the dirty pages belong to the one that is being written.
    if (std::string(name) != "begin") return;
    looked = true;
    EXPECT_EQ(fs::epoch_of_changes(small.fs()), mounted + 1);
    EXPECT_EQ(small.fs().epoch_open, mounted + 2);
  });
  EXPECT_EQ(status, Status::ok);
  EXPECT_TRUE(looked);
  EXPECT_EQ(fs::epoch_of_changes(small.fs()), mounted + 1);
}

TEST(PagesTable, ReservationsAreRefusedWhole) {
  SmallPoolOptions options;
  options.frame_count = 64;
  options.staging_count = 64;
  on_both_groups(options, [](auto g, SmallFileSystem& small, fs::Operation& op) {
    fs::FileSystem& fs = small.fs();
    expect(g, fs::reserve_metadata(g, fs, op, {8, 0, 0}) == Status::no_memory, "more than can be waited for");
    expect(g, fs::reserve_metadata(g, fs, op, {1, 1, 0}) == Status::ok, "a small one");
    const fs::Operation before = on_leader(g, [&] { return op; });
    expect(g, fs::reserve_metadata(g, fs, op, {1, 1, 0}) == Status::ok, "asking again");
    const fs::Operation after = on_leader(g, [&] { return op; });
    expect(g,
           before.frames_reserved == after.frames_reserved && before.dirty_reserved == after.dirty_reserved &&
               before.pages_reserved == after.pages_reserved,
           "takes nothing more");
    on_leader(g, [&] {
      fs::release_reservations(fs, op);
      expect_page_table_holds(small);
    });
  });
}

// A frame table that is full of clean pages answers with a request for a checkpoint, and works after it.
TEST(PagesTable, EvictionSparesDirtyLockedAndParents) {
  on_both_groups({}, [](auto g, SmallFileSystem& small, fs::Operation& op) {
    fs::FileSystem& fs = small.fs();
    const u64 number = make_file(g, small, op);
    for (u64 index = 0; index < 20; ++index) add_one_page(g, small, op, number, index, index + 1);
    expect(g, small.checkpoint(g) == Status::ok, "a checkpoint");
    add_one_page(g, small, op, number, 20, 21);  // dirty: the page, its map page, the inode's path
    InodeRef ref{};
    expect(g, fs::get_inode(g, fs, op, number, &ref) == Status::ok, "its inode");
    fs::evict_frames(g, fs, fs.pages.frame_count);
    on_leader(g, [&] {
      EXPECT_NE(fs::resident_frame(fs, number, 0, 20), no_frame);
      EXPECT_NE(fs::resident_frame(fs, number, 1, 0), no_frame);
      EXPECT_EQ(fs::resident_frame(fs, number, 0, 0), no_frame);
      expect_page_table_holds(small);
    });
    expect(g, small.checkpoint(g) == Status::ok, "a checkpoint");
    expect(g, fs::get_inode(g, fs, op, number, &ref) == Status::ok, "its inode");
    on_leader(g, [&] { ref.lock->word = 1; });
    fs::evict_frames(g, fs, fs.pages.frame_count);
    on_leader(g, [&] {
      EXPECT_NE(fs::resident_frame(fs, 0, 0, number / format::inodes_per_page), no_frame) << "a held lock";
      ref.lock->word = 0;
    });
    fs::evict_frames(g, fs, fs.pages.frame_count);
    on_leader(g, [&] {
      EXPECT_EQ(fs.pages.free_count, fs.pages.frame_count) << "all can go";
      expect_page_table_holds(small);
    });
    u32 frame = no_frame;
    expect(g, fs::get_inode(g, fs, op, number, &ref) == Status::ok, "it comes back");
    for (u64 index = 0; index <= 20; ++index) {
      expect(g, fs::get_page(g, fs, op, ref, {0, index}, &frame) == Status::ok, "with its pages");
      expect(g, on_leader(g, [&] { return has_pattern(fs::page_data(fs, frame), index + 1); }), "as they were");
    }
  });
}

TEST(PagesTable, DamageIsAnErrorAndRepairHelps) {
  on_both_groups({}, [](auto g, SmallFileSystem& small, fs::Operation& op) {
    fs::FileSystem& fs = small.fs();
    const u64 number = make_file(g, small, op);
    for (u64 index = 0; index < 8; ++index) add_one_page(g, small, op, number, index, index + 1);
    expect(g, small.checkpoint(g) == Status::ok, "a checkpoint");
    const u64 address = on_leader(g, [&] { return fs.pages.frames[fs::resident_frame(fs, number, 0, 3)].address; });
    fs::evict_frames(g, fs, fs.pages.frame_count);
    on_leader(g, [&] { small.medium_page(address)[1234] ^= 1; });
    InodeRef ref{};
    u32 frame = no_frame;
    expect(g, fs::get_inode(g, fs, op, number, &ref) == Status::ok, "its inode");
    for (u32 attempt = 0; attempt < 3; ++attempt) {
      expect(g, fs::get_page(g, fs, op, ref, {0, 3}, &frame) == Status::checksum_mismatch, "the damaged page");
    }
    expect(g, fs::get_page(g, fs, op, ref, {0, 4}, &frame) == Status::ok, "its neighbour");
    on_leader(g, [&] {
      EXPECT_EQ(fs.had_error, 1u);
      fs.had_error = 0;
      small.medium_page(address)[1234] ^= 1;
    });
    fs::evict_frames(g, fs, fs.pages.frame_count);
    expect(g, fs::get_inode(g, fs, op, number, &ref) == Status::ok, "its inode");
    expect(g, fs::get_page(g, fs, op, ref, {0, 3}, &frame) == Status::ok, "the repaired page");
    on_leader(g, [&] { expect_page_table_holds(small); });
  });
}

TEST(PagesTable, MalformedPointersAreRefused) {
  SmallFileSystem small;
  fs::FileSystem& fs = small.fs();
  fs::Operation op = small.operation();
  const u64 number = make_file(Lane{}, small, op);
  InodeRef ref{};
  ASSERT_EQ(fs::get_inode(Lane{}, fs, op, number, &ref), Status::ok);
  u32 frame = no_frame;
  using format::BlockPointer;
  using format::BlockSize;
  const u64 outside = u64{1} << 50;
  const struct {
    u64 raw;
    Status expected;
  } cases[] = {
      {1, Status::corrupt_structure},                                                    // not valid and not zero
      {BlockPointer::data(outside, BlockSize::page_4k).raw, Status::corrupt_structure},  // no chunk there
      {BlockPointer::data(0, BlockSize::page_4k).raw, Status::corrupt_structure},
      {BlockPointer::data(small_pool::chunk_base({}, 0) + 512, BlockSize::page_4k).raw, Status::corrupt_structure},
      {BlockPointer::data(small_pool::chunk_base({}, 0), BlockSize::block_2m).raw, Status::corrupt_structure},
      {BlockPointer::indirect(small_pool::chunk_base({}, 0)).raw, Status::corrupt_structure},
      {BlockPointer::unwritten(small_pool::chunk_base({}, 0), BlockSize::page_4k).raw, Status::corrupt_structure},
      {BlockPointer::data(small_pool::chunk_base({}, 0), BlockSize::page_4k).raw | BlockPointer::reserved_bit,
       Status::corrupt_structure},
      {0, Status::page_absent},
  };
  for (const auto& c : cases) {
    ref.inode->slots[2].raw = c.raw;
    EXPECT_STREQ(status_name(fs::get_page(Lane{}, fs, op, ref, {0, 2}, &frame)), status_name(c.expected)) << c.raw;
    EXPECT_EQ(frame, no_frame);
  }
  // A larger block in the place of a map page.
  ref.inode->height = 1;
  ref.inode->slots[2] = BlockPointer::data(u64{8} << 20, BlockSize::block_2m);
  EXPECT_EQ(fs::get_page(Lane{}, fs, op, ref, {0, 2 * format::slots_per_block}, &frame), Status::corrupt_structure);
  // A height that no file can have.
  ref.inode->height = 200;
  EXPECT_NE(fs::get_page(Lane{}, fs, op, ref, {0, 2}, &frame), Status::ok);
  ref.inode->height = 0;
}

// Files of fixed height are walked without a lock: a page may be created between the search for it and the load.
TEST(PagesTable, APageCreatedMeanwhileIsNoDamage) {
  SmallFileSystem small;
  fs::Operation op = small.operation();
  const fs::InodeRef file = fs::detail::inode_file_ref(small.fs());
  const u64 index = make_file(Lane{}, small, op) / format::inodes_per_page;
  ASSERT_NE(fs::resident_frame(small.fs(), 0, 0, index), no_frame);
  EXPECT_EQ(fs::detail::begin_load(small.fs(), op, file, {0, index}).status, Status::again);
  ASSERT_EQ(small.checkpoint(Lane{}), Status::ok);
  EXPECT_EQ(fs::detail::begin_load(small.fs(), op, file, {0, index}).status, Status::again);
  // Without the page, an empty slot is damage.
  format::BlockPointer* slot = fs::detail::slot_of_page(small.fs(), file, {0, index + 1});
  ASSERT_NE(slot, nullptr);
  const format::BlockPointer before = *slot;
  *slot = format::BlockPointer::data(0, format::BlockSize::page_4k);
  EXPECT_EQ(fs::detail::begin_load(small.fs(), op, file, {0, index + 1}).status, Status::corrupt_structure);
  *slot = before;
}

fs::Operation operation_of_shard(u32 shard) {
  fs::Operation op{};
  op.now = 1;
  op.shard = shard;
  return op;
}

u64 claim(SmallFileSystem& small, fs::Operation& op) {
  u64 number = 0;
  EXPECT_EQ(fs::claim_inode(Lane{}, small.fs(), op, &number), Status::ok);
  return number;
}

TEST(PagesTable, AClaimStaysWithItsCommandAndReturnsWhenItEnds) {
  SmallFileSystem small;
  std::vector<fs::Operation> commands(2 * format::inodes_per_page, operation_of_shard(0));
  std::vector<u64> numbers;
  // Two batches; the shard continues from the first one to the second.
  for (fs::Operation& op : commands) numbers.push_back(claim(small, op));
  const std::set<u64> distinct(numbers.begin(), numbers.end());
  ASSERT_EQ(distinct.size(), commands.size());
  // A restart, by a worker of another shard.
  commands[5].shard = 1;
  EXPECT_EQ(claim(small, commands[5]), numbers[5]);
  // Ended without an inode: the next command that needs a number gets this one, although its batch belongs to no shard.
  fs::unclaim_inode(small.fs(), commands[3]);
  fs::unclaim_inode(small.fs(), commands[3]);
  fs::unclaim_inode(small.fs(), commands[7]);
  fs::Operation first = operation_of_shard(1);
  fs::Operation second = operation_of_shard(0);
  EXPECT_EQ((std::set<u64>{claim(small, first), claim(small, second)}), (std::set<u64>{numbers[3], numbers[7]}));
}

TEST(PagesTable, MoreReturnedClaimsThanThereIsRoomForDoNoHarm) {
  SmallFileSystem small;
  std::vector<fs::Operation> commands(2 * fs::returned_inode_max, operation_of_shard(0));
  for (u32 round = 0; round < 3; ++round) {
    std::set<u64> numbers;
    for (fs::Operation& op : commands) numbers.insert(claim(small, op));
    EXPECT_EQ(numbers.size(), commands.size());
    for (fs::Operation& op : commands) fs::unclaim_inode(small.fs(), op);
  }
}

TEST(PagesTable, AClaimThatWaitsForAPageSkipsNoNumbers) {
  SmallFileSystem small;
  fs::Operation first = operation_of_shard(0);
  const u64 number = claim(small, first);
  const u32 bitmap = fs::resident_frame(small.fs(), format::inode_number_inode_bitmap, 0, 0);
  ASSERT_NE(bitmap, no_frame);
  // As while another worker reads it.
  fs::Frame& frame = small.fs().pages.frames[bitmap];
  frame.state = fs::frame_loading;
  fs::Operation second = operation_of_shard(1);
  u64 ignored = 0;
  for (u32 i = 0; i < 5; ++i) {
    EXPECT_EQ(fs::claim_inode(Lane{}, small.fs(), second, &ignored), Status::again);
  }
  frame.state = fs::frame_valid;
  EXPECT_EQ(claim(small, second), number + format::inodes_per_page);
}

// Threads that create files at once never get the same number, and none runs out of numbers.
TEST(PagesTable, ConcurrentCreationGivesDistinctNumbers) {
  SmallPoolOptions options;
  options.frame_count = 2048;
  options.staging_count = 2048;
  options.shard_count = 4;
  SmallFileSystem small(options);
  constexpr u32 thread_count = 4;
  const u32 files_each = scaled(400);
  std::vector<std::vector<u64>> numbers(thread_count);
  std::atomic<u32> failures{0};
  std::vector<std::thread> threads;
  for (u32 t = 0; t < thread_count; ++t) {
    threads.emplace_back([&, t] {
      fs::Operation op{};
      op.now = 1;
      op.shard = t;
      for (u32 i = 0; i < files_each; ++i) {
        u64 number = 0;
        Status status = Status::again;
        while (status == Status::again) status = fs::claim_inode(Lane{}, small.fs(), op, &number);
        if (status == Status::ok) {
          do status = fs::prepare_new_inode(Lane{}, small.fs(), op, number);
          while (status == Status::again);
        }
        if (status == Status::ok) status = fs::reserve_metadata(Lane{}, small.fs(), op, {1, 0, 0});
        if (status != Status::ok) {
          failures.fetch_add(1);
          return;
        }
        if (i % 7 == 3) {
          fs::unclaim_inode(small.fs(), op);
        } else {
          fs::commit_new_inode(Lane{}, small.fs(), op, number, fs::NewInode{0100600, 0, 0, 0, 1, 0, 0, 0});
          numbers[t].push_back(number);
        }
        fs::release_reservations(small.fs(), op);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures.load(), 0u);
  std::set<u64> all;
  u64 count = 0;
  for (const auto& list : numbers) {
    all.insert(list.begin(), list.end());
    count += list.size();
  }
  EXPECT_EQ(all.size(), count);
  EXPECT_EQ(small.fs().inode_used, format::inode_number_first_free + count);
  expect_page_table_holds(small);
  ASSERT_EQ(small.checkpoint(Lane{}), Status::ok);
  SmallFileSystem again(options, small.images());
  ASSERT_EQ(again.load_status(), Status::ok);
  fs::Operation op = again.operation();
  for (const u64 number : all) {
    InodeRef ref{};
    ASSERT_EQ(fs::get_inode(Lane{}, again.fs(), op, number, &ref), Status::ok);
    EXPECT_EQ(ref.inode->mode, 0100600);
  }
}

}  // namespace
}  // namespace gpu4fs::test
