// Filling devices of a chunk with parities: several at once, without others, and with pages or parities that turn out
// to be damaged.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "raid/page_run_io.hpp"
#include "raid/rebuild/rebuild_rows.hpp"
#include "support/group_runner.hpp"
#include "support/level_shapes.hpp"
#include "support/on_all_groups.hpp"
#include "support/space_fixture.hpp"

namespace gpu4fs::raid::rebuild_rows_test {
namespace {

using test::fill_random;
using test::on_all_groups;
using test::SpaceFixture;

constexpr u32 count = 64;  // pages of one task of a rebuild

class RebuiltRows : public ::testing::TestWithParam<test::LevelShape> {
 protected:
  RebuiltRows() : pool_(test::options_of(GetParam())) { EXPECT_EQ(pool_.load(1), Status::ok); }

  LogicalSpace& space() { return pool_.fs->space; }
  ChunkState& chunk() { return space().chunks[0]; }
  u8* medium(u64 page) { return pool_.page_at(PageLocation{0, 0, page}); }
  u32 device_of(u64 page) { return page_place(space(), {0, 0, page}, 0).device; }
  u64 all_bits() { return low_bits(count); }
  // Rows without a part on the device are not processed.
  bool has_part_on(const RowView& view, u32 device) {
    for (u32 slot = 0; slot < view.slot_count; ++slot) {
      if (row_page(view, slot) < count && device_of(row_page(view, slot)) == device) return true;
    }
    for (u32 j = 0; j < chunk().parity_count; ++j) {
      if (parity_place(space(), view, j).device == device) return true;
    }
    return false;
  }

  // The content of all columns in the pages' rows, including parities.
  std::vector<u8*> entries() {
    std::vector<u8*> all;
    const RowRange rows = rows_of_pages(space(), 0, 0, count);
    for (u64 row = rows.first; row < rows.end; ++row) {
      const RowView view = row_view(space(), 0, row);
      for (u32 entry = 0; entry < chunk().column_count; ++entry) {
        if (entry >= view.slot_count && entry < view.data_slots) continue;
        if (entry < view.slot_count && row_page(view, entry) >= count) continue;
        all.push_back(pool_.page_at(row_entry_place(space(), view, entry)));
      }
    }
    return all;
  }
  // Whether it is on a device of the first columns.
  bool is_filled(const u8* memory, u32 filled_count) {
    for (u32 column = 0; column < filled_count; ++column) {
      const device::Device& device = space().devices[chunk().columns[column].device];
      if (memory >= device.base && memory < device.base + device.size_bytes) return true;
    }
    return false;
  }

  // Collective: pages with random bytes, and their parities.
  template <class Group>
  void write_all(Group g, u64 seed) {
    on_leader(g, [&] {
      fill_random(bytes_.data(), bytes_.size(), seed);
      chunk().bitmaps.busy[0] |= all_bits();
      chunk().bitmaps.committed[0] |= all_bits();
    });
    EXPECT_EQ(write_pages(g, space(), chunk().base_address, count, bytes_.data(), PageUse::data), Status::ok);
    on_leader(g, [&] {
      before_.clear();
      for (u8* memory : entries()) before_.emplace_back(memory, memory + page_size);
    });
  }
  // Settled pages of a durable checkpoint.
  void settle() { chunk().bitmaps.stable[0] |= all_bits(); }
  // The device is lost, and is either being filled or lost permanently.
  void lose(u32 device, bool is_filled) {
    EXPECT_TRUE(lose_device(space(), device));
    if (is_filled) begin_rebuild(space(), device);
    chunk().rebuild_todo[0] |= all_bits();
  }
  // For a device that is being filled and has nothing of the pages.
  void begin(u32 device) {
    settle();
    for (u64 page = 0; page < count; ++page) {
      if (device_of(page) == device) std::memset(medium(page), 0xee, page_size);
    }
    lose(device, true);
  }
  // The devices of the first columns are being filled, those of the next `gone_count` columns are lost permanently.
  void begin_several(u32 filled_count, u32 gone_count) {
    settle();
    for (u32 column = 0; column < filled_count + gone_count; ++column) {
      lose(chunk().columns[column].device, column < filled_count);
    }
  }
  void end(u32 device) {
    space().health->failed = 0;
    space().health->rebuilding = 0;
    space().devices[device].failed = device::device_in_use;
    space().damage->entry_count = 0;
    for (u64* map : {chunk().bitmaps.busy, chunk().bitmaps.committed, chunk().bitmaps.stable}) map[0] &= ~all_bits();
    clear_in_parity(chunk(), 0, count);
  }

  void expect_all_made(const RebuildOutcome& outcome) {
    EXPECT_EQ(wire::rebuild_count(outcome.counts, wire::RebuildCount::looked_at), count);
    EXPECT_EQ(wire::rebuild_count(outcome.counts, wire::RebuildCount::unverified), 0u);
    EXPECT_EQ(wire::rebuild_count(outcome.counts, wire::RebuildCount::unreadable), 0u);
    EXPECT_EQ(chunk().rebuild_todo[0] & all_bits(), 0u);
    EXPECT_EQ(space().damage->repairs.running[0] + space().damage->repairs.running[1], 0u);
  }
  void expect_pages() {
    for (u64 page = 0; page < count; ++page) {
      EXPECT_EQ(std::memcmp(medium(page), bytes_.data() + page * page_size, page_size), 0) << "page " << page;
    }
  }
  // Of the first columns, including parities.
  void expect_entries(u32 column_count) {
    const std::vector<u8*> after = entries();
    for (std::size_t i = 0; i < after.size(); ++i) {
      if (!is_filled(after[i], column_count)) continue;
      EXPECT_EQ(std::memcmp(after[i], before_[i].data(), page_size), 0) << "entry " << i;
    }
  }

  SpaceFixture pool_;
  std::vector<u8> bytes_ = std::vector<u8>(count * page_size);  // what was written,
  std::vector<std::vector<u8>> before_;                         // and the content of entries() at that time
};

// A page in each row with a part on the device, and more rows than a row has slots.
TEST_P(RebuiltRows, DamageInEveryRowIsRepairedOnTheWay) {
  on_all_groups([&](auto g) {
    u32 device = 0;
    u32 damaged = 0;
    write_all(g, 23);
    on_leader(g, [&] {
      device = device_of(0);
      begin(device);
      const RowRange rows = rows_of_pages(space(), 0, 0, count);
      for (u64 row = rows.first; row < rows.end; ++row) {
        const RowView view = row_view(space(), 0, row);
        if (!has_part_on(view, device)) continue;
        for (u32 slot = 0; slot < view.slot_count; ++slot) {
          const u64 page = row_page(view, slot);
          if (page >= count || device_of(page) == device) continue;
          medium(page)[100] ^= 1;
          ++damaged;
          break;
        }
      }
      EXPECT_GT(damaged, chunk().column_count - u32{chunk().parity_count});
    });
    const RebuildOutcome outcome = rebuild_rows(g, space(), 0, 0, count, true);
    on_leader(g, [&] {
      expect_all_made(outcome);
      expect_pages();
      end(device);
    });
  });
}

// Parities have no checksums: the result of a wrong one does not match, and another one is used.
TEST_P(RebuiltRows, AWrongParityIsPassedOver) {
  on_all_groups([&](auto g) {
    u32 device = 0;
    write_all(g, 29);
    on_leader(g, [&] {
      device = device_of(0);
      begin(device);
      const RowRange rows = rows_of_pages(space(), 0, 0, count);
      for (u64 row = rows.first; row < rows.end; ++row) {
        const RowView view = row_view(space(), 0, row);
        if (parity_place(space(), view, 0).device != device) pool_.parity_at(view, 0)[7] ^= 0x10;
      }
    });
    const RebuildOutcome outcome = rebuild_rows(g, space(), 0, 0, count, true);
    on_leader(g, [&] {
      expect_all_made(outcome);
      expect_pages();
      end(device);
    });
  });
}

// Several devices at once, and others lost: pages and parities are restored, whatever the places contained.
TEST_P(RebuiltRows, SeveralDevicesAreFilledTogether) {
  on_all_groups([&](auto g) {
    for (u32 filled = 1; filled <= chunk().parity_count; ++filled) {
      for (u32 gone = 0; filled + gone <= chunk().parity_count; ++gone) {
        for (const bool is_fresh : {true, false}) {
          write_all(g, 31 + filled);
          on_leader(g, [&] {
            u32 number = 0;
            for (u8* memory : entries()) {
              // A device that returns already has some of it.
              const bool is_lacking = is_fresh || ++number % 3 != 0;
              if (is_lacking && is_filled(memory, filled)) std::memset(memory, 0xee, page_size);
            }
            begin_several(filled, gone);
          });
          const RebuildOutcome outcome = rebuild_rows(g, space(), 0, 0, count, is_fresh);
          on_leader(g, [&] {
            SCOPED_TRACE(fmt::format("{} filled, {} lost, {}", filled, gone, is_fresh ? "fresh" : "come back"));
            expect_all_made(outcome);
            expect_entries(chunk().column_count);
            for (u32 column = 0; column < filled + gone; ++column) end(chunk().columns[column].device);
          });
        }
      }
    }
  });
}

// No rebuilt parity is computed from an unverified page, even if that is on a device that stays lost.
TEST_P(RebuiltRows, NoParityFollowsFromAWrongOne) {
  if (chunk().parity_count < 3) return;
  on_all_groups([&](auto g) {
    write_all(g, 37);
    on_leader(g, [&] {
      for (u8* memory : entries()) {
        if (is_filled(memory, 1)) std::memset(memory, 0xee, page_size);
      }
      const RowRange rows = rows_of_pages(space(), 0, 0, count);
      for (u64 row = rows.first; row < rows.end; ++row) {
        const RowView view = row_view(space(), 0, row);
        u8* parity = pool_.parity_at(view, 0);
        if (!is_filled(parity, 2)) parity[11] ^= 0x20;
      }
      begin_several(1, 1);
    });
    (void)rebuild_rows(g, space(), 0, 0, count, true);
    on_leader(g, [&] {
      expect_entries(1);
      end(chunk().columns[0].device);
      end(chunk().columns[1].device);
    });
  });
}

TEST_P(RebuiltRows, BitsAreClearedAcrossWords) {
  u64* words = chunk().rebuild_todo;
  words[0] = words[1] = ~u64{0};
  clear_rebuild_todo_bits(chunk(), 60, 0xa5);
  EXPECT_EQ(words[0], ~(u64{0x5} << 60));
  EXPECT_EQ(words[1], ~u64{0xa});
  clear_rebuild_todo_bits(chunk(), 64, ~u64{0});
  EXPECT_EQ(words[0], ~(u64{0x5} << 60));
  EXPECT_EQ(words[1], 0u);
  clear_rebuild_todo_bits(chunk(), 0, 0);
  words[0] = 0;
}

const test::LevelShape shapes[] = {
    {"raid6_4_4k", format::RaidLevel::raid6, 4, 4096},
    {"raid6_6_16k", format::RaidLevel::raid6, 6, 16384},
    {"raid7_8_4k", format::RaidLevel::raid7, 8, 4096},
};
INSTANTIATE_TEST_SUITE_P(Shapes, RebuiltRows, ::testing::ValuesIn(test::on_all_devices(shapes)),
                         [](const auto& parameter) { return test::name_of(parameter.param); });

}  // namespace
}  // namespace gpu4fs::raid::rebuild_rows_test
