// Loading a chunk: which bitmap slot is current, and the answers to damage. On a Lane and an emulated warp.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "device/stack/device_stack.hpp"
#include "device/stack/fault_layer.hpp"
#include "raid/page_io.hpp"
#include "raid/page_run_io.hpp"
#include "space/header_scrub.hpp"
#include "support/group_runner.hpp"
#include "support/on_all_groups.hpp"
#include "support/space_fixture.hpp"

namespace gpu4fs::space {
namespace {

using test::on_all_groups;
using test::SpaceFixture;

// A pool whose slot A (epoch 4) has the first 10 pages in use and slot B (epoch 5) the first 20.
std::unique_ptr<SpaceFixture> two_slots() {
  auto pool = std::make_unique<SpaceFixture>();
  std::vector<u64> bitmap = pool->empty_bitmap();
  bitmap[0] = (1u << 10) - 1;
  pool->write_slot(0, 0, 4, bitmap);
  bitmap[0] = (1u << 20) - 1;
  pool->write_slot(0, 1, 5, bitmap);
  return pool;
}

// Loads with `Group` after `damage`; the pool is created anew for each group.
void expect_load(u64 superblock_epoch, Status status, u64 used, const std::function<void(SpaceFixture&)>& damage) {
  std::unique_ptr<SpaceFixture> pool;
  on_all_groups([&](auto g) {
    on_leader(g, [&] {
      pool = two_slots();
      damage(*pool);
    });
    EXPECT_EQ(load_chunk(g, *pool->fs, 0, superblock_epoch), status);
    on_leader(g, [&] {
      EXPECT_EQ(pool->fs->data_counters().used, used);
      EXPECT_EQ(raid::is_loaded(pool->fs->space.chunks[0]), status == Status::ok);
      EXPECT_EQ(pool->fs->data_counters().total, status == Status::ok ? 2048u : 0u);
    });
  });
}

u8* slot_header(SpaceFixture& pool, u32 slot) {
  return pool.header_page(0, slot == 0 ? pool.layout().bitmap_a_page : pool.layout().bitmap_b_page);
}
u8* slot_bitmap(SpaceFixture& pool, u32 slot) {
  return slot_header(pool, slot) + page_size;
}

void nothing(SpaceFixture&) {}

TEST(SpaceLoad, newest_slot_not_beyond_the_superblock_counts) {
  expect_load(5, Status::ok, 20, nothing);
  expect_load(4, Status::ok, 10, nothing);
  expect_load(9, Status::ok, 20, nothing);
  expect_load(3, Status::corrupt_structure, 0, nothing);
}

TEST(SpaceLoad, slot_beyond_the_superblock_is_cleared_unless_read_only) {
  auto pool = two_slots();
  pool->fs->read_only = 1;
  ASSERT_EQ(pool->load(4), Status::ok);
  EXPECT_NE(slot_header(*pool, 1)[0], 0);
  auto writable = two_slots();
  ASSERT_EQ(writable->load(4), Status::ok);
  const std::vector<u8> zeros(page_size);
  EXPECT_EQ(std::memcmp(slot_header(*writable, 1), zeros.data(), page_size), 0);
  // It stays cleared when the pool reaches its epoch.
  SpaceFixture again = writable->remount();
  ASSERT_EQ(again.load(5), Status::ok);
  EXPECT_EQ(again.fs->data_counters().used, 10u);
}

TEST(SpaceLoad, slot_with_a_damaged_header_is_passed_over_and_missed_in_the_sum) {
  for (const u64 byte : {u64{0}, u64{4}, u64{8}, u64{16}, u64{32}, u64{48}, u64{56}, page_size - 1}) {
    expect_load(5, Status::ok, 10, [&](SpaceFixture& pool) { slot_header(pool, 1)[byte] ^= 4; });
    expect_load(5, Status::ok, 20, [&](SpaceFixture& pool) { slot_header(pool, 0)[byte] ^= 4; });
  }
  auto pool = two_slots();
  slot_header(*pool, 1)[100] ^= 1;
  ASSERT_EQ(pool->load(5), Status::ok);
  EXPECT_EQ(check_page_used(*pool->fs, 20), Status::corrupt_structure);
  EXPECT_EQ(check_page_used(*pool->fs, 10), Status::ok);
}

TEST(SpaceLoad, damaged_bitmap_of_the_slot_that_counts_is_corrupt) {
  for (const u64 byte : {u64{0}, u64{1}, u64{255}, u64{256}, page_size - 1}) {
    expect_load(5, Status::corrupt_structure, 0, [&](SpaceFixture& pool) { slot_bitmap(pool, 1)[byte] ^= 8; });
    expect_load(5, Status::ok, 20, [&](SpaceFixture& pool) { slot_bitmap(pool, 0)[byte] ^= 8; });
  }
}

TEST(SpaceLoad, both_headers_damaged_is_corrupt) {
  expect_load(5, Status::corrupt_structure, 0, [](SpaceFixture& pool) {
    slot_header(pool, 0)[0] ^= 1;
    slot_header(pool, 1)[0] ^= 1;
  });
}

TEST(SpaceLoad, well_sealed_nonsense_is_refused) {
  // Bits beyond the chunk's pages, with right checksums.
  expect_load(5, Status::corrupt_structure, 0, [](SpaceFixture& pool) {
    std::vector<u64> bitmap = pool.empty_bitmap();
    bitmap[2048 / 64] = 1;
    pool.write_slot(0, 1, 5, bitmap);
  });
  const auto reseal = [](SpaceFixture& pool, auto change) {
    format::BitmapSlotHeader header;
    std::memcpy(&header, slot_header(pool, 1), sizeof(header));
    header.checksum = 0;
    change(header);
    header.checksum = xxh3_64(&header, sizeof(header), pool.chunks[0].descriptor.base_address ^ 1);
    std::memcpy(slot_header(pool, 1), &header, sizeof(header));
  };
  using Header = format::BitmapSlotHeader;
  expect_load(5, Status::corrupt_structure, 0,
              [&](SpaceFixture& pool) { reseal(pool, [](Header& header) { header.set_count = 19; }); });
  expect_load(5, Status::ok, 10,
              [&](SpaceFixture& pool) { reseal(pool, [](Header& header) { header.set_count = 4000; }); });
  expect_load(5, Status::ok, 10,
              [&](SpaceFixture& pool) { reseal(pool, [](Header& header) { header.bit_count = 4096; }); });
  expect_load(5, Status::ok, 10, [&](SpaceFixture& pool) { reseal(pool, [](Header& header) { header.slot = 0; }); });
  expect_load(5, Status::ok, 10, [&](SpaceFixture& pool) { reseal(pool, [](Header& header) { header.version = 1; }); });
}

// Everything in it is known from the chunk tree, so it is rewritten.
TEST(SpaceLoad, damaged_chunk_header_is_restored) {
  for (const u64 byte : {u64{0}, u64{4}, u64{8}, u64{20}, u64{32}, u64{40}, page_size - 1}) {
    expect_load(5, Status::ok, 20, [&](SpaceFixture& pool) { pool.header_page(0, 0)[byte] ^= 2; });
  }
  auto pool = two_slots();
  const std::vector<u8> header(pool->header_page(0, 0), pool->header_page(0, 1));
  pool->header_page(0, 0)[33] ^= 2;
  pool->fs->read_only = 1;
  ASSERT_EQ(pool->load(5), Status::ok);
  EXPECT_NE(std::memcmp(header.data(), pool->header_page(0, 0), page_size), 0);
  SpaceFixture writable = pool->remount();
  ASSERT_EQ(writable.load(5), Status::ok);
  EXPECT_EQ(std::memcmp(header.data(), writable.header_page(0, 0), page_size), 0);
  EXPECT_EQ(writable.fs->space.damage->mismatch_counts[0], 1u);
}

TEST(SpaceLoad, checkpoint_alternates_slots_and_keeps_the_other_intact) {
  std::vector<u8> page(page_size);
  on_all_groups([&](auto g) {
    std::unique_ptr<SpaceFixture> pool;
    auto* shared = on_leader(g, [&] {
      pool = two_slots();
      EXPECT_EQ(pool->load(5), Status::ok);
      return pool.get();
    });
    fs::FileSystem& fs = *shared->fs;
    for (u64 epoch = 6; epoch < 10; ++epoch) {
      const u32 target = epoch % 2 == 0 ? 0 : 1;
      const std::vector<u8> other(slot_header(*shared, 1 - target), slot_bitmap(*shared, 1 - target) + page_size);
      const u64 address = on_leader(g, [&] {
        fs::Operation op = shared->operation();
        EXPECT_EQ(reserve_pages(fs, op, 1), Status::ok);
        const raid::Extent run = allocate_run(Lane{}, fs, op, 1, 1);
        commit_extent(Lane{}, fs, run);
        return run.address;
      });
      on_leader(g, [&] { page.assign(page_size, static_cast<u8>(epoch)); });
      EXPECT_EQ(raid::write_page(g, fs.space, address, page.data()), Status::ok);
      snapshot_chunk(g, fs, 0);
      EXPECT_EQ(write_chunk(g, fs, 0, epoch), Status::ok);
      EXPECT_EQ(std::memcmp(other.data(), slot_header(*shared, 1 - target), other.size()), 0);
      publish_chunk(g, fs, 0);
      g.sync();
      on_leader(g, [&] {
        SpaceFixture mounted = shared->remount();
        EXPECT_EQ(mounted.load(epoch), Status::ok);
        EXPECT_EQ(mounted.fs->data_counters().used, 20 + epoch - 5);
        std::vector<u8> read(page_size);
        EXPECT_EQ(raid::read_page(Lane{}, mounted.fs->space, address, read.data()), Status::ok);
        EXPECT_EQ(read, page);
      });
    }
  });
}

TEST(SpaceLoad, failed_checkpoint_is_written_again_into_the_same_slot) {
  auto pool = two_slots();
  ASSERT_EQ(pool->load(5), Status::ok);
  const std::vector<u8> durable(slot_header(*pool, 1), slot_bitmap(*pool, 1) + page_size);
  free_extent(Lane{}, *pool->fs, {pool->chunks[0].descriptor.base_address, 3, 0});
  snapshot_chunk(Lane{}, *pool->fs, 0);
  ASSERT_EQ(write_chunk(Lane{}, *pool->fs, 0, 6), Status::ok);
  // The superblock could not be written; nothing is published.
  free_extent(Lane{}, *pool->fs, {pool->chunks[0].descriptor.base_address + 3 * page_size, 2, 0});
  EXPECT_EQ(pool->fs->data_counters().freed_pending, 5u);
  snapshot_chunk(Lane{}, *pool->fs, 0);
  ASSERT_EQ(write_chunk(Lane{}, *pool->fs, 0, 7), Status::ok);
  EXPECT_EQ(std::memcmp(durable.data(), slot_header(*pool, 1), durable.size()), 0);
  publish_chunk(Lane{}, *pool->fs, 0);
  EXPECT_EQ(pool->fs->data_counters().freed_pending, 0u);
  EXPECT_EQ(pool->fs->data_counters().used, 15u);
  SpaceFixture mounted = pool->remount();
  ASSERT_EQ(mounted.load(7), Status::ok);
  EXPECT_EQ(mounted.fs->data_counters().used, 15u);
}

// Writes `count` pages of the pool, which are then in use.
std::vector<raid::Extent> put_pages(SpaceFixture& pool, u32 count) {
  std::vector<raid::Extent> runs;
  const std::vector<u8> bytes(u64{count} * page_size, 0x4b);
  fs::Operation op = pool.operation();
  EXPECT_EQ(reserve_pages(*pool.fs, op, count), Status::ok);
  for (u32 left = count; left != 0;) {
    const raid::Extent run = allocate_run(Lane{}, *pool.fs, op, left, 1);
    EXPECT_EQ(raid::write_pages(Lane{}, pool.fs->space, run.address, run.page_count, bytes.data(), raid::PageUse::data),
              Status::ok);
    commit_extent(Lane{}, *pool.fs, run);
    runs.push_back(run);
    left -= run.page_count;
  }
  return runs;
}

u64 damaged_header_pages(SpaceFixture& pool) {
  HeaderScrub found{};
  EXPECT_EQ(scrub_header_area(Lane{}, *pool.fs, 0, 0, pool.chunk_pages(0), &found), Status::ok);
  return found.damaged;
}

// Nothing verifies the descriptors of a chunk without pages in use, and their old content is not needed when the chunk
// is used again.
TEST(SpaceLoad, descriptors_of_an_empty_chunk_mean_nothing) {
  SpaceFixture pool;
  ASSERT_EQ(pool.load(1), Status::ok);
  const std::vector<raid::Extent> runs = put_pages(pool, 2 * format::descriptors_per_page);
  ASSERT_EQ(pool.checkpoint(2), Status::ok);
  for (const raid::Extent& run : runs) free_extent(Lane{}, *pool.fs, run);
  ASSERT_EQ(pool.checkpoint(3), Status::ok);
  ASSERT_NE(pool.fs->space.chunks[0].descriptor_table[1], format::descriptor_page_unwritten);
  const format::ChunkLayout layout = pool.layout();
  const auto damage = [&](SpaceFixture& mounted) {
    for (u64 index = 0; index < layout.descriptor_pages; ++index) {
      for (const u64 place : {0u, 1u}) {
        std::memset(mounted.header_page(0, layout.descriptor_page(index, place)), 0x5a, page_size);
      }
    }
  };
  damage(pool);
  EXPECT_EQ(damaged_header_pages(pool), 0u) << "mounted";
  SpaceFixture empty = pool.remount();
  ASSERT_EQ(empty.load(3), Status::ok);
  const raid::ChunkState& chunk = empty.fs->space.chunks[0];
  EXPECT_EQ(empty.fs->space.damage->mismatch_counts[0], 0u);
  EXPECT_EQ(damaged_header_pages(empty), 0u);
  for (u64 index = 0; index < layout.descriptor_pages; ++index) {
    EXPECT_EQ(chunk.descriptor_table[index], format::descriptor_page_unwritten);
  }
  const raid::Extent run = put_pages(empty, 1).front();
  const u64 used_index = (run.address - chunk.base_address) / page_size / format::descriptors_per_page;
  ASSERT_EQ(empty.checkpoint(4), Status::ok);
  EXPECT_EQ(damaged_header_pages(empty), 0u);
  SpaceFixture used = empty.remount();
  ASSERT_EQ(used.load(4), Status::ok);
  EXPECT_EQ(used.fs->space.damage->mismatch_counts[0], 0u) << "only what was written since is named";
  std::vector<u8> read(page_size);
  EXPECT_EQ(raid::read_page(Lane{}, used.fs->space, run.address, read.data(), raid::PageUse::data), Status::ok);
  for (u64 index = 0; index < layout.descriptor_pages; ++index) {
    const u64 entry = used.fs->space.chunks[0].descriptor_table[index];
    EXPECT_EQ(entry != format::descriptor_page_unwritten, index == used_index);
  }
  // That is verified again.
  damage(used);
  EXPECT_EQ(damaged_header_pages(used), 1u);
  SpaceFixture damaged = used.remount();
  ASSERT_EQ(damaged.load(4), Status::ok);
  EXPECT_EQ(damaged.fs->space.damage->mismatch_counts[0], 1u);
  EXPECT_NE(raid::read_page(Lane{}, damaged.fs->space, run.address, read.data(), raid::PageUse::data), Status::ok);
}

TEST(SpaceLoad, bitmap_of_several_pages) {
  const test::SpaceOptions options{.granule_bytes = u64{64} << 20, .granules_per_chunk = 3};
  SpaceFixture pool(options);
  ASSERT_EQ(pool.layout().bitmap_pages, 2u);
  std::vector<u64> bitmap = pool.empty_bitmap();
  bitmap[700] = 0xff00ff00ff00ff00;
  pool.write_slot(0, 1, 2, bitmap);
  on_all_groups([&](auto g) {
    SpaceFixture* mounted = nullptr;
    mounted = on_leader(g, [&] { return new SpaceFixture(pool.remount()); });
    EXPECT_EQ(load_chunk(g, *mounted->fs, 0, 2), Status::ok);
    EXPECT_EQ(on_leader(g, [&] { return mounted->fs->data_counters().used; }), 32u);
    on_leader(g, [&] {
      free_extent(Lane{}, *mounted->fs, {pool.chunks[0].descriptor.base_address + (700 * 64 + 8) * page_size, 4, 0});
    });
    snapshot_chunk(g, *mounted->fs, 0);
    EXPECT_EQ(write_chunk(g, *mounted->fs, 0, 3), Status::ok);
    on_leader(g, [&] {
      SpaceFixture again = mounted->remount();
      EXPECT_EQ(again.load(3), Status::ok);
      EXPECT_EQ(again.fs->data_counters().used, 28u);
      again.header_page(0, again.layout().bitmap_a_page + 2)[5] ^= 1;
      SpaceFixture damaged = again.remount();
      EXPECT_EQ(damaged.load(3), Status::corrupt_structure);
      delete mounted;
    });
  });
}

// A medium whose pages can be read once: a second read finds other bytes.
class ReadOnceLayer : public device::StackLayer {
 public:
  explicit ReadOnceLayer(std::map<u64, u32>& reads) : reads_(reads) {}
  bool read(u64 offset, std::span<u8> bytes) override {
    bool is_changed = false;
    for (u64 at = 0; at < bytes.size(); at += page_size) {
      if (++reads_[(offset + at) / page_size] == 1) continue;
      bytes[at + 40] ^= 1;
      is_changed = true;
    }
    return is_changed;
  }

 private:
  std::map<u64, u32>& reads_;
};

// Puts a layer over each device of a pool.
class LayeredDevices {
 public:
  using MakeLayer = std::function<std::unique_ptr<device::StackLayer>(u32 device)>;
  LayeredDevices(SpaceFixture& pool, const MakeLayer& make) {
    for (u32 d = 0; d < pool.devices.size(); ++d) {
      std::vector<std::unique_ptr<device::StackLayer>> layers;
      layers.push_back(make(d));
      stacks_.push_back(std::make_unique<device::DeviceStack>(std::move(layers)));
      stacks_.back()->attach(pool.devices[d].size_bytes);
      stacks_.back()->map(pool.device_base(d), true);
      pool.fs->space.devices[d].stack = stacks_.back().get();
    }
    pool.fs->space.stacked = 1;
  }

 private:
  std::vector<std::unique_ptr<device::DeviceStack>> stacks_;
};

// A pool whose durable epoch is 3. Some pages of descriptors are in the other place than their neighbours.
std::unique_ptr<SpaceFixture> used_pool(const test::SpaceOptions& options) {
  auto pool = std::make_unique<SpaceFixture>(options);
  EXPECT_EQ(pool->load(1), Status::ok);
  const std::vector<raid::Extent> runs = put_pages(*pool, 5 * format::descriptors_per_page + 3);
  EXPECT_EQ(pool->checkpoint(2), Status::ok);
  free_extent(Lane{}, *pool->fs, {runs.front().address, 1, 0});
  pool->fs->space.chunks[0].descriptor_dirty[0] |= 0b10110;
  EXPECT_EQ(pool->checkpoint(3), Status::ok);
  return pool;
}

bool is_written(const raid::ChunkState& chunk, u64 index) {
  return chunk.descriptor_table[index] != format::descriptor_page_unwritten;
}

// What `loaded` has is what `chunk` has, which was never unmounted.
void expect_same_chunk(const raid::ChunkState& loaded, const raid::ChunkState& chunk) {
  const format::ChunkLayout layout = layout_of(chunk);
  EXPECT_EQ(std::memcmp(loaded.bitmaps.committed, chunk.bitmaps.committed, layout.bitmap_pages * page_size), 0);
  EXPECT_EQ(std::memcmp(loaded.descriptor_table, chunk.descriptor_table, layout.table_pages * page_size), 0);
  for (u64 index = 0; index < layout.descriptor_pages; ++index) {
    if (!is_written(chunk, index)) continue;
    const u64 first = index * format::descriptors_per_page;
    EXPECT_EQ(std::memcmp(loaded.descriptors + first, chunk.descriptors + first, page_size), 0) << index;
  }
  EXPECT_EQ(loaded.changed, 0u);
}

void expect_one_read(const test::SpaceOptions& options) {
  const std::unique_ptr<SpaceFixture> pool = used_pool(options);
  const raid::ChunkState& chunk = pool->fs->space.chunks[0];
  on_all_groups([&](auto g) {
    std::unique_ptr<SpaceFixture> made;
    std::unique_ptr<LayeredDevices> layers;
    std::vector<std::map<u64, u32>> reads(pool->devices.size());  // by device, then by page
    SpaceFixture& mounted = *on_leader(g, [&] {
      made = std::make_unique<SpaceFixture>(pool->remount());
      layers =
          std::make_unique<LayeredDevices>(*made, [&](u32 d) { return std::make_unique<ReadOnceLayer>(reads[d]); });
      return made.get();
    });
    EXPECT_EQ(load_chunk(g, *mounted.fs, 0, 3), Status::ok);
    on_leader(g, [&] {
      expect_same_chunk(mounted.fs->space.chunks[0], chunk);
      const format::ChunkLayout layout = pool->layout();
      u64 written = 0;
      for (u64 index = 0; index < layout.descriptor_pages; ++index) written += is_written(chunk, index) ? 1 : 0;
      EXPECT_GE(written, 6u);
      // The chunk header, two slot headers, the bitmap, the table and what was written of the descriptors.
      const u64 expected = 3 + layout.bitmap_pages + layout.table_pages + written;
      for (u32 column = 0; column <= chunk.redundancy; ++column) {
        EXPECT_EQ(reads[column].size(), expected);
        for (const auto& [page, count] : reads[column]) EXPECT_EQ(count, 1u) << page;
        EXPECT_EQ(mounted.fs->space.damage->mismatch_counts[column], 0u);
      }
    });
  });
}

// Several pages of descriptors are read together.
const test::SpaceOptions large_single = {.granule_bytes = u64{64} << 20, .granules_per_chunk = 3};
const test::SpaceOptions large_mirror = {.device_count = 2,
                                         .granule_bytes = u64{64} << 20,
                                         .granules_per_chunk = 3,
                                         .level = format::RaidLevel::raid1,
                                         .column_count = 2};

// What was verified is what is used: nothing is read again after it was verified.
TEST(SpaceLoad, every_page_is_read_once) {
  expect_one_read({});
  expect_one_read({.device_count = 2, .level = format::RaidLevel::raid1, .column_count = 2});
  expect_one_read(large_single);
  expect_one_read(large_mirror);
}

// Faults of the first device while pages of descriptors are read together.
TEST(SpaceLoad, faults_in_descriptors_spare_the_pages_around_them) {
  const auto fault = [](const char* kind, const SpaceFixture& pool, u64 first, u64 count) {
    const u64 begin = pool.chunks[0].columns[0].offset_bytes() + (pool.layout().descriptors_page + first) * page_size;
    return std::string(kind) + "@" + std::to_string(begin) + "+" + std::to_string(count * page_size);
  };
  const auto load_with = [](const SpaceFixture& pool, const std::string& rules, Status status) {
    auto mounted = std::make_unique<SpaceFixture>(pool.remount());
    const LayeredDevices layers(*mounted, [&](u32 d) {
      return std::make_unique<device::FaultLayer>(d == 0 ? device::parse_fault_rules(rules) : device::FaultRules{});
    });
    EXPECT_EQ(mounted->load_chunk(0, 3), status);
    if (status == Status::ok) expect_same_chunk(mounted->fs->space.chunks[0], pool.fs->space.chunks[0]);
    EXPECT_EQ(mounted->fs->space.damage->mismatch_counts[0], 0u) << "what cannot be read was not seen to be damaged";
  };
  const auto mirror = used_pool(large_mirror);
  const u64 pages = 2 * mirror->layout().descriptor_pages;
  for (const u64 page : {u64{0}, u64{1}, u64{2}, pages / 2 + 1, pages / 2 + 4}) {
    load_with(*mirror, fault("read-error", *mirror, page, 1), Status::ok);
  }
  load_with(*mirror, fault("read-error", *mirror, 0, pages), Status::ok);
  load_with(*mirror, fault("gone", *mirror, 0, pages), Status::ok);
  const auto single = used_pool(large_single);
  load_with(*single, fault("read-error", *single, 0, pages), Status::medium_error);
  load_with(*single, fault("gone", *single, 0, pages), Status::device_failed);
}

TEST(SpaceLoad, descriptors_without_a_column_are_not_loaded) {
  auto pool = two_slots();
  pool->fs->space.devices[0].failed = device::device_failed_for_good;
  EXPECT_EQ(load_chunk_descriptors(Lane{}, *pool->fs, 0, 5), Status::corrupt_structure);
  pool->fs->space.devices[0].failed = device::device_in_use;
  EXPECT_EQ(load_chunk_descriptors(Lane{}, *pool->fs, 0, 5), Status::ok);
}

}  // namespace
}  // namespace gpu4fs::space
