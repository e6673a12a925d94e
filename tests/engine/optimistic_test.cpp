// Reads without locks: what is planned, and that nothing of it is given out that has changed since.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "engine/command_locks.hpp"
#include "engine/gate.hpp"
#include "engine/name_fixture.hpp"
#include "engine/optimistic/answer.hpp"
#include "engine/warp_workers.hpp"

namespace gpu4fs::test {
namespace {

using engine::FreshViews;
using engine::ReaderContext;
using engine::ReadPlan;
using engine::WorkerViews;

constexpr u8 untouched = 0xaa;
constexpr u32 punch_hole = 3;  // FALLOC_FL_PUNCH_HOLE with FALLOC_FL_KEEP_SIZE

class Optimistic : public ::testing::Test {
 protected:
  Optimistic() : engine_(FileEngineOptions{.worker_count = 1}), client_(engine_) {
    views_.root = engine::RootView::of(engine_.fs());
    session_.trusted = 1;
  }
  ~Optimistic() override { leave(); }

  // A file of `pages` pages that each hold `value`, read once by the ordinary way, which settles its access time.
  u64 make_file(const char* name, u8 value, u64 pages) {
    const u64 inode = client_.create(name).result;
    std::memset(client_.data(), value, pages * page_size);
    EXPECT_EQ(client_.write(inode, 0, pages * page_size).status, Status::ok);
    EXPECT_EQ(client_.read(inode, 0, 2 * page_size).status, Status::ok);
    return inode;
  }

  void enter() {
    const engine::Entered entered = engine::try_enter_era(engine_.engine(), engine_.engine().step_gate);
    ASSERT_TRUE(entered.is_inside);
    era_ = entered.era;
    is_inside_ = true;
  }
  void leave() {
    if (is_inside_) engine::leave(engine_.engine(), engine_.engine().step_gate);
    is_inside_ = false;
  }

  // Plans a read of the page as a worker would that remembers views_. *was_known: nothing was learned.
  bool plan(u64 inode, u64 offset, u64 length, ReadPlan* plan, bool* was_known = nullptr) {
    if (!is_inside_) enter();
    const ReaderContext reader{&engine_.engine(), &session_, &views_, era_, session_.trusted != 0, 1};
    const engine::ReadRange range{inode, offset, length};
    FreshViews fresh{};
    engine::FilledViews filled{};
    buffer_.assign(page_size, untouched);
    const bool is_planned =
        engine::plan_read(reader, range, buffer_.data(), plan, &fresh, &filled) == engine::PlannedRead::page;
    engine::detail::remember(Lane{}, reader, fresh, filled);
    if (was_known != nullptr) *was_known = !filled.has_file;
    return is_planned;
  }
  bool move(const ReadPlan& plan) {
    alignas(16) static u8 page[page_size];
    return engine::move_planned(Lane{}, views_.root, plan, page);
  }
  bool buffer_is(u8 value, u64 length = page_size) const {
    return std::all_of(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(length),
                       [&](u8 byte) { return byte == value; });
  }
  u64 optimistic_count() { return engine_.host().counters().commands_optimistic; }

  // Plans a read, changes something, and expects that the read is refused and has shown nothing.
  void expect_refused_after(u64 inode, const std::function<void()>& change) {
    ReadPlan read{};
    ASSERT_TRUE(plan(inode, 0, page_size, &read));
    change();
    EXPECT_FALSE(move(read));
    EXPECT_TRUE(buffer_is(untouched));
    leave();
  }

  FileEngine engine_;
  FileClient client_;
  engine::Session session_{};
  WorkerViews views_{};
  std::vector<u8> buffer_;
  u64 era_ = 0;
  bool is_inside_ = false;
};

TEST_F(Optimistic, AReadGivesTheBytesOfTheFile) {
  const u64 inode = make_file("a", 7, 4);
  ReadPlan read{};
  ASSERT_TRUE(plan(inode, page_size + 100, 200, &read));
  EXPECT_TRUE(move(read));
  EXPECT_TRUE(buffer_is(7, 200));
  EXPECT_EQ(buffer_[200], untouched);
  ASSERT_TRUE(plan(inode, 4 * page_size, page_size, &read));
  EXPECT_TRUE(move(read));
  EXPECT_EQ(read.to, read.from);
  EXPECT_TRUE(buffer_is(untouched));
}

TEST_F(Optimistic, ReadersWhoShareTheLockDoNotMatter) {
  const u64 inode = make_file("a", 7, 4);
  ReadPlan read{};
  ASSERT_TRUE(plan(inode, 0, page_size, &read));
  EXPECT_EQ(client_.read(inode, 0, 3 * page_size).status, Status::ok);
  EXPECT_TRUE(move(read));
  EXPECT_TRUE(buffer_is(7));
}

TEST_F(Optimistic, AnOverwrittenPageIsNotGivenOut) {
  const u64 inode = make_file("a", 7, 4);
  expect_refused_after(inode, [&] {
    std::memset(client_.data(), 8, page_size);
    EXPECT_EQ(client_.write(inode, 0, page_size).status, Status::ok);
  });
  EXPECT_EQ(client_.checkpoint().status, Status::ok);
  EXPECT_EQ(client_.read(inode, 0, 2 * page_size).status, Status::ok);
  expect_refused_after(inode, [&] {
    std::memset(client_.data(), 9, page_size);
    EXPECT_EQ(client_.write(inode, 0, page_size).status, Status::ok);
  });
}

TEST_F(Optimistic, WhatWasCutOffOrPunchedIsNotGivenOut) {
  const u64 inode = make_file("a", 7, 4);
  expect_refused_after(inode, [&] { EXPECT_EQ(client_.truncate(inode, page_size / 2).status, Status::ok); });
  const u64 other = make_file("b", 7, 4);
  expect_refused_after(other,
                       [&] { EXPECT_EQ(client_.fallocate(other, punch_hole, 0, page_size).status, Status::ok); });
}

TEST_F(Optimistic, EveryCommandThatChangesAFileIsNoticed) {
  const u64 inode = make_file("a", 7, 4);
  const u64 source = make_file("source", 8, 4);
  NameClient names(engine_);
  format::AttributeRecord record{};
  record.size_bytes = 3 * page_size;
  record.mode = 0100640;
  const auto expect_ok = [](const ring::Completion& done) { EXPECT_EQ(done.status, Status::ok); };
  const std::function<void()> changes_of_files[] = {
      [&] { expect_ok(client_.copy_range(source, 0, inode, 0, 2 * page_size)); },
      [&] { expect_ok(client_.setattr(inode, format::set_mode, record)); },
      [&] { expect_ok(client_.setattr(inode, format::set_size, record)); },
      [&] { expect_ok(client_.fallocate(inode, 0, 8 * page_size, page_size)); },
      [&] { expect_ok(client_.fallocate(inode, 0x10, page_size, page_size)); },  // FALLOC_FL_ZERO_RANGE
      [&] { expect_ok(names.set_attribute(inode, "user.x", "value")); },
      [&] { expect_ok(names.remove_attribute(inode, "user.x")); },
      [&] { expect_ok(names.link(inode, root, "b")); },
      [&] { expect_ok(names.rename(root, "b", root, "c")); },
      [&] { expect_ok(names.unlink(root, "c")); },
      [&] { expect_ok(names.unlink(root, "a")); },
      [&] { expect_ok(client_.reclaim(inode)); },
  };
  for (const std::function<void()>& change : changes_of_files) {
    EXPECT_EQ(client_.read(inode, 0, 2 * page_size).status, Status::ok) << "settles the access time";
    expect_refused_after(inode, change);
  }
}

// It writes the metadata elsewhere, but the pages in memory stay where they are.
TEST_F(Optimistic, ACheckpointDoesNotMatter) {
  const u64 inode = make_file("a", 7, 9);
  ReadPlan read{};
  ASSERT_TRUE(plan(inode, 8 * page_size, page_size, &read));
  EXPECT_EQ(client_.checkpoint().status, Status::ok);
  EXPECT_TRUE(move(read));
  EXPECT_TRUE(buffer_is(7));
  bool was_known = false;
  ASSERT_TRUE(plan(inode, 7 * page_size, page_size, &read, &was_known));
  EXPECT_TRUE(was_known);
  EXPECT_TRUE(move(read));
  EXPECT_TRUE(buffer_is(7));
}

// Its pages may be another file's by then, with checksums that match.
TEST_F(Optimistic, PagesThatAnotherFileGotAreNotGivenOut) {
  const u64 inode = make_file("a", 7, 4);
  const u64 other = client_.create("b").result;
  expect_refused_after(inode, [&] {
    EXPECT_EQ(client_.truncate(inode, 0).status, Status::ok);
    std::memset(client_.data(), 0xee, 64 * page_size);
    EXPECT_EQ(client_.write(other, 0, 64 * page_size).status, Status::ok);
  });
}

TEST_F(Optimistic, ALockHeldExclusivelyRefusesReads) {
  const u64 inode = make_file("a", 7, 4);
  ReadPlan read{};
  ASSERT_TRUE(plan(inode, 0, page_size, &read));
  engine::CommandState& holder = engine_.engine().commands[engine::checkpoint_command];
  auto* lock = const_cast<CommandLock*>(read.lock);
  ASSERT_EQ(engine::acquire_command_lock(engine_.engine(), holder, lock, inode, engine::LockMode::exclusive),
            Status::ok);
  EXPECT_FALSE(move(read));
  engine::release_all_locks(engine_.engine(), holder);
  EXPECT_FALSE(move(read));
  EXPECT_TRUE(buffer_is(untouched));
}

TEST_F(Optimistic, AViewIsUsedUntilTheGateHasBeenClosed) {
  const u64 inode = make_file("a", 7, 4);
  ReadPlan read{};
  bool was_known = true;
  ASSERT_TRUE(plan(inode, 0, page_size, &read, &was_known));
  EXPECT_FALSE(was_known);
  ASSERT_TRUE(plan(inode, page_size, page_size, &read, &was_known));
  EXPECT_TRUE(was_known);
  leave();
  engine::CommandState& closer = engine_.engine().commands[engine::checkpoint_command];
  ASSERT_EQ(engine::close_or_park(engine_.engine().step_gate, closer), Status::ok);
  engine::open(engine_.engine(), engine_.engine().step_gate, closer);
  ASSERT_TRUE(plan(inode, 2 * page_size, page_size, &read, &was_known));
  EXPECT_FALSE(was_known);
  EXPECT_TRUE(move(read));
  EXPECT_TRUE(buffer_is(7));
}

TEST_F(Optimistic, HolesAreZeros) {
  const u64 inode = make_file("a", 7, 4);
  EXPECT_EQ(client_.fallocate(inode, punch_hole, page_size, page_size).status, Status::ok);
  EXPECT_EQ(client_.read(inode, 0, 2 * page_size).status, Status::ok);
  ReadPlan read{};
  ASSERT_TRUE(plan(inode, page_size, page_size, &read));
  EXPECT_EQ(read.page, nullptr);
  EXPECT_TRUE(move(read));
  EXPECT_TRUE(buffer_is(0));
}

TEST_F(Optimistic, UnusualReadsAreLeftToTheOrdinaryWay) {
  ReadPlan read{};
  EXPECT_FALSE(plan(format::inode_number_root, 0, page_size, &read)) << "a directory";
  EXPECT_FALSE(plan(format::inode_number_inode_bitmap, 0, page_size, &read)) << "a file of the file system";
  EXPECT_FALSE(plan(12345, 0, page_size, &read)) << "no inode";
  const u64 small = client_.create("small").result;
  EXPECT_EQ(client_.write(small, 0, 10).status, Status::ok);
  EXPECT_FALSE(plan(small, 0, page_size, &read)) << "content in the inode";
  const u64 inode = make_file("a", 7, 4);
  session_.uid = 1000;
  session_.trusted = 0;
  ASSERT_TRUE(plan(inode, 0, page_size, &read)) << "everybody may read it";
  leave();
  format::AttributeRecord record{};
  record.mode = 0100600;
  ASSERT_EQ(client_.setattr(inode, format::set_mode, record).status, Status::ok);
  EXPECT_FALSE(plan(inode, 0, page_size, &read)) << "its owner alone may read it";
}

TEST_F(Optimistic, DamagedPagesAreLeftToTheOrdinaryWay) {
  const u64 inode = make_file("a", 7, 4);
  ReadPlan read{};
  ASSERT_TRUE(plan(inode, 0, page_size, &read));
  const_cast<u8*>(read.page)[1000] ^= 1;
  EXPECT_FALSE(move(read));
  EXPECT_TRUE(buffer_is(untouched));
  leave();
  EXPECT_EQ(client_.read(inode, 0, page_size).status, Status::checksum_mismatch);
}

TEST_F(Optimistic, AChangedFileIsLookedAtAnew) {
  const u64 inode = make_file("a", 7, 4);
  EXPECT_EQ(client_.read(inode, 0, page_size).status, Status::ok);
  for (u8 value = 8; value < 12; ++value) {
    std::memset(client_.data(), value, page_size);
    EXPECT_EQ(client_.write(inode, 0, page_size).status, Status::ok);
    EXPECT_EQ(client_.read(inode, 0, 2 * page_size).status, Status::ok);
    const u64 before = optimistic_count();
    EXPECT_EQ(client_.read(inode, 0, page_size).status, Status::ok);
    EXPECT_EQ(client_.data()[0], value);
    EXPECT_EQ(optimistic_count(), before + 1);
  }
}

// What lies where slots were is the user's bytes when content moves into the inode.
TEST_F(Optimistic, InlineContentIsNoPointer) {
  const u64 inode = make_file("a", 7, 2);
  ReadPlan read{};
  ASSERT_TRUE(plan(inode, 0, page_size, &read));
  const u64 pointer = format::BlockPointer::data(read.address, format::BlockSize::page_4k).raw;
  leave();
  EXPECT_EQ(client_.truncate(inode, 0).status, Status::ok);
  std::memcpy(client_.data(), &pointer, sizeof(pointer));
  EXPECT_EQ(client_.write(inode, 0, sizeof(pointer)).status, Status::ok);
  EXPECT_FALSE(plan(inode, 0, page_size, &read));
  EXPECT_EQ(client_.read(inode, 0, page_size).result, sizeof(pointer));
  EXPECT_EQ(std::memcmp(client_.data(), &pointer, sizeof(pointer)), 0);
}

TEST_F(Optimistic, AChunkThatLacksMemoryIsNotRemembered) {
  const u64 inode = make_file("a", 7, 4);
  ReadPlan read{};
  ASSERT_TRUE(plan(inode, 0, page_size, &read));
  leave();
  const raid::LogicalSpace& space = engine_.fs().space;
  raid::PageLocation location{};
  ASSERT_EQ(raid::find_page(space, read.address, &location), Status::ok);
  const engine::ChunkView& chunk = views_.chunk(read.address >> space.granule_shift);
  EXPECT_NE(chunk.size_bytes, 0u);
  views_ = WorkerViews{};
  views_.root = engine::RootView::of(engine_.fs());
  store<Order::relaxed, Scope::engine>(&space.chunks[location.chunk].unbacked_pages, 512u);
  (void)plan(inode, 0, page_size, &read);
  EXPECT_EQ(chunk.size_bytes, 0u);
  store<Order::relaxed, Scope::engine>(&space.chunks[location.chunk].unbacked_pages, 0u);
}

TEST_F(Optimistic, CommandsAreCountedThatWentThisWay) {
  const u64 inode = make_file("a", 7, 4);
  const u64 before = optimistic_count();
  EXPECT_EQ(client_.read(inode, 0, page_size).result, page_size);
  EXPECT_EQ(client_.read(inode, 2 * page_size, 100).result, 100u);
  EXPECT_EQ(optimistic_count(), before + 2);
  EXPECT_EQ(client_.read(inode, 100, page_size).result, page_size) << "of two pages";
  EXPECT_EQ(optimistic_count(), before + 2);
  EXPECT_EQ(client_.getattr(inode).result, inode);
  EXPECT_EQ(client_.attributes().size_bytes, 4 * page_size);
  EXPECT_EQ(optimistic_count(), before + 3);
}

// A read that is due to set the access time does so, and only then.
TEST_F(Optimistic, AccessTimesAreKept) {
  const u64 inode = client_.create("a").result;
  std::memset(client_.data(), 7, page_size);
  EXPECT_EQ(client_.write(inode, 0, page_size).status, Status::ok);
  const u64 before = optimistic_count();
  EXPECT_EQ(client_.read(inode, 0, page_size).status, Status::ok);
  EXPECT_EQ(optimistic_count(), before) << "the first read after a change is noted";
  EXPECT_EQ(client_.read(inode, 0, page_size).status, Status::ok);
  EXPECT_EQ(optimistic_count(), before + 1);
}

// Every read is noted, so none of them may rely on what another one saw. The reads here need not be noted, because the
// pool is not written.
TEST_F(Optimistic, StrictAccessTimesAreNotRemembered) {
  const u64 inode = make_file("a", 7, 4);
  engine_.fs().access_time_mode = fs::AccessTimeMode::strict;
  ReadPlan read{};
  EXPECT_FALSE(plan(inode, 0, page_size, &read)) << "due";
  engine_.fs().read_only = 1;
  for (u32 i = 0; i < 2; ++i) {
    bool was_known = true;
    EXPECT_TRUE(plan(inode, 0, page_size, &read, &was_known));
    EXPECT_FALSE(was_known);
  }
  engine_.fs().read_only = 0;
  engine_.fs().access_time_mode = fs::AccessTimeMode::relative;
}

// Names of a directory with subdirectories.
class OptimisticNames : public ::testing::Test {
 protected:
  OptimisticNames() : engine_(FileEngineOptions{.pool = {.chunk_count = 4}, .worker_count = 1}), client_(engine_) {
    outer_ = client_.mkdir(root, "outer").result;
    inner_ = client_.mkdir(outer_, "inner").result;
    file_ = client_.create(inner_, "file").result;
    views_.root = engine::RootView::of(engine_.fs());
    session_.trusted = 1;
  }

  u64 optimistic_count() { return engine_.host().counters().commands_optimistic; }
  // The command ends so, and went the way that is expected.
  void expect(const ring::Completion& done, Status status, u64 inode, bool is_optimistic) {
    EXPECT_EQ(done.status, status);
    EXPECT_EQ(done.result, inode);
    EXPECT_EQ(optimistic_count(), count_ + (is_optimistic ? 1 : 0));
    count_ = optimistic_count();
  }
  void settle() { count_ = optimistic_count(); }

  FileEngine engine_;
  NameClient client_;
  engine::Session session_{};
  WorkerViews views_{};
  u64 outer_ = 0;
  u64 inner_ = 0;
  u64 file_ = 0;
  u64 count_ = 0;
};

TEST_F(OptimisticNames, LookupsFindNamesAndWhatIsMissing) {
  settle();
  expect(client_.lookup(inner_, "file"), Status::ok, file_, true);
  EXPECT_EQ(client_.attributes().inode, file_);
  expect(client_.lookup(inner_, "nothing"), Status::not_found, 0, true);
  expect(client_.lookup(inner_, "."), Status::ok, inner_, false);
  expect(client_.lookup(inner_, ".."), Status::ok, outer_, false);
  expect(client_.lookup(file_, "file"), Status::not_directory, 0, false);
  expect(client_.lookup(inner_, "a/b"), Status::invalid_argument, 0, false);
  expect(client_.lookup(inner_, ""), Status::not_found, 0, false);
  expect(client_.lookup(inner_, std::string(256, 'x')), Status::name_too_long, 0, false);
  expect(client_.lookup(inner_, std::string(255, 'x')), Status::not_found, 0, true);
  expect(client_.lookup(999999, "file"), Status::stale, 0, false);
}

TEST_F(OptimisticNames, PathsAreWalkedWithoutLocks) {
  ASSERT_EQ(client_.symlink(inner_, "link", "file").status, Status::ok);
  const u64 link = client_.lookup(inner_, "link").result;
  settle();
  expect(client_.lookup_path(root, "outer/inner/file"), Status::ok, file_, true);
  EXPECT_EQ(client_.attributes().inode, file_);
  expect(client_.lookup_path(inner_, "//outer///inner/file"), Status::ok, file_, true);
  expect(client_.lookup_path(outer_, "inner"), Status::ok, inner_, true);
  expect(client_.lookup_path(root, "outer/none/file"), Status::not_found, 0, true);
  expect(client_.lookup_path(root, "outer/inner/link", false), Status::ok, link, true);
  expect(client_.lookup_path(root, "outer/inner/link", true), Status::ok, file_, false);
  expect(client_.lookup_path(root, "outer/inner/"), Status::ok, inner_, false);
  expect(client_.lookup_path(root, "outer/inner/file/"), Status::not_directory, 0, false);
  expect(client_.lookup_path(root, "outer/inner/file/x"), Status::not_directory, 0, false);
  expect(client_.lookup_path(root, "outer/../outer"), Status::ok, outer_, false);
  expect(client_.lookup_path(outer_, ""), Status::ok, outer_, false);
  expect(client_.lookup_path(outer_, "/"), Status::ok, root, false);
}

TEST_F(OptimisticNames, OpenAccessAndReadlinkNeedNoLock) {
  ASSERT_EQ(client_.symlink(inner_, "link", "to somewhere").status, Status::ok);
  const u64 link = client_.lookup(inner_, "link").result;
  std::string target;
  ASSERT_EQ(client_.readlink(link, &target).status, Status::ok);
  settle();
  expect(client_.readlink(link, &target), Status::ok, 12, true);
  EXPECT_EQ(target, "to somewhere");
  expect(client_.readlink(link, &target, 5), Status::ok, 5, true);
  EXPECT_EQ(target, "to so");
  expect(client_.readlink(file_, &target), Status::not_a_symlink, 0, false);
  expect(client_.access(file_, 6), Status::ok, 0, true);
  expect(client_.access(file_, 8), Status::invalid_argument, 0, false);
  expect(client_.open(file_, 2), Status::ok, file_, true);
  EXPECT_EQ(client_.attributes().inode, file_);
  expect(client_.open(inner_, 0200000), Status::ok, inner_, true);
  expect(client_.open(inner_, 1), Status::is_directory, 0, false);
  expect(client_.open(file_, 0200000), Status::not_directory, 0, false);
  expect(client_.open(link, 0), Status::loop, 0, false);
}

TEST_F(OptimisticNames, ContentInTheInodeIsRead) {
  FileClient files(engine_);
  std::memcpy(files.data(), "0123456789", 10);
  ASSERT_EQ(files.write(file_, 0, 10).status, Status::ok);
  ASSERT_EQ(files.read(file_, 0, 2 * page_size).status, Status::ok);
  settle();
  std::memset(files.data(), 0, 16);
  expect(files.read(file_, 3, page_size - 3), Status::ok, 7, true);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(files.data())), "3456789");
  expect(files.read(file_, 10, 100), Status::ok, 0, true);
}

TEST_F(OptimisticNames, AReadOnlyPoolRefusesWriters) {
  engine_.fs().read_only = 1;
  settle();
  expect(client_.open(file_, 2), Status::read_only, 0, false);
  expect(client_.access(file_, 2), Status::read_only, 0, false);
  expect(client_.open(file_, 0), Status::ok, file_, true);
  engine_.fs().read_only = 0;
}

TEST_F(OptimisticNames, LargeDirectoriesAreSearched) {
  constexpr u32 name_count = 3000;
  std::vector<u64> inodes;
  for (u32 i = 0; i < name_count; ++i) {
    const ring::Completion done = client_.create(inner_, "name" + std::to_string(i));
    ASSERT_EQ(done.status, Status::ok);
    inodes.push_back(done.result);
  }
  settle();
  for (u32 i = 0; i < name_count; ++i) {
    ASSERT_EQ(client_.lookup(inner_, "name" + std::to_string(i)).result, inodes[i]);
    ASSERT_EQ(client_.lookup(inner_, "missing" + std::to_string(i)).status, Status::not_found);
  }
  EXPECT_GT(optimistic_count(), count_ + 2 * name_count * 99 / 100);
}

TEST_F(OptimisticNames, AWalkThroughAChangedDirectoryIsRefused) {
  const engine::Entered entered = engine::try_enter_era(engine_.engine(), engine_.engine().step_gate);
  const ReaderContext reader{&engine_.engine(), &session_, &views_, entered.era, true, 1};
  const std::string path = "outer/inner/file";
  const engine::WalkNames names{reinterpret_cast<const u8*>(path.data()), static_cast<u32>(path.size()), true};
  engine::SeenVersions seen{};
  engine::WalkResult walked{};
  const std::function<void()> changes_of_names[] = {
      [&] { EXPECT_EQ(client_.create(inner_, "other").status, Status::ok); },
      [&] { EXPECT_EQ(client_.mkdir(outer_, "other").status, Status::ok); },
      [&] { EXPECT_EQ(client_.rename(root, "outer", root, "else").status, Status::ok); },
      [&] { EXPECT_EQ(client_.rename(root, "else", root, "outer").status, Status::ok); },
      [&] { EXPECT_EQ(client_.unlink(inner_, "file").status, Status::ok); },
  };
  for (const std::function<void()>& change : changes_of_names) {
    engine::walk_without_locks(reader, root, names, false, &seen, &walked);
    if (walked.status == Status::ok) {
      EXPECT_EQ(walked.inode, file_);
    }
    EXPECT_TRUE(seen.are_unchanged());
    change();
    EXPECT_FALSE(seen.are_unchanged());
  }
  engine::leave(engine_.engine(), engine_.engine().step_gate);
}

TEST_F(OptimisticNames, OnlyWhoMaySearchFindsNames) {
  ASSERT_EQ(client_.mkdir(root, "closed", 0700).status, Status::ok);
  const u64 closed = client_.lookup(root, "closed").result;
  ASSERT_EQ(client_.create(closed, "file").status, Status::ok);
  Client stranger(engine_, {.trusted = false, .uid = 1000, .gid = 1000});
  const auto look_up = [&](u64 directory) {
    std::memcpy(stranger.data(), "file", 4);
    wire::Command command = make_command(wire::Opcode::lookup);
    command.inode = directory;
    command.name = wire::ring_address(0, 0);
    command.name_length = 4;
    return stranger.call(command);
  };
  settle();
  expect(look_up(closed), Status::access, 0, false);
  expect(look_up(inner_), Status::ok, file_, true);
}

// A client watches its buffer while it reads a file whose pages another file gets again and again. With `by_warp` an
// emulated warp works, which ends before the sessions are closed, as a kernel does.
void watch_a_buffer(FileEngine& engine, bool by_warp) {
  constexpr u8 own = 7;
  constexpr u8 secret = 0xee;
  constexpr u64 pages = 16;
  FileClient writer(engine);
  Client reader(engine, ClientOptions{.data_length = 2 * page_size, .trusted = true});
  std::optional<KernelWarp> warp;
  if (by_warp) warp.emplace(engine.engine());
  const u64 inode = writer.create("own").result;
  const u64 other = writer.create("other").result;
  std::atomic<bool> is_over{false};
  std::thread writes([&] {
    while (!is_over.load()) {
      std::memset(writer.data(), own, pages * page_size);
      EXPECT_EQ(writer.write(inode, 0, pages * page_size).status, Status::ok);
      EXPECT_EQ(writer.read(inode, 0, 2 * page_size).status, Status::ok);
      EXPECT_EQ(writer.truncate(inode, 0).status, Status::ok);
      std::memset(writer.data(), secret, pages * page_size);
      EXPECT_EQ(writer.write(other, 0, pages * page_size).status, Status::ok);
      EXPECT_EQ(writer.truncate(other, 0).status, Status::ok);
    }
  });
  const u64 before = engine.host().counters().commands_optimistic;
  u32 seen = 0;
  for (u32 i = 0; i < 200; ++i) {
    u8* const buffer = reader.data();
    std::memset(buffer, 0, page_size);
    wire::Command command = make_command(wire::Opcode::read);
    command.inode = inode;
    command.offset = i % pages * page_size;
    command.length = page_size;
    command.data = wire::ring_address(0, 0);
    const u64 position = reader.publish(command);
    ring::Completion completion{Status::engine_died, 0};
    while (!reader.producer().poll(position, &completion)) {
      for (u64 at = 0; at < page_size; at += 64) {
        seen += (load_racy_8(reinterpret_cast<const u64*>(&buffer[at])) & 0xff) == secret ? 1 : 0;
      }
    }
    ASSERT_EQ(completion.status, Status::ok);
    seen += static_cast<u32>(std::count(buffer, buffer + page_size, secret));
  }
  is_over.store(true);
  writes.join();
  EXPECT_EQ(seen, 0u);
  EXPECT_GT(engine.host().counters().commands_optimistic, before) << "no read went without the lock";
}

TEST(OptimisticStress, AClientNeverSeesAByteOfAnotherFile) {
  FileEngine engine(FileEngineOptions{.worker_count = 2});
  watch_a_buffer(engine, false);
}

// The ranks of a warp look at the lock at different times, and have to agree on what they give out.
TEST(OptimisticStress, AWarpGivesOutNoByteOfAnotherFile) {
  FileEngine engine(FileEngineOptions{.worker_count = 2, .start = false});
  watch_a_buffer(engine, true);
}

}  // namespace
}  // namespace gpu4fs::test
