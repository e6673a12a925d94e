// mkfs compared with the format: numbers calculated by hand, checksums by libxxhash, refusals that write nothing.
#include "pool/pool_make.hpp"
#include "pool/chunk_shape.hpp"

#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <xxhash.h>

#include <map>

#include "base/limits.hpp"
#include "format/directory_format.hpp"
#include "pool/pool_layout.hpp"
#include "pool/pool_open.hpp"
#include "raid/levels/levels.hpp"
#include "support/pool_test_support.hpp"

namespace gpu4fs::pool {
namespace {

using gpu4fs::test::contains;
using gpu4fs::test::error_of;
using gpu4fs::test::flip_byte;
using gpu4fs::test::make_file;
using gpu4fs::test::mib;
using gpu4fs::test::pool_options;
using gpu4fs::test::read_bytes;
using gpu4fs::test::read_struct;
using gpu4fs::test::TemporaryFolder;
using gpu4fs::test::write_bytes;

u64 oracle_hash(const std::vector<u8>& bytes, u64 seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

// Hash of the page at `offset` with the eight bytes of its checksum zero, and those eight bytes.
void expect_sealed(const std::string& path, u64 offset, std::size_t checksum_at, u64 seed) {
  std::vector<u8> page = read_bytes(path, offset, page_size);
  u64 stored = 0;
  std::memcpy(&stored, page.data() + checksum_at, 8);
  std::memset(page.data() + checksum_at, 0, 8);
  EXPECT_EQ(stored, oracle_hash(page, seed)) << path << " page at " << offset;
}

TEST(PoolMake, places_everything_where_the_format_says) {
  const TemporaryFolder folder;
  const std::string path = folder / "a";
  MakePoolOptions options = pool_options({path}, 64 * mib);
  options.label = "first";
  options.root_uid = 7;
  options.root_gid = 8;
  const format::Superblock superblock = make_pool(options);
  const format::DevicePart& part = superblock.device;

  // 64 MiB: chunks of 8 MiB; 256 KiB, 16 tree pages, 2 * (1 + 1) map pages, 1 MiB log, to 64 KiB.
  EXPECT_EQ(superblock.chunk_size_bytes, 8 * mib);
  EXPECT_EQ(part.tree_offset, 256u * 1024);
  EXPECT_EQ(part.tree_pages, 16u);
  EXPECT_EQ(part.chunk_map_offset, 320u * 1024);
  EXPECT_EQ(part.log_offset, 336u * 1024);
  EXPECT_EQ(part.log_bytes, 1024u * 1024);
  EXPECT_EQ(part.chunk_area_offset, 1408u * 1024);
  EXPECT_EQ(part.chunk_area_granules, (65536u - 1408) / 64);
  // A chunk takes 8 MiB and 128 KiB: 130 of the 1,002 granules.
  EXPECT_EQ(superblock.chunk_count, 7u);
  EXPECT_EQ(superblock.page_total, 7u * 2048);
  EXPECT_EQ(superblock.page_used, 11u);
  EXPECT_EQ(superblock.inode_used, 16u);

  EXPECT_EQ(read_bytes(path, 0, 128 * 1024), std::vector<u8>(128 * 1024)) << "slot A is blank";
  expect_sealed(path, 128 * 1024, 16, 128 * 1024);
  expect_sealed(path, part.tree_offset, 8, 0);
  expect_sealed(path, part.chunk_map_offset, 8, 0);
  for (u64 chunk = 0; chunk < 7; ++chunk) {
    const u64 base = (chunk + 1) * 8 * mib;
    const u64 column = part.chunk_area_offset + chunk * 130 * 65536;
    expect_sealed(path, column, 8, base);
    expect_sealed(path, column + page_size, 8, base);
    const auto slot = read_struct<format::BitmapSlotHeader>(path, column + page_size);
    EXPECT_EQ(slot.epoch, 1u);
    EXPECT_EQ(slot.bit_count, 2048u);
    EXPECT_EQ(slot.set_count, chunk == 0 ? 11u : 0u);
    EXPECT_EQ(slot.bitmap_checksum, oracle_hash(read_bytes(path, column + 2 * page_size, page_size), base));
    EXPECT_EQ(slot.descriptor_table_checksum, oracle_hash(read_bytes(path, column + 3 * page_size, page_size), ~base));
    const auto other = read_struct<format::BitmapSlotHeader>(path, column + 4 * page_size);
    EXPECT_EQ(other.magic, 0u);
  }
}

TEST(PoolMake, every_initial_page_has_its_descriptor) {
  const TemporaryFolder folder;
  const std::string path = folder / "a";
  const format::Superblock superblock = make_pool(pool_options({path}, 64 * mib));
  const u64 column = superblock.device.chunk_area_offset;
  for (u64 page = 0; page < superblock.page_used; ++page) {
    const auto descriptor = read_struct<format::PageDescriptor>(path, column + 7 * page_size + page * 16);
    const std::vector<u8> bytes = read_bytes(path, column + (32 + page) * page_size, page_size);
    EXPECT_EQ(descriptor.checksum, oracle_hash(bytes, 8 * mib + page * page_size)) << page;
    EXPECT_EQ(descriptor.birth_epoch, 1u);
    EXPECT_EQ(descriptor.flags, 0u);
  }
}

// Follows the pointers of an empty pool by hand: three levels of the inode file, then the root
// directory.
TEST(PoolMake, root_directory_is_reachable_and_empty) {
  const TemporaryFolder folder;
  const std::string path = folder / "a";
  MakePoolOptions options = pool_options({path}, 64 * mib);
  options.root_uid = 7;
  options.root_gid = 8;
  options.root_permissions = 0711;
  const format::Superblock superblock = make_pool(options);
  const auto place = [&](format::BlockPointer pointer) {
    return superblock.device.chunk_area_offset + 32 * page_size + pointer.address() - 8 * mib;
  };
  format::BlockPointer pointer = superblock.inode_file.slots[0];
  for (int level = 3; level > 0; --level) {
    ASSERT_TRUE(pointer.is_well_formed() && pointer.is_indirect()) << level;
    pointer = read_struct<format::BlockPointer>(path, place(pointer));
  }
  ASSERT_TRUE(pointer.is_well_formed() && !pointer.is_indirect());
  const auto root = read_struct<format::Inode>(path, place(pointer) + format::inode_size);
  EXPECT_EQ(root.mode, S_IFDIR | 0711);
  EXPECT_EQ(root.uid, 7u);
  EXPECT_EQ(root.gid, 8u);
  EXPECT_EQ(root.link_count, 2u);
  EXPECT_EQ(root.parent_or_device, format::inode_number_root);
  EXPECT_EQ(root.entry_count, 0u);
  EXPECT_EQ(root.page_count, 1u);
  const auto leaf = read_struct<format::DirectoryPageHeader>(path, place(root.slots[0]));
  EXPECT_EQ(leaf.magic, format::directory_leaf_magic);
  EXPECT_EQ(leaf.entry_count, 0u);
  EXPECT_EQ(leaf.heap_begin, page_size);
}

TEST(PoolMake, neighbouring_chunks_are_on_different_devices) {
  const TemporaryFolder folder;
  make_file(folder / "b", 40 * mib);
  make_pool(pool_options({folder / "b"}, 0));
  MakePoolOptions options = pool_options({folder / "a", folder / "c"}, 64 * mib);
  make_pool(options);
  options = pool_options({folder / "a", folder / "b", folder / "c"}, 0);
  options.force = true;
  const format::Superblock superblock = make_pool(options);
  EXPECT_EQ(superblock.device_count, 3u);
  EXPECT_EQ(superblock.tree_replica_count, 2u);
  EXPECT_EQ(superblock.chunk_count, 7u + 4u + 7u);
  OpenPoolOptions open_options;
  open_options.device_paths = {folder / "c", folder / "a", folder / "b"};
  const OpenedPool pool = open_pool(open_options);
  std::map<u32, u32> count_of_device;
  for (std::size_t i = 0; i < pool.chunks.size(); ++i) {
    const u32 device = pool.chunks[i].columns[0].device_index();
    ++count_of_device[device];
    EXPECT_EQ(pool.chunks[i].descriptor.base_address, (i + 1) * 8 * mib);
    if (i > 0) {
      EXPECT_NE(device, pool.chunks[i - 1].columns[0].device_index()) << i;
    }
  }
  EXPECT_EQ(count_of_device, (std::map<u32, u32>{{0, 7}, {1, 4}, {2, 7}}));
}

TEST(PoolLayout, chunk_size_follows_the_smallest_device) {
  EXPECT_EQ(default_chunk_size(0), 8 * mib);
  EXPECT_EQ(default_chunk_size(64 * mib), 8 * mib);
  EXPECT_EQ(default_chunk_size(127 * mib), 8 * mib);
  EXPECT_EQ(default_chunk_size(128 * mib), 16 * mib);
  EXPECT_EQ(default_chunk_size(4096 * mib), 256 * mib);
  EXPECT_EQ(default_chunk_size(u64{1} << 40), 256 * mib);
}

TEST(PoolLayout, areas_hold_for_large_and_uneven_pools) {
  const std::vector<std::vector<u64>> pools = {
      {16 * mib, u64{64} << 30}, {u64{1} << 40, u64{1} << 40}, {u64{64} << 40}, {10 * mib}};
  for (const std::vector<u64>& sizes : pools) {
    std::vector<NamedSize> devices;
    for (const u64 size : sizes) devices.push_back({"device", size});
    const PoolLayout layout = compute_layout(devices, 0);
    std::vector<u64> granules_used(sizes.size());
    for (const ChunkPlacement& chunk : layout.chunks) {
      ASSERT_EQ(chunk.columns.size(), 1u);
      const ColumnPlacement& column = chunk.columns[0];
      EXPECT_EQ(column.first_granule, granules_used[column.device_index]);
      granules_used[column.device_index] += chunk.column_granules();
    }
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const format::DevicePart& part = layout.parts[i];
      EXPECT_LE(granules_used[i], part.chunk_area_granules);
      EXPECT_LT(part.chunk_area_granules - granules_used[i], layout.chunks[0].column_granules());
      EXPECT_LE(part.chunk_area_offset + part.chunk_area_granules * 65536, sizes[i]);
      EXPECT_LE(part.chunk_area_granules, part.chunk_map_pages * 32768);
      EXPECT_GE(part.tree_pages, 2 * chunk_tree_node_count(layout.chunks.size()));
    }
  }
}

TEST(PoolLayout, columns_of_a_chunk_are_on_different_devices_of_most_room) {
  const std::vector<NamedSize> devices = {{"a", 64 * mib}, {"b", 200 * mib}, {"c", 100 * mib}, {"d", 64 * mib}};
  for (const char* name : {"raid0", "raid1", "raid1c3", "raid1c4", "raid5", "raid6", "raid7"}) {
    const PoolLayout layout = compute_layout(devices, 8 * mib, 0, parse_profile(name, 0));
    std::vector<u64> used(devices.size());
    u64 base = 8 * mib;
    for (const ChunkPlacement& chunk : layout.chunks) {
      EXPECT_EQ(chunk.descriptor.base_address, base);
      base += chunk.descriptor.size_bytes;
      EXPECT_EQ(find_shape_problem(chunk.descriptor), nullptr) << name;
      std::set<u32> members;
      for (const ColumnPlacement& column : chunk.columns) {
        EXPECT_TRUE(members.insert(column.device_index).second) << name;
        EXPECT_EQ(column.first_granule, used[column.device_index]);
        used[column.device_index] += chunk.column_granules();
      }
      for (u32 other = 0; other < devices.size(); ++other) {
        EXPECT_LE(used[other], layout.parts[other].chunk_area_granules);
      }
    }
    // Another chunk of the smallest shape fits nowhere.
    u32 with_room = 0;
    for (u32 i = 0; i < devices.size(); ++i) {
      if (layout.parts[i].chunk_area_granules - used[i] >= layout.chunks.back().column_granules()) ++with_room;
    }
    EXPECT_LT(with_room, layout.chunks.back().columns.size()) << name;
  }
}

TEST(PoolLayout, profiles_of_devices_get_their_share_there) {
  const std::vector<NamedSize> devices(3, {"device", 1024 * mib});
  const std::vector<ChunkShare> shares = {{parse_profile("raid1", 0), format::chunk_flag_any_content, 0.8},
                                          {parse_profile("physical:2", 0), format::chunk_flag_data, 0.2}};
  const PoolLayout layout = compute_layout(devices, 16 * mib, 0, shares);
  u64 chunks = 0;
  for (const ChunkPlacement& chunk : layout.chunks) {
    EXPECT_EQ(find_shape_problem(chunk.descriptor), nullptr);
    if (format::profile_of(chunk.descriptor) != format::physical_profile(2)) continue;
    ++chunks;
    ASSERT_EQ(chunk.columns.size(), 1u);
    EXPECT_EQ(chunk.columns[0].device_index, 2u);
    EXPECT_EQ(chunk.descriptor.flags, u32{format::chunk_flag_data} | format::chunk_flag_physical);
  }
  EXPECT_NEAR(static_cast<double>(chunks * 16 * mib), 0.2 * 3 * 1024 * mib, 40 * mib);
  EXPECT_STREQ(format::profile_name(format::physical_profile(2)).text, "physical:2");
  EXPECT_STREQ(format::profile_name(format::physical_profile(55)).text, "physical:55");
  for (const char* name : {"physical:", "physical:56", "physical:x", "physical:-1", "physical:01", "physical:1 "}) {
    EXPECT_TRUE(contains(error_of([&] { parse_profile(name, 0); }), "the index of a device")) << name;
  }
  EXPECT_TRUE(contains(error_of([&] { parse_profile("physical:1", 65536); }), "no stripes"));
  const std::vector<NamedSize> two(2, {"device", 1024 * mib});
  EXPECT_TRUE(contains(error_of([&] { compute_layout(two, 16 * mib, 0, shares); }), "the pool has 2 devices"));
}

TEST(PoolLayout, profiles_get_their_shares) {
  const std::vector<NamedSize> devices(5, {"device", 1024 * mib});
  const std::vector<ChunkShare> shares = {{parse_profile("raid1c3", 0), format::chunk_flag_metadata, 0.1},
                                          {parse_profile("raid5", 0), format::chunk_flag_data, 0.7},
                                          {parse_profile("raid0", 0), format::chunk_flag_data, 0.2}};
  const PoolLayout layout = compute_layout(devices, 16 * mib, 0, shares);
  std::map<format::Profile, u64> granules;
  u64 all = 0;
  u64 base = 16 * mib;
  for (const ChunkPlacement& chunk : layout.chunks) {
    const format::ChunkDescriptor& d = chunk.descriptor;
    EXPECT_EQ(d.base_address, base);
    base += d.size_bytes;
    EXPECT_EQ(find_shape_problem(d), nullptr);
    const format::Profile profile = format::profile_of(d.level, d.column_count);
    EXPECT_EQ(d.flags, profile == format::Profile::raid1c3 ? format::chunk_flag_metadata : format::chunk_flag_data);
    granules[profile] += chunk.column_granules() * chunk.columns.size();
    all += chunk.column_granules() * chunk.columns.size();
  }
  const format::ChunkDescriptor& first = layout.chunks.front().descriptor;
  EXPECT_EQ(format::profile_of(first.level, first.column_count), format::Profile::raid1c3)
      << "the root directory is there";
  const auto part = [&](format::Profile profile) {
    return static_cast<double>(granules[profile]) / static_cast<double>(all);
  };
  EXPECT_NEAR(part(format::Profile::raid1c3), 0.1, 0.02);
  EXPECT_NEAR(part(format::Profile::raid5), 0.7, 0.03);
  EXPECT_NEAR(part(format::Profile::raid0), 0.2, 0.03);
  EXPECT_EQ(granules.size(), 3u);
  // The pool is small: each profile gets a chunk, or the pool is refused.
  const std::vector<NamedSize> small(4, {"device", 32 * mib});
  EXPECT_GE(compute_layout(small, 8 * mib, 0, shares).chunks.size(), 3u);
  const std::vector<NamedSize> smallest(4, {"device", 12 * mib});
  EXPECT_TRUE(contains(error_of([&] { compute_layout(smallest, 8 * mib, 0, shares); }), "beside those of the others"));
}

// Every profile for data with every one for metadata.
TEST(PoolMake, all_pairs_of_profiles_can_be_opened) {
  const char* names[] = {"single", "raid0", "raid1", "raid1c3", "raid1c4", "raid5", "raid6", "raid7"};
  for (u32 d = 0; d < std::size(names); ++d) {
    for (u32 m = 0; m < std::size(names); ++m) {
      const TemporaryFolder folder;
      MakePoolOptions make =
          pool_options({folder / "a", folder / "b", folder / "c", folder / "d", folder / "e"}, 32 * mib);
      make.data_profile = names[d];
      make.metadata_profile = names[m];
      const format::Superblock made = make_pool(make);
      EXPECT_EQ((made.feature_incompatible & format::feature_mixed_profiles) != 0, d != m);
      OpenPoolOptions open;
      open.device_paths = make.device_paths;
      const OpenedPool pool = open_pool(open);
      EXPECT_STREQ(format::profile_name(profiles_of(pool).data).text, names[d]);
      EXPECT_STREQ(format::profile_name(profiles_of(pool).metadata).text, names[m]);
      u32 redundancy = 0;
      for (const OpenedChunk& chunk : pool.chunks) redundancy = std::max<u32>(redundancy, chunk.descriptor.redundancy);
      EXPECT_EQ(made.tree_replica_count, std::max(2u, redundancy + 1));
    }
  }
}

TEST(PoolLayout, profiles_are_refused_with_a_reason) {
  EXPECT_TRUE(contains(error_of([] { parse_profile("raid9", 0); }), "not supported"));
  EXPECT_TRUE(contains(error_of([] { parse_profile("raid0", 12288); }), "power of two"));
  EXPECT_TRUE(contains(error_of([] { parse_profile("raid0", 2 << 20); }), "power of two"));
  EXPECT_TRUE(contains(error_of([] { parse_profile("raid1", 65536); }), "has no stripes"));
  const std::vector<NamedSize> two = {{"a", 64 * mib}, {"b", 64 * mib}};
  EXPECT_TRUE(contains(error_of([&] { compute_layout(two, 0, 0, parse_profile("raid1c3", 0)); }), "needs 3 devices"));
}

TEST(PoolLayout, minimum_size_is_exact) {
  const std::vector<NamedSize> one = {{"device", 9 * mib}};
  const std::string message = error_of([&] { compute_layout(one, 0); });
  const u64 minimum = minimum_device_size(8 * mib, 16);
  EXPECT_TRUE(contains(message, "device: 9437184 bytes are too small")) << message;
  EXPECT_TRUE(contains(message, std::to_string(minimum))) << message;
  EXPECT_EQ(compute_layout({{"device", minimum}}, 0).chunks.size(), 1u);
  error_of([&] { compute_layout({{"device", minimum - 1}}, 0); });
}

TEST(PoolMake, a_tree_of_several_levels_is_read_back) {
  // 8 GiB in chunks of 8 MiB: some 1,000 chunks, a dozen leaves, one root. Only metadata is
  // written.
  const TemporaryFolder folder;
  MakePoolOptions options = pool_options({folder / "a"}, u64{8} << 30);
  options.chunk_size_bytes = 8 * mib;
  const format::Superblock superblock = make_pool(options);
  EXPECT_EQ(superblock.tree_height, 2u);
  EXPECT_EQ(superblock.tree_node_count, chunk_tree_node_count(superblock.chunk_count));
  const OpenedPool pool = open_pool({{folder / "a"}, true, true});
  EXPECT_EQ(pool.chunks.size(), superblock.chunk_count);
}

TEST(PoolMake, refuses_what_holds_something) {
  struct Content {
    u64 offset;
    std::string bytes;
    std::string message;
  };
  const std::vector<Content> contents = {
      {1080, std::string("\x53\xef", 2), "holds an ext2/3/4 file system"},
      {0, "XFSB", "holds an XFS file system"},
      {0x10040, "_BHRfS_M", "holds a btrfs file system"},
      {4086, "SWAPSPACE2", "holds a swap area"},
      {512, "EFI PART", "holds a GPT partition table"},
      {510, std::string("\x55\xaa", 2), "holds an MBR partition table"},
      {256 * 1024 - 1, "x", "holds data"},
  };
  const TemporaryFolder folder;
  for (const Content& content : contents) {
    const std::string path = folder / "a";
    make_file(path, 32 * mib);
    write_bytes(path, content.offset, content.bytes.data(), content.bytes.size());
    const std::string message = error_of([&] { make_pool(pool_options({path}, 0)); });
    EXPECT_TRUE(contains(message, path + ": " + content.message)) << message;
    MakePoolOptions forced = pool_options({path}, 0);
    forced.force = true;
    EXPECT_EQ(make_pool(forced).chunk_count, 3u);
    const std::string again = error_of([&] { make_pool(pool_options({path}, 0)); });
    EXPECT_TRUE(contains(again, "holds a gpu4fs pool")) << again;
    std::filesystem::remove(path);
  }
}

TEST(PoolMake, an_error_of_the_last_device_leaves_the_others_untouched) {
  const TemporaryFolder folder;
  make_file(folder / "a", 32 * mib);
  make_file(folder / "small", 5 * mib);
  make_file(folder / "full", 32 * mib);
  flip_byte(folder / "full", 100);
  for (const char* bad : {"small", "full", "absent", "a"}) {
    const std::string message = error_of([&] { make_pool(pool_options({folder / "a", folder / bad}, 0)); });
    EXPECT_TRUE(contains(message, folder / bad)) << message;
    EXPECT_EQ(read_bytes(folder / "a", 0, 32 * mib), std::vector<u8>(32 * mib)) << bad;
  }
  // A file that would have been created is not left either.
  error_of([&] { make_pool(pool_options({folder / "new", folder / "small"}, 32 * mib)); });
  EXPECT_FALSE(std::filesystem::exists(folder / "new"));
}

TEST(PoolMake, the_same_device_twice_is_found_under_other_names) {
  const TemporaryFolder folder;
  make_file(folder / "a", 32 * mib);
  std::filesystem::create_hard_link(folder / "a", folder / "hard");
  std::filesystem::create_symlink(folder / "a", folder / "soft");
  for (const char* name : {"a", "hard", "soft", "./a"}) {
    const std::string message = error_of([&] { make_pool(pool_options({folder / "a", folder / name}, 0)); });
    EXPECT_TRUE(contains(message, "the same device as " + (folder / "a"))) << message;
  }
  const std::string created = error_of([&] { make_pool(pool_options({folder / "n", folder / "./n"}, 32 * mib)); });
  EXPECT_TRUE(contains(created, "the same device")) << created;
}

TEST(PoolMake, refuses_bad_options) {
  const TemporaryFolder folder;
  const auto refused = [&](auto change, const std::string& part) {
    MakePoolOptions options = pool_options({folder / "a"}, 32 * mib);
    change(options);
    const std::string message = error_of([&] { make_pool(options); });
    EXPECT_TRUE(contains(message, part)) << message;
    EXPECT_FALSE(std::filesystem::exists(folder / "a"));
  };
  refused([](auto& o) { o.device_paths.clear(); }, "1 to 64 devices");
  refused([](auto& o) { o.device_paths.assign(65, "x"); }, "not 65");
  refused([](auto& o) { o.data_profile = "raid6"; }, "profile 'raid6' needs 3 devices");
  refused([](auto& o) { o.data_profile = o.metadata_profile = "raid9"; }, "profile 'raid9' is not supported");
  refused([](auto& o) { o.data_profile = o.metadata_profile = "raid7"; }, "needs 4 devices");
  refused([](auto& o) { o.metadata_profile = "raid1"; }, "profile 'raid1' needs 2 devices");
  refused([](auto& o) { o.metadata_profile = "raid1", o.metadata_share = 0.995; }, "a share of 99.5 %");
  refused([](auto& o) { o.metadata_profile = "raid1", o.metadata_share = 0; }, "a share of 0 %");
  refused([](auto& o) { o.more_profiles = {{"raid0", 0.6}, {"raid1", 0.39999}}; }, "0.001 % are left");
  refused([](auto& o) { o.more_profiles = {{"single", 0.5}}; }, "'single' is named twice");
  refused([](auto& o) { o.more_profiles = {{"raid0", 0.2}, {"raid0", 0.2}}; }, "'raid0' is named twice");
  refused([](auto& o) { o.label.assign(65, 'x'); }, "label has 65 bytes");
  refused([](auto& o) { o.chunk_size_bytes = 9 * mib; }, "chunk size 9437184");
  refused([](auto& o) { o.chunk_size_bytes = 4 * mib; }, "chunk size 4194304");
  refused([](auto& o) { o.size_bytes = 0; }, "does not exist, and no size");
  refused([&](auto& o) { o.device_paths = {folder / "no/a"}; }, "does not exist");
  refused([&](auto& o) { o.device_paths = {folder / "."}; }, folder / ".");
  refused([](auto& o) { o.device_paths = {"/dev/null"}; }, "neither a regular file nor a block");
  make_file(folder / "b", 16 * mib);
  refused([&](auto& o) { o.device_paths = {folder / "b"}; }, "exists with 16777216 bytes");
}

TEST(PoolMake, an_opened_pool_is_not_made_anew) {
  const TemporaryFolder folder;
  MakePoolOptions options = pool_options({folder / "a"}, 32 * mib);
  make_pool(options);
  options.force = true;
  {
    const OpenedPool pool = open_pool({{folder / "a"}, false, true});
    const std::string message = error_of([&] { make_pool(options); });
    EXPECT_TRUE(contains(message, "in use")) << message;
  }
  make_pool(options);
}

TEST(PoolMake, identifiers_are_random) {
  const TemporaryFolder folder;
  const format::Superblock a = make_pool(pool_options({folder / "a"}, 32 * mib));
  const format::Superblock b = make_pool(pool_options({folder / "b"}, 32 * mib));
  EXPECT_NE(std::memcmp(a.pool_uuid, b.pool_uuid, 16), 0);
  EXPECT_NE(std::memcmp(a.device_uuids[0], b.device_uuids[0], 16), 0);
  EXPECT_NE(a.name_hash_seed, b.name_hash_seed);
}

// Pools for the Python reader's test, which runs this test with GPU4FS_IMAGE_FOLDER set.
TEST(PoolMake, images_for_other_readers) {
  const TemporaryFolder temporary;
  const char* chosen = std::getenv("GPU4FS_IMAGE_FOLDER");
  const auto file = [&](const std::string& name) {
    return chosen != nullptr ? std::string(chosen) + "/" + name : temporary / name;
  };
  MakePoolOptions one = pool_options({file("one")}, 64 * mib);
  one.label = "one device";
  EXPECT_EQ(make_pool(one).device_count, 1u);
  MakePoolOptions three = pool_options({file("three.0"), file("three.1"), file("three.2")}, 24 * mib);
  three.data_checksums = false;
  EXPECT_EQ(make_pool(three).feature_incompatible, 0u);
}

}  // namespace
}  // namespace gpu4fs::pool
