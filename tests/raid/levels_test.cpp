// Levels of redundancy: the places of pages, and recovery from damage to some of them. Every level and number of
// members, on all groups.
#include "raid/levels/levels.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "raid/page_io.hpp"
#include "raid/page_run_io.hpp"
#include "raid/verify_pages.hpp"
#include "space/header_scrub.hpp"
#include "support/group_runner.hpp"
#include "support/level_shapes.hpp"
#include "support/on_all_groups.hpp"
#include "support/space_fixture.hpp"

namespace gpu4fs::raid {
namespace {

using test::fill_random;
using test::on_all_groups;
using test::SpaceFixture;

const test::LevelShape shapes[] = {
    {"single", format::RaidLevel::single, 1, 0},         {"raid0_2_4k", format::RaidLevel::raid0, 2, 4096},
    {"raid0_4_64k", format::RaidLevel::raid0, 4, 65536}, {"raid0_8_1m", format::RaidLevel::raid0, 8, 1 << 20},
    {"raid1_2", format::RaidLevel::raid1, 2, 0},         {"raid1_3", format::RaidLevel::raid1, 3, 0},
    {"raid1_4", format::RaidLevel::raid1, 4, 0},
};

class Levels : public ::testing::TestWithParam<test::LevelShape> {
 protected:
  Levels() : pool_(test::options_of(GetParam())) { EXPECT_EQ(pool_.load(1), Status::ok); }

  LogicalSpace& space() { return pool_.fs->space; }
  const ChunkState& chunk() { return space().chunks[0]; }
  u64 address(u64 page) { return chunk().base_address + page * page_size; }
  u8* medium(u64 page, u32 copy) { return pool_.page_at(PageLocation{0, 0, page}, copy); }
  // Pages [first, first + count) become busy, as if they were allocated.
  void take(u64 first, u64 count) {
    for (u64 page = first; page < first + count; ++page) {
      chunk().bitmaps.busy[page / 64] |= u64{1} << (page % 64);
      chunk().bitmaps.committed[page / 64] |= u64{1} << (page % 64);
      chunk().bitmaps.stable[page / 64] |= u64{1} << (page % 64);
    }
  }
  std::vector<u8> write_random(u64 first, u32 count, u64 seed) {
    take(first, count);
    std::vector<u8> bytes(u64{count} * page_size);
    fill_random(bytes.data(), bytes.size(), seed);
    EXPECT_EQ(write_pages(Lane{}, space(), address(first), count, bytes.data(), PageUse::data), Status::ok);
    return bytes;
  }
  void expect_all_copies(u64 first, const std::vector<u8>& bytes) {
    for (u64 i = 0; i < bytes.size() / page_size; ++i) {
      for (u32 copy = 0; copy < chunk().copy_count; ++copy) {
        ASSERT_EQ(std::memcmp(medium(first + i, copy), bytes.data() + i * page_size, page_size), 0)
            << "page " << first + i << " copy " << copy;
      }
    }
  }

  SpaceFixture pool_;
};

TEST_P(Levels, EveryCopyOfEveryPageHasAPlaceOfItsOwn) {
  std::set<std::pair<u32, u64>> places;
  const Geometry geometry = geometry_of(chunk());
  with_level(chunk().level, [&](auto level) {
    const u64 column_pages = level.column_pages(geometry);
    for (u64 page = 0; page < geometry.page_count; ++page) {
      std::set<u32> columns;
      const u64 together = level.contiguous_pages(geometry, page);
      ASSERT_GE(together, 1u);
      ASSERT_LE(page + together, geometry.page_count);
      for (u32 copy = 0; copy < level.copies(geometry.column_count); ++copy) {
        const PagePlace place = level.map(geometry, page, copy);
        ASSERT_LT(place.column, geometry.column_count);
        ASSERT_LT(place.page, column_pages);
        ASSERT_TRUE(columns.insert(place.column).second) << "two copies in one column";
        ASSERT_TRUE(places.insert({place.column, place.page}).second) << "two pages in one place";
        if (together > 1) {
          const PagePlace next = level.map(geometry, page + 1, copy);
          ASSERT_EQ(next.column, place.column);
          ASSERT_EQ(next.page, place.page + 1);
        }
      }
    }
    EXPECT_EQ(places.size(), column_pages * geometry.column_count) << "no place is wasted";
  });
}

TEST_P(Levels, RunsComeBackAndStandInAllCopies) {
  u64 seed = 100;
  on_all_groups([&](auto g) {
    test::Sequence random(5);
    for (u32 round = 0; round < (g.size() == 1 ? 60 : 6); ++round) {
      const u64 first = random.next() % (chunk().page_count - 200);
      const u32 count = 1 + static_cast<u32>(random.next() % (g.size() == 1 ? 180 : 40));
      std::vector<u8> bytes(u64{count} * page_size);
      std::vector<u8> back(bytes.size());
      on_leader(g, [&] {
        take(first, count);
        fill_random(bytes.data(), bytes.size(), ++seed);
      });
      u8* from = on_leader(g, [&] { return bytes.data(); });
      u8* to = on_leader(g, [&] { return back.data(); });
      EXPECT_EQ(write_pages(g, space(), address(first), count, from, PageUse::data), Status::ok);
      EXPECT_EQ(read_pages(g, space(), address(first), count, to, PageUse::data), Status::ok);
      on_leader(g, [&] {
        EXPECT_EQ(std::memcmp(from, to, bytes.size()), 0);
        expect_all_copies(first, bytes);
      });
    }
  });
}

// Every set of damaged copies that leaves one good copy: a read finds it and repairs the others.
TEST_P(Levels, DamagedCopiesAreReplacedWhileReading) {
  const u32 copies = chunk().copy_count;
  const std::vector<u8> bytes = write_random(62, 4, 7);  // adjacent pages prefer different copies
  u64 repairs = 0;
  on_all_groups([&](auto g) {
    for (u32 damaged = 1; damaged + 1 < 1u << copies; ++damaged) {
      for (u64 page = 62; page < 66; ++page) {
        on_leader(g, [&] {
          for (u32 copy = 0; copy < copies; ++copy) {
            if ((damaged >> copy & 1) != 0) medium(page, copy)[damaged * 100 % page_size] ^= 0x40;
          }
        });
        std::vector<u8> back(4 * page_size);
        u8* to = on_leader(g, [&] { return back.data(); });
        EXPECT_EQ(read_pages(g, space(), address(62), 4, to, PageUse::data), Status::ok);
        on_leader(g, [&] {
          EXPECT_EQ(std::memcmp(to, bytes.data(), bytes.size()), 0);
          // Copies that no read has found stay unchanged.
          for (u32 copy = 0; copy < copies; ++copy) {
            for (u64 found = find_mismatches(Lane{}, space(), 0, copy, 62, 0xf); found != 0; found &= found - 1) {
              const PageLocation location{0, 0, 62 + count_trailing_zeros(found)};
              const PinScope pins(Lane{}, space());
              const CopyPlan good =
                  find_good_copy(Lane{}, space(), location, {copy, Status::checksum_mismatch}, true, true);
              EXPECT_EQ(good.status, Status::ok);
            }
          }
          expect_all_copies(62, bytes);
          ++repairs;
        });
      }
    }
  });
  EXPECT_EQ(repairs == 0, copies == 1);
}

TEST_P(Levels, DamageBeyondTheLevelIsAnErrorOfThatPageAlone) {
  const std::vector<u8> bytes = write_random(10, 3, 9);
  for (u32 copy = 0; copy < chunk().copy_count; ++copy) medium(11, copy)[5] ^= 1;
  on_all_groups([&](auto g) {
    std::vector<u8> back(page_size, 0xee);
    u8* to = on_leader(g, [&] { return back.data(); });
    EXPECT_EQ(read_page(g, space(), address(11), to, PageUse::data), Status::checksum_mismatch);
    on_leader(g, [&] {
      // A lane has zeroed what it had copied.
      const std::vector<u8> found(to, to + page_size);
      EXPECT_TRUE(found == std::vector<u8>(page_size, 0xee) || found == std::vector<u8>(page_size));
    });
    EXPECT_EQ(read_page(g, space(), address(10), to, PageUse::data), Status::ok);
    EXPECT_EQ(read_page(g, space(), address(12), to, PageUse::data), Status::ok);
  });
  EXPECT_EQ(space().damage->entry_count, 1u);
  EXPECT_EQ(space().damage->entries[0].address, address(11));
}

// Every set of devices that the level can lose: they are neither read nor written, their memory need not exist, and
// data that is written meanwhile is right. One more cannot be given up.
TEST_P(Levels, LostDevicesAreDoneWithout) {
  const u32 redundancy = chunk().redundancy;
  const u32 members = space().device_count;
  for (u32 lost = 0; lost < 1u << members; ++lost) {
    if (static_cast<u32>(popcount(u64{lost})) > redundancy) continue;
    SpaceFixture mounted = pool_.remount();
    LogicalSpace& degraded = mounted.fs->space;
    for (u32 d = 0; d < members; ++d) {
      if ((lost >> d & 1) == 0) continue;
      degraded.devices[d].base = nullptr;
      ASSERT_TRUE(lose_device(degraded, d));
      EXPECT_TRUE(lose_device(degraded, d)) << "again";
    }
    EXPECT_EQ(failed_devices(degraded), lost);
    EXPECT_EQ(has_unrecorded_loss(degraded), lost != 0);
    for (u32 d = 0; d < members && static_cast<u32>(popcount(u64{lost})) == redundancy; ++d) {
      if ((lost >> d & 1) == 0) {
        EXPECT_FALSE(lose_device(degraded, d)) << d;
        EXPECT_FALSE(device_has_failed(degraded, d));
      }
    }
    ASSERT_EQ(mounted.load(1), Status::ok) << "lost " << lost;
    const ChunkState& state = degraded.chunks[0];
    state.bitmaps.busy[1] = state.bitmaps.committed[1] = ~u64{0};
    u64 seed = 500 + lost;
    on_all_groups([&](auto g) {
      std::vector<u8> bytes(7 * page_size);
      std::vector<u8> back(bytes.size());
      on_leader(g, [&] { fill_random(bytes.data(), bytes.size(), ++seed); });
      u8* from = on_leader(g, [&] { return bytes.data(); });
      u8* to = on_leader(g, [&] { return back.data(); });
      const u64 first = state.base_address + 70 * page_size;
      EXPECT_EQ(write_pages(g, degraded, first, 6, from, PageUse::data), Status::ok);
      EXPECT_EQ(write_page(g, degraded, first + 6 * page_size, from + 6 * page_size, PageUse::data), Status::ok);
      EXPECT_EQ(read_pages(g, degraded, first, 7, to, PageUse::data), Status::ok);
      on_leader(g, [&] { EXPECT_EQ(std::memcmp(from, to, bytes.size()), 0); });
      // Merged in place and to another page.
      const u8 patch[2] = {7, 9};
      EXPECT_EQ(write_page_merged(g, degraded, {first, first, {10, 12}, patch, PageUse::data}), Status::ok);
      EXPECT_EQ(write_page_merged(g, degraded, {first + 8 * page_size, first, {20, 22}, patch, PageUse::data}),
                Status::ok);
      EXPECT_EQ(read_page(g, degraded, first + 8 * page_size, to, PageUse::data), Status::ok);
      on_leader(g, [&] {
        std::memcpy(from + 10, patch, 2);
        std::memcpy(from + 20, patch, 2);
        EXPECT_EQ(std::memcmp(from, to, page_size), 0);
      });
      for (u32 copy = 0; copy < state.copy_count; ++copy) {
        EXPECT_EQ(find_mismatches(g, degraded, 0, copy, 64, 0x5fc0u), 0u);
      }
    });
    EXPECT_EQ(mounted.checkpoint(2), Status::ok);
  }
}

// A partial write reads the old page from any good copy, in place or to a new page.
TEST_P(Levels, MergingReadsAGoodCopyAndWritesAll) {
  std::vector<u8> bytes = write_random(20, 1, 11);
  take(21, 1);
  on_all_groups([&](auto g) {
    for (u32 copy = 0; copy < chunk().copy_count; ++copy) {
      for (const u64 target : {u64{21}, u64{20}}) {
        if (chunk().copy_count > 1) on_leader(g, [&] { medium(20, copy)[4000] ^= 8; });
        const u8 patch[3] = {1, 2, static_cast<u8>(3 + copy)};
        EXPECT_EQ(write_page_merged(g, space(), {address(target), address(20), {100, 103}, patch, PageUse::data}),
                  Status::ok);
        on_leader(g, [&] {
          std::vector<u8> expected = bytes;
          std::memcpy(expected.data() + 100, patch, 3);
          expect_all_copies(target, expected);
          if (target == 20) bytes = expected;
        });
      }
    }
  });
}

// Each copy of the header area is damaged in turn, in each of its parts (epoch 2 is in slot B): the chunk loads with
// its old state, and the copy is repaired afterwards. A part that only one column has is lost, and its loss is
// detected.
TEST_P(Levels, HeaderAreasAreReplacedByTheirCopies) {
  if (GetParam().kind == device::DeviceKind::scattered)
    GTEST_SKIP() << "damage is done where memory devices have header areas";
  const format::ChunkLayout layout = pool_.layout();
  fs::Operation op = pool_.operation();
  ASSERT_EQ(space::reserve_pages(*pool_.fs, op, 5), Status::ok);
  const Extent run = space::allocate_run(Lane{}, *pool_.fs, op, 5, 1);
  std::vector<u8> content(run.page_count * page_size, 0x77);
  ASSERT_EQ(write_pages(Lane{}, space(), run.address, run.page_count, content.data(), PageUse::data), Status::ok);
  space::commit_extent(Lane{}, *pool_.fs, run);
  ASSERT_EQ(pool_.checkpoint(2), Status::ok);
  const u64 used = pool_.fs->data_counters().used;
  const u64 sum = space::sum_slot_checksums(Lane{}, *pool_.fs, false);
  const u64 first = (run.address - chunk().base_address) / page_size;
  const u64 index = first / format::descriptors_per_page;
  const u64 descriptors = layout.descriptor_page(index, format::descriptor_place(chunk().descriptor_table[index]));
  const u64 table = layout.bitmap_b_page + 1 + layout.bitmap_pages;
  for (u32 column = 0; column <= chunk().redundancy; ++column) {
    for (const u64 part : {u64{0}, layout.bitmap_b_page, layout.bitmap_b_page + 1, table, descriptors}) {
      SCOPED_TRACE("column " + std::to_string(column) + " page " + std::to_string(part));
      SpaceFixture damaged = pool_.remount();
      // Among descriptors, that of the first page.
      const bool is_descriptor = part == descriptors;
      u8* const begin = damaged.header_page(0, part, column);
      std::memset(begin + (is_descriptor ? first % format::descriptors_per_page * 16 : 0), 0x5a,
                  is_descriptor ? 16 : 64);
      SpaceFixture mounted = damaged.remount();
      const Status status = mounted.load(2);
      const bool is_known = status == Status::ok && space::check_slot_sum(Lane{}, *mounted.fs, sum) == Status::ok;
      std::vector<u8> read(page_size);
      if (chunk().redundancy == 0 && part != 0) {
        EXPECT_EQ(is_known, part == table || part == descriptors);
        if (!is_known) continue;
        const Status lost = read_page(Lane{}, mounted.fs->space, run.address, read.data(), PageUse::data);
        EXPECT_TRUE(part != descriptors || lost == Status::checksum_mismatch);
        // Another page has the checksum in its descriptor, if the descriptor is in the place that the table names; and
        // it keeps it.
        const Status other = read_page(Lane{}, mounted.fs->space, run.address + page_size, read.data(), PageUse::data);
        EXPECT_TRUE(part != descriptors || other == Status::ok);
        ASSERT_EQ(mounted.checkpoint(3), Status::ok);
        SpaceFixture again = mounted.remount();
        ASSERT_EQ(again.load(3), Status::ok);
        EXPECT_EQ(read_page(Lane{}, again.fs->space, run.address, read.data(), PageUse::data), lost);
        EXPECT_EQ(again.fs->space.chunks[0].descriptors[first].flags, format::page_flag_unverified);
        EXPECT_EQ(read_page(Lane{}, again.fs->space, run.address + page_size, read.data(), PageUse::data), other);
        continue;
      }
      ASSERT_TRUE(is_known);
      EXPECT_EQ(mounted.fs->data_counters().used, used);
      EXPECT_EQ(mounted.fs->space.damage->mismatch_counts[chunk().columns[column].device], 1u);
      EXPECT_EQ(std::memcmp(mounted.header_page(0, part, column), pool_.header_page(0, part, column), page_size), 0);
      for (u32 other = 0; other <= chunk().redundancy; ++other) {
        // Only the tested copy is left.
        SpaceFixture alone = mounted.remount();
        for (u32 lost = 0; lost <= chunk().redundancy; ++lost) {
          if (lost != other) std::memset(alone.header_page(0, 0, lost), 0x3c, layout.header_pages * page_size);
        }
        SpaceFixture last = alone.remount();
        ASSERT_EQ(last.load(2), Status::ok) << "alone " << other;
        EXPECT_EQ(space::check_slot_sum(Lane{}, *last.fs, sum), Status::ok);
        EXPECT_EQ(read_page(Lane{}, last.fs->space, run.address, read.data(), PageUse::data), Status::ok);
        EXPECT_EQ(std::memcmp(read.data(), content.data(), page_size), 0);
      }
    }
  }
}

// Damage while the pool is mounted: a scrub finds each part in each column and restores it from another one. If no
// column has it, the next checkpoint writes it from memory.
TEST_P(Levels, AScrubRestoresHeaderAreas) {
  if (GetParam().kind == device::DeviceKind::scattered)
    GTEST_SKIP() << "damage is done where memory devices have header areas";
  const format::ChunkLayout layout = pool_.layout();
  fs::Operation op = pool_.operation();
  ASSERT_EQ(space::reserve_pages(*pool_.fs, op, 5), Status::ok);
  const Extent run = space::allocate_run(Lane{}, *pool_.fs, op, 5, 1);
  std::vector<u8> content(run.page_count * page_size, 0x66);
  ASSERT_EQ(write_pages(Lane{}, space(), run.address, run.page_count, content.data(), PageUse::data), Status::ok);
  space::commit_extent(Lane{}, *pool_.fs, run);
  u64 epoch = 2;
  ASSERT_EQ(pool_.checkpoint(epoch), Status::ok);
  const u64 index = (run.address - chunk().base_address) / page_size / format::descriptors_per_page;
  const auto scrub = [&](auto g) {
    space::HeaderScrub found{};
    EXPECT_EQ(space::scrub_header_area(g, *pool_.fs, 0, 0, chunk().page_count, &found), Status::ok);
    return found;
  };
  on_all_groups([&](auto g) {
    for (u32 column = 0; column <= chunk().redundancy; ++column) {
      for (u32 which = 0; which < 5; ++which) {
        const u64 slot = space::slot_page(layout, on_leader(g, [&] { return chunk().slot_newest; }));
        const u64 entry = on_leader(g, [&] { return chunk().descriptor_table[index]; });
        const u64 descriptors = layout.descriptor_page(index, format::descriptor_place(entry));
        const u64 parts[] = {0, slot, slot + 1, slot + 1 + layout.bitmap_pages, descriptors};
        u8* const page = pool_.header_page(0, parts[which], column);
        u64* const counted = &space().damage->mismatch_counts[chunk().columns[column].device];
        u8 before[page_size];
        const u64 count_before = on_leader(g, [&] { return *counted; });
        std::memcpy(before, page, page_size);
        g.sync();
        on_leader(g, [&] { page[which * 700 + 9] ^= 0x10; });
        EXPECT_EQ(scrub(g).damaged, 1u) << "column " << column << " part " << which;
        const bool is_same = g.all(std::memcmp(before, page, page_size) == 0);
        EXPECT_EQ(on_leader(g, [&] { return *counted; }), count_before + 1);
        EXPECT_EQ(is_same, chunk().redundancy != 0 || which == 0) << "column " << column << " part " << which;
        if (!is_same) {
          EXPECT_EQ(on_leader(g, [&] { return pool_.checkpoint(++epoch); }), Status::ok);
        }
        EXPECT_EQ(scrub(g).damaged, 0u);
      }
    }
  });
  SpaceFixture mounted = pool_.remount();
  ASSERT_EQ(mounted.load(epoch), Status::ok);
  EXPECT_EQ(mounted.fs->space.damage->mismatch_counts[0], 0u);
  std::vector<u8> read(page_size);
  EXPECT_EQ(read_page(Lane{}, mounted.fs->space, run.address, read.data(), PageUse::data), Status::ok);
  // A checkpoint is running: later.
  space().chunks[0].staged_changed = 1;
  space::HeaderScrub none{};
  EXPECT_EQ(space::scrub_header_area(Lane{}, *pool_.fs, 0, 0, chunk().page_count, &none), Status::again);
  EXPECT_EQ(none.verified, 0u);
  // After a failed checkpoint this does not change, and a scrub does not wait forever; other chunks are verified.
  pool_.fs->checkpoint_failed = 1;
  EXPECT_EQ(space::scrub_header_area(Lane{}, *pool_.fs, 0, 0, chunk().page_count, &none), Status::ok);
  EXPECT_EQ(none.verified, 0u) << "what the durable epoch has is not known to stand where the chunk says";
  space().chunks[0].staged_changed = 0;
  EXPECT_EQ(space::scrub_header_area(Lane{}, *pool_.fs, 0, 0, chunk().page_count, &none), Status::ok);
  EXPECT_GT(none.verified, 0u);
  EXPECT_EQ(none.damaged, 0u);
}

INSTANTIATE_TEST_SUITE_P(Shapes, Levels, ::testing::ValuesIn(test::on_all_devices(shapes)),
                         [](const auto& parameter) { return test::name_of(parameter.param); });

}  // namespace
}  // namespace gpu4fs::raid
