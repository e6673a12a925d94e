// Pages whose addresses have to be looked up one by one: all levels on scattered devices, some on staged ones. Every
// access is announced in the call that makes it, and no address is computed from that of a neighbour.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "raid/logged_pages.hpp"
#include "raid/page_run_io.hpp"
#include "raid/rebuild/rebuild_copies.hpp"
#include "raid/rebuild/rebuild_rows.hpp"
#include "raid/repair_pages.hpp"
#include "raid/row_replacement.hpp"
#include "support/group_runner.hpp"
#include "support/level_shapes.hpp"
#include "support/on_all_groups.hpp"
#include "support/space_fixture.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::raid::pages_apart_test {
namespace {

using test::fill_random;
using test::on_all_groups;

constexpr device::DeviceKind scattered = device::DeviceKind::scattered;
constexpr device::DeviceKind staged = device::DeviceKind::staged;

const test::LevelShape shapes[] = {
    {"single", format::RaidLevel::single, 1, 0, scattered},
    {"raid0_2_4k", format::RaidLevel::raid0, 2, 4096, scattered},
    {"raid0_4_64k", format::RaidLevel::raid0, 4, 65536, scattered},
    {"raid1_2", format::RaidLevel::raid1, 2, 0, scattered},
    {"raid1_4", format::RaidLevel::raid1, 4, 0, scattered},
    {"raid5_4_4k", format::RaidLevel::raid5, 4, 4096, scattered},
    {"raid6_6_16k", format::RaidLevel::raid6, 6, 16384, scattered},
    {"raid7_8_4k", format::RaidLevel::raid7, 8, 4096, scattered},
    {"raid7_40_4k", format::RaidLevel::raid7, 40, 4096, scattered},
    {"raid1_4", format::RaidLevel::raid1, 4, 0, staged},
    {"raid6_6_16k", format::RaidLevel::raid6, 6, 16384, staged},
    {"raid7_40_4k", format::RaidLevel::raid7, 40, 4096, staged},
};

class PagesApart : public ::testing::TestWithParam<test::LevelShape> {
 protected:
  PagesApart() : pool_(test::options_of(GetParam())) {
    EXPECT_EQ(pool_.load(1), Status::ok);
    EXPECT_EQ(space().pages_apart, 1u);
    EXPECT_EQ(space().stacked, 0u);
  }

  LogicalSpace& space() { return pool_.fs->space; }
  ChunkState& chunk() { return space().chunks[0]; }
  bool in_rows() { return chunk().parity_count != 0; }
  u64 address(u64 page) { return chunk().base_address + page * page_size; }
  u8* medium(u64 page, u32 copy = 0) { return pool_.page_at(PageLocation{0, 0, page}, copy); }
  test::AnnouncedPages& announced(u32 device) { return pool_.scattered()->pages(device); }

  // Pages of [first, first + count) are in use and nothing else is; none is in a parity.
  void take_only(u64 first, u64 count) {
    for (u64* map : {chunk().bitmaps.busy, chunk().bitmaps.committed, chunk().bitmaps.stable}) {
      std::fill_n(map, chunk().page_count / 64, u64{0});
      for (u64 page = first; page < first + count && (map != chunk().bitmaps.stable || !in_rows()); ++page) {
        map[page / 64] |= u64{1} << (page % 64);
      }
    }
    if (in_rows()) clear_in_parity(chunk(), 0, chunk().page_count);
    space().damage->entry_count = 0;
  }
  void settle(u64 first, u64 count) {
    for (u64 page = first; page < first + count; ++page) chunk().bitmaps.stable[page / 64] |= u64{1} << (page % 64);
  }

  // One call into raid. Its announcements are those that it needs, and all of them have ended.
  template <class Group, class Call>
  auto call(Group g, Call&& body) {
    on_leader(g, [&] { pool_.finish_call(); });
    const auto result = body();
    on_leader(g, [&] { pool_.finish_call(); });
    return result;
  }
  // Pages with random bytes, kept in bytes_.
  template <class Group>
  void write(Group g, u64 first, u32 count, u64 seed) {
    const u8* from = on_leader(g, [&] {
      take_only(first, count);
      bytes_.resize(u64{count} * page_size + 16);
      fill_random(bytes_.data(), bytes_.size(), seed);
      first_ = first;
      bytes_shift_ = static_cast<u32>(seed % 2);
      return bytes_.data() + seed % 2;
    });
    const Status status = call(g, [&] { return write_pages(g, space(), address(first), count, from, PageUse::data); });
    EXPECT_EQ(status, Status::ok) << first << " + " << count;
  }
  const u8* expected(u64 page) { return bytes_.data() + bytes_shift_ + (page - first_) * page_size; }
  void expect_medium(u64 first, u64 count) {
    for (u64 page = first; page < first + count; ++page) {
      for (u32 copy = 0; copy < chunk().copy_count; ++copy) {
        ASSERT_EQ(std::memcmp(medium(page, copy), expected(page), page_size), 0) << "page " << page << " copy " << copy;
      }
    }
  }
  template <class Group>
  void expect_read(Group g, u64 first, u32 count) {
    std::vector<u8> back(u64{count} * page_size + 1, 0xee);
    u8* to = on_leader(g, [&] { return back.data() + count % 2; });
    const Status status = call(g, [&] { return read_pages(g, space(), address(first), count, to, PageUse::data); });
    EXPECT_EQ(status, Status::ok) << first << " + " << count;
    on_leader(
        g, [&] { EXPECT_EQ(std::memcmp(to, expected(first), u64{count} * page_size), 0) << first << " + " << count; });
  }

  // The places on the device of the pages and of the parities of their rows.
  std::vector<u8*> places_of(u32 device, u64 first, u64 count) {
    std::vector<u8*> places;
    const auto add = [&](const DevicePlace& place) {
      if (place.device == device) places.push_back(pool_.page_at(place));
    };
    for (u64 page = first; page < first + count; ++page) {
      for (u32 copy = 0; copy < chunk().copy_count; ++copy) add(page_place(space(), {0, 0, page}, copy));
    }
    const RowRange rows = in_rows() ? rows_of_pages(space(), 0, first, count) : RowRange{0, 0};
    for (u64 row = rows.first; row < rows.end; ++row) {
      const RowView view = row_view(space(), 0, row);
      if (slots_in_parity(space(), view) == 0) continue;
      for (u32 j = 0; j < chunk().parity_count; ++j) add(parity_place(space(), view, j));
    }
    return places;
  }
  std::vector<std::vector<u8>> parts_of(u32 device, u64 first, u64 count) {
    std::vector<std::vector<u8>> parts;
    for (const u8* place : places_of(device, first, count)) parts.emplace_back(place, place + page_size);
    return parts;
  }

  void lose(u32 device, bool is_rebuilt) {
    EXPECT_TRUE(lose_device(space(), device));
    if (is_rebuilt) begin_rebuild(space(), device);
  }
  void find_again() {
    for (u32 d = 0; d < space().device_count; ++d) space().devices[d].failed = device::device_in_use;
    space().health->failed = 0;
    space().health->rebuilding = 0;
  }

  test::SpaceFixture pool_;
  std::vector<u8> bytes_;
  u32 bytes_shift_ = 0;
  u64 first_ = 0;
};

// Emulated warps, sanitizers and flushes are slow: there some lengths around those of full runs suffice.
bool takes_length(u32 count, u32 group_size, bool is_staged) {
  if (group_size > 1 && test::is_short()) return (count + 1) % 64 <= 2;
  return (group_size == 1 && !is_staged && (!test::is_short() || count % 5 == 0)) || (count + 2) % warp_size <= 4;
}

TEST_P(PagesApart, RunsOfEveryLengthComeBack) {
  on_all_groups([&](auto g) {
    for (u32 count = 1; count <= 130; ++count) {
      if (!takes_length(count, g.size(), pool_.staged() != nullptr)) continue;
      const u64 first = 1 + 2 * (u64{count} * 13 % 150);
      write(g, first, count, count);
      on_leader(g, [&] { expect_medium(first, count); });
      expect_read(g, first, count);
      if (count > 2) expect_read(g, first + 1, count - 2);
    }
  });
  if (pool_.staged() == nullptr || chunk().copy_count == 1) return;
  // A run of 130 pages in four copies does not fit.
  EXPECT_GT(pool_.staged()->statistics().misses, 0u);
  EXPECT_GT(pool_.staged()->statistics().dirty_misses, 0u);
}

TEST_P(PagesApart, AreMerged) {
  on_all_groups([&](auto g) {
    write(g, 20, 8, 40 + g.size());
    for (u64 page = 20; page < 24; ++page) {
      const u64 target = in_rows() ? page + 300 : page % 2 == 0 ? page : page + 4;
      const u8 patch[3] = {1, 2, static_cast<u8>(page)};
      on_leader(g, [&] {
        chunk().bitmaps.busy[target / 64] |= u64{1} << (target % 64);
        // The other copies or the row make up for it.
        if (chunk().redundancy != 0) medium(page)[7] ^= 1;
      });
      const PageMerge merge{address(target), address(page), {100, 103}, patch, PageUse::data};
      EXPECT_EQ(call(g, [&] { return write_page_merged(g, space(), merge); }), Status::ok);
      on_leader(g, [&] {
        std::vector<u8> merged(expected(page), expected(page) + page_size);
        std::memcpy(merged.data() + 100, patch, 3);
        for (u32 copy = 0; copy < chunk().copy_count; ++copy) {
          EXPECT_EQ(std::memcmp(medium(target, copy), merged.data(), page_size), 0) << page << " copy " << copy;
        }
      });
    }
  });
}

// Damaged pages in all copies, and pages whose read is refused.
TEST_P(PagesApart, AreVerifiedInPlace) {
  on_all_groups([&](auto g) {
    write(g, 3, 90, 51);
    for (u32 copy = 0; copy < chunk().copy_count; ++copy) {
      const u64 wanted = ~u64{0} << 5 & ~(u64{1} << 40);
      const u64 damaged = (u64{1} << 9 | u64{1} << 33 | u64{1} << 40 | u64{1} << 63);
      const DevicePlace refused = page_place(space(), {0, 0, 7 + 17}, copy);
      on_leader(g, [&] {
        for (u64 left = damaged; left != 0; left &= left - 1) medium(7 + count_trailing_zeros(left), copy)[1000] ^= 4;
        pool_.refused_reads(refused.device) = {refused.offset};
      });
      const u64 bad = (damaged & wanted) | u64{1} << 17;
      EXPECT_EQ(call(g, [&] { return find_mismatches(g, space(), 0, copy, 7, wanted); }), bad);
      EXPECT_EQ(call(g, [&] { return confirm_mismatches(g, space(), 0, copy, 7, bad | 0x20); }), bad);
      on_leader(g, [&] {
        pool_.refused_reads(refused.device).clear();
        for (u64 left = damaged; left != 0; left &= left - 1) medium(7 + count_trailing_zeros(left), copy)[1000] ^= 4;
      });
    }
  });
}

// A read meets damage in the middle of a run and repairs it; a scrub repairs pages and parities.
TEST_P(PagesApart, AreRepaired) {
  if (chunk().redundancy == 0) GTEST_SKIP() << "nothing to repair from";
  on_all_groups([&](auto g) {
    write(g, 5, 70, 61);
    on_leader(g, [&] { settle(5, 70); });
    for (const u64 page : {u64{5}, u64{23}, u64{36}, u64{37}, u64{74}}) {
      // All pages of a run are read from the same copy.
      const PageLocation first{0, 0, 5 + (page - 5) / warp_size * warp_size};
      on_leader(g, [&] { medium(page, copy_to_read(space(), first))[4000] ^= 1; });
      expect_read(g, 5, 70);
      on_leader(g, [&] { medium(page, chunk().copy_count - 1)[17] ^= 1; });
      EXPECT_TRUE(call(g, [&] { return repair_page(g, space(), PageLocation{0, 0, page}); }));
      on_leader(g, [&] { expect_medium(5, 70); });
      if (!in_rows()) continue;
      const RowView view = on_leader(g, [&] { return row_view(space(), 0, row_place(chunk(), page).row); });
      const std::vector<u8> before(pool_.parity_at(view, 0), pool_.parity_at(view, 0) + page_size);
      g.sync();
      on_leader(g, [&] { pool_.parity_at(view, 0)[9] ^= 0x80; });
      EXPECT_TRUE(call(g, [&] { return repair_row(g, space(), view); }));
      on_leader(g, [&] { EXPECT_EQ(std::memcmp(pool_.parity_at(view, 0), before.data(), page_size), 0); });
    }
  });
}

// Reads that are refused in the middle of a run come from elsewhere, or fail without a byte of the page.
TEST_P(PagesApart, ReadsAreRefusedOneByOne) {
  on_all_groups([&](auto g) {
    write(g, 9, 50, 71);
    for (const u64 page : {u64{9}, u64{30}, u64{40}, u64{58}}) {
      const DevicePlace place = page_place(space(), {0, 0, page}, copy_to_read(space(), {0, 0, 9}));
      on_leader(g, [&] { pool_.refused_reads(place.device) = {place.offset}; });
      if (chunk().redundancy != 0) {
        expect_read(g, 9, 50);
      } else {
        std::vector<u8> back(50 * page_size, 0xee);
        u8* to = on_leader(g, [&] { return back.data(); });
        EXPECT_EQ(call(g, [&] { return read_pages(g, space(), address(9), 50, to, PageUse::data); }),
                  Status::medium_error);
        on_leader(g, [&] {
          EXPECT_EQ(std::memcmp(to, expected(9), (page - 9) * page_size), 0) << "pages before it";
          EXPECT_EQ(to[(page - 9) * page_size], 0xee);
        });
      }
      on_leader(g, [&] { pool_.refused_reads(place.device).clear(); });
    }
  });
}

// A device that refuses a write in the middle of a run is given up, or the write fails; no announcement is left.
TEST_P(PagesApart, WritesAreRefusedOneByOne) {
  if (pool_.staged() != nullptr) GTEST_SKIP() << "errors of writes are the answers of flushes";
  on_all_groups([&](auto g) {
    for (const u64 page : {u64{11}, u64{33}, u64{59}}) {
      const u32 copy = chunk().copy_count - 1;
      const DevicePlace place = page_place(space(), {0, 0, page}, copy);
      const u8* from = on_leader(g, [&] {
        take_only(11, 49);
        bytes_.assign(49 * page_size, static_cast<u8>(page));
        first_ = 11;
        bytes_shift_ = 0;
        announced(place.device).refused_writes = {place.offset};
        return bytes_.data();
      });
      const Status status = call(g, [&] { return write_pages(g, space(), address(11), 49, from, PageUse::data); });
      EXPECT_EQ(status, chunk().redundancy == 0 ? Status::medium_error : Status::ok);
      EXPECT_EQ(on_leader(g, [&] { return failed_devices(space()); }),
                chunk().redundancy == 0 ? 0 : u64{1} << place.device);
      on_leader(g, [&] { announced(place.device).refused_writes.clear(); });
      if (status == Status::ok) expect_read(g, 11, 49);
      on_leader(g, [&] { find_again(); });
    }
  });
}

TEST_P(PagesApart, LostDevicesAreDoneWithout) {
  if (chunk().redundancy == 0) GTEST_SKIP() << "no device may be lost";
  on_all_groups([&](auto g) {
    for (u32 device = 0; device < std::min(space().device_count, 6u); ++device) {
      write(g, 13, 60, 80 + device);
      on_leader(g, [&] { lose(device, false); });
      expect_read(g, 13, 60);
      write(g, 301, 47, 90 + device);
      expect_read(g, 301, 47);
      on_leader(g, [&] { find_again(); });
    }
  });
}

// Everything that a device lacks is written, whether it has a part of it or nothing.
TEST_P(PagesApart, DevicesAreRebuilt) {
  if (chunk().redundancy == 0) GTEST_SKIP() << "no device may be lost";
  on_all_groups([&](auto g) {
    for (const bool is_fresh : {true, false}) {
      for (u32 device = 0; device < std::min(space().device_count, 5u); ++device) {
        const u32 count = 64 - device * 3;
        write(g, 64, count, 100 + device);
        static std::vector<std::vector<u8>> before;
        on_leader(g, [&] {
          settle(64, count);
          before = parts_of(device, 64, count);
          lose(device, true);
          chunk().rebuild_todo[1] = low_bits(count);
          u32 number = 0;
          for (u8* place : places_of(device, 64, count)) {
            if (is_fresh || ++number % 3 != 0) std::memset(place, 0xee, page_size);
          }
          // A damaged source: the page comes from another copy or another choice of parities.
          if (!in_rows() && chunk().copy_count > 2) {
            const u32 source = copy_to_read(space(), {0, 0, 64});
            medium(64 + 40, source)[3] ^= 1;
          }
        });
        const RebuildOutcome outcome = call(g, [&] {
          return in_rows() ? rebuild_rows(g, space(), 0, 64, count, is_fresh)
                           : rebuild_copies(g, space(), 0, 64, count, is_fresh);
        });
        on_leader(g, [&] {
          EXPECT_EQ(wire::rebuild_count(outcome.counts, wire::RebuildCount::unverified), 0u);
          EXPECT_EQ(wire::rebuild_count(outcome.counts, wire::RebuildCount::unreadable), 0u);
          EXPECT_EQ(chunk().rebuild_todo[1], 0u);
          EXPECT_EQ(parts_of(device, 64, count), before) << "device " << device << (is_fresh ? " fresh" : " returns");
          find_again();
        });
      }
    }
  });
}

// Its place on the rebuilt device keeps what it has.
TEST_P(PagesApart, PagesWithoutAGoodCopyStayAsTheyAre) {
  if (in_rows() || chunk().redundancy == 0) GTEST_SKIP() << "no copies";
  on_all_groups([&](auto g) {
    write(g, 64, 20, 105);
    const PageLocation damaged{0, 0, 70};
    on_leader(g, [&] {
      settle(64, 20);
      const u32 lost = chunk().copy_count - 1;
      lose(page_place(space(), damaged, lost).device, true);
      chunk().rebuild_todo[1] = low_bits(20);
      for (u64 page = 64; page < 84; ++page) std::memset(medium(page, lost), 0xee, page_size);
      for (u32 copy = 0; copy < lost; ++copy) medium(70, copy)[9] ^= 1;
    });
    const RebuildOutcome outcome = call(g, [&] { return rebuild_copies(g, space(), 0, 64, 20, true); });
    on_leader(g, [&] {
      EXPECT_EQ(wire::rebuild_count(outcome.counts, wire::RebuildCount::unverified), 1u);
      const u32 lost = chunk().copy_count - 1;
      const std::vector<u8> kept(page_size, 0xee);
      EXPECT_EQ(std::memcmp(medium(70, lost), kept.data(), page_size), 0);
      for (const u64 page : {u64{69}, u64{71}, u64{83}}) {
        EXPECT_EQ(std::memcmp(medium(page, lost), expected(page), page_size), 0) << page;
      }
      find_again();
    });
  });
}

TEST_P(PagesApart, RowsGetNewPages) {
  if (!in_rows()) GTEST_SKIP() << "no rows";
  std::vector<u8> memory((row_work_page_count + 1) * page_size);
  u8* work = memory.data() + (page_size - reinterpret_cast<std::uintptr_t>(memory.data()) % page_size);
  on_all_groups([&](auto g) {
    const Stripe stripe = stripe_of(chunk(), 0);
    write(g, stripe.first, static_cast<u32>(stripe.page_count), 110);
    const RowView view = row_view(space(), 0, row_place(chunk(), stripe.first).row);
    const RowValues values{0, 0, view.row, low_bits(view.slot_count), 1, work};
    on_leader(g, [&] { fill_random(work, page_size, 111); });
    u8* last = work + (row_work_page_count - 1) * page_size;
    EXPECT_EQ(call(g, [&] { return prepare_row(g, space(), values, last); }), Status::ok);
    EXPECT_EQ(call(g, [&] { return replace_row(g, space(), values); }), Status::ok);
    on_leader(g, [&] {
      EXPECT_EQ(std::memcmp(medium(row_page(view, 0)), work, page_size), 0);
      medium(row_page(view, 0))[5] ^= 1;
    });
    EXPECT_EQ(call(g, [&] { return read_page(g, space(), address(row_page(view, 0)), last); }), Status::ok);
    on_leader(g, [&] { EXPECT_EQ(std::memcmp(last, work, page_size), 0) << "the row gives it back"; });
  });
}

TEST_P(PagesApart, LoggedPagesAreAccepted) {
  if (chunk().redundancy == 0 || chunk().column_count > 8) GTEST_SKIP() << "no redundancy, or too many sets of columns";
  on_all_groups([&](auto g) {
    write(g, 0, 13, 120);
    u64 digest = 0;
    on_leader(g, [&] {
      for (u32 page = 0; page < 13; ++page) {
        digest += format::page_digest(chunk().descriptors[page].checksum, page);
        const u32 flags = in_rows() ? format::page_flag_in_parity : 0;
        store_shared_16(&chunk().descriptors[page], make_descriptor(0, 0, flags));
      }
      for (const u64 page : {u64{2}, u64{7}}) medium(page)[11] ^= 2;
    });
    digest = g.broadcast(digest);
    EXPECT_EQ(call(g, [&] { return accept_logged_pages(g, space(), address(0), 13, digest); }),
              in_rows() && page_place(space(), {0, 0, 2}, 0).device != page_place(space(), {0, 0, 7}, 0).device &&
                      chunk().parity_count < 2
                  ? Status::checksum_mismatch
                  : Status::ok);
  });
}

// Under ThreadSanitizer, as in support/level_shapes.hpp, none is staged.
std::vector<test::LevelShape> chosen_shapes() {
  std::vector<test::LevelShape> chosen(std::begin(shapes), std::end(shapes));
  while (GPU4FS_TSAN != 0 && chosen.back().kind == staged) chosen.pop_back();
  return chosen;
}

INSTANTIATE_TEST_SUITE_P(Shapes, PagesApart, ::testing::ValuesIn(chosen_shapes()),
                         [](const auto& parameter) { return test::name_of(parameter.param); });

}  // namespace
}  // namespace gpu4fs::raid::pages_apart_test
