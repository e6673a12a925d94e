// A map is untrusted input: whatever its pages contain, the answer is a status, and no page outside is touched.
#include <gtest/gtest.h>

#include <vector>

#include "fs/map_model.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test {
namespace {

SmallPoolOptions hostile_options() {
  SmallPoolOptions options;
  options.chunk_count = 2;
  options.chunk_bytes = u64{16} << 20;
  options.frame_count = 1024;
  options.staging_count = 512;
  return options;
}

// Addresses of the map pages of the file on the medium.
std::vector<u64> map_page_addresses(SmallFileSystem& small, u64 number) {
  std::vector<u64> addresses;
  for (u32 i = 0; i < small.fs().pages.frame_count; ++i) {
    const fs::Frame& frame = small.fs().pages.frames[i];
    if (frame.state == fs::frame_valid && frame.key.inode == number && frame.key.level() >= 1) {
      addresses.push_back(frame.address);
    }
  }
  return addresses;
}

// Changes one slot of the page on the medium and recomputes its checksum.
void damage_slot(SmallFileSystem& small, u64 address, Sequence& random) {
  u8* page = small.medium_page(address);
  u64 word = 0;
  const u64 slot = random.next() % format::slots_per_block;
  std::memcpy(&word, page + 8 * slot, 8);
  switch (random.next() % 5) {
    case 0:
      word ^= u64{1} << random.next() % 64;
      break;
    case 1:
      word = random.next();
      break;
    case 2:
      word = (random.next() % (u64{64} << 20) & ~u64{4095}) | (random.next() & 0x3f) | 8;
      break;
    case 3:
      word = address | format::BlockPointer::indirect(0).raw;
      break;
    default:
      word = 0x0000000000200000u * (random.next() % 32) | 8 | (1 + random.next() % 3);
      break;
  }
  std::memcpy(page + 8 * slot, &word, 8);
  raid::PageLocation location{};
  ASSERT_EQ(raid::find_page(small.fs().space, address, &location), Status::ok);
  small.fs().space.chunks[location.chunk].descriptors[location.page].checksum = xxh3_64(page, page_size, address);
}

// Calls every function on random ranges; functions that change run only after their prepare returned ok. Returns how
// often the damage was noticed.
u32 use_map(SmallFileSystem& small, u64 number, Sequence& random) {
  u32 refused = 0;
  fs::FileSystem& fs = small.fs();
  const auto place = [&] {
    static constexpr u64 places[] = {0, 500, 3580, 4096, 262144 - 9, u64{1} << 27, fs::map_page_max - 5000};
    return places[random.next() % 7] + random.next() % 600;
  };
  for (u32 i = 0; i < 30; ++i) {
    fs::Operation op = small.operation();
    fs::InodeRef ref{};
    EXPECT_EQ(fs::get_inode(Lane{}, fs, op, number, &ref), Status::ok);
    const u64 first = place();
    const u64 end = first + 1 + random.next() % 1500;
    fs::MapCost cost{};
    fs::MapRun run{};
    fs::MapSeek seek{{first, end}, false, false};
    fs::MapRemoval removal{{first, end}, 20, {}};
    Status status = Status::ok;
    switch (random.next() % 4) {
      case 0:
        status = fs::map_lookup(Lane{}, fs, op, ref, {first, end}, &run);
        break;
      case 1:
        seek.wants_data = random.next() % 2 == 0;
        status = fs::map_seek(Lane{}, fs, op, ref, 50, &seek);
        break;
      case 2:
        status = fs::map_prepare(Lane{}, fs, op, ref, {first, end}, &cost);
        if (status != Status::ok) break;
        if (fs::reserve_metadata(Lane{}, fs, op, {1, cost.changed, cost.fresh}) != Status::ok) break;
        if (space::reserve_pages(fs, op, end - first) != Status::ok) break;
        for (u64 page = first; page < end;) {
          const raid::Extent extent = space::allocate_run(Lane{}, fs, op, end - page, 1);
          fs::map_replace(Lane{}, fs, op, ref, page, {fs::MapKind::data, 0, extent.address, extent.page_count});
          space::commit_extent(Lane{}, fs, extent);
          page += extent.page_count;
        }
        break;
      default:
        status = fs::map_prepare_remove(Lane{}, fs, op, ref, &removal);
        if (status != Status::ok) break;
        if (fs::reserve_metadata(Lane{}, fs, op, {1, removal.cost.changed, removal.cost.fresh}) != Status::ok) break;
        fs::map_remove(Lane{}, fs, op, ref, removal.range);
        break;
    }
    fs::release_reservations(fs, op);
    // A damaged map may have freed the place of a map page: then that page fails its check.
    EXPECT_TRUE(status == Status::ok || status == Status::corrupt_structure || status == Status::checksum_mismatch)
        << status_name(status);
    if (status != Status::ok) ++refused;
  }
  return refused + fs.had_error;
}

TEST(MapHostile, DamagedSlotsAreStatuses) {
  u32 seen = 0;
  for (u64 seed = 1; seed <= scaled(150); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SmallFileSystem small(hostile_options());
    fs::Operation op{};
    MapWalk<Lane> walk(Lane{}, small, op, seed);
    walk.create_file();
    for (const u64 page : {u64{0}, u64{512}, u64{3500}, u64{262144 - 20}, u64{1} << 27, fs::map_page_max - 4000}) {
      walk.replace(page, 1 + static_cast<u32>(walk.random(700)),
                   walk.random(2) == 0 ? fs::MapKind::data : fs::MapKind::unwritten);
    }
    ASSERT_EQ(small.checkpoint(Lane{}), Status::ok);
    const std::vector<u64> addresses = map_page_addresses(small, walk.number);
    ASSERT_GT(addresses.size(), 4u);
    fs::evict_frames(Lane{}, small.fs(), small.fs().pages.frame_count);
    Sequence random(seed * 77);
    for (u32 i = 0; i < 1 + seed % 4; ++i) damage_slot(small, addresses[random.next() % addresses.size()], random);
    if (use_map(small, walk.number, random) != 0) ++seen;
    if (HasFailure()) return;
  }
  EXPECT_GT(seen, scaled(150) / 4);
}

// Bits in an invalid pointer are neither a block nor a hole; growth would move them to the place of the new pages.
TEST(MapHostile, InvalidPointersWithBitsAreSeenBeforeAFileGrows) {
  SmallFileSystem small(hostile_options());
  fs::Operation op{};
  MapWalk<Lane> walk(Lane{}, small, op, 1);
  walk.create_file();
  fs::InodeRef ref{};
  ASSERT_EQ(fs::get_inode(Lane{}, small.fs(), op, walk.number, &ref), Status::ok);
  ref.inode->slots[3].raw = 0x40;
  fs::MapCost cost{};
  EXPECT_EQ(fs::map_prepare(Lane{}, small.fs(), op, ref, {3 * 512, 3 * 512 + 9}, &cost), Status::corrupt_structure);
  ref.inode->slots[3].raw = 0;
  EXPECT_EQ(fs::map_prepare(Lane{}, small.fs(), op, ref, {3 * 512, 3 * 512 + 9}, &cost), Status::ok);
}

TEST(MapHostile, InvalidPointersWithBitsAreSeenBeforeARemoval) {
  SmallFileSystem small(hostile_options());
  fs::Operation op{};
  MapWalk<Lane> walk(Lane{}, small, op, 1);
  walk.create_file();
  walk.replace(3 * 512 + 5, 4, fs::MapKind::data);
  fs::InodeRef ref{};
  ASSERT_EQ(fs::get_inode(Lane{}, small.fs(), op, walk.number, &ref), Status::ok);
  ASSERT_EQ(ref.inode->height, 1u);
  const fs::MapRemoval wanted{{0, 2000}, 20, {}};
  fs::MapRemoval removal = wanted;
  ASSERT_EQ(fs::map_prepare_remove(Lane{}, small.fs(), op, ref, &removal), Status::ok);
  ref.inode->slots[1].raw = 0x40;
  removal = wanted;
  EXPECT_EQ(fs::map_prepare_remove(Lane{}, small.fs(), op, ref, &removal), Status::corrupt_structure);
}

// In an inode's slot and in that of a map page: nothing is freed or replaced there.
TEST(MapHostile, BlocksOutsideThePoolAreSeenBeforeAChange) {
  for (const bool in_map_page : {false, true}) {
    SmallFileSystem small(hostile_options());
    fs::Operation op{};
    MapWalk<Lane> walk(Lane{}, small, op, 1);
    walk.create_file();
    walk.replace(0, in_map_page ? 600 : 5, fs::MapKind::data);
    fs::InodeRef ref{};
    ASSERT_EQ(fs::get_inode(Lane{}, small.fs(), op, walk.number, &ref), Status::ok);
    ASSERT_EQ(ref.inode->height, in_map_page ? 1u : 0u);
    u32 frame = fs::no_frame;
    if (in_map_page) {
      ASSERT_EQ(fs::get_page(Lane{}, small.fs(), op, ref, {1, 1}, &frame), Status::ok);
    }
    format::BlockPointer* const slots = in_map_page ? fs::map_slots(small.fs(), frame) : ref.inode->slots;
    const u64 first = in_map_page ? 512 : 0;
    slots[3] = format::BlockPointer::data(u64{1} << 40, format::BlockSize::page_4k);
    fs::MapCost cost{};
    fs::MapRun run{};
    fs::MapRemoval removal{{0, 700}, 20, {}};
    EXPECT_EQ(fs::map_lookup(Lane{}, small.fs(), op, ref, {first + 3, first + 4}, &run), Status::corrupt_structure);
    EXPECT_EQ(fs::map_prepare(Lane{}, small.fs(), op, ref, {first, first + 5}, &cost), Status::corrupt_structure);
    EXPECT_EQ(fs::map_prepare_remove(Lane{}, small.fs(), op, ref, &removal), Status::corrupt_structure);
    EXPECT_EQ(small.fs().had_error, 0u) << "nothing was tried";
  }
}

TEST(MapHostile, ImpossibleHeightIsRefused) {
  SmallFileSystem small(hostile_options());
  fs::Operation op{};
  MapWalk<Lane> walk(Lane{}, small, op, 1);
  walk.create_file();
  fs::InodeRef ref{};
  ASSERT_EQ(fs::get_inode(Lane{}, small.fs(), op, walk.number, &ref), Status::ok);
  ref.inode->height = fs::map_height_max + 1;
  fs::MapRun run{};
  fs::MapCost cost{};
  fs::MapRemoval removal{{0, 1}, 9, {}};
  EXPECT_EQ(fs::map_lookup(Lane{}, small.fs(), op, ref, {0, 1}, &run), Status::corrupt_structure);
  EXPECT_EQ(fs::map_prepare(Lane{}, small.fs(), op, ref, {0, 1}, &cost), Status::corrupt_structure);
  EXPECT_EQ(fs::map_prepare_remove(Lane{}, small.fs(), op, ref, &removal), Status::corrupt_structure);
}

}  // namespace
}  // namespace gpu4fs::test
