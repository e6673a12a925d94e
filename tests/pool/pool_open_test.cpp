// Opening pools: choosing the epoch, members, and manipulated images.
#include "pool/pool_open.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "base/limits.hpp"
#include "format/format_text.hpp"
#include "pool/pool_layout.hpp"
#include "support/pool_test_support.hpp"

namespace gpu4fs::pool {
namespace {

using gpu4fs::test::contains;
using gpu4fs::test::error_of;
using gpu4fs::test::flip_byte;
using gpu4fs::test::make_file;
using gpu4fs::test::mib;
using gpu4fs::test::pool_options;
using gpu4fs::test::put_superblock;
using gpu4fs::test::read_struct;
using gpu4fs::test::TemporaryFolder;
using gpu4fs::test::write_bytes;

constexpr u64 slot_b = format::superblock_offset_b;

OpenPoolOptions open_options(const std::vector<std::string>& paths, bool read_only = true) {
  OpenPoolOptions options;
  options.device_paths = paths;
  options.read_only = read_only;
  return options;
}

std::string open_error(const std::vector<std::string>& paths) {
  return error_of([&] { open_pool(open_options(paths)); });
}

format::Superblock superblock_of(const std::string& path, u32 slot) {
  return read_struct<format::Superblock>(path, superblock_offset(slot));
}

TEST(PoolOpen, a_new_pool_is_as_it_was_made) {
  const TemporaryFolder folder;
  MakePoolOptions options = pool_options({folder / "a"}, 64 * mib);
  options.label = "label";
  const format::Superblock made = make_pool(options);
  const OpenedPool pool = open_pool(open_options({folder / "a"}, false));
  EXPECT_TRUE(is_common_part_equal(pool.superblock, made));
  EXPECT_EQ(pool.devices.size(), 1u);
  EXPECT_TRUE(pool.devices[0].has_newest_superblock);
  EXPECT_GE(pool.devices[0].file.fd(), 0);
  ASSERT_EQ(pool.chunks.size(), 7u);
  EXPECT_EQ(pool.chunks[0].columns[0].offset_bytes(), made.device.chunk_area_offset);
  EXPECT_TRUE(pool.warnings.empty());
}

TEST(PoolOpen, devices_come_in_their_order_and_are_found) {
  const TemporaryFolder folder;
  const std::vector<std::string> paths = {folder / "z", folder / "m", folder / "a"};
  make_pool(pool_options(paths, 32 * mib));
  make_pool(pool_options({folder / "other"}, 32 * mib));
  make_file(folder / "blank", 32 * mib);
  const OpenedPool given = open_pool(open_options({folder / "a", folder / "z", folder / "m"}));
  const OpenedPool list = open_pool(open_options({(folder / "a") + ":" + (folder / "m")}));
  const OpenedPool one = open_pool(open_options({folder / "m"}));
  for (const OpenedPool* pool : {&given, &list, &one}) {
    for (u32 i = 0; i < 3; ++i) {
      EXPECT_EQ(pool->devices[i].file.path(), paths[i]);
      EXPECT_EQ(pool->devices[i].part.device_index, i);
    }
  }
  EXPECT_EQ(find_members(folder / "a"), paths);
  EXPECT_TRUE(contains(error_of([&] { find_members(folder / "blank"); }), "holds no gpu4fs pool"));
}

TEST(PoolOpen, members_that_are_missing_doubled_or_strange_are_named) {
  const TemporaryFolder folder;
  make_pool(pool_options({folder / "a", folder / "b"}, 32 * mib));
  make_pool(pool_options({folder / "x"}, 32 * mib));
  make_file(folder / "blank", 32 * mib);
  EXPECT_TRUE(contains(open_error({folder / "blank"}), "holds no gpu4fs pool"));
  EXPECT_TRUE(contains(open_error({folder / "absent"}), "absent: cannot open"));
  EXPECT_TRUE(contains(open_error({}), "no device given"));
  EXPECT_TRUE(contains(open_error({folder / "a", folder / "x"}), "x: belongs to pool"));
  EXPECT_TRUE(contains(open_error({folder / "a", folder / "a"}), "the same device as"));
  std::filesystem::copy_file(folder / "a", folder / "copy");
  EXPECT_TRUE(contains(open_error({folder / "a", folder / "copy"}), "copies of the same device"));
  std::filesystem::remove(folder / "copy");
  const format::Superblock superblock = superblock_of(folder / "b", 1);
  std::filesystem::remove(folder / "b");
  const std::string missing = open_error({folder / "a"});
  EXPECT_TRUE(contains(missing, "device 1 of 2 is missing: UUID ")) << missing;
  EXPECT_TRUE(contains(missing, format::uuid_text(superblock.device_uuids[1]))) << missing;
}

TEST(PoolOpen, a_copy_beside_a_single_device_is_no_member) {
  const TemporaryFolder folder;
  make_pool(pool_options({folder / "a"}, 32 * mib));
  std::filesystem::copy_file(folder / "a", folder / "backup");
  EXPECT_EQ(find_members(folder / "a"), std::vector<std::string>{folder / "a"});
  EXPECT_EQ(open_pool(open_options({folder / "a"})).devices[0].file.path(), folder / "a");
}

TEST(PoolOpen, the_newest_epoch_counts) {
  const TemporaryFolder folder;
  const std::string path = folder / "a";
  format::Superblock superblock = make_pool(pool_options({path}, 32 * mib));
  superblock.epoch = 2;
  superblock.page_used = 5;
  put_superblock(path, superblock);
  EXPECT_EQ(open_pool(open_options({path})).superblock.page_used, 5u);
  // A torn superblock of epoch 3 in slot B leaves epoch 2.
  flip_byte(path, slot_b + 2000);
  const OpenedPool pool = open_pool(open_options({path}));
  EXPECT_EQ(pool.superblock.epoch, 2u);
  ASSERT_EQ(pool.warnings.size(), 1u);
  EXPECT_TRUE(contains(pool.warnings[0], "slot B: checksum")) << pool.warnings[0];
  flip_byte(path, format::superblock_offset_a + 2000);
  EXPECT_TRUE(contains(open_error({path}), "no valid superblock (slot A: checksum; slot B:"));
}

TEST(PoolOpen, an_interrupted_superblock_update_is_completed) {
  const TemporaryFolder folder;
  const std::vector<std::string> paths = {folder / "a", folder / "b", folder / "c"};
  make_pool(pool_options(paths, 32 * mib));
  format::Superblock superblock = superblock_of(paths[1], 1);
  superblock.epoch = 2;
  superblock.clean = 0;
  put_superblock(paths[1], superblock);
  {
    OpenedPool pool = open_pool(open_options(paths, false));
    EXPECT_EQ(pool.superblock.epoch, 2u);
    EXPECT_FALSE(pool.devices[0].has_newest_superblock);
    EXPECT_TRUE(pool.devices[1].has_newest_superblock);
    EXPECT_EQ(pool.warnings.size(), 3u) << "two devices behind, and not unmounted";
    complete_superblocks(pool);
  }
  for (u32 i = 0; i < 3; ++i) {
    const SuperblockProbe probe = probe_superblocks(paths[i]);
    ASSERT_NE(probe.newest(), nullptr);
    EXPECT_EQ(probe.newest()->epoch, 2u);
    EXPECT_EQ(probe.newest()->device.device_index, i);
    EXPECT_NE(probe.with_epoch(1), nullptr) << "the older slot stays";
  }
  EXPECT_EQ(open_pool(open_options(paths)).warnings.size(), 1u);
}

TEST(PoolOpen, a_member_that_missed_an_epoch_is_refused) {
  const TemporaryFolder folder;
  const std::vector<std::string> paths = {folder / "a", folder / "b"};
  make_pool(pool_options(paths, 32 * mib));
  for (const u64 epoch : {2u, 3u}) {
    format::Superblock superblock = superblock_of(paths[0], 1);
    superblock.epoch = epoch;
    put_superblock(paths[0], superblock);
  }
  const std::string message = open_error(paths);
  EXPECT_TRUE(contains(message, paths[1] + ": device 1 is stale since epoch 2, the pool is at 3")) << message;
}

TEST(PoolOpen, superblocks_of_one_epoch_must_agree) {
  const TemporaryFolder folder;
  const std::vector<std::string> paths = {folder / "a", folder / "b"};
  make_pool(pool_options(paths, 32 * mib));
  format::Superblock superblock = superblock_of(paths[0], 1);
  superblock.page_used += 1;
  put_superblock(paths[0], superblock);
  EXPECT_TRUE(contains(open_error(paths), "superblocks of epoch 1 differ"));
}

TEST(PoolOpen, features_decide_who_may_mount) {
  const TemporaryFolder folder;
  const std::string path = folder / "a";
  const format::Superblock made = make_pool(pool_options({path}, 32 * mib));
  format::Superblock superblock = made;
  superblock.feature_compatible = u64{1} << 63;
  put_superblock(path, superblock);
  EXPECT_NO_THROW(open_pool(open_options({path}, false)));
  superblock = made;
  superblock.feature_read_only_compatible = 1;
  put_superblock(path, superblock);
  EXPECT_NO_THROW(open_pool(open_options({path}, true)));
  const std::string writing = error_of([&] { open_pool(open_options({path}, false)); });
  EXPECT_TRUE(contains(writing, "allow only a read-only mount")) << writing;
  superblock = made;
  superblock.feature_incompatible |= 1u << 6;
  superblock.device_count = 0xffffffffu;
  put_superblock(path, superblock);
  EXPECT_TRUE(contains(open_error({path}), "unknown incompatible features 0x40"));
}

// One damaged field each, with the right checksum: the message must name it.
TEST(PoolOpen, every_field_of_the_superblock_is_bounded) {
  const std::vector<std::pair<std::function<void(format::Superblock&)>, std::string>> changes = {
      {[](auto& s) { s.version = 1; }, "has format version 1, this program reads and writes version 2 only"},
      {[](auto& s) { s.epoch = ~u64{0}; }, "epoch 18446744073709551615"},
      {[](auto& s) { s.epoch = format::epoch_max + 1; }, "epoch 4611686018427387905"},
      {[](auto& s) { s.device_count = 0; }, "0 devices"},
      {[](auto& s) { s.device_count = 65; }, "65 devices"},
      {[](auto& s) { s.device_count = 2; }, "UUID of member 1"},
      {[](auto& s) { s.device_uuids[63][3] = 1; }, "UUID of member 63"},
      {[](auto& s) { s.chunk_size_bytes = 0; }, "chunk size 0"},
      {[](auto& s) { s.chunk_size_bytes += 1; }, "chunk size"},
      {[](auto& s) { s.chunk_count = 0; }, "0 chunks"},
      {[](auto& s) { s.chunk_count = ~0u; }, "4294967295 chunks"},
      {[](auto& s) { s.page_total = ~u64{0}; }, "pages used of"},
      {[](auto& s) { s.page_used = s.page_total + 1; }, "pages used of"},
      {[](auto& s) { s.tree_root = 16; }, "root 16 in an area of 16 pages"},
      {[](auto& s) { s.tree_height = 0; }, "height 0"},
      {[](auto& s) { s.tree_height = 9; }, "height 9"},
      {[](auto& s) { s.tree_node_count = 17; }, "17 nodes"},
      {[](auto& s) { s.tree_node_count = 0; }, "0 nodes"},
      {[](auto& s) { s.tree_replica_count = 2; }, "2 chunk tree replicas"},
      {[](auto& s) { s.clean = 2; }, "clean flag 2"},
      {[](auto& s) { s.reserved0 = 1; }, "reserved bytes"},
      {[](auto& s) { s.reserved1 = 1; }, "reserved bytes"},
      {[](auto& s) { s.reserved2[223] = 1; }, "reserved bytes"},
      {[](auto& s) { s.log_start += 1; }, "log that starts at"},
      {[](auto& s) { s.log_capacity += 1; }, "log of"},
      {[](auto& s) { s.log_capacity = 4096; }, "log of 4096 bytes"},
      {[](auto& s) { s.log_capacity = s.device.log_bytes + 4096; }, "log of"},
      {[](auto& s) { s.stale_since[0] = 1; }, "its own device is stale"},
      {[](auto& s) { s.stale_since[1] = 1; }, "device 1 is stale since epoch 1"},
      {[](auto& s) { s.feature_incompatible |= format::feature_stale_devices; }, "do not agree"},
      {[](auto& s) { s.reserved3[1695] = 1; }, "reserved bytes"},
      {[](auto& s) { s.data_profile = 4; }, "data profile 4"},
      {[](auto& s) { s.metadata_profile = 0; }, "metadata profile 0"},
      {[](auto& s) { s.data_profile = s.metadata_profile = 7; }, "data profile 7"},
      {[](auto& s) { s.feature_incompatible |= format::feature_mixed_profiles, s.metadata_profile = 9; },
       "metadata profile 9"},
      {[](auto& s) { s.feature_incompatible |= format::feature_mixed_profiles, s.data_profile = 0; }, "data profile 0"},
      {[](auto& s) { s.inode_file.height = 4; }, "inode file"},
      {[](auto& s) { s.inode_file.size_bytes = 100; }, "inode file of 100 bytes"},
      {[](auto& s) { s.inode_file.slots[6].raw = 1; }, "inode file: slot"},
      {[](auto& s) { s.device.device_index = 1; }, "device index 1"},
      {[](auto& s) { s.device.device_uuid[0] ^= 1; }, "device UUID"},
      {[](auto& s) { s.device.reserved[31] = 1; }, "reserved bytes of the device part"},
      {[](auto& s) { s.device.size_bytes += 4096; }, "image cut short"},
      {[](auto& s) { s.device.size_bytes = 1; }, "chunk map of 1 pages"},
      {[](auto& s) { s.device.tree_offset = 0; }, "tree area at 0"},
      {[](auto& s) { s.device.tree_pages = u64{1} << 60; }, "tree area at"},
      {[](auto& s) { s.device.chunk_map_pages = ~u64{0}; }, "chunk map of"},
      {[](auto& s) { s.device.chunk_map_offset += 1; }, "chunk map at"},
      {[](auto& s) { s.device.log_bytes = ~u64{0}; }, "log area at"},
      {[](auto& s) { s.device.log_offset = 0; }, "log area at 0"},
      {[](auto& s) { s.device.chunk_area_offset += 4096; }, "chunk area at"},
      {[](auto& s) { s.device.chunk_area_granules += 1; }, "chunk area at"},
      {[](auto& s) { s.device.chunk_area_granules = 1; }, "chunk area without room"},
  };
  const TemporaryFolder folder;
  const std::string path = folder / "a";
  const format::Superblock made = make_pool(pool_options({path}, 32 * mib));
  for (std::size_t i = 0; i < changes.size(); ++i) {
    format::Superblock superblock = made;
    changes[i].first(superblock);
    put_superblock(path, superblock);
    const std::string message = open_error({path});
    EXPECT_TRUE(contains(message, changes[i].second)) << i << ": " << message;
  }
  put_superblock(path, made);
  EXPECT_NO_THROW(open_pool(open_options({path})));
}

// Using the older slot would undo the changes of a newer version.
TEST(PoolOpen, a_slot_of_a_newer_version_hides_nothing) {
  const TemporaryFolder folder;
  const std::string path = folder / "a";
  format::Superblock superblock = make_pool(pool_options({path}, 32 * mib));
  superblock.epoch = 2;
  superblock.version = 3;
  put_superblock(path, superblock);
  EXPECT_TRUE(contains(open_error({path}), "slot A: the pool has format version 3"));
  try {
    open_pool(open_options({path}));
  } catch (const PoolError& error) {
    EXPECT_EQ(error.status(), Status::wrong_version);
  }
}

TEST(PoolOpen, a_superblock_in_the_wrong_place_is_refused) {
  const TemporaryFolder folder;
  const std::string path = folder / "a";
  const format::Superblock made = make_pool(pool_options({path}, 32 * mib));
  const std::vector<u8> zeros(page_size);
  // In the other slot the seed differs; with a recomputed checksum the epoch does not fit.
  write_bytes(path, format::superblock_offset_a, &made, sizeof(made));
  write_bytes(path, slot_b, zeros.data(), zeros.size());
  EXPECT_TRUE(contains(open_error({path}), "slot A: checksum"));
  format::Superblock moved = made;
  seal(moved, format::superblock_offset_a);
  write_bytes(path, format::superblock_offset_a, &moved, sizeof(moved));
  EXPECT_TRUE(contains(open_error({path}), "epoch 1 for slot 1 found in slot 0"));
}

TEST(PoolOpen, an_image_cut_short_is_named) {
  const TemporaryFolder folder;
  make_pool(pool_options({folder / "a"}, 32 * mib));
  std::filesystem::resize_file(folder / "a", 20 * mib);
  EXPECT_TRUE(contains(open_error({folder / "a"}), "image cut short: the device has 20971520"));
  std::filesystem::resize_file(folder / "a", 100);
  EXPECT_TRUE(contains(open_error({folder / "a"}), "holds no gpu4fs pool"));
}

TEST(PoolOpen, a_bad_tree_replica_is_passed_over) {
  const TemporaryFolder folder;
  const std::vector<std::string> paths = {folder / "a", folder / "b", folder / "c"};
  const format::Superblock made = make_pool(pool_options(paths, 32 * mib));
  flip_byte(paths[0], made.device.tree_offset + 100);
  const OpenedPool pool = open_pool(open_options(paths));
  ASSERT_EQ(pool.warnings.size(), 1u);
  EXPECT_TRUE(contains(pool.warnings[0], paths[0] + ": chunk tree node 0: checksum"));
  EXPECT_TRUE(contains(pool.warnings[0], "another replica is good"));
  flip_byte(paths[1], made.device.tree_offset + 100);
  const std::string message = open_error(paths);
  EXPECT_TRUE(contains(message, paths[0]) && contains(message, paths[1])) << message;
}

// Damage with the right checksum to the only leaf of a small pool.
TEST(PoolOpen, the_chunk_tree_is_bounded) {
  struct Leaf {
    format::ChunkTreeNode node;
    format::ChunkDescriptor& chunk(u32 index) const {
      auto* entry = const_cast<u8*>(node.entries) + index * 48;
      return *reinterpret_cast<format::ChunkDescriptor*>(entry);
    }
    u64& column(u32 index) const { return *reinterpret_cast<u64*>(const_cast<u8*>(node.entries) + index * 48 + 40); }
  };
  using Change = std::function<void(Leaf&)>;
  const std::vector<std::pair<Change, std::string>> changes = {
      {[](Leaf& l) { l.node.version = 2; }, "version"},
      {[](Leaf& l) { l.node.level = 1; }, "level 1 instead of 0"},
      {[](Leaf& l) { l.node.epoch = 2; }, "epoch 2"},
      {[](Leaf& l) { l.node.entry_count = 0; }, "0 entries"},
      {[](Leaf& l) { l.node.entry_count = 2; }, "144 bytes used, entries take 96"},
      {[](Leaf& l) { l.node.entry_count = 4; }, "entry 3 reaches beyond"},
      {[](Leaf& l) { l.node.entry_count = ~0u; }, "reaches beyond"},
      {[](Leaf& l) { l.node.used_bytes = 5000; }, "3 entries in 5000 bytes"},
      {[](Leaf& l) { l.chunk(0).base_address = 0; }, "chunk at 0x0"},
      {[](Leaf& l) { l.chunk(0).base_address += 4096; }, "order, bounds or alignment"},
      {[](Leaf& l) { l.chunk(1).base_address = l.chunk(0).base_address; }, "order, bounds"},
      {[](Leaf& l) { l.chunk(0).size_bytes *= 2; }, "order, bounds or alignment"},
      {[](Leaf& l) { l.chunk(2).size_bytes = ~u64{0} << 23; }, "order, bounds or alignment"},
      {[](Leaf& l) { l.chunk(2).base_address = ~u64{0} << 23; }, "order, bounds or alignment"},
      {[](Leaf& l) { l.chunk(2).size_bytes *= 2; }, "the superblock counts"},
      {[](Leaf& l) { l.chunk(0).column_count = 0; }, "0 columns"},
      {[](Leaf& l) { l.chunk(2).column_count = 64; }, "64 columns"},
      {[](Leaf& l) { l.chunk(0).level = format::RaidLevel::raid5; }, "profile raid5"},
      {[](Leaf& l) { l.chunk(0).redundancy = 1; }, "redundancy 1"},
      {[](Leaf& l) { l.chunk(0).flags = 4; }, "flags 0x4"},
      {[](Leaf& l) { l.chunk(0).flags = 8; }, "flags 0x8"},
      {[](Leaf& l) { l.chunk(0).flags = 7; }, "belongs to a device, and holds metadata"},
      {[](Leaf& l) { l.chunk(0).flags = 5; }, "the pool has no such chunks"},
      {[](Leaf& l) { l.chunk(0).flags = 5, l.chunk(0).physical_device = 1; }, "belongs to device 1, lies on device 0"},
      {[](Leaf& l) { l.chunk(0).flags = 5, l.chunk(0).physical_device = 56; }, "too great an index"},
      {[](Leaf& l) { l.chunk(0).physical_device = 1; }, "names a device that it does not belong to"},
      {[](Leaf& l) { l.chunk(0).epoch_created = 9; }, "epoch 9"},
      {[](Leaf& l) { l.column(0) |= u64{5} << 48; }, "column on device 5 of 1"},
      {[](Leaf& l) { l.column(0) = 0; }, "outside the chunk area"},
      {[](Leaf& l) { l.column(0) += 1; }, "outside the chunk area"},
      {[](Leaf& l) { l.column(2) = (u64{1} << 48) - 16; }, "outside the chunk area"},
      {[](Leaf& l) { l.column(1) = l.column(0) + 16; }, "overlap on"},
  };
  const TemporaryFolder folder;
  const std::string path = folder / "a";
  const format::Superblock made = make_pool(pool_options({path}, 32 * mib));
  const auto node = read_struct<format::ChunkTreeNode>(path, made.device.tree_offset);
  for (std::size_t i = 0; i < changes.size(); ++i) {
    alignas(16) Leaf leaf{node};
    changes[i].first(leaf);
    seal(leaf.node, 0);
    write_bytes(path, made.device.tree_offset, &leaf.node, page_size);
    const std::string message = open_error({path});
    EXPECT_TRUE(contains(message, changes[i].second)) << i << ": " << message;
  }
}

// A root that names itself or one child twice must end in an error, not in a loop.
TEST(PoolOpen, tree_loops_end) {
  const TemporaryFolder folder;
  const std::string path = folder / "a";
  MakePoolOptions options = pool_options({path}, u64{1} << 30);
  options.chunk_size_bytes = 8 * mib;
  const format::Superblock made = make_pool(options);
  ASSERT_EQ(made.tree_height, 2);
  const u64 offset = made.device.tree_offset + made.tree_root * page_size;
  const auto root = read_struct<format::ChunkTreeNode>(path, offset);
  for (const u32 child : {made.tree_root, 0u, 1u, 0xffffffffu}) {
    for (u32 entry = 0; entry < 2; ++entry) {
      if (child == entry) continue;  // the true child
      format::ChunkTreeNode node = root;
      std::memcpy(node.entries + entry * 16 + 8, &child, 4);
      seal(node, made.tree_root);
      write_bytes(path, offset, &node, page_size);
      EXPECT_FALSE(open_error({path}).empty()) << child << " in entry " << entry;
    }
  }
}

// Random damage to the areas that open_pool reads: it either opens or throws PoolError. Half of the rounds recompute
// the checksum, which then does not reveal the damage.
TEST(PoolOpen, random_damage_is_an_error_or_harmless) {
  const TemporaryFolder folder;
  const std::string path = folder / "a";
  const format::Superblock made = make_pool(pool_options({path}, 32 * mib));
  const auto leaf = read_struct<format::ChunkTreeNode>(path, made.device.tree_offset);
  std::mt19937_64 random(3);
  u32 opened = 0;
  for (int round = 0; round < 2000; ++round) {
    format::Superblock superblock = made;
    format::ChunkTreeNode node = leaf;
    auto* bytes = round % 4 < 2 ? reinterpret_cast<u8*>(&superblock) + 24 : reinterpret_cast<u8*>(&node) + 16;
    const std::size_t span = round % 4 < 2 ? 880 - 24 : 160;
    for (u64 count = 1 + random() % 3; count > 0; --count) {
      bytes[random() % span] = static_cast<u8>(random());
    }
    if (round % 2 == 0) seal(superblock, slot_b);
    if (round % 2 == 0) seal(node, 0);
    write_bytes(path, slot_b, &superblock, page_size);
    write_bytes(path, made.device.tree_offset, &node, page_size);
    try {
      const OpenedPool pool = open_pool(open_options({path}));
      EXPECT_EQ(pool.chunks.size(), 3u);
      ++opened;
    } catch (const PoolError& error) {
      EXPECT_FALSE(std::string(error.what()).empty());
    }
  }
  EXPECT_GT(opened, 50u) << "damage to label or times is no error";
  EXPECT_LT(opened, 1500u);
}

TEST(PoolOpen, locks_exclude_writers) {
  const TemporaryFolder folder;
  make_pool(pool_options({folder / "a"}, 32 * mib));
  const auto open_with = [&](bool read_only, bool lock) {
    OpenPoolOptions options = open_options({folder / "a"}, read_only);
    options.lock = lock;
    return open_pool(options);
  };
  {
    const OpenedPool writer = open_with(false, true);
    EXPECT_TRUE(contains(error_of([&] { open_with(false, true); }), "in use"));
    EXPECT_TRUE(contains(error_of([&] { open_with(true, true); }), "in use"));
    EXPECT_NO_THROW(open_with(true, false));
    EXPECT_NO_THROW(probe_superblocks(folder / "a"));
  }
  const OpenedPool reader = open_with(true, true);
  EXPECT_NO_THROW(open_with(true, true));
  EXPECT_TRUE(contains(error_of([&] { open_with(false, true); }), "in use"));
  EXPECT_TRUE(contains(error_of([&] { open_with(false, false); }), "only with its lock"));
}

TEST(DeviceList, is_split_at_colons) {
  EXPECT_EQ(split_device_list("/a:/b"), (std::vector<std::string>{"/a", "/b"}));
  EXPECT_EQ(split_device_list(":/a::"), (std::vector<std::string>{"/a"}));
  EXPECT_TRUE(split_device_list("").empty());
}

}  // namespace
}  // namespace gpu4fs::pool
