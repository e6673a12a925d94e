// A crash at any moment of a checkpoint leaves the complete tree of the previous epoch or of the new one.
//
// Memory devices keep everything that was stored before the crash. A medium with a cache keeps any part of the writes
// since the last flush. Both are tested: the devices' bytes after each step of a checkpoint, and mixtures in which each
// 512-byte sector is old or new at random.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "support/page_walk.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test {
namespace {

SmallPoolOptions two_devices() {
  SmallPoolOptions options;
  options.device_count = 2;
  options.chunk_count = 2;
  options.frame_count = 1024;
  options.staging_count = 512;
  return options;
}

// The epoch in the images and its model.
struct State {
  u64 epoch;
  WalkModel model;
};

// Opens the images and compares; returns the epoch found. Then works on and writes another checkpoint, which overwrites
// the remains of a lost one.
u64 expect_one_of(const SmallPoolOptions& options, const DeviceImages& images, const State& older, const State& newer,
                  bool work_on) {
  SmallFileSystem again(options, images);
  EXPECT_EQ(again.load_status(), Status::ok);
  if (again.load_status() != Status::ok) return 0;
  const u64 epoch = again.fs().epoch_durable;
  EXPECT_TRUE(epoch == older.epoch || epoch == newer.epoch) << epoch;
  const State& expected = epoch == newer.epoch ? newer : older;
  const WalkModel model = walk_on_lane(again, epoch, expected.model, [&](Lane, auto& walk) {
    walk.verify();
    walk.expect_pages_accounted();
    walk.expect_table_holds();
    if (!work_on) return;
    for (u32 i = 0; i < 30; ++i) walk.step();
    walk.checkpoint();
  });
  if (!work_on) return epoch;
  SmallFileSystem last(options, again.images());
  EXPECT_EQ(last.load_status(), Status::ok);
  walk_on_lane(last, 1, model, [&](Lane, auto& walk) {
    walk.verify();
    walk.expect_pages_accounted();
  });
  return epoch;
}

struct Moment {
  std::string name;
  DeviceImages images;
};

// A pool with some epochs of history, and a checkpoint of many pages with the devices' bytes after each call.
class CheckpointCrash : public ::testing::Test {
 protected:
  void record(u64 seed, bool on_warp) {
    const auto body = [&](auto g, auto& walk) {
      for (u32 round = 0; round < 3; ++round) {
        for (u32 i = 0; i < 60; ++i) walk.step();
        walk.checkpoint();
      }
      if (g.leader()) {
        older_ = {small_.fs().epoch_durable, walk.model()};
        moments_.push_back({"before", small_.images()});
      }
      for (u32 i = 0; i < 80; ++i) walk.step();
      const Status status = small_.checkpoint(g, [&](const char* name) {
        moments_.push_back({name, small_.images()});
      });
      if (g.leader()) {
        EXPECT_EQ(status, Status::ok);
        newer_ = {small_.fs().epoch_durable, walk.model()};
      }
    };
    if (on_warp) {
      walk_on_warp(small_, seed, {}, body);
    } else {
      walk_on_lane(small_, seed, {}, body);
    }
  }

  // The last moment of this name.
  const DeviceImages& last_of(const std::string& name) const {
    for (std::size_t i = moments_.size(); i-- > 0;) {
      if (moments_[i].name == name) return moments_[i].images;
    }
    ADD_FAILURE() << "no call of " << name;
    return moments_.front().images;
  }

  SmallFileSystem small_{two_devices()};
  std::vector<Moment> moments_;
  State older_{};
  State newer_{};
};

TEST_F(CheckpointCrash, AnyMomentIsOldOrNew) {
  record(101, false);
  std::set<std::string> names;
  bool superblocks_written = false;
  for (const Moment& moment : moments_) {
    SCOPED_TRACE(moment.name);
    superblocks_written |= moment.name == "superblocks";
    const bool first_of_its_kind = names.insert(moment.name).second;
    const u64 epoch = expect_one_of(two_devices(), moment.images, older_, newer_, first_of_its_kind);
    EXPECT_EQ(epoch, superblocks_written ? newer_.epoch : older_.epoch);
    if (HasFailure()) return;
  }
  EXPECT_EQ(names, (std::set<std::string>{"before", "relocate", "copy", "snapshot", "begin", "write", "chunk",
                                          "superblocks", "publish"}));
}

TEST_F(CheckpointCrash, AnyMomentIsOldOrNewWrittenByAWarp) {
  record(102, true);
  bool superblocks_written = false;
  for (const Moment& moment : moments_) {
    SCOPED_TRACE(moment.name);
    superblocks_written |= moment.name == "superblocks";
    const u64 epoch = expect_one_of(two_devices(), moment.images, older_, newer_, false);
    EXPECT_EQ(epoch, superblocks_written ? newer_.epoch : older_.epoch);
    if (HasFailure()) return;
  }
}

// Each different sector is taken from `after` with probability `percent`.
DeviceImages mixture(const DeviceImages& before, const DeviceImages& after, u32 percent, u64 seed) {
  constexpr u64 sector = 512;
  Sequence random(seed);
  DeviceImages mixed = before;
  for (std::size_t d = 0; d < mixed.size(); ++d) {
    for (const auto& [offset, page] : after[d].pages) {
      const DeviceImage::Page& old = before[d].page(offset);
      for (u64 at = 0; at < page_size; at += sector) {
        if (std::memcmp(&old[at], &page[at], sector) == 0) continue;
        if (random.next() % 100 < percent) mixed[d].write(offset + at, &page[at], sector);
      }
    }
  }
  return mixed;
}

// Before the first flush any part of pages, descriptors and bitmaps may be on the medium.
TEST_F(CheckpointCrash, AnyPartOfThePagesLeavesTheOldTree) {
  record(103, false);
  const DeviceImages& before = moments_.front().images;
  const DeviceImages& after = last_of("chunk");
  ASSERT_NE(before, after);
  for (u32 i = 0; i < scaled(150); ++i) {
    SCOPED_TRACE("mixture " + std::to_string(i));
    const DeviceImages mixed = mixture(before, after, 10 + 20 * (i % 5), i);
    EXPECT_EQ(expect_one_of(two_devices(), mixed, older_, newer_, i % 4 == 0), older_.epoch);
    if (HasFailure()) return;
  }
}

// Between the flushes any part of the superblocks may be on the medium. Devices may end up with different epochs.
TEST_F(CheckpointCrash, AnyPartOfTheSuperblocksLeavesOldOrNew) {
  record(104, false);
  const DeviceImages& before = last_of("chunk");
  const DeviceImages& after = last_of("superblocks");
  std::set<u64> epochs;
  for (u32 i = 0; i < scaled(150); ++i) {
    SCOPED_TRACE("mixture " + std::to_string(i));
    const DeviceImages mixed = mixture(before, after, 20 + 25 * (i % 4), i);
    epochs.insert(expect_one_of(two_devices(), mixed, older_, newer_, i % 8 == 0));
    if (HasFailure()) return;
  }
  // One device has the new superblock, the other the old one.
  for (const std::size_t lagging : {std::size_t{0}, std::size_t{1}}) {
    DeviceImages mixed = after;
    mixed[lagging] = before[lagging];
    EXPECT_EQ(expect_one_of(two_devices(), mixed, older_, newer_, true), newer_.epoch);
  }
  EXPECT_EQ(epochs.count(older_.epoch), 1u);
}

// The oracle of this file works: it notices if a page of the new tree did not reach the medium.
TEST_F(CheckpointCrash, LostPageIsNoticed) {
  record(105, false);
  const DeviceImages& before = moments_.front().images;
  const DeviceImages& images = last_of("superblocks");
  u32 noticed = 0;
  u32 tried = 0;
  const auto layout = format::chunk_layout(small_pool::chunk_pages(two_devices()));
  for (std::size_t d = 0; d < images.size() && tried < 20; ++d) {
    const u64 data = small_pool::column_offset(two_devices(), static_cast<u32>(d)) + layout.header_pages * page_size;
    for (u64 at = data; at < data + two_devices().chunk_bytes && tried < 20; at += page_size) {
      if (before[d].page(at) == images[d].page(at)) continue;
      DeviceImages damaged = images;
      damaged[d].pages[at] = before[d].page(at);
      ++tried;
      SmallFileSystem again(two_devices(), damaged);
      ASSERT_EQ(again.load_status(), Status::ok);
      bool found = false;
      for (const auto& [number, file] : newer_.model) {
        for (const auto& [index, pattern] : file.pages) {
          fs::Operation op = again.operation();
          fs::InodeRef ref{};
          u32 frame = fs::no_frame;
          Status status = fs::get_inode(Lane{}, again.fs(), op, number, &ref);
          if (status == Status::ok) status = fs::get_page(Lane{}, again.fs(), op, ref, {0, index}, &frame);
          found |= status == Status::checksum_mismatch;
        }
      }
      if (found) ++noticed;
    }
  }
  EXPECT_GT(tried, 5u);
  EXPECT_GT(noticed, 0u);
}

// A checkpoint writes every page to a place that the previous tree does not use.
TEST_F(CheckpointCrash, LivePagesAreNeverOverwritten) {
  record(106, false);
  const DeviceImages& before = moments_.front().images;
  const DeviceImages& after = moments_.back().images;
  SmallFileSystem old_tree(two_devices(), before);
  ASSERT_EQ(old_tree.load_status(), Status::ok);
  u64 live = 0;
  const auto layout = format::chunk_layout(small_pool::chunk_pages(two_devices()));
  for (u32 c = 0; c < two_devices().chunk_count; ++c) {
    const raid::ChunkState& chunk = old_tree.fs().space.chunks[c];
    const u64 data = small_pool::column_offset(two_devices(), c) + layout.header_pages * page_size;
    const std::size_t d = c % two_devices().device_count;
    for (u64 page = 0; page < chunk.page_count; ++page) {
      if ((chunk.bitmaps.committed[page / 64] >> (page % 64) & 1) == 0) continue;
      ++live;
      const u64 at = data + page * page_size;
      ASSERT_EQ(before[d].page(at), after[d].page(at)) << "chunk " << c << " page " << page;
    }
  }
  EXPECT_GT(live, 50u);
}

}  // namespace
}  // namespace gpu4fs::test
