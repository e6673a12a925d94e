// Random work on the map of one file, with a model: page number -> address, and whether it is unwritten.
//
// All ranks of a group run a MapWalk of their own with equal seeds; only the leader touches memory.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "fs/map/file_map.hpp"
#include "support/page_walk.hpp"

namespace gpu4fs::test {

struct MappedPage {
  u64 address;
  bool unwritten;
  friend bool operator==(const MappedPage&, const MappedPage&) = default;
};
using MapModel = std::map<u64, MappedPage>;

template <class Group>
class MapWalk {
 public:
  MapWalk(Group g, SmallFileSystem& small, fs::Operation& op, u64 seed)
      : g_(g), small_(small), fs_(small.fs()), op_(op), random_(seed) {}

  MapModel model;
  u64 number = 0;

  u64 random(u64 bound) { return random_.next() % bound; }

  void create_file() {
    begin();
    ASSERT_EQ(fs::claim_inode(g_, fs_, op_, &number), Status::ok);
    ASSERT_EQ(fs::prepare_new_inode(g_, fs_, op_, number), Status::ok);
    ASSERT_EQ(fs::reserve_metadata(g_, fs_, op_, {1, 0, 0}), Status::ok);
    fs::NewInode values{};
    values.mode = 0100644;
    values.link_count = 1;
    fs::commit_new_inode(g_, fs_, op_, number, values);
    end();
  }

  // Puts `count` new pages at `first`.
  void replace(u64 first, u32 count, fs::MapKind kind) {
    begin();
    fs::InodeRef ref = file();
    fs::MapCost cost{};
    ASSERT_EQ(fs::map_prepare(g_, fs_, op_, ref, {first, first + count}, &cost), Status::ok);
    const Status reserved = fs::reserve_metadata(g_, fs_, op_, {1, cost.changed, cost.fresh});
    const bool has_space =
        reserved == Status::ok && on_leader(g_, [&] { return space::reserve_pages(fs_, op_, count) == Status::ok; });
    if (!has_space) {
      end();
      return checkpoint();
    }
    for (u32 done = 0; done < count;) {
      const raid::Extent extent = allocate(first + done, count - done);
      ASSERT_GT(extent.page_count, 0u);
      fs::map_replace(g_, fs_, op_, ref, first + done, {kind, 0, extent.address, extent.page_count});
      on_leader(g_, [&] { space::commit_extent(Lane{}, fs_, extent); });
      for (u32 i = 0; i < extent.page_count; ++i) {
        model[first + done + i] = {extent.address + u64{i} * page_size, kind == fs::MapKind::unwritten};
      }
      done += extent.page_count;
    }
    end();
  }

  void remove(u64 first, u64 stop) {
    u64 left = stop;
    while (left > first) {
      begin();
      fs::InodeRef ref = file();
      const u32 budget = 1 + static_cast<u32>(random(6));
      fs::MapRemoval removal{{first, left}, budget, {}};
      ASSERT_EQ(fs::map_prepare_remove(g_, fs_, op_, ref, &removal), Status::ok);
      const u64 from = removal.range.first;
      ASSERT_LT(from, left) << "no progress";
      ASSERT_GE(from, first);
      const Status reserved = fs::reserve_metadata(g_, fs_, op_, {1, removal.cost.changed, removal.cost.fresh});
      if (reserved != Status::ok) {
        end();
        checkpoint();
        continue;
      }
      fs::map_remove(g_, fs_, op_, ref, removal.range);
      model.erase(model.lower_bound(from), model.lower_bound(left));
      left = from;
      end();
    }
  }

  // Turns the mapped pages from `first` on, at most `limit`, into data.
  void mark_written(u64 first, u64 limit) {
    u64 stop = first;
    while (stop < first + limit && model.count(stop) != 0) ++stop;
    if (stop == first) return;
    begin();
    fs::InodeRef ref = file();
    fs::MapCost cost{};
    ASSERT_EQ(fs::map_prepare(g_, fs_, op_, ref, {first, stop}, &cost), Status::ok);
    if (fs::reserve_metadata(g_, fs_, op_, {1, cost.changed, cost.fresh}) != Status::ok) {
      end();
      return checkpoint();
    }
    fs::map_mark_written(g_, fs_, op_, ref, {first, stop});
    for (u64 page = first; page < stop; ++page) model[page].unwritten = false;
    end();
  }

  // Writes the open epoch, then evicts every possible frame: later steps read the medium.
  void checkpoint() {
    ASSERT_EQ(small_.checkpoint(g_), Status::ok);
    g_.sync();
    fs::evict_frames(g_, fs_, fs_.pages.frame_count);
    g_.sync();
  }

  // One random operation.
  void step() {
    const u64 choice = random(100);
    const u64 first = place();
    const u32 count = length();
    if (model.size() > 6000 || choice < 20) return remove(first, first + count);
    if (choice < 22) return remove(0, fs::map_page_max);
    if (choice < 25) return remove(first, fs::map_page_max);
    if (choice < 35) return mark_written(model.empty() ? 0 : model.lower_bound(first % 4096)->first, count);
    if (choice < 40) return checkpoint();
    replace(first, count, choice < 60 ? fs::MapKind::unwritten : fs::MapKind::data);
  }

  // Look-ups from end to end agree with the model, and the tree is as small as its content allows.
  void check() {
    begin();
    fs::InodeRef ref = file();
    check_runs(ref);
    check_seeks(ref);
    const u64 map_pages = count_map_pages(ref);
    ASSERT_EQ(on_leader(g_, [&] { return ref.inode->page_count; }), model.size() + map_pages);
    if (model.empty()) {
      ASSERT_EQ(u32{ref.inode->height}, 0u);
    }
    end();
    g_.sync();
    if (g_.leader()) expect_page_table_holds(small_);
    g_.sync();
  }

 private:
  void begin() {
    on_leader(g_, [&] { op_ = small_.operation(); });
  }
  void end() {
    on_leader(g_, [&] { fs::release_reservations(fs_, op_); });
  }

  fs::InodeRef file() {
    fs::InodeRef ref{};
    EXPECT_EQ(fs::get_inode(g_, fs_, op_, number, &ref), Status::ok);
    return ref;
  }

  raid::Extent allocate(u64 page, u32 wanted) {
    return on_leader(g_, [&] {
      if (page % pages_per_block_2m == 0 && wanted >= pages_per_block_2m) {
        const raid::Extent whole = space::allocate_run(Lane{}, fs_, op_, wanted, static_cast<u32>(pages_per_block_2m));
        if (whole.page_count != 0) return whole;
      }
      const u64 to_border = pages_per_block_2m - page % pages_per_block_2m;
      return space::allocate_run(Lane{}, fs_, op_, minimum<u64>(wanted, to_border), 1);
    });
  }

  // Places near the borders of slots and heights.
  u64 place() {
    static constexpr u64 places[] = {0,
                                     0,
                                     3,
                                     6,
                                     500,
                                     512,
                                     1024,
                                     3583,
                                     3584,
                                     4096,
                                     262144 - 9,
                                     262144,
                                     262144 * 7,
                                     (u64{1} << 27) - 600,
                                     u64{1} << 30,
                                     (u64{1} << 36) + 77,
                                     fs::map_page_max - 4096};
    const u64 base = places[random(sizeof(places) / sizeof(places[0]))];
    const u64 shift = random(3);
    return base + (shift == 0 ? 0 : shift == 1 ? random(16) : random(4) * 512);
  }
  u32 length() {
    const u64 choice = random(10);
    if (choice < 5) return 1 + static_cast<u32>(random(16));
    if (choice < 8) return 1 + static_cast<u32>(random(1400));
    return 512 * (1 + static_cast<u32>(random(2)));
  }

  void check_runs(const fs::InodeRef& ref) {
    u64 page = 0;
    auto at = model.begin();
    while (page < fs::map_page_max) {
      fs::MapRun run{};
      ASSERT_EQ(fs::map_lookup(g_, fs_, op_, ref, {page, fs::map_page_max}, &run), Status::ok);
      ASSERT_GT(run.page_count, 0u);
      if (run.kind == fs::MapKind::hole) {
        page += run.page_count;
        ASSERT_TRUE(at == model.end() || at->first >= page) << "page " << at->first << " reads as a hole";
        continue;
      }
      for (u64 i = 0; i < run.page_count; ++i, ++at) {
        ASSERT_TRUE(at != model.end() && at->first == page + i) << "page " << page + i << " is mapped";
        const MappedPage found{run.address + i * page_size, run.kind == fs::MapKind::unwritten};
        ASSERT_EQ(at->second, found) << "page " << page + i;
      }
      page += run.page_count;
    }
    ASSERT_TRUE(at == model.end());
  }

  void check_seeks(const fs::InodeRef& ref) {
    const u64 start = model.empty() ? random(100) : model.lower_bound(random(4096))->first;
    const u64 stop = start + 3000;
    for (const bool want_data : {true, false}) {
      u64 expected = start;
      const auto is_data = [&](u64 page) {
        const auto found = model.find(page);
        return found != model.end() && !found->second.unwritten;
      };
      while (expected < stop && is_data(expected) != want_data) ++expected;
      fs::MapSeek seek{{start, stop}, want_data, false};
      while (!seek.found && seek.range.first < stop) {
        ASSERT_EQ(fs::map_seek(g_, fs_, op_, ref, 3, &seek), Status::ok);
      }
      ASSERT_EQ(seek.found ? seek.range.first : stop, expected);
    }
  }

  // Counts the map pages below the inode and insists that none is empty.
  u64 count_map_pages(const fs::InodeRef& ref) {
    u64 pages = 0;
    for (u64 i = 0; i < format::inode_slot_count; ++i) {
      pages += count_below(ref, fs::load_slot(&ref.inode->slots[i]), ref.inode->height, i);
    }
    return pages;
  }
  u64 count_below(const fs::InodeRef& ref, format::BlockPointer pointer, u32 level, u64 index) {
    if (!pointer.is_indirect()) return 0;
    u32 frame = fs::no_frame;
    EXPECT_EQ(fs::get_page(g_, fs_, op_, ref, {level, index}, &frame), Status::ok);
    if (frame == fs::no_frame) return 0;
    u64 pages = 1;
    u32 valid = 0;
    for (u64 i = 0; i < format::slots_per_block; ++i) {
      const format::BlockPointer child = fs::load_slot(&fs::map_slots(fs_, frame)[i]);
      EXPECT_TRUE(fs::detail::slot_fits_level(child, level - 1));
      if (child.is_valid()) ++valid;
      pages += count_below(ref, child, level - 1, index * format::slots_per_block + i);
    }
    EXPECT_GT(valid, 0u) << "an empty map page of level " << level;
    return pages;
  }

  Group g_;
  SmallFileSystem& small_;
  fs::FileSystem& fs_;
  fs::Operation& op_;
  Sequence random_;
};

}  // namespace gpu4fs::test
