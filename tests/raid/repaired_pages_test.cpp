// Repairs: pages that are counted as repaired are restored on the medium, and nothing else is touched. The test
// examines the bytes of the devices, because a page with other good copies is read correctly whether its repair was
// written or not.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "raid/page_run_io.hpp"
#include "raid/repair_pages.hpp"
#include "support/group_runner.hpp"
#include "support/level_shapes.hpp"
#include "support/on_all_groups.hpp"
#include "support/space_fixture.hpp"

namespace gpu4fs::raid::repaired_pages_test {
namespace {

using test::fill_random;
using test::on_all_groups;
using test::SpaceFixture;

constexpr u32 count = 32;  // pages from the first on

class RepairedPages : public ::testing::TestWithParam<test::LevelShape> {
 protected:
  RepairedPages() : pool_(test::options_of(GetParam())) {
    EXPECT_EQ(pool_.load(1), Status::ok);
    for (u64* map : {chunk().bitmaps.busy, chunk().bitmaps.committed, chunk().bitmaps.stable}) map[0] |= 0xffffffffu;
    std::vector<u8> bytes(count * page_size);
    fill_random(bytes.data(), bytes.size(), 41);
    EXPECT_EQ(write_pages(Lane{}, space(), chunk().base_address, count, bytes.data(), PageUse::data), Status::ok);
    before_ = media();
  }

  LogicalSpace& space() { return pool_.fs->space; }
  ChunkState& chunk() { return space().chunks[0]; }
  u8* medium(u64 page, u32 copy) { return pool_.page_at(PageLocation{0, 0, page}, copy); }
  bool has_parities() { return chunk().parity_count != 0; }

  // The content of the columns in the pages' rows, and some rows after them.
  std::vector<u8> media() {
    std::vector<u8> all;
    for (u32 i = 0; i < chunk().column_count; ++i) {
      const ColumnState& column = chunk().columns[i];
      const std::vector<u8> bytes = pool_.bytes_at(column.device, column.data_offset, 2 * count);
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    return all;
  }
  u64 counted_repairs() {
    u64 repairs = 0;
    for (const u64 of_device : space().damage->mismatch_counts) repairs += of_device;
    return repairs;
  }
  void expect_as_before(const std::string& what) { EXPECT_TRUE(media() == before_) << what; }

  SpaceFixture pool_;
  std::vector<u8> before_;
};

TEST_P(RepairedPages, EachCopyStandsOnItsDeviceAgain) {
  on_all_groups([&](auto g) {
    for (u32 copy = 0; copy < chunk().copy_count; ++copy) {
      for (const u64 page : {u64{0}, u64{17}, u64{count - 1}}) {
        const u64 counted = on_leader(g, [&] {
          medium(page, copy)[100 + copy] ^= 0x20;
          return counted_repairs();
        });
        EXPECT_TRUE(repair_page(g, space(), PageLocation{0, 0, page}));
        on_leader(g, [&] {
          EXPECT_EQ(counted_repairs(), counted + 1);
          expect_as_before("page " + std::to_string(page) + " copy " + std::to_string(copy));
        });
      }
    }
  });
}

// The same by a reader.
TEST_P(RepairedPages, ReadingRepairsWhatItMeets) {
  on_all_groups([&](auto g) {
    for (const u64 page : {u64{3}, u64{21}}) {
      const u64 address = chunk().base_address + page * page_size;
      on_leader(g, [&] {
        const u32 copy = copy_to_read(space(), {0, 0, page});
        medium(page, copy)[4000] ^= 1;
      });
      std::vector<u8> bytes(page_size);
      u8* to = on_leader(g, [&] { return bytes.data(); });
      EXPECT_EQ(read_page(g, space(), address, to, PageUse::data), Status::ok);
      on_leader(g, [&] { expect_as_before("page " + std::to_string(page)); });
    }
  });
}

TEST_P(RepairedPages, EachParityStandsOnItsDeviceAgain) {
  on_all_groups([&](auto g) {
    const RowRange rows = has_parities() ? rows_of_pages(space(), 0, 0, count) : RowRange{0, 0};
    for (u64 row = rows.first; row < rows.end; ++row) {
      const RowView view = row_view(space(), 0, row);
      for (u32 j = 0; j < chunk().parity_count; ++j) {
        const u64 counted = on_leader(g, [&] {
          pool_.parity_at(view, j)[9] ^= 0x80;
          return counted_repairs();
        });
        EXPECT_TRUE(repair_row(g, space(), view));
        on_leader(g, [&] {
          EXPECT_EQ(counted_repairs(), counted + 1);
          expect_as_before("row " + std::to_string(row) + " parity " + std::to_string(j));
        });
      }
    }
  });
}

// A valid page is neither written nor counted.
TEST_P(RepairedPages, SoundOnesStayUncounted) {
  for (u64 page = 0; page < count; ++page) EXPECT_TRUE(repair_page(Lane{}, space(), PageLocation{0, 0, page}));
  if (has_parities()) {
    const RowRange rows = rows_of_pages(space(), 0, 0, count);
    for (u64 row = rows.first; row < rows.end; ++row) {
      EXPECT_TRUE(repair_row(Lane{}, space(), row_view(space(), 0, row)));
    }
  }
  EXPECT_EQ(counted_repairs(), 0u);
  expect_as_before("all pages");
}

// Only pages to which the durable checkpoint refers stay unchanged while they are repaired.
TEST_P(RepairedPages, PagesOfNoCheckpointAreNotSettled) {
  const PageLocation location{0, 0, 5};
  EXPECT_TRUE(page_is_settled(space(), location));
  chunk().bitmaps.stable[0] &= ~u64{1 << 5};
  EXPECT_FALSE(page_is_settled(space(), location)) << "it may be written at this moment";
  chunk().bitmaps.stable[0] |= u64{1 << 5};
  chunk().bitmaps.committed[0] &= ~u64{1 << 5};
  EXPECT_FALSE(page_is_settled(space(), location)) << "it was freed";
}

const test::LevelShape shapes[] = {
    {"raid1_2", format::RaidLevel::raid1, 2, 0},
    {"raid1_3", format::RaidLevel::raid1, 3, 0},
    {"raid5_4_4k", format::RaidLevel::raid5, 4, 4096},
    {"raid6_5_8k", format::RaidLevel::raid6, 5, 8192},
};
INSTANTIATE_TEST_SUITE_P(Shapes, RepairedPages, ::testing::ValuesIn(test::on_all_devices(shapes)),
                         [](const auto& parameter) { return test::name_of(parameter.param); });

}  // namespace
}  // namespace gpu4fs::raid::repaired_pages_test
