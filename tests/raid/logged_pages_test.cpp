// Pages that a record of the operation log names: accepted if the remaining devices yield their digest, and then given
// full redundancy.
#include "raid/logged_pages.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "raid/page_run_io.hpp"
#include "support/group_runner.hpp"
#include "support/level_shapes.hpp"
#include "support/on_all_groups.hpp"
#include "support/space_fixture.hpp"

namespace gpu4fs::raid::logged_pages_test {
namespace {

using test::on_all_groups;

const test::LevelShape shapes[] = {
    {"raid1_2", format::RaidLevel::raid1, 2, 0},       {"raid1_3", format::RaidLevel::raid1, 3, 0},
    {"raid5_2", format::RaidLevel::raid5, 2, 4096},    {"raid5_4", format::RaidLevel::raid5, 4, 4096},
    {"raid6_5_8k", format::RaidLevel::raid6, 5, 8192}, {"raid7_6", format::RaidLevel::raid7, 6, 4096},
};

class LoggedPages : public ::testing::TestWithParam<test::LevelShape> {
 protected:
  static constexpr u32 count = 13;

  LoggedPages() : pool_(test::options_of(GetParam())) { EXPECT_EQ(pool_.load(1), Status::ok); }

  LogicalSpace& space() { return pool_.fs->space; }
  ChunkState& chunk() { return space().chunks[0]; }
  device::Device& device(u32 column) { return space().devices[chunk().columns[column].device]; }
  bool in_rows() { return chunk().parity_count != 0; }

  // Writes the pages, remembers the medium and the digest, and forgets the descriptors, as a crash does.
  void write(u64 seed) {
    for (u64* map : {chunk().bitmaps.busy, chunk().bitmaps.committed}) std::fill_n(map, chunk().page_count / 64, 0);
    if (in_rows()) clear_in_parity(chunk(), 0, chunk().page_count);
    for (u64* map : {chunk().bitmaps.busy, chunk().bitmaps.committed}) map[0] |= (u64{1} << count) - 1;
    std::vector<u8> bytes(count * page_size);
    test::fill_random(bytes.data(), bytes.size(), seed);
    ASSERT_EQ(write_pages(Lane{}, space(), chunk().base_address, count, bytes.data(), PageUse::data), Status::ok);
    digest_ = 0;
    for (u32 page = 0; page < count; ++page) {
      digest_ += format::page_digest(chunk().descriptors[page].checksum, page);
      store_shared_16(&chunk().descriptors[page], make_descriptor(0, 0, in_rows() ? format::page_flag_in_parity : 0));
    }
    if (space().parity != nullptr) space().parity->lost_devices = 0;
    medium_ = columns();
  }
  // The content of the columns in the places of the pages and their parities.
  std::vector<std::vector<u8>> columns() {
    std::vector<std::vector<u8>> all;
    for (u32 c = 0; c < chunk().column_count; ++c) {
      const ColumnState& state = chunk().columns[c];
      all.push_back(pool_.bytes_at(state.device, state.data_offset, count));
    }
    return all;
  }
  u8* place(u32 c, u64 row) {
    return pool_.page_at(chunk().columns[c].device, chunk().columns[c].data_offset + row * page_size);
  }
  // With content that a column would not have by chance.
  void lose(u32 set) {
    for (u32 c = 0; c < chunk().column_count; ++c) {
      for (u64 row = 0; row < count && (set >> c & 1) != 0; ++row) {
        test::fill_random(place(c, row), page_size, 1000 + c * count + row);
      }
    }
  }
  // Only rows of the pages: others are not written.
  void expect_as_before(u32 set) {
    for (u32 page = 0; page < count; ++page) {
      const u64 row = in_rows() ? row_place(chunk(), page).row : page;
      for (u32 c = 0; c < chunk().column_count; ++c) {
        const bool is_empty = in_rows() && !is_used(row, c);
        if (is_empty) continue;
        ASSERT_EQ(std::memcmp(place(c, row), medium_[c].data() + row * page_size, page_size), 0)
            << "set " << set << " row " << row << " column " << c;
      }
    }
  }
  // Whether the column has one of the pages or a parity in the row.
  bool is_used(u64 row, u32 c) {
    const RowView view = row_view(space(), 0, row);
    for (u32 slot = 0; slot < view.slot_count; ++slot) {
      if (row_page(view, slot) < count && detail::column_of_page(chunk(), row_page(view, slot)) == c) return true;
    }
    for (u32 j = 0; j < chunk().parity_count; ++j) {
      if (parity_place(space(), view, j).device == chunk().columns[c].device) return true;
    }
    return false;
  }
  template <class Group>
  Status accept(Group g) {
    return accept_logged_pages(g, space(), chunk().base_address, count, digest_);
  }

  test::SpaceFixture pool_;
  u64 digest_ = 0;
  std::vector<std::vector<u8>> medium_;
};

TEST_P(LoggedPages, AreAcceptedWithoutAnyColumnsThatMayBeLost) {
  on_all_groups([&](auto g) {
    for (u32 set = 0; set < 1u << chunk().column_count; ++set) {
      if (popcount(set) > chunk().redundancy || (g.size() > 1 && set % 13 != 1)) continue;
      on_leader(g, [&] {
        write(set + 1);
        lose(set);
      });
      EXPECT_EQ(accept(g), Status::ok) << "set " << set;
      on_leader(g, [&] { expect_as_before(set); });
    }
  });
}

// Pages without a good copy on the remaining devices are computed from their rows; parities and copies that were not
// durable are rewritten on the present devices.
TEST_P(LoggedPages, AreMadeRedundantWithoutADevice) {
  if (chunk().redundancy < 2) return;
  u8* base = nullptr;
  on_all_groups([&](auto g) {
    for (u32 missing = 0; missing < chunk().column_count; ++missing) {
      for (u32 damaged = 0; damaged < chunk().column_count; ++damaged) {
        if (damaged == missing || (g.size() > 1 && (missing + damaged) % 4 != 1)) continue;
        on_leader(g, [&] {
          write(100 + missing);
          lose(1u << damaged);
          base = std::exchange(device(missing).base, nullptr);
          EXPECT_TRUE(lose_device(space(), chunk().columns[missing].device));
        });
        EXPECT_EQ(accept(g), Status::ok) << missing << " missing, " << damaged << " damaged";
        on_leader(g, [&] {
          device(missing).base = base;
          device(missing).failed = 0;
          space().health->failed = 0;
          expect_as_before(1u << damaged);
        });
      }
    }
  });
}

TEST_P(LoggedPages, AreRefusedWhenMoreIsGone) {
  on_all_groups([&](auto g) {
    on_leader(g, [&] {
      write(77);
      lose((1u << (chunk().redundancy + 1)) - 1);
    });
    EXPECT_EQ(accept(g), Status::checksum_mismatch);
  });
}

TEST_P(LoggedPages, AreRefusedWithAnotherDigest) {
  on_all_groups([&](auto g) {
    on_leader(g, [&] {
      write(78);
      digest_ ^= 1;
    });
    EXPECT_EQ(accept(g), Status::checksum_mismatch);
    on_leader(g, [&] { EXPECT_EQ(columns(), medium_) << "nothing is written"; });
  });
}

TEST(NextSet, GoesThroughAllOfASize) {
  for (u32 columns = 2; columns <= 8; ++columns) {
    for (u32 size = 1; size <= 3 && size < columns; ++size) {
      u32 expected = 0;
      for (u32 set = 0; set < 1u << columns; ++set) expected += popcount(set) == size ? 1 : 0;
      u32 found = 0;
      for (u64 set = (u64{1} << size) - 1; set != 0; set = detail::next_set(set, columns)) {
        EXPECT_EQ(popcount(set), size);
        ++found;
      }
      EXPECT_EQ(found, expected);
    }
  }
  EXPECT_EQ(detail::next_set(u64{1} << 63, 64), 0u);
  EXPECT_EQ(detail::next_set(u64{1} << 62, 64), u64{1} << 63);
}

INSTANTIATE_TEST_SUITE_P(Levels, LoggedPages, ::testing::ValuesIn(test::on_all_devices(shapes)),
                         [](const auto& shape) { return test::name_of(shape.param); });

}  // namespace
}  // namespace gpu4fs::raid::logged_pages_test
