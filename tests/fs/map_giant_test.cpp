// Blocks of 1 GiB: placing, looking up, splitting, removing. The pool's data pages are never touched, so a lazily
// mapped region of 3 GiB costs nothing. The tested file is inode 0 of a pool without other files.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "base/emulated_warp.hpp"
#include "base/host/engine_allocator.hpp"
#include "fs/map/file_map.hpp"
#include "pool/logical_space/logical_space.hpp"
#include "support/on_all_groups.hpp"
#include "support/small_file_system.hpp"
#include "support/test_scale.hpp"

namespace gpu4fs::test {
namespace {

constexpr u64 giga = u64{1} << 30;
constexpr u64 giga_pages = giga / page_size;

class LazyMemory : public EngineAllocator {
 public:
  ~LazyMemory() override {
    for (const auto& [base, bytes] : regions_) munmap(base, bytes);
  }
  void* allocate(u64 bytes, u64 /*alignment*/) override {
    const u64 length = align_up(bytes + 1, page_size);
    void* base = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) throw std::bad_alloc();
    regions_.emplace_back(base, length);
    return base;
  }
  template <class T>
  T* array(u64 count) {
    return static_cast<T*>(allocate(count * sizeof(T), page_size));
  }
  void copy_in(void* destination, const void* source, u64 bytes) override { std::memcpy(destination, source, bytes); }
  void zero(void* destination, u64 bytes) override { std::memset(destination, 0, bytes); }

 private:
  std::vector<std::pair<void*, u64>> regions_;
};

class GiantPool {
 public:
  static constexpr u64 chunk_bytes = 2 * giga;
  static constexpr u64 chunk_base = giga;

  GiantPool() {
    const format::ChunkLayout layout = format::chunk_layout(chunk_bytes / page_size);
    u8* device = memory_.array<u8>(layout.header_pages * page_size + chunk_bytes + giga / 2);
    const u64 column_offset = format::layout_area_offset;
    write_header(device + column_offset, layout);
    devices_.push_back(
        {device::DeviceKind::memory, 0, column_offset + layout.header_pages * page_size + chunk_bytes, device, 0, 0});
    pool::OpenedChunk source{};
    source.descriptor.base_address = chunk_base;
    source.descriptor.size_bytes = chunk_bytes;
    source.descriptor.level = format::RaidLevel::single;
    source.descriptor.column_count = 1;
    source.descriptor.flags = format::chunk_flag_data | format::chunk_flag_metadata;
    source.descriptor.epoch_created = 1;
    source.columns = {format::ColumnAddress::make(0, column_offset)};
    format::Superblock superblock{};
    superblock.chunk_size_bytes = giga;
    superblock.device_count = 1;
    superblock.chunk_count = 1;
    superblock.page_total = chunk_bytes / page_size;
    superblock.epoch = 1;
    fs_ = new (memory_.array<fs::FileSystem>(1)) fs::FileSystem{};
    fs_->space = pool::build_logical_space(memory_, superblock, devices_, std::vector{source}, true);
    fs_->shard_count = 1;
    fs_->shards = memory_.array<space::AllocationShard>(1);
    build_page_table();
    fs_->inode_file.mode = 0100600;
    fs_->epoch_open = 2;
    load_status = space::load_chunk(Lane{}, *fs_, 0, 1);
  }

  fs::FileSystem& fs() { return *fs_; }
  fs::InodeRef file() { return fs::detail::inode_file_ref(*fs_); }
  Status load_status = Status::ok;

 private:
  static void write_header(u8* column, const format::ChunkLayout& layout) {
    format::ChunkHeader header{};
    header.magic = format::chunk_header_magic;
    header.version = 1;
    header.base_address = chunk_base;
    header.size_bytes = chunk_bytes;
    header.epoch_created = 1;
    small_pool::seal(header, chunk_base);
    std::memcpy(column, &header, sizeof(header));
    format::BitmapSlotHeader slot{};
    slot.magic = format::bitmap_slot_magic;
    slot.version = 2;
    const u8* bitmap = column + (layout.bitmap_a_page + 1) * page_size;
    slot.bitmap_checksum = xxh3_64(bitmap, layout.bitmap_pages * page_size, chunk_base);
    slot.base_address = chunk_base;
    slot.epoch = 1;
    slot.bit_count = chunk_bytes / page_size;
    slot.descriptor_table_checksum = xxh3_64(bitmap + layout.bitmap_pages * page_size, layout.table_pages * page_size,
                                             format::descriptor_table_seed(chunk_base));
    small_pool::seal(slot, chunk_base);
    std::memcpy(column + layout.bitmap_a_page * page_size, &slot, sizeof(slot));
  }

  void build_page_table() {
    fs::PageTable& table = fs_->pages;
    table.frame_count = 4096;
    table.staging_count = 4096;
    table.bucket_count = 1024;
    table.bucket_lock_count = 16;
    table.frames = memory_.array<fs::Frame>(table.frame_count);
    table.data = memory_.array<u8>(table.frame_count * page_size);
    table.inode_locks = memory_.array<CommandLock>(table.frame_count * format::inodes_per_page);
    table.buckets = memory_.array<u32>(table.bucket_count);
    table.bucket_locks = memory_.array<TicketLock>(table.bucket_lock_count);
    table.dirty_list = memory_.array<u32>(table.frame_count);
    table.limbo_list = memory_.array<u32>(table.frame_count);
    table.emptied_list = memory_.array<u32>(table.frame_count);
    for (u32 i = 0; i < table.bucket_count; ++i) table.buckets[i] = fs::no_frame;
    for (u32 i = 0; i < table.frame_count; ++i) {
      table.frames[i].key = fs::no_page_key;
      table.frames[i].next = i + 1 == table.frame_count ? fs::no_frame : i + 1;
    }
    table.free_count = table.frame_count;
  }

  LazyMemory memory_;
  std::vector<device::Device> devices_;
  fs::FileSystem* fs_ = nullptr;
};

raid::Extent allocate_giga(fs::FileSystem& fs, fs::Operation& op) {
  return space::allocate_run(Lane{}, fs, op, giga_pages, static_cast<u32>(giga_pages));
}

// The first GiB of the chunk.
raid::Extent take_first_giga(fs::FileSystem& fs, fs::Operation& op) {
  EXPECT_EQ(space::reserve_pages(fs, op, giga_pages), Status::ok);
  const raid::Extent extent = allocate_giga(fs, op);
  EXPECT_EQ(extent.address, GiantPool::chunk_base);
  EXPECT_EQ(extent.page_count, giga_pages);
  return extent;
}

template <class Group>
void expect_run(Group g, GiantPool& pool, fs::Operation& op, u64 page, fs::MapRun expected) {
  fs::MapRun run{};
  ASSERT_EQ(fs::map_lookup(g, pool.fs(), op, pool.file(), {page, page + expected.page_count}, &run), Status::ok);
  EXPECT_EQ(run.kind, expected.kind) << "page " << page;
  EXPECT_EQ(run.address, expected.address) << "page " << page;
  EXPECT_EQ(run.page_count, expected.page_count) << "page " << page;
}

template <class Group>
void prepare_change(Group g, GiantPool& pool, fs::Operation& op, u64 first, u64 end) {
  fs::MapCost cost{};
  ASSERT_EQ(fs::map_prepare(g, pool.fs(), op, pool.file(), {first, end}, &cost), Status::ok);
  ASSERT_EQ(fs::reserve_metadata(g, pool.fs(), op, {0, cost.changed, cost.fresh}), Status::ok);
}

template <class Group>
void remove_all(Group g, GiantPool& pool, fs::Operation& op, u64 first, u64 end) {
  fs::MapRemoval removal{{first, end}, 100, {}};
  ASSERT_EQ(fs::map_prepare_remove(g, pool.fs(), op, pool.file(), &removal), Status::ok);
  ASSERT_EQ(removal.range.first, first);
  ASSERT_EQ(fs::reserve_metadata(g, pool.fs(), op, {0, removal.cost.changed, removal.cost.fresh}), Status::ok);
  fs::map_remove(g, pool.fs(), op, pool.file(), {first, end});
}

// All or nothing, aligned; a region is never given to two callers.
TEST(MapGiant, RunsAreAlignedAndWhole) {
  GiantPool pool;
  fs::FileSystem& fs = pool.fs();
  ASSERT_EQ(pool.load_status, Status::ok);
  const u64 free_pages = fs.data_counters().free;
  fs::Operation op{};
  op.emergency_use = space::EmergencyUse::all;
  ASSERT_EQ(space::reserve_pages(fs, op, 2 * giga_pages), Status::ok);
  const raid::Extent first = allocate_giga(fs, op);
  const raid::Extent second = allocate_giga(fs, op);
  EXPECT_EQ((std::set<u64>{first.address, second.address}), (std::set<u64>{giga, 2 * giga}));
  EXPECT_EQ(fs.data_counters().free, free_pages - 2 * giga_pages);
  space::abandon_extent(fs, op, first);
  space::abandon_extent(fs, op, second);
  // One page blocks each of them.
  const raid::Extent small = space::allocate_run(Lane{}, fs, op, 1, 1);
  EXPECT_EQ(small.address / giga, u64{1});
  const raid::Extent rest = allocate_giga(fs, op);
  EXPECT_EQ(rest.address, 2 * giga);
  EXPECT_EQ(allocate_giga(fs, op).page_count, 0u) << "one page less is reserved";
  space::abandon_extent(fs, op, rest);
  const raid::Extent region = space::allocate_run(Lane{}, fs, op, giga_pages, static_cast<u32>(pages_per_block_2m));
  EXPECT_EQ(region.page_count, space::large_run_pages_max);
  space::abandon_extent(fs, op, region);
  space::abandon_extent(fs, op, small);
  EXPECT_EQ(op.pages_reserved, 2 * giga_pages);
  space::unreserve_pages(fs, op, op.pages_reserved);
  EXPECT_EQ(fs.data_counters().free, free_pages);
  EXPECT_EQ(fs.data_counters().available, free_pages);
}

// Another command took a page of the first GiB after its regions' counts were read: nothing of it is kept.
TEST(MapGiant, RunIsGivenUpWhereSomebodyWasFaster) {
  constexpr u32 taken = 40;
  on_all_groups([](auto g) {
    static GiantPool* pool = nullptr;
    on_leader(g, [&] {
      pool = new GiantPool;
      pool->fs().space.chunks[0].bitmaps.busy[taken * space::region_words + 7] = u64{1} << 63;
    });
    ASSERT_EQ(pool->load_status, Status::ok);
    raid::ChunkState& chunk = pool->fs().space.chunks[0];
    const space::PageRun run = space::take_giant(g, chunk);
    EXPECT_EQ(run.count, giga_pages);
    EXPECT_EQ(chunk.base_address + run.first * page_size, 2 * giga);
    on_leader(g, [&] {
      for (u32 region = 0; region < space::giant_regions; ++region) {
        const u64 first = u64{region} * space::region_pages;
        EXPECT_EQ(space::detail::count_busy(chunk, first, space::region_pages), region == taken ? 1u : 0u) << region;
        EXPECT_EQ(space::region_free(chunk, region), space::region_pages) << region;
      }
      EXPECT_EQ(space::detail::count_busy(chunk, run.first, run.count), giga_pages);
      delete pool;
    });
  });
}

// Threads that want blocks of 1 GiB, of 2 MiB and pages: nothing is given out twice, and everything is returned.
TEST(MapGiant, RunsOfAllSizesAreTakenAtOnce) {
  GiantPool pool;
  fs::FileSystem& fs = pool.fs();
  ASSERT_EQ(pool.load_status, Status::ok);
  const u64 free_pages = fs.data_counters().free;
  u32 giants = 0;
  std::atomic<bool> ended{false};
  std::vector<std::thread> threads;
  for (u32 t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      const u32 alignment = t == 0 ? 1 : static_cast<u32>(pages_per_block_2m);
      while (!ended) {
        fs::Operation op{};
        if (space::reserve_pages(fs, op, alignment) != Status::ok) continue;
        const raid::Extent run = space::allocate_run(Lane{}, fs, op, alignment, alignment);
        if (run.page_count != 0) space::abandon_extent(fs, op, run);
        space::unreserve_pages(fs, op, op.pages_reserved);
      }
    });
  }
  const u32 rounds = scaled(1000);
  // Waits for a thread that the scheduler stopped while it held a page of each.
  constexpr u32 rounds_max = 10'000'000;
  for (u32 i = 0; i < rounds || (giants == 0 && i < rounds_max); ++i) {
    fs::Operation op{};
    if (space::reserve_pages(fs, op, giga_pages) != Status::ok) continue;
    const raid::Extent run = allocate_giga(fs, op);
    if (run.page_count != 0) {
      EXPECT_TRUE(is_aligned(run.address, giga));
      EXPECT_EQ(run.page_count, giga_pages);
      ++giants;
      space::abandon_extent(fs, op, run);
    } else {
      std::this_thread::yield();
    }
    space::unreserve_pages(fs, op, op.pages_reserved);
  }
  ended = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(giants, 0u);
  // No page blocks them any more.
  fs::Operation op{};
  op.emergency_use = space::EmergencyUse::all;
  ASSERT_EQ(space::reserve_pages(fs, op, 2 * giga_pages), Status::ok);
  const raid::Extent runs[] = {allocate_giga(fs, op), allocate_giga(fs, op)};
  for (const raid::Extent& run : runs) {
    ASSERT_EQ(run.page_count, giga_pages);
    space::abandon_extent(fs, op, run);
  }
  space::unreserve_pages(fs, op, op.pages_reserved);
  EXPECT_EQ(fs.data_counters().free, free_pages);
  EXPECT_EQ(fs.data_counters().available, free_pages);
}

TEST(MapGiant, BlockIsPlacedSplitAndRemoved) {
  on_all_groups([](auto g) {
    static GiantPool* pool = nullptr;
    static fs::Operation op{};
    on_leader(g, [&] {
      pool = new GiantPool;
      op = fs::Operation{};
    });
    fs::FileSystem& fs = pool->fs();
    ASSERT_EQ(pool->load_status, Status::ok);
    const u64 at = 3 * giga_pages;
    const raid::Extent giant = on_leader(g, [&] { return take_first_giga(fs, op); });
    prepare_change(g, *pool, op, at, at + giga_pages);
    fs::map_replace(g, fs, op, pool->file(), at, {fs::MapKind::unwritten, 0, giant.address, giant.page_count});
    on_leader(g, [&] { space::commit_extent(Lane{}, fs, giant); });
    EXPECT_EQ(fs.inode_file.slots[3].size(), format::BlockSize::block_1g);
    EXPECT_EQ(fs.inode_file.page_count, giga_pages);
    expect_run(g, *pool, op, at + 5, {fs::MapKind::unwritten, 0, giant.address + 5 * page_size, giga_pages - 5});

    // One page in the middle becomes data: two levels of split, all other pages stay.
    const u64 middle = at + 100 * 512 + 7;
    prepare_change(g, *pool, op, middle, middle + 1);
    fs::map_mark_written(g, fs, op, pool->file(), {middle, middle + 1});
    EXPECT_EQ(fs.inode_file.page_count, giga_pages + 2);
    expect_run(g, *pool, op, middle, {fs::MapKind::data, 0, giant.address + (middle - at) * page_size, 1});
    expect_run(g, *pool, op, middle + 1,
               {fs::MapKind::unwritten, 0, giant.address + (middle + 1 - at) * page_size, 504});
    expect_run(g, *pool, op, at, {fs::MapKind::unwritten, 0, giant.address, 100 * 512});

    // A hole across the borders of three 2 MiB blocks.
    const u64 hole = at + 10 * 512 + 100;
    remove_all(g, *pool, op, hole, hole + 1024);
    expect_run(g, *pool, op, hole, {fs::MapKind::hole, 0, 0, 412});
    expect_run(g, *pool, op, hole + 1024,
               {fs::MapKind::unwritten, 0, giant.address + (hole + 1024 - at) * page_size, 412});
    EXPECT_EQ(fs.data_counters().used, giga_pages - 1024);
    EXPECT_EQ(fs.inode_file.page_count, giga_pages - 1024 + 4);

    remove_all(g, *pool, op, 0, fs::map_page_max);
    EXPECT_EQ(fs.data_counters().used, 0u);
    EXPECT_EQ(fs.inode_file.page_count, 0u);
    EXPECT_EQ(fs.inode_file.height, 0);
    EXPECT_EQ(fs.had_error, 0u);
    g.sync();
    on_leader(g, [&] { delete pool; });
  });
}

TEST(MapGiant, ReplacedSubtreeIsFreed) {
  GiantPool pool;
  fs::FileSystem& fs = pool.fs();
  ASSERT_EQ(pool.load_status, Status::ok);
  fs::Operation op{};
  const raid::Extent giant = take_first_giga(fs, op);
  // Single pages on both sides of the future giant block and inside it.
  for (const u64 page : {giga_pages - 1, giga_pages, giga_pages + 512 * 77 + 3, 2 * giga_pages - 1, 2 * giga_pages}) {
    prepare_change(Lane{}, pool, op, page, page + 1);
    ASSERT_EQ(space::reserve_pages(fs, op, 1), Status::ok);
    const raid::Extent extent = space::allocate_run(Lane{}, fs, op, 1, 1);
    fs::map_replace(Lane{}, fs, op, pool.file(), page, {fs::MapKind::data, 0, extent.address, extent.page_count});
    space::commit_extent(Lane{}, fs, extent);
  }
  prepare_change(Lane{}, pool, op, giga_pages, 2 * giga_pages);
  fs::map_replace(Lane{}, fs, op, pool.file(), giga_pages, {fs::MapKind::data, 0, giant.address, giant.page_count});
  space::commit_extent(Lane{}, fs, giant);
  EXPECT_EQ(fs.inode_file.slots[1].size(), format::BlockSize::block_1g);
  EXPECT_EQ(fs.data_counters().used, giga_pages + 2);
  EXPECT_EQ(fs.inode_file.page_count, giga_pages + 2 + 4);
  expect_run(Lane{}, pool, op, giga_pages, {fs::MapKind::data, 0, giant.address, giga_pages});
  remove_all(Lane{}, pool, op, 0, fs::map_page_max);
  EXPECT_EQ(fs.data_counters().used, 0u);
  EXPECT_EQ(fs.inode_file.page_count, 0u);
}

}  // namespace
}  // namespace gpu4fs::test
