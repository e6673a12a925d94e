// Inodes of format version 1: 256 bytes, sixteen to a page of the inode file.
//
// The first 128 bytes are the thesis' core (Maucher 2022, section 4.2.2); the rest is the extension. Times are 34.30:
// seconds since time_seconds_min in the upper 34 bits, nanoseconds in the lower 30. If flag_inline is set, content of
// at most 128 bytes (short files, symbolic links) is in the inode itself, in place of the seven slots and the first 72
// bytes of the extension.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/config.hpp"
#include "format/block_pointer_format.hpp"

namespace gpu4fs::format {

inline constexpr unsigned inode_size = 256;
inline constexpr unsigned inodes_per_page = 16;
inline constexpr unsigned inode_slot_count = 7;
inline constexpr unsigned inode_inline_capacity = 128;

// Fixed inode numbers.
inline constexpr std::uint64_t inode_number_inode_file = 0;     // its inode is in the superblock
inline constexpr std::uint64_t inode_number_root = 1;           // the root directory
inline constexpr std::uint64_t inode_number_inode_bitmap = 2;   // one bit an inode: in use
inline constexpr std::uint64_t inode_number_orphan_bitmap = 3;  // one bit an inode: no name, still open
inline constexpr std::uint64_t inode_number_first_free = 16;    // 4 to 15 are reserved and marked used

// Heights that mkfs gives the three files above and that never change, so no lock is needed to walk them: 7 * 512^3
// pages of 16 inodes, 7 * 512^2 pages of 32768 bits.
inline constexpr unsigned inode_file_height = 3;
inline constexpr unsigned inode_bitmap_height = 2;

enum InodeFlags : std::uint32_t {
  inode_flag_inline = 1u << 0,          // content is in inline_data, slots are unused
  inode_flag_append_only = 1u << 1,     // FS_APPEND_FL
  inode_flag_immutable = 1u << 2,       // FS_IMMUTABLE_FL
  inode_flag_no_dump = 1u << 3,         // FS_NODUMP_FL
  inode_flag_no_access_time = 1u << 4,  // FS_NOATIME_FL: reads do not change the access time
  // Flags that users see and set, and those of them that need a privilege.
  inode_flags_of_users = inode_flag_append_only | inode_flag_immutable | inode_flag_no_dump | inode_flag_no_access_time,
  inode_flags_of_administrators = inode_flag_append_only | inode_flag_immutable,
  inode_flag_known = inode_flag_inline | inode_flags_of_users,
};

struct Inode {
  std::uint64_t size_bytes;         // directories: pages * 4096
  std::uint64_t access_time;        // 34.30
  std::uint64_t modification_time;  // 34.30
  std::uint64_t change_time;        // 34.30
  std::uint64_t birth_time;         // 34.30
  std::uint32_t uid;
  std::uint32_t gid;
  std::uint32_t link_count;              // 0 with mode != 0: an orphan
  std::uint16_t mode;                    // S_IFMT and permission bits; 0: the inode is free
  std::uint8_t height;                   // level of the seven slots
  std::uint8_t version;                  // 1; 0 in a never used inode
  BlockPointer attributes;               // the tree of extended attributes, of level attribute_height, or a hole
  std::uint32_t flags;                   // InodeFlags
  std::uint32_t generation;              // increases with each reuse of this number, survives freeing
  BlockPointer slots[inode_slot_count];  // level = height; inline_data begins here
  std::uint8_t inline_tail[72];
  std::uint64_t page_count;        // 4 KiB units allocated: content, indirect blocks, all of attributes
  std::uint64_t parent_or_device;  // directories: inode number of the parent; devices: dev_t
  std::uint64_t entry_count;       // directories: names in it ("." and ".." not counted)
  std::uint16_t profile;           // Profile of new blocks, 0: the pool's profile for data
  std::uint8_t attribute_height;   // 0: `attributes` is a page of entries or a hole
  std::uint8_t reserved[29];       // zero

  GPU4FS_FN std::uint8_t* inline_data() { return reinterpret_cast<std::uint8_t*>(slots); }
  GPU4FS_FN const std::uint8_t* inline_data() const { return reinterpret_cast<const std::uint8_t*>(slots); }
  GPU4FS_FN bool is_inline() const { return (flags & inode_flag_inline) != 0; }
};

static_assert(sizeof(Inode) == inode_size);
static_assert(offsetof(Inode, uid) == 40);
static_assert(offsetof(Inode, attributes) == 56);
static_assert(offsetof(Inode, slots) == 72);
static_assert(offsetof(Inode, inline_tail) == 128);
static_assert(offsetof(Inode, page_count) == 72 + inode_inline_capacity);
static_assert(offsetof(Inode, profile) == 224);
static_assert(offsetof(Inode, attribute_height) == 226);

// Generations of created inodes: 1 to 2^32 - 1, and then from 1 on again. Numbers that were never used, and the inodes
// of a new pool, have generation 0. `skip`: how many are left out.
GPU4FS_FN constexpr std::uint32_t generation_after(std::uint32_t last, std::uint32_t skip) {
  return static_cast<std::uint32_t>((std::uint64_t{last} + skip) % 0xffffffffu + 1);
}
// The later one of two: the greater one, unless they are so far apart that the smaller one comes after the wrap-around.
GPU4FS_FN constexpr bool generation_is_later(std::uint32_t a, std::uint32_t b) {
  if (a == 0 || b == 0) return a > b;
  const std::uint32_t distance = a > b ? a - b : b - a;
  return distance > (3u << 30) ? a < b : a > b;
}

// Time stamps, 34.30: 1901-12-13T20:45:52Z to 2446-05-10T22:38:55Z, the range of ext4. Times outside are clamped. Times
// are ordered like their words. Inodes that are not in use have zeros there, which are not times.
inline constexpr std::int64_t time_seconds_min = -(std::int64_t{1} << 31);
inline constexpr std::int64_t time_seconds_max = time_seconds_min + (std::int64_t{1} << 34) - 1;

GPU4FS_FN constexpr std::uint64_t encode_time(std::int64_t seconds, std::uint32_t nanoseconds) {
  if (seconds < time_seconds_min) return 0;
  constexpr std::uint64_t greatest = (((std::uint64_t{1} << 34) - 1) << 30) | 999999999u;
  if (seconds > time_seconds_max) return greatest;
  return (static_cast<std::uint64_t>(seconds - time_seconds_min) << 30) | (nanoseconds % 1000000000u);
}
GPU4FS_FN constexpr std::int64_t time_seconds(std::uint64_t encoded) {
  return static_cast<std::int64_t>(encoded >> 30) + time_seconds_min;
}
GPU4FS_FN constexpr std::uint32_t time_nanoseconds(std::uint64_t encoded) {
  return static_cast<std::uint32_t>(encoded & ((std::uint64_t{1} << 30) - 1));
}
GPU4FS_FN constexpr bool is_time(std::uint64_t encoded) {
  return time_nanoseconds(encoded) < 1000000000;
}

}  // namespace gpu4fs::format
