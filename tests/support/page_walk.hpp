// Random work on metadata pages, with a model of their content. There are no directories: files are sets of pages at
// chosen indices, filled with a pattern.
//
// All ranks of a group run a PageWalk of their own with equal seeds; only the leader touches memory.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "support/group_runner.hpp"
#include "support/small_file_system.hpp"

namespace gpu4fs::test {

struct WalkFile {
  std::map<u64, u64> pages;   // index -> pattern
  u64 attribute_pattern = 0;  // 0: no attribute page
  bool orphan = false;
  friend bool operator==(const WalkFile&, const WalkFile&) = default;
};
using WalkModel = std::map<u64, WalkFile>;  // by inode number

inline void fill_pattern(u8* page, u64 pattern) {
  Sequence sequence(pattern);
  for (u32 i = 0; i < page_size / 8; ++i) {
    const u64 word = sequence.next();
    std::memcpy(page + 8 * i, &word, 8);
  }
}
inline bool has_pattern(const u8* page, u64 pattern) {
  alignas(16) u8 expected[page_size];
  fill_pattern(expected, pattern);
  return std::memcmp(page, expected, page_size) == 0;
}

// Everything that must hold between operations. Leader only; no operation holds a reservation.
inline void expect_page_table_holds(SmallFileSystem& small) {
  fs::FileSystem& fs = small.fs();
  const fs::PageTable& table = fs.pages;
  u32 valid = 0;
  u32 dirty = 0;
  u32 never_written = 0;
  for (u32 i = 0; i < table.frame_count; ++i) {
    const fs::Frame& frame = table.frames[i];
    if (frame.dirty != 0) ++dirty;
    if (frame.state == fs::frame_free) continue;
    ASSERT_EQ(frame.state, fs::frame_valid);
    ASSERT_EQ(fs::detail::find_frame(table, frame.key), i);
    ++valid;
    if (frame.address == 0) ++never_written;
    if (frame.address == 0) {
      ASSERT_NE(frame.dirty, 0u) << "a new page that no checkpoint will write";
    }
    const u32 parent = fs::detail::parent_frame(fs, i);
    if (parent != fs::no_frame && frame.dirty != 0) {
      ASSERT_NE(table.frames[parent].dirty, 0u) << "a dirty page below a clean one";
    }
  }
  u32 free_list = 0;
  for (u32 i = table.free_head; i != fs::no_frame && free_list <= table.frame_count; i = table.frames[i].next) {
    ++free_list;
  }
  ASSERT_EQ(free_list, table.free_count);
  ASSERT_EQ(valid + free_list + table.limbo_count, table.frame_count);
  ASSERT_EQ(dirty, fs.dirty.count);
  ASSERT_EQ(fs.dirty.reserved, 0u);
  ASSERT_EQ(table.frames_reserved, 0u);
  u64 busy = 0;
  u64 committed = 0;
  u64 pending = 0;
  for (u32 c = 0; c < fs.space.chunk_count; ++c) {
    const raid::ChunkState& chunk = fs.space.chunks[c];
    for (u64 w = 0; w < chunk.page_count / 64; ++w) {
      busy += popcount(chunk.bitmaps.busy[w]);
      committed += popcount(chunk.bitmaps.committed[w]);
      pending += popcount(chunk.bitmaps.freed_now[w] | chunk.bitmaps.freed_old[w]);
    }
  }
  ASSERT_EQ(fs.data_counters().free, fs.data_counters().total - busy);
  ASSERT_EQ(fs.data_counters().used, committed);
  ASSERT_EQ(fs.data_counters().freed_pending, pending);
  ASSERT_EQ(busy, committed + pending);
  ASSERT_EQ(fs.data_counters().reserved, u64{dirty}) << "one promised page for each dirty one";
  ASSERT_EQ(fs.data_counters().available + fs.data_counters().reserved, fs.data_counters().free);
  ASSERT_EQ(fs.had_error, 0u);
}

template <class Group>
class PageWalk {
 public:
  PageWalk(Group g, SmallFileSystem& small, fs::Operation& op, u64 seed)
      : g_(g), small_(small), op_(op), random_(seed) {}

  const WalkModel& model() const { return model_; }
  void set_model(const WalkModel& model) { model_ = model; }
  u64 random(u64 bound) { return random_.next() % bound; }
  u32 checkpoint_count() const { return checkpoint_count_; }
  u32 refused_count() const { return refused_count_; }

  // One random operation; the model follows. Repeats an operation after a checkpoint if it needs one.
  void step() {
    begin();
    const u64 choice = random(100);
    if (model_.empty() || choice < 12) return create();
    auto at = model_.begin();
    std::advance(at, static_cast<long>(random(model_.size())));
    const u64 number = at->first;
    WalkFile& file = at->second;
    if (choice < 45) return add(number, file);
    if (choice < 60) return rewrite(number, file);
    if (choice < 75) return remove(number, file);
    if (choice < 83) return change_attribute(number, file);
    if (choice < 92) return change_orphan(number, file);
    if (file.pages.size() < 4) destroy(number);
  }

  void checkpoint() {
    const Status status = small_.checkpoint(g_);
    expect_equal(status, Status::ok);
    ++checkpoint_count_;
  }
  // The engine's reaction to a command that found no room.
  void make_room() {
    checkpoint();
    fs::evict_frames(g_, fs(), fs().pages.frame_count / 2);
  }

  // Compares everything with the model. Needs frames; makes room itself.
  void verify() {
    for (const auto& [number, file] : model_) verify_file(number, file);
    std::vector<u64> orphans;
    for (u64 from = 0;;) {
      u64 found = 0;
      begin();
      expect_equal(retried([&] { return fs::next_orphan(g_, fs(), op_, from, &found); }), Status::ok);
      if (found == 0) break;
      orphans.push_back(found);
      from = found + 1;
    }
    std::vector<u64> expected;
    for (const auto& [number, file] : model_) {
      if (file.orphan) expected.push_back(number);
    }
    if (g_.leader()) {
      EXPECT_EQ(orphans, expected);
    }
    const u64 used = on_leader(g_, [&] { return fs().inode_used; });
    if (g_.leader()) {
      EXPECT_EQ(used, format::inode_number_first_free + model_.size());
    }
  }

  // The pages in use are those that the inodes count. Right after a checkpoint.
  void expect_pages_accounted() {
    u64 sum = on_leader(g_, [&] { return fs().inode_file.page_count; });
    std::vector<u64> numbers = {1, 2, 3};
    for (const auto& entry : model_) numbers.push_back(entry.first);
    for (const u64 number : numbers) {
      fs::InodeRef ref{};
      begin();
      expect_equal(retried([&] { return fs::get_inode(g_, fs(), op_, number, &ref); }), Status::ok);
      sum += on_leader(g_, [&] { return ref.inode->page_count; });
    }
    const u64 used = on_leader(g_, [&] { return fs().data_counters().used; });
    if (g_.leader()) {
      EXPECT_EQ(used, sum);
    }
  }

  void expect_table_holds() {
    on_leader(g_, [&] { expect_page_table_holds(small_); });
  }

 private:
  fs::FileSystem& fs() { return small_.fs(); }
  void expect_equal(Status actual, Status expected) {
    if (g_.leader()) {
      EXPECT_STREQ(status_name(actual), status_name(expected));
    }
  }
  void begin() {
    on_leader(g_, [&] { op_ = small_.operation(static_cast<u32>(step_count_)); });
    ++step_count_;
  }
  void end() {
    on_leader(g_, [&] { fs::release_reservations(fs(), op_); });
  }

  // Runs a prepare phase. If it needs a checkpoint, releases everything and tries again, like the engine. Returns its
  // last status.
  template <class Prepare>
  Status retried(Prepare&& prepare) {
    for (u32 attempt = 0; attempt < 8; ++attempt) {
      const Status status = prepare();
      if (status == Status::ok) return status;
      end();
      if (status != Status::retry_after_checkpoint) return status;
      make_room();
    }
    return Status::retry_after_checkpoint;
  }
  // For operations that may run out of space: true if prepared.
  template <class Prepare>
  bool prepared(Prepare&& prepare) {
    const Status status = retried(prepare);
    if (status == Status::ok) return true;
    expect_equal(status, Status::no_space);
    ++refused_count_;
    return false;
  }

  u64 random_index() {
    constexpr u64 fan_out = format::slots_per_block;
    constexpr u64 edges[] = {0,
                             7,
                             7 * fan_out,
                             7 * fan_out * fan_out,
                             7 * fan_out * fan_out * fan_out,
                             7 * fan_out * fan_out * fan_out * fan_out};
    const u64 edge = edges[random(random(3) == 0 ? 6 : 3)];
    return edge + random(12) - minimum<u64>(edge, random(6));
  }

  void create() {
    u64 number = 0;
    const bool ready = prepared([&] {
      GPU4FS_TRY(fs::claim_inode(g_, fs(), op_, &number));
      Status status = fs::prepare_new_inode(g_, fs(), op_, number);
      if (status == Status::ok) status = fs::reserve_metadata(g_, fs(), op_, {1, 0, 0});
      if (status != Status::ok) on_leader(g_, [&] { fs::unclaim_inode(fs(), op_); });
      return status;
    });
    if (!ready) return;
    const fs::NewInode values{0040700, 0, 10, 20, 1, 1, 0, 0};
    const fs::InodeRef ref = fs::commit_new_inode(g_, fs(), op_, number, values);
    if (g_.leader()) {
      EXPECT_EQ(ref.number, number);
      EXPECT_EQ(model_.count(number), 0u) << "a number was given twice";
    }
    model_[number] = {};
    end();
  }

  bool prepare_change(u64 number, u32 level, u64 index, bool is_new, fs::InodeRef* ref, u32* frame) {
    return prepared([&] {
      GPU4FS_TRY(fs::get_inode(g_, fs(), op_, number, ref));
      const Status status = fs::get_page(g_, fs(), op_, *ref, {level, index}, frame);
      if (is_new ? status != Status::page_absent : status != Status::ok) return status;
      return fs::reserve_metadata(g_, fs(), op_, {1, is_new ? 0u : 1u, is_new ? 1u : 0u});
    });
  }

  void add(u64 number, WalkFile& file) {
    const u64 index = random_index();
    const u64 pattern = random_.next() | 1;
    if (file.pages.count(index) != 0) return;
    fs::InodeRef ref{};
    u32 frame = fs::no_frame;
    if (!prepare_change(number, 0, index, true, &ref, &frame)) return;
    frame = fs::add_page(g_, fs(), op_, ref, {0, index});
    on_leader(g_, [&] { fill_pattern(fs::page_data(fs(), frame), pattern); });
    fs::mark_inode_dirty(g_, fs(), op_, ref);
    file.pages[index] = pattern;
    end();
  }

  void rewrite(u64 number, WalkFile& file) {
    if (file.pages.empty()) return;
    auto at = file.pages.begin();
    std::advance(at, static_cast<long>(random(file.pages.size())));
    const u64 pattern = random_.next() | 1;
    fs::InodeRef ref{};
    u32 frame = fs::no_frame;
    if (!prepare_change(number, 0, at->first, false, &ref, &frame)) return;
    fs::mark_dirty(g_, fs(), op_, ref, frame);
    on_leader(g_, [&] { fill_pattern(fs::page_data(fs(), frame), pattern); });
    at->second = pattern;
    end();
  }

  void remove(u64 number, WalkFile& file) {
    if (file.pages.empty()) return;
    auto at = file.pages.begin();
    std::advance(at, static_cast<long>(random(file.pages.size())));
    fs::InodeRef ref{};
    u32 frame = fs::no_frame;
    if (!prepare_change(number, 0, at->first, false, &ref, &frame)) return;
    remove_with_ancestors(ref, at->first);
    file.pages.erase(at);
    end();
  }

  // The page, the map pages above that become empty, and the height of an empty file.
  void remove_with_ancestors(const fs::InodeRef& ref, u64 index) {
    const u32 height = on_leader(g_, [&] { return u32{ref.inode->height}; });
    fs::remove_page(g_, fs(), op_, ref, {0, index});
    for (u32 level = 1; level <= height; ++level) {
      index >>= format::slot_shift;
      const bool is_empty = on_leader(g_, [&] {
        const u32 frame = fs::resident_frame(fs(), ref.number, level, index);
        const format::BlockPointer* slots = fs::map_slots(fs(), frame);
        for (u32 i = 0; i < format::slots_per_block; ++i) {
          if (slots[i].is_valid()) return false;
        }
        return true;
      });
      if (!is_empty) return;
      fs::remove_page(g_, fs(), op_, ref, {level, index});
    }
    on_leader(g_, [&] {
      if (ref.inode->page_count == 0) ref.inode->height = 0;
    });
    fs::mark_inode_dirty(g_, fs(), op_, ref);
  }

  void change_attribute(u64 number, WalkFile& file) {
    const bool is_new = file.attribute_pattern == 0;
    const u64 pattern = !is_new && random(2) == 0 ? 0 : random_.next() | 1;
    fs::InodeRef ref{};
    u32 frame = fs::no_frame;
    if (!prepare_change(number, fs::attribute_level, 0, is_new, &ref, &frame)) return;
    if (pattern == 0) {
      fs::remove_page(g_, fs(), op_, ref, {fs::attribute_level, 0});
    } else {
      if (is_new) frame = fs::add_page(g_, fs(), op_, ref, {fs::attribute_level, 0});
      fs::mark_dirty(g_, fs(), op_, ref, frame);
      on_leader(g_, [&] { fill_pattern(fs::page_data(fs(), frame), pattern); });
    }
    fs::mark_inode_dirty(g_, fs(), op_, ref);
    file.attribute_pattern = pattern;
    end();
  }

  void change_orphan(u64 number, WalkFile& file) {
    const bool ready = prepared([&] {
      GPU4FS_TRY(fs::prepare_orphan(g_, fs(), op_, number));
      return fs::reserve_metadata(g_, fs(), op_, {1, 0, 0});
    });
    if (!ready) return;
    if (file.orphan) {
      fs::clear_orphan(g_, fs(), op_, number);
    } else {
      fs::set_orphan(g_, fs(), op_, number);
    }
    file.orphan = !file.orphan;
    end();
  }

  void destroy(u64 number) {
    WalkFile& file = model_[number];
    while (!file.pages.empty()) {
      begin();
      const std::size_t before = file.pages.size();
      remove(number, file);
      if (file.pages.size() == before) return;
    }
    if (file.attribute_pattern != 0 || file.orphan) return;
    fs::InodeRef ref{};
    begin();
    const bool ready = prepared([&] {
      GPU4FS_TRY(fs::get_inode(g_, fs(), op_, number, &ref));
      GPU4FS_TRY(fs::prepare_free_inode(g_, fs(), op_, number));
      return fs::reserve_metadata(g_, fs(), op_, {1, 0, 0});
    });
    if (!ready) return;
    fs::commit_free_inode(g_, fs(), op_, ref);
    model_.erase(number);
    end();
  }

  void verify_page(u64 number, u32 level, u64 index, u64 pattern) {
    begin();
    fs::InodeRef ref{};
    u32 frame = fs::no_frame;
    const Status status = retried([&] {
      GPU4FS_TRY(fs::get_inode(g_, fs(), op_, number, &ref));
      return fs::get_page(g_, fs(), op_, ref, {level, index}, &frame);
    });
    expect_equal(status, pattern == 0 ? Status::page_absent : Status::ok);
    if (status != Status::ok) return;
    const bool equal = on_leader(g_, [&] { return has_pattern(fs::page_data(fs(), frame), pattern); });
    if (g_.leader()) {
      EXPECT_TRUE(equal) << "inode " << number << " level " << level << " page " << index;
    }
  }

  void verify_file(u64 number, const WalkFile& file) {
    for (const auto& [index, pattern] : file.pages) {
      verify_page(number, 0, index, pattern);
      if (file.pages.count(index + 1) == 0) verify_page(number, 0, index + 1, 0);
    }
    verify_page(number, fs::attribute_level, 0, file.attribute_pattern);
  }

  Group g_;
  SmallFileSystem& small_;
  fs::Operation& op_;
  Sequence random_;
  WalkModel model_;
  u64 step_count_ = 0;
  u32 checkpoint_count_ = 0;
  u32 refused_count_ = 0;
};

// Runs body(g, walk) for a walk over `small`; returns the model at its end.
template <class Body>
WalkModel walk_on_lane(SmallFileSystem& small, u64 seed, const WalkModel& start, Body&& body) {
  fs::Operation op{};
  PageWalk<Lane> walk(Lane{}, small, op, seed);
  walk.set_model(start);
  body(Lane{}, walk);
  return walk.model();
}
template <class Body>
WalkModel walk_on_warp(SmallFileSystem& small, u64 seed, const WalkModel& start, Body&& body) {
  fs::Operation op{};
  WalkModel result;
  run_emulated_warp([&](EmulatedWarp g) {
    PageWalk<EmulatedWarp> walk(g, small, op, seed);
    walk.set_model(start);
    body(g, walk);
    if (g.leader()) result = walk.model();
  });
  return result;
}

}  // namespace gpu4fs::test
