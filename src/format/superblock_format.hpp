// Superblocks and device layout of format version 2.
//
// Device layout, bytes:
//   0         64 KiB unused (boot code, partition tools); never written after mkfs zeroes it
//   64 KiB    superblock slot A (even epochs)
//   128 KiB   superblock slot B (odd epochs)
//   192 KiB   unused up to 256 KiB
//   tree_offset        chunk tree area, tree_pages pages
//   chunk_map_offset   the device's chunk map: slot A (BitmapSlotHeader page and bitmap), then slot B;
//                      one bit a physical granule of 64 KiB of the chunk area
//   log_offset         op-log area, log_bytes (format/log_format.hpp)
//   chunk_area_offset  physical chunks, in granules of 64 KiB, up to the device's end
//
// A superblock page is valid if magic, version and checksum are right. The newest valid epoch of all slots of all
// devices of the pool is the pool's state: a superblock is written only after everything that it refers to was flushed.
// Before epoch N + 1 is written to any device, every device must hold epoch N durably, so a torn write never destroys
// the only usable slot of a device. After a crash a mount for writing first completes epoch N on the devices that lack
// it.
//
// A pool may continue without a device. Then the superblocks of the others name it in `stale_since`, and changes that
// it lacks are acknowledged as durable only after such a superblock is durable. The content of a stale device is
// ignored. A device can leave the pool if no chunk has a column on it; then superblocks have no UUID at its index.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/config.hpp"
#include "base/limits.hpp"
#include "format/chunk_format.hpp"
#include "format/inode_format.hpp"

namespace gpu4fs::format {

inline constexpr std::uint64_t superblock_magic = 0x3153463455504721ull;  // "!GPU4FS1" little-endian
inline constexpr std::uint32_t format_version = 2;
inline constexpr std::uint64_t superblock_offset_a = 64 * 1024;
inline constexpr std::uint64_t superblock_offset_b = 128 * 1024;
inline constexpr std::uint64_t layout_area_offset = 256 * 1024;
inline constexpr std::uint64_t physical_granule_bytes = 64 * 1024;
inline constexpr std::uint64_t epoch_max = std::uint64_t{1} << 62;  // so incrementing never wraps
inline constexpr std::uint64_t chunk_size_min = 8ull << 20;
inline constexpr std::uint64_t chunk_size_max = 1ull << 30;

// Feature masks: an unknown bit in incompatible refuses the mount; in read_only_compatible it allows a
// read-only mount; in compatible it is ignored.
inline constexpr std::uint64_t feature_compatible_known = 0;
inline constexpr std::uint64_t feature_read_only_compatible_known = 0;
enum IncompatibleFeatures : std::uint64_t {
  feature_data_checksums = 1u << 0,   // every data page has a checksum; cleared: only metadata has
  feature_operation_log = 1u << 1,    // the log may hold operations that are in no checkpoint; cleared: every sync is a
                                      // checkpoint
  feature_stale_devices = 1u << 2,    // stale_since names a device
  feature_mixed_profiles = 1u << 3,   // chunks of several profiles; the two fields are those of data and metadata
  feature_removed_devices = 1u << 4,  // indices below device_count have no device: their UUID is zero
  feature_physical = 1u << 5,         // with feature_mixed_profiles: chunks that name the device on which they lie
};
inline constexpr std::uint64_t feature_incompatible_known = feature_data_checksums | feature_operation_log |
                                                            feature_stale_devices | feature_mixed_profiles |
                                                            feature_removed_devices | feature_physical;

struct DevicePart {
  std::uint8_t device_uuid[16];
  std::uint64_t size_bytes;
  std::uint64_t tree_offset;
  std::uint64_t tree_pages;
  std::uint64_t chunk_map_offset;
  std::uint64_t chunk_map_pages;  // of one bitmap, without its header page
  std::uint64_t log_offset;
  std::uint64_t log_bytes;
  std::uint64_t chunk_area_offset;  // multiple of 64 KiB
  std::uint64_t chunk_area_granules;
  std::uint32_t device_index;
  std::uint32_t reserved0;
  std::uint8_t reserved[32];
};
static_assert(sizeof(DevicePart) == 128);

struct Superblock {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t slot;      // 0: A, 1: B; = epoch & 1
  std::uint64_t checksum;  // XXH3-64 of the page with this field zero, seed = its byte offset
  std::uint64_t epoch;     // 1 from mkfs
  std::uint8_t pool_uuid[16];
  std::uint64_t feature_compatible;
  std::uint64_t feature_read_only_compatible;
  std::uint64_t feature_incompatible;
  std::uint64_t chunk_size_bytes;  // granule of the logical space
  std::uint64_t name_hash_seed;
  std::uint64_t creation_time;    // 34.30
  std::uint64_t checkpoint_time;  // 34.30
  std::uint32_t device_count;
  std::uint32_t chunk_count;
  std::uint32_t tree_root;          // node number
  std::uint8_t tree_height;         // 1: the root is a leaf
  std::uint8_t tree_replica_count;  // devices 0..count-1 hold the tree
  std::uint8_t clean;               // 1: unmounted, 0: mounted for writing
  std::uint8_t reserved0;
  std::uint64_t tree_node_count;
  std::uint64_t page_total;    // logical pages of all chunks
  std::uint64_t page_used;     // allocated pages at this epoch
  std::uint64_t inode_used;    // inodes in use, the reserved ones included
  std::uint16_t data_profile;  // Profile; without feature_mixed_profiles the level of all chunks
  std::uint16_t metadata_profile;
  std::uint32_t reserved1;
  std::uint8_t label[64];      // UTF-8, zero padded
  std::uint64_t log_start;     // LSN of the first record that this epoch does not include
  std::uint64_t log_seed;      // of the checksums of its records
  std::uint64_t log_capacity;  // bytes of the op-log; 0: the least log_bytes of the devices that hold it
  std::uint64_t slot_sum;      // of the checksums of all current bitmap slots of chunks, modulo 2^64
  std::uint8_t reserved2[224];
  DevicePart device;  // of the device that holds this copy
  Inode inode_file;   // inode 0
  std::uint8_t device_uuids[device_count_max][16];
  std::uint64_t stale_since[device_count_max];  // first epoch of which the device lacks a part; 0: it is complete
  std::uint8_t reserved3[page_size - 2400];
};
static_assert(offsetof(Superblock, pool_uuid) == 32);
static_assert(offsetof(Superblock, device_count) == 104);
static_assert(offsetof(Superblock, label) == 160);
static_assert(offsetof(Superblock, log_capacity) == 240);
static_assert(offsetof(Superblock, device) == 480);
static_assert(offsetof(Superblock, inode_file) == 608);
static_assert(offsetof(Superblock, device_uuids) == 864);
static_assert(offsetof(Superblock, stale_since) == 1888);
static_assert(offsetof(Superblock, reserved3) == 2400);
static_assert(sizeof(Superblock) == page_size);

// False for an index whose device was removed, and for indices beyond device_count.
GPU4FS_FN inline bool has_device(const Superblock& superblock, std::uint32_t index) {
  std::uint8_t any = 0;
  for (std::uint32_t i = 0; i < 16; ++i) any = static_cast<std::uint8_t>(any | superblock.device_uuids[index][i]);
  return any != 0;
}

}  // namespace gpu4fs::format
