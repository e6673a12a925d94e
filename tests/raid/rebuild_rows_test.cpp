// Filling a device of a chunk with parities while pages of another one turn out to be damaged.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

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

constexpr u32 count = 64;  // pages, a task of a rebuild

class RebuiltRows : public ::testing::TestWithParam<test::LevelShape> {
 protected:
  RebuiltRows() : pool_(test::options_of(GetParam())) { EXPECT_EQ(pool_.load(1), Status::ok); }

  LogicalSpace& space() { return pool_.fs->space; }
  ChunkState& chunk() { return space().chunks[0]; }
  u8* medium(u64 page) { return page_memory(space(), {0, 0, page}, 0); }
  u32 device_of(u64 page) { return page_place(space(), {0, 0, page}, 0).device; }
  u64 all_bits() { return low_bits(count); }
  // Rows without are not looked at.
  bool has_part_on(const RowView& view, u32 device) {
    for (u32 slot = 0; slot < view.slot_count; ++slot) {
      if (row_page(view, slot) < count && device_of(row_page(view, slot)) == device) return true;
    }
    for (u32 j = 0; j < chunk().parity_count; ++j) {
      if (parity_place(space(), view, j).device == device) return true;
    }
    return false;
  }

  // What all columns of the pages' rows hold, of parities too.
  std::vector<u8*> entries() {
    std::vector<u8*> all;
    const RowRange rows = rows_of_pages(space(), 0, 0, count);
    for (u64 row = rows.first; row < rows.end; ++row) {
      const RowView view = row_view(space(), 0, row);
      for (u32 entry = 0; entry < chunk().column_count; ++entry) {
        if (entry >= view.slot_count && entry < view.data_slots) continue;
        if (entry < view.slot_count && row_page(view, entry) >= count) continue;
        const DevicePlace place = row_entry_place(space(), view, entry);
        all.push_back(device::memory_at(space().devices[place.device], place.offset, page_size));
      }
    }
    return all;
  }
  // Settled pages of a durable checkpoint; the devices of the first columns hold something else and are being filled, those
  // of `gone_count` behind them are lost for good.
  void begin_several(u32 filled_count, u32 gone_count) {
    for (u64* map : {chunk().bitmaps.busy, chunk().bitmaps.committed, chunk().bitmaps.stable}) map[0] |= all_bits();
    for (u32 column = 0; column < filled_count + gone_count; ++column) {
      const u32 device = chunk().columns[column].device;
      EXPECT_TRUE(lose_device(space(), device));
      if (column < filled_count) begin_rebuild(space(), device);
    }
    chunk().rebuild_todo[0] |= all_bits();
  }
  bool is_filled(const u8* memory, u32 filled_count) {
    for (u32 column = 0; column < filled_count; ++column) {
      const device::Device& device = space().devices[chunk().columns[column].device];
      if (memory >= device.base && memory < device.base + device.size_bytes) return true;
    }
    return false;
  }

  // Settled pages of a durable checkpoint, of which `device` has nothing and is being filled.
  void begin(u32 device) {
    for (u64* map : {chunk().bitmaps.busy, chunk().bitmaps.committed, chunk().bitmaps.stable}) map[0] |= all_bits();
    for (u64 page = 0; page < count; ++page) {
      if (device_of(page) == device) std::memset(medium(page), 0xee, page_size);
    }
    EXPECT_TRUE(lose_device(space(), device));
    begin_rebuild(space(), device);
    chunk().rebuild_todo[0] |= all_bits();
  }
  void end(u32 device) {
    space().health->failed = 0;
    space().health->rebuilding = 0;
    space().devices[device].failed = device::device_in_use;
    space().damage->entry_count = 0;
    for (u64* map : {chunk().bitmaps.busy, chunk().bitmaps.committed, chunk().bitmaps.stable}) map[0] &= ~all_bits();
    clear_in_parity(chunk(), 0, count);
  }

  SpaceFixture pool_;
};

// A page of each row that has something on the device, and more rows than a row has slots.
TEST_P(RebuiltRows, DamageInEveryRowIsRepairedOnTheWay) {
  on_all_groups([&](auto g) {
    std::vector<u8> bytes(count * page_size);
    u32 device = 0;
    u32 damaged = 0;
    serial(g, [&] {
      fill_random(bytes.data(), bytes.size(), 23);
      chunk().bitmaps.busy[0] |= all_bits();
      chunk().bitmaps.committed[0] |= all_bits();
    });
    const u8* from = serial(g, [&] { return static_cast<const u8*>(bytes.data()); });
    EXPECT_EQ(write_pages(g, space(), chunk().base_address, count, from, PageUse::data), Status::ok);
    serial(g, [&] {
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
    serial(g, [&] {
      EXPECT_EQ(format::rebuild_count(outcome.counts, format::RebuildCount::looked_at), count);
      EXPECT_EQ(format::rebuild_count(outcome.counts, format::RebuildCount::unverified), 0u);
      EXPECT_EQ(format::rebuild_count(outcome.counts, format::RebuildCount::unreadable), 0u);
      EXPECT_EQ(chunk().rebuild_todo[0] & all_bits(), 0u);
      EXPECT_EQ(space().damage->repairs.running[0] + space().damage->repairs.running[1], 0u);
      for (u64 page = 0; page < count; ++page) {
        EXPECT_EQ(std::memcmp(medium(page), bytes.data() + page * page_size, page_size), 0) << "page " << page;
      }
      end(device);
    });
  });
}

// Parities have no checksums: what a wrong one gives does not match, and another one is taken.
TEST_P(RebuiltRows, AWrongParityIsPassedOver) {
  on_all_groups([&](auto g) {
    std::vector<u8> bytes(count * page_size);
    u32 device = 0;
    serial(g, [&] {
      fill_random(bytes.data(), bytes.size(), 29);
      chunk().bitmaps.busy[0] |= all_bits();
      chunk().bitmaps.committed[0] |= all_bits();
    });
    const u8* from = serial(g, [&] { return static_cast<const u8*>(bytes.data()); });
    EXPECT_EQ(write_pages(g, space(), chunk().base_address, count, from, PageUse::data), Status::ok);
    serial(g, [&] {
      device = device_of(0);
      begin(device);
      const RowRange rows = rows_of_pages(space(), 0, 0, count);
      for (u64 row = rows.first; row < rows.end; ++row) {
        const RowView view = row_view(space(), 0, row);
        if (parity_place(space(), view, 0).device != device) parity_memory(space(), view, 0)[7] ^= 0x10;
      }
    });
    const RebuildOutcome outcome = rebuild_rows(g, space(), 0, 0, count, true);
    serial(g, [&] {
      EXPECT_EQ(format::rebuild_count(outcome.counts, format::RebuildCount::looked_at), count);
      EXPECT_EQ(format::rebuild_count(outcome.counts, format::RebuildCount::unverified), 0u);
      for (u64 page = 0; page < count; ++page) {
        EXPECT_EQ(std::memcmp(medium(page), bytes.data() + page * page_size, page_size), 0) << "page " << page;
      }
      end(device);
    });
  });
}

// Several devices at once, and others lost: pages and parities stand there again, whatever was there.
TEST_P(RebuiltRows, SeveralDevicesAreFilledTogether) {
  on_all_groups([&](auto g) {
    for (u32 filled = 1; filled <= chunk().parity_count; ++filled) {
      for (u32 gone = 0; filled + gone <= chunk().parity_count; ++gone) {
        for (const bool is_fresh : {true, false}) {
          std::vector<u8> bytes(count * page_size);
          std::vector<std::vector<u8>> before;
          serial(g, [&] {
            fill_random(bytes.data(), bytes.size(), 31 + filled);
            chunk().bitmaps.busy[0] |= all_bits();
            chunk().bitmaps.committed[0] |= all_bits();
          });
          const u8* from = serial(g, [&] { return static_cast<const u8*>(bytes.data()); });
          EXPECT_EQ(write_pages(g, space(), chunk().base_address, count, from, PageUse::data), Status::ok);
          serial(g, [&] {
            u32 number = 0;
            for (u8* memory : entries()) {
              before.emplace_back(memory, memory + page_size);
              // A device that comes back holds some of it.
              const bool is_lacking = is_fresh || ++number % 3 != 0;
              if (is_lacking && is_filled(memory, filled)) std::memset(memory, 0xee, page_size);
            }
            begin_several(filled, gone);
          });
          const RebuildOutcome outcome = rebuild_rows(g, space(), 0, 0, count, is_fresh);
          serial(g, [&] {
            EXPECT_EQ(format::rebuild_count(outcome.counts, format::RebuildCount::looked_at), count);
            EXPECT_EQ(format::rebuild_count(outcome.counts, format::RebuildCount::unverified), 0u);
            EXPECT_EQ(format::rebuild_count(outcome.counts, format::RebuildCount::unreadable), 0u);
            const std::vector<u8*> after = entries();
            for (std::size_t i = 0; i < after.size(); ++i) {
              EXPECT_EQ(std::memcmp(after[i], before[i].data(), page_size), 0)
                  << filled << " filled, " << gone << " lost, entry " << i;
            }
            for (u32 column = 0; column < filled + gone; ++column) end(chunk().columns[column].device);
          });
        }
      }
    }
  });
}

// A parity that is made anew follows from no page that nobody has verified, be it of a device that stays lost.
TEST_P(RebuiltRows, NoParityFollowsFromAWrongOne) {
  if (chunk().parity_count < 3) return;
  on_all_groups([&](auto g) {
    std::vector<u8> bytes(count * page_size);
    std::vector<std::vector<u8>> before;
    serial(g, [&] {
      fill_random(bytes.data(), bytes.size(), 37);
      chunk().bitmaps.busy[0] |= all_bits();
      chunk().bitmaps.committed[0] |= all_bits();
    });
    const u8* from = serial(g, [&] { return static_cast<const u8*>(bytes.data()); });
    EXPECT_EQ(write_pages(g, space(), chunk().base_address, count, from, PageUse::data), Status::ok);
    serial(g, [&] {
      for (u8* memory : entries()) before.emplace_back(memory, memory + page_size);
      for (u8* memory : entries()) {
        if (is_filled(memory, 1)) std::memset(memory, 0xee, page_size);
      }
      const RowRange rows = rows_of_pages(space(), 0, 0, count);
      for (u64 row = rows.first; row < rows.end; ++row) {
        const RowView view = row_view(space(), 0, row);
        u8* parity = parity_memory(space(), view, 0);
        if (!is_filled(parity, 2)) parity[11] ^= 0x20;
      }
      begin_several(1, 1);
    });
    (void)rebuild_rows(g, space(), 0, 0, count, true);
    serial(g, [&] {
      const std::vector<u8*> after = entries();
      for (std::size_t i = 0; i < after.size(); ++i) {
        if (!is_filled(after[i], 1)) continue;
        EXPECT_EQ(std::memcmp(after[i], before[i].data(), page_size), 0) << "entry " << i;
      }
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

INSTANTIATE_TEST_SUITE_P(Shapes, RebuiltRows,
                         ::testing::Values(test::LevelShape{"raid6_4_4k", format::RaidLevel::raid6, 4, 4096},
                                           test::LevelShape{"raid6_6_16k", format::RaidLevel::raid6, 6, 16384},
                                           test::LevelShape{"raid7_8_4k", format::RaidLevel::raid7, 8, 4096}),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

}  // namespace
}  // namespace gpu4fs::raid::rebuild_rows_test
