// Commands without locks and what moves beneath them: numbers of inodes that get another type, pages that leave memory,
// blocks of all sizes, pools without checksums of data.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "engine/name_fixture.hpp"
#include "engine/optimistic/answer.hpp"
#include "fs/map/map_types.hpp"

namespace gpu4fs::test::optimistic_places_test {
namespace {

constexpr u64 giga = u64{1} << 30;

// The client that waits is the only worker.
FileEngineOptions lone_options(const SmallPoolOptions& pool = {}) {
  return {.pool = pool, .worker_count = 1, .start = false};
}

u64 optimistic_count(FileEngine& engine) {
  return engine.host().counters().commands_optimistic;
}

fs::InodeRef inode_of(FileEngine& engine, u64 number) {
  fs::Operation op{};
  fs::InodeRef ref{};
  EXPECT_EQ(fs::get_inode(Lane{}, engine.fs(), op, number, &ref), Status::ok);
  return ref;
}

// `count` pages, of which page i holds bytes of value i + 1; read once, which settles the access time.
u64 make_file(FileClient& client, const std::string& name, u64 count) {
  const u64 inode = client.create(name).result;
  for (u64 i = 0; i < count; ++i) std::memset(client.data(i * page_size), static_cast<int>(i + 1), page_size);
  EXPECT_EQ(client.write(inode, 0, count * page_size).status, Status::ok);
  EXPECT_EQ(client.read(inode, 0, 2 * page_size).status, Status::ok);
  return inode;
}

void expect_page(FileClient& client, u64 inode, u64 page, u8 value) {
  std::memset(client.data(), 0xaa, page_size);
  ASSERT_EQ(client.read(inode, page * page_size, page_size).result, page_size) << page;
  for (u64 i = 0; i < page_size; ++i) ASSERT_EQ(client.data()[i], value) << "page " << page << " byte " << i;
}

u64 era_of(FileEngine& engine) {
  return load<Order::acquire, Scope::engine>(&engine.engine().step_gate.word) / engine::gate_era;
}

class ReusedNumber : public ::testing::Test {
 protected:
  // The number of an inode that makes way for another one with the same number, which `make` makes.
  void remake(const std::string& name, const std::function<ring::Completion()>& make) {
    const bool is_directory =
        fs::is_directory(names_.getattr(number_).status == Status::ok ? names_.attributes().mode : 0);
    const ring::Completion gone = is_directory ? names_.rmdir(root, name) : names_.unlink(root, name);
    ASSERT_EQ(gone.result, number_);
    ASSERT_EQ(names_.reclaim(number_).status, Status::ok);
    // The shards take the next numbers from the beginning.
    fs::FileSystem& fs = engine_.fs();
    for (u32 i = 0; i < fs.shard_count; ++i) {
      fs.shards[i].inode_batch = 0;
      fs.shards[i].inode_mask = 0;
    }
    fs.inode_scan = number_ / format::inodes_per_page;
    ASSERT_EQ(make().result, number_);
  }
  void expect_type(u32 type) {
    const u64 before = optimistic_count(engine_);
    ASSERT_EQ(names_.lookup(root, "name").result, number_);
    EXPECT_EQ(names_.attributes().mode & fs::mode_type_mask, type);
    ASSERT_EQ(names_.getattr(number_).status, Status::ok);
    EXPECT_EQ(names_.attributes().mode & fs::mode_type_mask, type);
    EXPECT_GE(optimistic_count(engine_), before + 1) << "the leaf may be looked at for the first time";
    std::string target;
    EXPECT_EQ(names_.readlink(number_, &target).status, type == fs::mode_symlink ? Status::ok : Status::not_a_symlink);
    const Status looked_up = names_.lookup(number_, "x").status;
    EXPECT_EQ(looked_up, type == fs::mode_directory ? Status::not_found : Status::not_directory);
    const ring::Completion read = names_.call(names_.with_data(names_.named(wire::Opcode::read, number_, ""), 100));
    EXPECT_EQ(read.status, type == fs::mode_regular     ? Status::ok
                           : type == fs::mode_directory ? Status::is_directory
                                                        : Status::invalid_argument);
  }

  FileEngine engine_{lone_options()};
  NameClient names_{engine_};
  u64 number_ = 0;
};

TEST_F(ReusedNumber, AnswersAreAboutTheNewInode) {
  number_ = names_.create(root, "name").result;
  expect_type(fs::mode_regular);
  remake("name", [&] { return names_.mkdir(root, "name"); });
  expect_type(fs::mode_directory);
  remake("name", [&] { return names_.symlink(root, "name", "target"); });
  expect_type(fs::mode_symlink);
  remake("name", [&] { return names_.create(root, "name"); });
  expect_type(fs::mode_regular);
}

// A reader that has seen the inode before notices at the end that it is another one.
TEST_F(ReusedNumber, AReaderInBetweenIsRefused) {
  number_ = names_.mkdir(root, "name").result;
  const u64 inside = names_.create(number_, "file").result;
  engine::WorkerViews views{};
  views.root = engine::RootView::of(engine_.fs());
  engine::Session session{};
  session.trusted = 1;
  const engine::Entered entered = engine::try_enter_era(engine_.engine(), engine_.engine().step_gate);
  const engine::ReaderContext reader{&engine_.engine(), &session, &views, entered.era, true, 1};
  const std::string path = "name/file";
  const engine::WalkNames names{reinterpret_cast<const u8*>(path.data()), static_cast<u32>(path.size()), true};
  const engine::InodeView view = engine::look_at_inode(reader, number_);
  ASSERT_NE(view.inode, nullptr);
  engine::SeenVersions seen{};
  engine::WalkResult walked{};
  ASSERT_EQ(names_.lookup(number_, "file").result, inside);
  engine::walk_without_locks(reader, root, names, false, &seen, &walked);
  ASSERT_EQ(walked.inode, inside);
  ASSERT_TRUE(seen.are_unchanged());
  ASSERT_TRUE(engine::is_unchanged(*view.lock, view.version));
  ASSERT_EQ(names_.unlink(number_, "file").status, Status::ok);
  remake("name", [&] { return names_.symlink(root, "name", "target"); });
  EXPECT_FALSE(seen.are_unchanged());
  EXPECT_FALSE(engine::is_unchanged(*view.lock, view.version));
  const format::Inode now = engine::copy_with_content(engine::look_at_inode(reader, number_));
  EXPECT_TRUE(fs::is_symlink(now.mode));
  engine::leave(engine_.engine(), engine_.engine().step_gate);
}

// What a worker remembers, which answers one command at a time.
class KnownPages : public ReusedNumber {
 protected:
  struct Place {
    u64 era;
    u64 version;
    u32 frame;
  };

  // Where the worker finds a page of file `number`. The page is resident.
  Place find(u64 number, u32 level, u64 index) {
    const engine::Entered entered = engine::try_enter_era(engine_.engine(), engine_.engine().step_gate);
    views_.root = engine::RootView::of(engine_.fs());
    const engine::ReaderContext reader{&engine_.engine(), &session_, &views_, entered.era, true, 1, 0, &views_.known};
    const u64 version = engine::look_at_inode(reader, number).version;
    const fs::PageKey key = fs::PageKey::make(number, level, index);
    const Place place{entered.era, version, engine::find_frame(reader, key, version)};
    EXPECT_EQ(place.frame, fs::peek_frame(engine_.fs().pages, key));
    engine::leave(engine_.engine(), engine_.engine().step_gate);
    return place;
  }
  // Within an era the page has another frame, or the test shows nothing.
  static void expect_moved(const Place& from, const Place& to) {
    EXPECT_EQ(from.era, to.era);
    EXPECT_NE(from.version, to.version);
    EXPECT_NE(from.frame, to.frame);
  }

  engine::Session session_{};
  engine::WorkerViews views_{};
};

TEST_F(KnownPages, AMapPageThatWasMadeAnewIsFound) {
  FileClient client(engine_);
  const u64 inode = make_file(client, "file", 9);
  const Place before = find(inode, 1, 0);
  ASSERT_EQ(client.truncate(inode, 0).status, Status::ok);
  ASSERT_EQ(client.write(inode, 0, 9 * page_size).result, 9 * page_size);
  expect_moved(before, find(inode, 1, 0));
}

TEST_F(KnownPages, ALeafOfAnotherDirectoryWithTheSameNumberIsFound) {
  number_ = names_.mkdir(root, "name").result;
  ASSERT_EQ(names_.lookup(number_, "x").status, Status::not_found);
  const Place before = find(number_, 0, 0);
  remake("name", [&] { return names_.mkdir(root, "name"); });
  ASSERT_EQ(names_.lookup(number_, "x").status, Status::not_found);
  expect_moved(before, find(number_, 0, 0));
}

// A worker that remembers names.
class KnownNames : public KnownPages {
 protected:
  engine::ReaderContext reader(u64 era, bool is_trusted) {
    views_.root = engine::RootView::of(engine_.fs());
    session_.trusted = is_trusted ? 1 : 0;
    return {&engine_.engine(), &session_, &views_, era, is_trusted, 1, 0, &views_.known};
  }
  // The inode that the path leads to, 0: none. As the worker does it, a second attempt follows a change.
  u64 look_up(const std::string& path, bool is_trusted = true) {
    const engine::Entered entered = engine::try_enter_era(engine_.engine(), engine_.engine().step_gate);
    const engine::ReaderContext context = reader(entered.era, is_trusted);
    wire::Command command{};
    command.opcode = wire::Opcode::lookup_path;
    command.inode = root;
    command.name_length = static_cast<u16>(path.size());
    u64 inode = 0;
    status_ = Status::busy;
    for (u32 attempt = 0; attempt < 2 && status_ == Status::busy; ++attempt) {
      if (views_.known.has_changed != 0) views_.known.forget(Lane{}, entered.era);
      status_ = engine::answer_lookup(context, command, reinterpret_cast<const u8*>(path.data()), nullptr, &inode);
    }
    engine::leave(engine_.engine(), engine_.engine().step_gate);
    return inode;
  }
  bool is_known(u64 directory, u64 inode) const {
    for (const auto& set : views_.known.names) {
      for (const engine::KnownName& name : set) {
        if (name.length != 0 && name.directory == directory && name.inode == inode) return true;
      }
    }
    return false;
  }
  // Another inode takes the place of this one's view.
  void forget_view(u64 number) {
    const engine::Entered entered = engine::try_enter_era(engine_.engine(), engine_.engine().step_gate);
    const engine::ReaderContext context = reader(entered.era, true);
    for (u64 other = number + 1; views_.known.inode(number).number == number && other < number + 1000; ++other) {
      const bool shares = engine::KnownPlaces::inode_place(other) == engine::KnownPlaces::inode_place(number);
      if (shares) engine::view_inode(context, other);
    }
    engine::leave(engine_.engine(), engine_.engine().step_gate);
    EXPECT_NE(views_.known.inode(number).number, number);
  }

  Status status_ = Status::ok;
};

TEST_F(KnownNames, AChangedDirectoryIsSearchedAnew) {
  const u64 directory = names_.mkdir(root, "directory").result;
  const u64 first = names_.create(directory, "first").result;
  const u64 second = names_.create(directory, "second").result;
  for (u32 i = 0; i < 40; ++i) names_.create(root, "other" + std::to_string(i));
  for (u32 times = 0; times < 2; ++times) {
    ASSERT_EQ(look_up("/directory/first"), first);
    ASSERT_TRUE(is_known(root, directory));
    ASSERT_TRUE(is_known(directory, first));
  }
  ASSERT_EQ(names_.rename(directory, "second", directory, "first").status, Status::ok);
  EXPECT_EQ(look_up("/directory/first"), second);
  // Both inodes are looked at again, but the name is still remembered.
  ASSERT_EQ(names_.rename(directory, "first", directory, "moved").status, Status::ok);
  ASSERT_TRUE(is_known(directory, second));
  forget_view(directory);
  forget_view(second);
  EXPECT_EQ(look_up("/directory/first"), 0u);
  EXPECT_EQ(status_, Status::not_found);
}

TEST_F(KnownNames, AFileThatGotTheNumberOfADirectoryIsNotSearched) {
  number_ = names_.mkdir(root, "name").result;
  names_.create(number_, "inside");
  ASSERT_NE(look_up("/name/inside"), 0u);
  ASSERT_EQ(names_.unlink(number_, "inside").status, Status::ok);
  remake("name", [&] { return names_.create(root, "name"); });
  EXPECT_EQ(look_up("/name/inside"), 0u);
  EXPECT_EQ(status_, Status::busy);
}

// The file's inode is free, so the walk does not get to its end. The outdated name is forgotten nevertheless.
TEST_F(KnownNames, AFileInThePlaceOfAFreedOneIsFound) {
  const u64 directory = names_.mkdir(root, "directory").result;
  number_ = names_.create(directory, "name").result;
  ASSERT_EQ(look_up("/directory/name"), number_);
  const u64 other = names_.create(directory, "other").result;
  ASSERT_EQ(names_.rename(directory, "other", directory, "name").status, Status::ok);
  ASSERT_EQ(names_.reclaim(number_).status, Status::ok);
  EXPECT_EQ(look_up("/directory/name"), other) << status_name(status_);
}

TEST_F(KnownNames, ADirectoryInThePlaceOfALinkIsSearched) {
  const u64 directory = names_.mkdir(root, "directory").result;
  const u64 link = names_.symlink(directory, "name", "target").result;
  ASSERT_EQ(look_up("/directory/name"), link);
  ASSERT_EQ(names_.unlink(directory, "name").status, Status::ok);
  const u64 instead = names_.mkdir(directory, "name").result;
  const u64 inside = names_.create(instead, "inside").result;
  EXPECT_EQ(look_up("/directory/name/inside"), inside) << status_name(status_);
}

// Who may not search a directory does not find what others have found there.
TEST_F(KnownNames, RightsAreCheckedEachTime) {
  const u64 directory = names_.mkdir(root, "closed", 0700).result;
  ASSERT_NE(engine::KnownPlaces::inode_place(directory), engine::KnownPlaces::inode_place(root));
  const u64 inside = names_.create(directory, "inside").result;
  session_.uid = 4711;
  for (u32 times = 0; times < 2; ++times) {
    EXPECT_EQ(look_up("/closed/inside", true), inside);
    EXPECT_EQ(look_up("/closed/inside", false), 0u);
    EXPECT_EQ(status_, Status::busy);
  }
}

TEST_F(KnownNames, LongNamesAreNotRemembered) {
  const std::string name(engine::KnownName::length_max + 1, 'n');
  const u64 file = names_.create(root, name).result;
  const std::string shorter = name.substr(1);
  const u64 other = names_.create(root, shorter).result;
  for (u32 times = 0; times < 2; ++times) {
    EXPECT_EQ(look_up("/" + name), file);
    EXPECT_EQ(look_up("/" + shorter), other);
  }
  EXPECT_FALSE(is_known(root, file));
  EXPECT_TRUE(is_known(root, other));
}

// All pages leave memory, and their frames get other ones: what a worker remembers leads to these.
TEST(OptimisticEviction, WhatWasRememberedIsForgottenWithThePages) {
  FileEngine engine(lone_options({.frame_count = 320}));
  FileClient client(engine);
  // More pages than the inode has slots, so there is a map page.
  const u64 first = make_file(client, "first", 9);
  std::vector<u64> others;
  for (u32 i = 0; i < 12; ++i) {
    const u64 inode = client.create("other" + std::to_string(i)).result;
    std::memset(client.data(), 0xee, 9 * page_size);
    ASSERT_EQ(client.write(inode, 0, 9 * page_size).status, Status::ok);
    others.push_back(inode);
  }
  ASSERT_EQ(client.checkpoint().status, Status::ok);
  expect_page(client, first, 8, 9);
  u64 before = optimistic_count(engine);
  expect_page(client, first, 7, 8);
  ASSERT_EQ(optimistic_count(engine), before + 1);

  const fs::PageKey map_page = fs::PageKey::make(first, 1, 0);
  const u32 frame = fs::peek_frame(engine.fs().pages, map_page);
  ASSERT_NE(frame, fs::no_frame);
  engine::CommandState& closer = engine.engine().commands[engine::checkpoint_command];
  ASSERT_EQ(engine::close_or_park(engine.engine().step_gate, closer), Status::ok);
  fs::evict_frames(Lane{}, engine.fs(), engine.fs().pages.frame_count);
  engine::open(engine.engine(), engine.engine().step_gate, closer);
  EXPECT_EQ(fs::peek_frame(engine.fs().pages, map_page), fs::no_frame);
  for (const u64 inode : others) ASSERT_EQ(client.read(inode, 0, 9 * page_size).status, Status::ok);
  EXPECT_NE(engine.fs().pages.frames[frame].key.inode, first) << "the frame was to get another page";

  before = optimistic_count(engine);
  for (u64 page = 0; page < 9; ++page) expect_page(client, first, page, static_cast<u8>(page + 1));
  EXPECT_EQ(optimistic_count(engine), before + 8) << "after the first of them the pages are in memory";
  EXPECT_EQ(engine.fs().had_error, 0u);
}

// A pool with few frames that evicts by itself while many files are read.
TEST(OptimisticEviction, FilesAreReadWhileTheirPagesComeAndGo) {
  FileEngine engine(lone_options({.frame_count = 320}));
  FileClient client(engine);
  std::vector<u64> files;
  for (u32 i = 0; i < 400; ++i) {
    const u64 inode = client.create("file" + std::to_string(i)).result;
    std::memset(client.data(), static_cast<int>(i % 200 + 1), page_size);
    // Behind the slots of the inode, so each file has a map page.
    ASSERT_EQ(client.write(inode, 8 * page_size, page_size).status, Status::ok);
    files.push_back(inode);
  }
  const u64 before = optimistic_count(engine);
  const u64 first_era = era_of(engine);
  for (u32 round = 0; round < 2; ++round) {
    for (u32 i = 0; i < files.size(); ++i) {
      ASSERT_EQ(client.lookup("file" + std::to_string(i)).result, files[i]);
      for (u32 again = 0; again < 2; ++again) expect_page(client, files[i], 8, static_cast<u8>(i % 200 + 1));
      expect_page(client, files[i], 3, 0);
    }
  }
  EXPECT_GT(optimistic_count(engine), before + 2 * files.size());
  EXPECT_GT(era_of(engine), first_era) << "nothing was evicted";
}

TEST(OptimisticBlocks, BlocksOf2MiBAreRead) {
  FileEngine engine(lone_options({.chunk_count = 4}));
  FileClient client(engine);
  const u64 inode = client.create("file").result;
  ASSERT_EQ(client.fallocate(inode, 0, 0, 32 * page_size).status, Status::ok);  // so there is a map page
  constexpr u64 pages = pages_per_block_2m;
  for (u64 i = 0; i < pages; ++i) std::memset(client.data(i * page_size), static_cast<int>(i % 251 + 1), page_size);
  ASSERT_EQ(client.write(inode, pages * page_size, pages * page_size).result, pages * page_size);
  const fs::InodeRef ref = inode_of(engine, inode);
  ASSERT_EQ(ref.inode->height, 1);
  const format::BlockPointer pointer = fs::load_slot(&ref.inode->slots[1]);
  ASSERT_FALSE(pointer.is_indirect());
  ASSERT_EQ(pointer.size(), format::BlockSize::block_2m);
  ASSERT_EQ(client.read(inode, 0, 2 * page_size).status, Status::ok);
  const u64 before = optimistic_count(engine);
  for (const u64 page : {u64{0}, u64{1}, u64{63}, u64{64}, u64{250}, pages - 1}) {
    expect_page(client, inode, pages + page, static_cast<u8>(page % 251 + 1));
  }
  expect_page(client, inode, 20, 0);
  expect_page(client, inode, 31, 0);
  expect_page(client, inode, 100, 0);
  EXPECT_EQ(client.read(inode, 2 * pages * page_size - 10, 100).result, 10u);
  EXPECT_EQ(client.read(inode, 2 * pages * page_size, 100).result, 0u);
  EXPECT_EQ(client.read(inode, ~u64{0}, 100).result, 0u);
  EXPECT_EQ(client.read(inode, ~u64{0} - page_size, page_size).result, 0u);
  EXPECT_EQ(optimistic_count(engine), before + 13);
}

// A block that has not been written reads as zeros. One with data is put into the map by hand.
TEST(OptimisticBlocks, BlocksOf1GiBAreRead) {
  FileEngine engine(lone_options({.chunk_count = 3, .chunk_bytes = giga, .frame_count = 8192, .staging_count = 8192}));
  FileClient client(engine);
  const u64 inode = client.create("file").result;
  ASSERT_EQ(client.fallocate(inode, 0, 0, 2 * giga).status, Status::ok);
  const fs::InodeRef ref = inode_of(engine, inode);
  const format::BlockPointer pointer = fs::load_slot(&ref.inode->slots[1]);
  ASSERT_EQ(pointer.size(), format::BlockSize::block_1g);
  ASSERT_TRUE(pointer.is_unwritten());
  ASSERT_EQ(client.read(inode, 0, 2 * page_size).status, Status::ok);
  const u64 before = optimistic_count(engine);
  constexpr u64 pages = giga / page_size;
  expect_page(client, inode, pages + 5, 0);
  expect_page(client, inode, 2 * pages - 1, 0);
  for (const u64 page : {u64{0}, u64{5}, u64{513}, pages - 1}) {
    std::vector<u8> bytes(page_size, static_cast<u8>(page % 251 + 1));
    const raid::PageMerge merge{
        pointer.address() + page * page_size, raid::no_address, {0, page_size}, bytes.data(), raid::PageUse::data};
    ASSERT_EQ(raid::write_page_merged(Lane{}, engine.fs().space, merge), Status::ok);
  }
  fs::store_slot(&ref.inode->slots[1], format::BlockPointer::data(pointer.address(), format::BlockSize::block_1g));
  for (const u64 page : {u64{0}, u64{5}, u64{513}, pages - 1}) {
    expect_page(client, inode, pages + page, static_cast<u8>(page % 251 + 1));
  }
  EXPECT_EQ(optimistic_count(engine), before + 6);
}

// Without checksums of data the version alone decides, and damage is the client's.
TEST(OptimisticWithoutChecksums, TheVersionDecides) {
  FileEngine engine(lone_options());
  engine.fs().space.data_checksums = 0;
  FileClient client(engine);
  const u64 inode = make_file(client, "file", 4);
  const u64 before = optimistic_count(engine);
  expect_page(client, inode, 2, 3);
  EXPECT_EQ(optimistic_count(engine), before + 1);

  engine::WorkerViews views{};
  views.root = engine::RootView::of(engine.fs());
  engine::Session session{};
  session.trusted = 1;
  const engine::Entered entered = engine::try_enter_era(engine.engine(), engine.engine().step_gate);
  const engine::ReaderContext reader{&engine.engine(), &session, &views, entered.era, true, 1};
  const engine::ReadRange range{inode, 2 * page_size, page_size};
  alignas(16) static u8 work[page_size];
  std::vector<u8> buffer(page_size, 0xaa);
  engine::ReadPlan plan{};
  engine::FreshViews fresh{};
  engine::FilledViews filled{};
  ASSERT_EQ(engine::plan_read(reader, range, buffer.data(), &plan, &fresh, &filled), engine::PlannedRead::page);
  u8* const medium = const_cast<u8*>(plan.page);
  medium[17] = 0x55;
  EXPECT_TRUE(engine::move_planned(Lane{}, views.root, plan, work));
  EXPECT_EQ(buffer[17], 0x55);
  EXPECT_EQ(buffer[18], 3);
  // The page is overwritten where it lies.
  std::memset(client.data(), 9, page_size);
  ASSERT_EQ(client.write(inode, 2 * page_size, page_size).status, Status::ok);
  EXPECT_EQ(medium[17], 9);
  std::fill(buffer.begin(), buffer.end(), u8{0xaa});
  EXPECT_FALSE(engine::move_planned(Lane{}, views.root, plan, work));
  EXPECT_EQ(std::count(buffer.begin(), buffer.end(), 0xaa), static_cast<std::ptrdiff_t>(page_size));
  engine::leave(engine.engine(), engine.engine().step_gate);
}

// Addresses that are not the session's are refused as by the ordinary way, to which a flag leads.
TEST(OptimisticAddresses, AreCheckedAsByTheOrdinaryWay) {
  FileEngine engine(lone_options());
  FileClient files(engine);
  const u64 file = make_file(files, "file", 2);
  Client client(engine, {.data_length = page_size});
  std::memcpy(client.data(), "file", 4);
  constexpr u64 inside = wire::ring_address(0, 0);
  const u64 addresses[] = {0,
                           inside,
                           wire::ring_address(0, 64),
                           wire::ring_address(0, 72),
                           wire::ring_address(0, 4000),
                           ~u64{0},
                           wire::ring_address(0, page_size),
                           wire::ring_address(0, ~u32{0}),
                           wire::ring_address(3, 0)};
  using wire::Opcode;
  u32 refused = 0;
  for (const Opcode opcode : {Opcode::read, Opcode::readlink, Opcode::getattr, Opcode::access, Opcode::open,
                              Opcode::lookup, Opcode::lookup_path}) {
    for (const u64 data : addresses) {
      for (const u64 output : addresses) {
        for (const u64 length : {u64{0}, u64{1}, u64{100}, u64{page_size}, ~u64{0}}) {
          const bool has_name = opcode == Opcode::lookup || opcode == Opcode::lookup_path;
          wire::Command command = make_command(opcode);
          command.inode = has_name ? root : file;
          command.data = data;
          command.output = output;
          command.length = length;
          command.name = has_name ? data : 0;
          command.name_length = has_name ? 4 : 0;
          std::memcpy(client.data(), "file", 4);
          const ring::Completion found = client.call(command);
          command.flags = wire::command_flag_follow;
          std::memcpy(client.data(), "file", 4);
          const ring::Completion expected = client.call(command);
          ASSERT_EQ(status_name(found.status), status_name(expected.status))
              << wire::command_name(opcode) << " data " << data << " output " << output << " length " << length;
          ASSERT_EQ(found.result, expected.result);
          refused += expected.status == Status::ok ? 0 : 1;
        }
      }
    }
  }
  EXPECT_GT(refused, 100u);
}

}  // namespace
}  // namespace gpu4fs::test::optimistic_places_test
