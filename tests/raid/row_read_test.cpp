// Rows read as a whole without some of the devices: none has to be read again page by page, and computed pages are
// right even without checksums.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "raid/page_run_io.hpp"
#include "support/group_runner.hpp"
#include "support/level_shapes.hpp"
#include "support/on_all_groups.hpp"
#include "support/space_fixture.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::raid::row_read_test {
namespace {

using test::fill_random;
using test::on_all_groups;
using test::SpaceFixture;

constexpr u32 count = 128;  // pages

struct Wanted {
  u32 first;
  u32 count;
};

class ReadRows : public ::testing::TestWithParam<test::LevelShape> {
 protected:
  ReadRows() : pool_(test::options_of(GetParam())), bytes_(count * page_size) {
    EXPECT_EQ(pool_.load(1), Status::ok);
    fill_random(bytes_.data(), bytes_.size(), 5);
    for (u64* map : {chunk().bitmaps.busy, chunk().bitmaps.committed}) map[0] = map[1] = ~u64{0};
    EXPECT_EQ(write_pages(Lane{}, space(), chunk().base_address, count, bytes_.data(), PageUse::data), Status::ok);
  }

  LogicalSpace& space() { return pool_.fs->space; }
  ChunkState& chunk() { return space().chunks[0]; }
  device::Device& device_of_column(u32 column) { return space().devices[chunk().columns[column].device]; }

  // Columns `first`, first + step ... are on lost devices, whose memory cannot be read.
  void lose(u32 first, u32 lost_count) {
    const u32 step = chunk().column_count > 10 ? 11 : 1;
    for (u32 i = 0; i < lost_count; ++i) {
      const u32 column = (first + i * step) % chunk().column_count;
      lost_.emplace_back(column, std::exchange(device_of_column(column).base, nullptr));
      EXPECT_TRUE(lose_device(space(), chunk().columns[column].device));
    }
  }
  void find_again() {
    for (const auto& [column, base] : lost_) {
      device_of_column(column).base = base;
      device_of_column(column).failed = device::device_in_use;
    }
    lost_.clear();
    space().health->failed = 0;
  }

  template <class Group>
  void expect_read(Group g, const Wanted& wanted, u32 verifies) {
    std::vector<u8> back(wanted.count * page_size, 0xee);
    u8* to = on_leader(g, [&] { return back.data(); });
    const RowTarget target{0, verifies, wanted.first, wanted.count, to};
    const RowRange range = on_leader(g, [&] { return rows_of_pages(space(), 0, wanted.first, wanted.count); });
    for (u64 row = range.first; row < range.end;) {
      const RowsRead done = read_rows(g, space(), target, row, range.end);
      EXPECT_EQ(done.failed, 0u) << "rows from " << row;
      row += done.row_count;
    }
    g.sync();
    on_leader(g, [&] {
      for (u32 page = 0; page < wanted.count; ++page) {
        const u8* expected = bytes_.data() + (wanted.first + page) * page_size;
        EXPECT_EQ(std::memcmp(to + page * page_size, expected, page_size), 0)
            << "page " << wanted.first + page << (verifies != 0 ? "" : ", without checksums");
      }
    });
  }

  SpaceFixture pool_;
  std::vector<u8> bytes_;
  std::vector<std::pair<u32, u8*>> lost_;  // columns, and where their devices' memory is
};

TEST_P(ReadRows, AreMadeWithoutAsManyDevicesAsTheLevelMayLose) {
  on_all_groups([&](auto g) {
    const u32 columns = chunk().column_count;
    const u32 step = columns > 10 ? (GPU4FS_TSAN ? 17 : 7) : test::is_short() ? 3 : 1;
    for (u32 lost_count = 1; lost_count <= chunk().parity_count; ++lost_count) {
      for (u32 first = 0; first < columns; first += step) {
        on_leader(g, [&] { lose(first, lost_count); });
        for (const u32 verifies : {1u, 0u}) {
          expect_read(g, {0, 120}, verifies);
          expect_read(g, {3, 50}, verifies);  // also rows of which only a part is requested
        }
        on_leader(g, [&] { find_again(); });
      }
    }
  });
}

const test::LevelShape shapes[] = {
    {"raid5_4_4k", format::RaidLevel::raid5, 4, 4096},   {"raid6_6_4k", format::RaidLevel::raid6, 6, 4096},
    {"raid7_4_4k", format::RaidLevel::raid7, 4, 4096},   {"raid7_8_4k", format::RaidLevel::raid7, 8, 4096},
    {"raid7_40_4k", format::RaidLevel::raid7, 40, 4096},
};
INSTANTIATE_TEST_SUITE_P(Shapes, ReadRows, ::testing::ValuesIn(test::on_all_devices(shapes, 2)),
                         [](const auto& parameter) { return test::name_of(parameter.param); });

}  // namespace
}  // namespace gpu4fs::raid::row_read_test
