// Levels with parities: the places of pages and parities, that parities equal those of ISA-L in whatever order the
// pages are written, and recovery if a part of a row is lost.
#include <gtest/gtest.h>
#include <isa-l.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "raid/page_run_io.hpp"
#include "raid/row_replacement.hpp"
#include "support/group_runner.hpp"
#include "support/level_shapes.hpp"
#include "support/on_all_groups.hpp"
#include "support/space_fixture.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::raid::parity_test {
namespace {

using test::fill_random;
using test::on_all_groups;
using test::SpaceFixture;

const test::LevelShape shapes[] = {
    {"raid5_2_4k", format::RaidLevel::raid5, 2, 4096},   {"raid5_4_4k", format::RaidLevel::raid5, 4, 4096},
    {"raid5_4_64k", format::RaidLevel::raid5, 4, 65536}, {"raid5_6_1m", format::RaidLevel::raid5, 6, 1 << 20},
    {"raid6_3_8k", format::RaidLevel::raid6, 3, 8192},   {"raid6_6_4k", format::RaidLevel::raid6, 6, 4096},
    {"raid6_8_32k", format::RaidLevel::raid6, 8, 32768}, {"raid7_4_4k", format::RaidLevel::raid7, 4, 4096},
    {"raid7_8_4k", format::RaidLevel::raid7, 8, 4096},   {"raid7_8_16k", format::RaidLevel::raid7, 8, 16384},
};

// Emulated warps are slow, so they run one of this number of sets of columns.
u32 warp_set_step() {
  return test::is_short() ? 11 : 5;
}

// Whether the group runs the set of lost columns. One lane runs all of them, except under ThreadSanitizer, which is
// slow and for which a third suffices.
bool takes_set(u32 set, u32 columns, u32 group_size) {
  if (group_size > 1) return set % warp_set_step() == 0;
  return GPU4FS_TSAN == 0 || columns < 8 || set % 3 == 0;
}

// The parities of a row according to ISA-L: `pages` of 4096 bytes, zeros for missing ones.
std::vector<std::vector<u8>> parities_of(const std::vector<std::vector<u8>>& pages, u32 parity_count) {
  const int k = static_cast<int>(pages.size());
  const int m = static_cast<int>(parity_count);
  std::vector<u8> matrix(static_cast<std::size_t>((k + m) * k));
  gf_gen_rs_matrix(matrix.data(), k + m, k);
  std::vector<u8> tables(static_cast<std::size_t>(32 * k * m));
  ec_init_tables(k, m, matrix.data() + k * k, tables.data());
  std::vector<std::vector<u8>> parities(parity_count, std::vector<u8>(page_size));
  std::vector<u8*> from;
  std::vector<u8*> to;
  for (const std::vector<u8>& page : pages) from.push_back(const_cast<u8*>(page.data()));
  for (std::vector<u8>& parity : parities) to.push_back(parity.data());
  ec_encode_data(static_cast<int>(page_size), k, m, tables.data(), from.data(), to.data());
  return parities;
}

// The pieces into which [0, count) is divided.
std::vector<std::pair<u64, u32>> cut(u64 first, u32 count, u32 piece_max, test::Sequence& random) {
  std::vector<std::pair<u64, u32>> pieces;
  for (u32 done = 0; done < count;) {
    const u32 length = std::min(count - done, 1 + static_cast<u32>(random.next() % piece_max));
    pieces.emplace_back(first + done, length);
    done += length;
  }
  return pieces;
}

class Parities : public ::testing::TestWithParam<test::LevelShape> {
 protected:
  Parities() : pool_(test::options_of(GetParam())) { EXPECT_EQ(pool_.load(1), Status::ok); }

  LogicalSpace& space() { return pool_.fs->space; }
  ChunkState& chunk() { return space().chunks[0]; }
  u64 address(u64 page) { return chunk().base_address + page * page_size; }
  u8* medium(u64 page) { return pool_.page_at(PageLocation{0, 0, page}); }
  u64 row_count() {
    return chunk().page_count / 512 * divide_up(u64{512}, chunk().column_count - chunk().parity_count);
  }

  // Pages [first, first + count) become busy and in use, as if they were allocated.
  void take(u64 first, u64 count) {
    for (u64 page = first; page < first + count; ++page) {
      const u64 bit = u64{1} << (page % 64);
      for (u64* map : {chunk().bitmaps.busy, chunk().bitmaps.committed}) {
        fetch_or<Order::relaxed, Scope::engine>(&map[page / 64], bit);
      }
    }
  }
  // Starts over: no page is in use or in any parity.
  void free_all() {
    for (u64* map : {chunk().bitmaps.busy, chunk().bitmaps.committed}) std::fill_n(map, chunk().page_count / 64, 0);
    clear_in_parity(chunk(), 0, chunk().page_count);
    space().damage->entry_count = 0;
  }
  // As a mount with a damaged page of descriptors finds it (format::page_flag_unverified).
  void make_unverified(u64 page) {
    Vector16 descriptor = load_shared_16(&chunk().descriptors[page]);
    descriptor.high = (descriptor.high & 0xffffffffu) | u64{format::page_flag_unverified} << 32;
    store_shared_16(&chunk().descriptors[page], descriptor);
  }
  template <class Group>
  void write(Group g, u64 first, u32 count, const std::vector<u8>& bytes, u64 bytes_first) {
    const u8* from = on_leader(g, [&] {
      take(first, count);
      return bytes.data() + (first - bytes_first) * page_size;
    });
    EXPECT_EQ(write_pages(g, space(), address(first), count, from, PageUse::data), Status::ok);
  }
  std::vector<u8> row_memory(const RowView& view, u32 slot) {
    const u8* memory = medium(row_page(view, slot));
    return std::vector<u8>(memory, memory + page_size);
  }
  void expect_parities(u64 row) {
    const RowView view = row_view(space(), 0, row);
    std::vector<std::vector<u8>> pages;
    for (u32 slot = 0; slot < view.slot_count; ++slot) {
      const bool included = is_in_parity(chunk(), row_page(view, slot));
      pages.push_back(included ? row_memory(view, slot) : std::vector<u8>(page_size));
    }
    const std::vector<std::vector<u8>> expected = parities_of(pages, chunk().parity_count);
    for (u32 j = 0; j < chunk().parity_count; ++j) {
      ASSERT_EQ(std::memcmp(pool_.parity_at(view, j), expected[j].data(), page_size), 0)
          << "row " << row << " parity " << j;
    }
  }

  SpaceFixture pool_;
};

TEST_P(Parities, EveryPageAndParityHasAPlaceOfItsOwn) {
  const Geometry geometry = geometry_of(chunk());
  with_parity_level(chunk().level, [&](auto level) {
    std::set<std::pair<u32, u64>> places;
    std::vector<u32> parities_in_column(geometry.column_count);
    u64 stripe_end = 0;
    for (u64 page = 0; page < geometry.page_count; ++page) {
      const RowPlace place = level.row_of(geometry, page);
      const auto row = level.row_at(geometry, place.row);
      ASSERT_LT(place.slot, row.slot_count);
      ASSERT_EQ(row.first + u64{place.slot} * row.step, page);
      const PagePlace at = level.map(geometry, page, 0);
      ASSERT_LT(at.page, level.column_pages(geometry));
      ASSERT_TRUE(places.insert({at.column, at.page}).second) << "page " << page;
      const u64 together = level.contiguous_pages(geometry, page);
      ASSERT_GE(together, 1u);
      if (together > 1) {
        const PagePlace next = level.map(geometry, page + 1, 0);
        ASSERT_EQ(next.column, at.column);
        ASSERT_EQ(next.page, at.page + 1);
      }
      const Stripe stripe = level.stripe_of(geometry, page);
      ASSERT_EQ(level.stripe_at(geometry, stripe.index).first, stripe.first);
      ASSERT_LE(stripe.first, page);
      ASSERT_LT(page, stripe.first + stripe.page_count);
      if (page == stripe_end) {
        ASSERT_EQ(stripe.first, page) << "stripes follow each other";
        stripe_end += stripe.page_count;
      }
      for (u32 slot = 0; slot < row.slot_count; ++slot) {
        const u64 other = row.first + u64{slot} * row.step;
        ASSERT_TRUE(other >= stripe.first && other < stripe.first + stripe.page_count) << "a row crosses its stripe";
      }
    }
    for (u64 row = 0; row < level.column_pages(geometry); ++row) {
      for (u32 j = 0; j < level.parity_count; ++j) {
        const u32 column = level.column_of(geometry, row, geometry.column_count - level.parity_count + j);
        ASSERT_TRUE(places.insert({column, row}).second) << "row " << row;
        ++parities_in_column[column];
      }
    }
    // The unused places in the last rows of the regions.
    const u64 slots = level.data_columns(geometry.column_count);
    const u64 unused = level.column_pages(geometry) * geometry.column_count - places.size();
    EXPECT_EQ(unused, geometry.page_count / 512 * (divide_up(u64{512}, slots) * slots - 512));
    const auto [low, high] = std::minmax_element(parities_in_column.begin(), parities_in_column.end());
    EXPECT_GT(*low, 0u) << "parities do not rotate";
    EXPECT_LE(*high - *low, level.column_pages(geometry) / 3);
  });
}

// In one piece, in pieces in order, in pieces in any order.
TEST_P(Parities, AreThoseOfIsaLHoweverThePagesCame) {
  u64 seed = 0;
  on_all_groups([&](auto g) {
    const u32 count = g.size() == 1 ? 1024 : 120;
    const u64 first = g.size() == 1 ? 0 : 512;
    for (const u32 piece_max : {count, 40u, 3u}) {
      static std::vector<u8> bytes;
      static std::vector<std::pair<u64, u32>> pieces;
      on_leader(g, [&] {
        free_all();
        bytes.resize(u64{count} * page_size);
        fill_random(bytes.data(), bytes.size(), ++seed);
        test::Sequence random(seed);
        pieces = cut(first, count, piece_max, random);
        if (piece_max == count) pieces = {{first, count}};
        if (piece_max == 3) {
          for (std::size_t i = pieces.size(); i > 1; --i) std::swap(pieces[i - 1], pieces[random.next() % i]);
        }
      });
      const std::size_t piece_count = on_leader(g, [&] { return pieces.size(); });
      for (std::size_t i = 0; i < piece_count; ++i) write(g, pieces[i].first, pieces[i].second, bytes, first);
      on_leader(g, [&] {
        for (u64 row = row_place(chunk(), first).row; row <= row_place(chunk(), first + count - 1).row; ++row) {
          expect_parities(row);
        }
        for (u32 i = 0; i < count; ++i) {
          ASSERT_EQ(std::memcmp(medium(first + i), bytes.data() + i * page_size, page_size), 0);
        }
      });
      std::vector<u8> back(on_leader(g, [&] { return bytes.size(); }));
      u8* to = on_leader(g, [&] { return back.data(); });
      EXPECT_EQ(read_pages(g, space(), address(first), count, to, PageUse::data), Status::ok);
      on_leader(g, [&] { EXPECT_EQ(std::memcmp(to, bytes.data(), bytes.size()), 0); });
    }
  });
}

// Every set of columns that the level can lose is silently changed: all pages are recovered and restored in place.
TEST_P(Parities, GiveBackEverySetOfLostColumns) {
  const u32 m = chunk().parity_count;
  const u32 columns = chunk().column_count;
  std::vector<u8> bytes(64 * page_size);
  fill_random(bytes.data(), bytes.size(), 5);
  write(Lane{}, 0, 64, bytes, 0);
  const u64 first_row = row_place(chunk(), 0).row;
  const u64 last_row = [&] {
    u64 last = 0;
    for (u64 page = 0; page < 64; ++page) last = std::max(last, row_place(chunk(), page).row);
    return last;
  }();
  u32 sets = 0;
  on_all_groups([&](auto g) {
    for (u32 set = 1; set < 1u << columns; ++set) {
      if (popcount(set) > m || !takes_set(set, columns, g.size())) continue;
      on_leader(g, [&] {
        ++sets;
        for (u32 column = 0; column < columns; ++column) {
          if ((set >> column & 1) == 0) continue;
          const ColumnState& state = chunk().columns[column];
          for (u64 row = first_row; row <= last_row; ++row) {
            pool_.page_at(state.device, state.data_offset + row * page_size)[row * 37 % page_size] ^= 0x20;
          }
        }
      });
      std::vector<u8> back(64 * page_size);
      u8* to = on_leader(g, [&] { return back.data(); });
      EXPECT_EQ(read_pages(g, space(), address(0), 64, to, PageUse::data), Status::ok) << "set " << set;
      on_leader(g, [&] {
        EXPECT_EQ(std::memcmp(to, bytes.data(), bytes.size()), 0) << "set " << set;
        for (u64 page = 0; page < 64; ++page) {
          EXPECT_EQ(std::memcmp(medium(page), bytes.data() + page * page_size, page_size), 0) << "not repaired";
        }
        // A scrub repairs parities; here the change is undone.
        for (u64 row = first_row; row <= last_row; ++row) {
          const RowView view = row_view(space(), 0, row);
          for (u32 j = 0; j < m; ++j) {
            const DevicePlace place = parity_place(space(), view, j);
            for (u32 column = 0; column < columns; ++column) {
              if ((set >> column & 1) != 0 && chunk().columns[column].device == place.device) {
                pool_.parity_at(view, j)[row * 37 % page_size] ^= 0x20;
              }
            }
          }
          expect_parities(row);
        }
      });
    }
  });
  EXPECT_GE(sets, columns);
  EXPECT_EQ(space().damage->entry_count, 0u);
}

// Every set of devices that may be lost, and arbitrary runs of pages: rows are read as a whole.
TEST_P(Parities, AreReadInRowsWithoutLostDevices) {
  constexpr u32 count = 96;
  const u32 columns = chunk().column_count;
  const u32 m = chunk().parity_count;
  std::vector<u8> bytes(count * page_size);
  fill_random(bytes.data(), bytes.size(), 15);
  // The last row may have fewer pages.
  test::Sequence random(16);
  for (const auto& [first, length] : cut(0, count - 1, 40, random)) write(Lane{}, first, length, bytes, 0);
  on_all_groups([&](auto g) {
    for (u32 set = 1; set < 1u << columns; ++set) {
      if (popcount(set) > m || !takes_set(set, columns, g.size())) continue;
      std::vector<u8*> bases(columns);
      on_leader(g, [&] {
        for (u32 column = 0; column < columns; ++column) {
          if ((set >> column & 1) == 0) continue;
          const u32 device = chunk().columns[column].device;
          bases[column] = std::exchange(space().devices[device].base, nullptr);
          EXPECT_TRUE(lose_device(space(), device));
        }
      });
      const u64 before = on_leader(g, [&] { return space().parity->reconstructed_count; });
      std::vector<u8> back(count * page_size + 1);
      for (u32 turn = 0; turn < 6; ++turn) {
        struct Piece {
          u64 first;
          u32 length;
          u8* to;
        };
        const Piece piece = on_leader(g, [&] {
          const u64 first = turn == 0 ? 0 : random.next() % (count - 1);
          const u32 length = turn == 0 ? count - 1 : 1 + static_cast<u32>(random.next() % (count - 1 - first));
          std::fill(back.begin(), back.end(), u8{0xee});
          return Piece{first, length, back.data() + turn % 2};
        });
        EXPECT_EQ(read_pages(g, space(), address(piece.first), piece.length, piece.to, PageUse::data), Status::ok);
        on_leader(g, [&] {
          EXPECT_EQ(std::memcmp(piece.to, bytes.data() + piece.first * page_size, piece.length * page_size), 0)
              << "set " << set << " pages " << piece.first << " + " << piece.length;
        });
      }
      on_leader(g, [&] {
        u64 lost_pages = 0;
        for (u64 page = 0; page < count - 1; ++page) {
          lost_pages += copy_has_failed(space(), {0, 0, page}, 0) ? 1 : 0;
        }
        EXPECT_GE(space().parity->reconstructed_count, before + lost_pages) << "set " << set;
        for (u32 column = 0; column < columns; ++column) {
          if ((set >> column & 1) == 0) continue;
          device::Device& device = space().devices[chunk().columns[column].device];
          device.base = bases[column];
          device.failed = 0;
        }
        space().health->failed = 0;
      });
    }
  });
  EXPECT_EQ(space().damage->entry_count, 0u);
}

// Also if each page is moved while it is stored: the sum is that of the page as it was read.
TEST_P(Parities, RowsComeAsAWholeToAnyAddress) {
  std::vector<u8> bytes(64 * page_size);
  fill_random(bytes.data(), bytes.size(), 17);
  write(Lane{}, 0, 64, bytes, 0);
  const RowView view = row_view(space(), 0, row_place(chunk(), 0).row);
  const u32 device = page_place(space(), {0, 0, view.first}, 0).device;
  u8* const base = std::exchange(space().devices[device].base, nullptr);
  EXPECT_TRUE(lose_device(space(), device));
  on_all_groups([&](auto g) {
    std::vector<u8> back(64 * page_size + 16);
    u8* to = on_leader(g, [&] { return back.data(); });
    for (const u32 shift : {0u, 5u}) {
      const RowTarget target{0, 1, 0, 64, to + shift};
      for (u64 row = view.row; row < view.row + 1;) {
        const RowsRead done = read_rows(g, space(), target, row, view.row + 1);
        EXPECT_EQ(done.failed, 0u) << shift;
        row += done.row_count;
      }
      on_leader(g, [&] {
        for (u32 slot = 0; slot < view.slot_count && row_page(view, slot) < 64; ++slot) {
          const u64 at = row_page(view, slot) * page_size;
          EXPECT_EQ(std::memcmp(to + shift + at, bytes.data() + at, page_size), 0) << "slot " << slot;
        }
        std::fill(back.begin(), back.end(), u8{0});
      });
    }
  });
  space().devices[device].base = base;
  EXPECT_EQ(space().damage->entry_count, 0u);
}

TEST_P(Parities, OneLossMoreIsAnErrorOfWhatIsLostAlone) {
  const u32 m = chunk().parity_count;
  std::vector<u8> bytes(512 * page_size);
  fill_random(bytes.data(), bytes.size(), 6);
  write(Lane{}, 0, 512, bytes, 0);
  // A row with enough pages to lose one more than there are parities; otherwise parities are lost with them.
  const RowView view = row_view(space(), 0, row_place(chunk(), 0).row);
  const u32 lost = std::min(m + 1, view.slot_count);
  for (u32 slot = 0; slot < lost; ++slot)
    medium(row_page(view, slot))[9] ^= static_cast<u8>(1 << slot);  // changes that do not cancel out
  for (u32 j = 0; j < m + 1 - lost; ++j) pool_.parity_at(view, j)[9] ^= 0x80;
  on_all_groups([&](auto g) {
    std::vector<u8> back(page_size);
    u8* to = on_leader(g, [&] { return back.data(); });
    for (u64 page = 0; page < 512; page += g.size() == 1 || row_place(chunk(), page).row == view.row ? 1 : 7) {
      on_leader(g, [&] { std::memset(to, 0xee, page_size); });
      bool is_lost = false;
      for (u32 slot = 0; slot < lost; ++slot) is_lost |= row_page(view, slot) == page;
      const Status status = read_page(g, space(), address(page), to, PageUse::data);
      EXPECT_EQ(status, is_lost ? Status::checksum_mismatch : Status::ok) << "page " << page;
      on_leader(g, [&] {
        if (is_lost) {
          const bool given_out = std::any_of(to, to + page_size, [](u8 byte) { return byte != 0xee && byte != 0; });
          EXPECT_FALSE(given_out) << "bytes that did not match";
        } else {
          EXPECT_EQ(std::memcmp(to, bytes.data() + page * page_size, page_size), 0);
        }
      });
    }
  });
  EXPECT_EQ(space().damage->entry_count, lost);
}

// The checkpoint's snapshot protects a row: a command that writes a page of it afterwards is restarted.
TEST_P(Parities, RowsOfASnapshotGetNoMorePages) {
  const RowView view = row_view(space(), 0, row_place(chunk(), 0).row);
  if (view.slot_count < 2) return;
  std::vector<u8> bytes(page_size, 0x31);
  on_all_groups([&](auto g) {
    on_leader(g, [&] {
      free_all();
      std::fill_n(chunk().bitmaps.staged, chunk().page_count / 64, 0);
      take(row_page(view, 0), 1);
      take(row_page(view, 1), 1);
    });
    const u8* from = on_leader(g, [&] { return bytes.data(); });
    EXPECT_EQ(write_page(g, space(), address(row_page(view, 0)), from, PageUse::data), Status::ok);
    on_leader(g, [&] { chunk().bitmaps.staged[row_page(view, 0) / 64] |= u64{1} << (row_page(view, 0) % 64); });
    EXPECT_EQ(write_page(g, space(), address(row_page(view, 1)), from, PageUse::data), Status::retry_after_checkpoint);
    on_leader(g, [&] { expect_parities(view.row); });
    EXPECT_EQ(write_page(g, space(), address(row_page(view, 1)), from, PageUse::metadata), Status::ok);
    on_leader(g, [&] { expect_parities(view.row); });
    EXPECT_EQ(write_page(g, space(), address(row_page(view, 1)), from, PageUse::metadata), Status::corrupt_structure)
        << "pages are written once";
    on_leader(g, [&] { EXPECT_EQ(space().parity->updates.running[0] + space().parity->updates.running[1], 0u); });
  });
}

// It is unknown whether the parities include an unverified page: no page of the row may be added while the checkpoint
// has it, and the page itself may already be included.
TEST_P(Parities, UnverifiedPagesCountAsIncludedForWhoeverAddsOthers) {
  const RowView view = row_view(space(), 0, row_place(chunk(), 0).row);
  if (view.slot_count < 2) GTEST_SKIP() << "a row of one page";
  const std::vector<u8> bytes(page_size, 0x31);
  on_all_groups([&](auto g) {
    on_leader(g, [&] {
      free_all();
      std::fill_n(chunk().bitmaps.staged, chunk().page_count / 64, 0);
      take(row_page(view, 0), 1);
      take(row_page(view, 1), 1);
    });
    const u8* from = on_leader(g, [&] { return bytes.data(); });
    EXPECT_EQ(write_page(g, space(), address(row_page(view, 0)), from, PageUse::data), Status::ok);
    on_leader(g, [&] {
      make_unverified(row_page(view, 0));
      chunk().bitmaps.staged[row_page(view, 0) / 64] |= u64{1} << (row_page(view, 0) % 64);
    });
    EXPECT_EQ(write_page(g, space(), address(row_page(view, 1)), from, PageUse::data), Status::retry_after_checkpoint);
    on_leader(g, [&] { expect_parities(view.row); });
    EXPECT_EQ(write_page(g, space(), address(row_page(view, 0)), from, PageUse::metadata), Status::corrupt_structure);
    on_leader(g, [&] { expect_parities(view.row); });
  });
}

TEST_P(Parities, MergingReadsWhatTheRowGivesBack) {
  std::vector<u8> bytes(8 * page_size);
  fill_random(bytes.data(), bytes.size(), 8);
  write(Lane{}, 0, 8, bytes, 0);
  u64 target = 512;
  on_all_groups([&](auto g) {
    for (u64 page = 0; page < 8; ++page) {
      on_leader(g, [&] {
        take(target, 1);
        medium(page)[4000] ^= 8;
      });
      const u8 patch[3] = {1, 2, 3};
      EXPECT_EQ(write_page_merged(g, space(), {address(target), address(page), {100, 103}, patch, PageUse::data}),
                Status::ok);
      on_leader(g, [&] {
        std::vector<u8> expected(bytes.begin() + page * page_size, bytes.begin() + (page + 1) * page_size);
        std::memcpy(expected.data() + 100, patch, 3);
        EXPECT_EQ(std::memcmp(medium(target), expected.data(), page_size), 0);
        expect_parities(row_place(chunk(), target).row);
        ++target;
      });
    }
  });
  for (const u64 word : space().parity->scratch_free) EXPECT_EQ(word, ~u64{0}) << "scratch pages are lost";
}

// A row gets new pages while others stay: the parities include all of them and not the pages that left the row, a lost
// page of the row is recovered, and a repetition, complete or from the middle on, changes nothing. No old parity is
// read.
TEST_P(Parities, RowsGetNewPagesAsWholeValues) {
  test::Sequence random(77);
  std::vector<u8> bytes(chunk().stripe_pages * u64{chunk().column_count} * page_size);
  fill_random(bytes.data(), bytes.size(), 5);
  std::vector<u8> memory((row_work_page_count + 1) * page_size);
  u8* work = memory.data() + (page_size - reinterpret_cast<std::uintptr_t>(memory.data()) % page_size);
  const Stripe stripe = stripe_of(chunk(), 0);
  on_all_groups([&](auto g) {
    const RowView view = row_view(space(), 0, row_place(chunk(), stripe.first).row);
    if (g.leader()) free_all();
    write(g, stripe.first, static_cast<u32>(stripe.page_count), bytes, stripe.first);
    const u64 all = view.slot_count >= 64 ? ~u64{0} : (u64{1} << view.slot_count) - 1;
    // Slot 0 gets a new page; the last page leaves the sum if there are enough pages.
    const u64 leaves = view.slot_count > 2 ? u64{1} << (view.slot_count - 1) : 0;
    const RowValues values{0, 0, view.row, all & ~leaves, 1, work};
    on_leader(g, [&] {
      fill_random(work, page_size, 9);
      for (u32 j = 0; j < chunk().parity_count; ++j) std::memset(pool_.parity_at(view, j), 0x77, page_size);
    });
    EXPECT_EQ(prepare_row(g, space(), values, work + (row_work_page_count - 1) * page_size), Status::ok);
    for (u32 time = 0; time < 2; ++time) {
      EXPECT_EQ(replace_row(g, space(), values), Status::ok);
      on_leader(g, [&] {
        EXPECT_EQ(std::memcmp(medium(row_page(view, 0)), work, page_size), 0);
        EXPECT_EQ(slots_in_parity(space(), view), all & ~leaves);
        expect_parities(view.row);
        // As a crash in between leaves it.
        std::memset(medium(row_page(view, 0)), 0x11, page_size / 2);
        std::memset(pool_.parity_at(view, 0), 0x22, page_size / 2);
      });
    }
    EXPECT_EQ(replace_row(g, space(), values), Status::ok);
    on_leader(g, [&] { std::memset(medium(row_page(view, 0)), 0x33, page_size); });
    u8* read = work + (row_work_page_count - 1) * page_size;
    EXPECT_EQ(read_page(g, space(), address(row_page(view, 0)), read), Status::ok);
    on_leader(g, [&] { EXPECT_EQ(std::memcmp(read, work, page_size), 0); });
  });
}

// Afterwards it is known what the parities include, also of unverified pages that stay and of those that leave.
TEST_P(Parities, ARowWithNewPagesHasNoUnverifiedOnes) {
  const RowView view = row_view(space(), 0, row_place(chunk(), 0).row);
  if (view.slot_count < 3) GTEST_SKIP() << "a row with no page that leaves";
  std::vector<u8> bytes(chunk().stripe_pages * u64{chunk().column_count} * page_size);
  fill_random(bytes.data(), bytes.size(), 5);
  std::vector<u8> memory((row_work_page_count + 1) * page_size);
  u8* work = memory.data() + (page_size - reinterpret_cast<std::uintptr_t>(memory.data()) % page_size);
  u8* last = work + (row_work_page_count - 1) * page_size;
  const Stripe stripe = stripe_of(chunk(), 0);
  on_all_groups([&](auto g) {
    on_leader(g, [&] { free_all(); });
    write(g, stripe.first, static_cast<u32>(stripe.page_count), bytes, stripe.first);
    on_leader(g, [&] {
      for (u32 slot = 0; slot < view.slot_count; ++slot) make_unverified(row_page(view, slot));
    });
    const u64 kept = low_bits(view.slot_count - 1);
    const RowValues values{0, 0, view.row, kept, 1, work};
    EXPECT_EQ(prepare_row(g, space(), values, last), Status::ok);
    EXPECT_EQ(replace_row(g, space(), values), Status::ok);
    on_leader(g, [&] {
      EXPECT_EQ(unverified_slots(space(), view), 0u);
      EXPECT_EQ(slots_in_parity(space(), view), kept);
      expect_parities(view.row);
      std::memset(medium(row_page(view, 1)), 0x33, page_size);
    });
    EXPECT_EQ(read_page(g, space(), address(row_page(view, 1)), last), Status::ok) << "the row gives it back";
    const u8* kept_page = bytes.data() + (row_page(view, 1) - stripe.first) * page_size;
    on_leader(g, [&] { EXPECT_EQ(std::memcmp(last, kept_page, page_size), 0); });
  });
}

// A page that stays and cannot be read: its bytes get into no parity.
TEST_P(Parities, NoRowIsPreparedFromADamagedPage) {
  if (row_view(space(), 0, 0).slot_count < 2) GTEST_SKIP() << "a row of one page";
  std::vector<u8> bytes(chunk().stripe_pages * u64{chunk().column_count} * page_size);
  fill_random(bytes.data(), bytes.size(), 5);
  std::vector<u8> memory((row_work_page_count + 1) * page_size);
  u8* work = memory.data() + (page_size - reinterpret_cast<std::uintptr_t>(memory.data()) % page_size);
  const Stripe stripe = stripe_of(chunk(), 0);
  write(Lane{}, stripe.first, static_cast<u32>(stripe.page_count), bytes, stripe.first);
  const RowView view = row_view(space(), 0, row_place(chunk(), stripe.first).row);
  const RowValues values{0, 0, view.row, slots_in_parity(space(), view), 1, work};
  u8* last = work + (row_work_page_count - 1) * page_size;
  medium(row_page(view, 1))[100] ^= 1;
  EXPECT_EQ(prepare_row(Lane{}, space(), values, last), Status::ok) << "made from the parities";
  medium(row_page(view, 1))[100] ^= 1;
  for (u32 j = 0; j < chunk().parity_count; ++j) pool_.parity_at(view, j)[100] ^= 1;
  EXPECT_EQ(prepare_row(Lane{}, space(), values, last), Status::checksum_mismatch);
}

// Sanitizers run every other one.
std::vector<test::LevelShape> chosen_shapes() {
  std::vector<test::LevelShape> chosen;
  const std::size_t step = test::is_short() ? 2 : 1;
  for (std::size_t i = 0; i < std::size(shapes); i += step) chosen.push_back(shapes[i]);
  return test::on_all_devices(chosen, 3);
}

INSTANTIATE_TEST_SUITE_P(Shapes, Parities, ::testing::ValuesIn(chosen_shapes()),
                         [](const auto& parameter) { return test::name_of(parameter.param); });

TEST(Galois, EquationsAreSolved) {
  for (u32 count = 1; count <= 3; ++count) {
    for (u32 powers = 0; powers < 8; ++powers) {
      if (popcount(powers) != count) continue;
      u32 power[3] = {};
      u32 n = 0;
      for (u32 j = 0; j < 3; ++j) {
        if ((powers >> j & 1) != 0) power[n++] = j;
      }
      const u32 places[3] = {3, 60, 11};
      const u8 unknowns[3] = {0x80, 0x17, 0xff};
      u8 sums[3] = {};
      for (u32 r = 0; r < count; ++r) {
        for (u32 c = 0; c < count; ++c) {
          sums[r] ^= gf_mul(galois::power_of_two(power[r] * places[c]), unknowns[c]);
        }
      }
      for (u32 target = 0; target < count; ++target) {
        const galois::Weights weights = galois::solve(power, places, count, target);
        u8 value = 0;
        for (u32 r = 0; r < count; ++r) value ^= gf_mul(weights.values[r], sums[r]);
        EXPECT_EQ(value, unknowns[target]);
      }
    }
  }
}

TEST(Galois, WordsAreMultipliedAsBytesAre) {
  for (u32 a = 0; a < 256; ++a) {
    for (u32 b = 0; b < 256; ++b) {
      const u8 expected = gf_mul(static_cast<u8>(a), static_cast<u8>(b));
      EXPECT_EQ(galois::multiply(static_cast<u8>(a), static_cast<u8>(b)), expected);
      EXPECT_EQ(galois::scale(u64{a} * 0x0101010101010101u, static_cast<u8>(b)), u64{expected} * 0x0101010101010101u);
    }
  }
}

// By look-ups, with different bytes next to each other, to detect mix-ups.
TEST(Galois, BytesOfAWordAreLookedUpEach) {
  for (u32 factor = 0; factor < 256; ++factor) {
    const galois::Multiplier by = galois::make_multiplier(static_cast<u8>(factor));
    for (u32 begin = 0; begin < 256; ++begin) {
      u64 bytes = 0;
      u64 expected = 0;
      for (u32 i = 0; i < 8; ++i) {
        const u8 byte = static_cast<u8>(begin * (2 * i + 1) + 29 * i);
        bytes |= u64{byte} << (8 * i);
        expected |= u64{gf_mul(byte, static_cast<u8>(factor))} << (8 * i);
      }
      ASSERT_EQ(galois::scale(galois::split_bytes(bytes), by), expected) << factor << " times " << bytes;
    }
  }
}

TEST(Galois, PowersAndInverses) {
  u8 power = 1;
  for (u32 exponent = 0; exponent < 600; ++exponent) {
    ASSERT_EQ(galois::power_of_two(exponent), power) << exponent;
    power = gf_mul(power, 2);
  }
  for (u32 a = 1; a < 256; ++a) EXPECT_EQ(galois::inverse(static_cast<u8>(a)), gf_inv(static_cast<u8>(a))) << a;
}

alignas(64) u8 page[page_size];
alignas(64) u8 before[page_size];
alignas(64) u8 after[page_size];

// A page of every group, multiplied by every factor, compared with ISA-L.
TEST(Galois, PagesAreMultipliedAndAdded) {
  fill_random(page, page_size, 21);
  fill_random(before, page_size, 22);
  on_all_groups([&](auto g) {
    using Group = decltype(g);
    for (u32 factor = 0; factor < 256; factor += g.size() == 1 ? 1 : 17) {
      ParityPages<Group, 2> sums;
      clear_parities(g, sums);
      add_page(g, sums.pages[1], load_aligned_page(g, before));
      add_scaled(g, sums.pages[1], load_aligned_page(g, page), static_cast<u8>(factor));
      raise_to_slot(g, sums, 3);
      store_page(g, parity_page(g, sums, 1), after);
      on_leader(g, [&] {
        for (u32 i = 0; i < page_size; ++i) {
          const u8 sum = static_cast<u8>(before[i] ^ gf_mul(page[i], static_cast<u8>(factor)));
          ASSERT_EQ(after[i], gf_mul(sum, 8)) << factor << " times byte " << i;
        }
      });
    }
  });
}

}  // namespace
}  // namespace gpu4fs::raid::parity_test
