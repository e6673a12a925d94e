// Chunks of format version 2: the logical address space and the structures before its pages.
//
// Logical addresses are bytes. Logical space is divided into granules of chunk_size (a power of two that is fixed for
// each pool). A logical chunk covers one or more whole granules and is stored in column_count physical chunks
// ("columns"), each an extent of a device (thesis Lucka 2023, chapter 4). Granule 0 belongs to no chunk, so address 0
// names no page. A column begins with a header area of header_pages pages; columns 0..redundancy carry the same header,
// the others leave the area unused. The chunk's data pages follow the header area of each column.
//
// Header area, in pages:
//   0                        ChunkHeader
//   1                        BitmapSlotHeader of bitmap slot A
//   2 ..                     bitmap A, one bit a data page of the logical chunk (1: allocated)
//   ..                       descriptor table A, one u64 a page of descriptors
//   ..                       BitmapSlotHeader, bitmap and descriptor table B
//   ..                       page descriptors, 16 bytes each, in order of the logical pages: place A of each page of
//                            them
//   ..                       place B of each page
//   ..                       unused up to header_pages (a multiple of 16 pages)
//
// Of the two bitmap slots, the one with the greatest epoch not beyond the superblock's is current. A checkpoint writes
// the other one, and only for chunks that changed. Mounting a pool for writing first clears the header of any slot
// beyond the superblock's epoch. The superblock has the sum of the checksums of all current slots: a different sum
// shows that a slot was lost.
//
// The slot's header verifies its bitmap and its table. The table verifies every page of descriptors and says in which
// of its two places it is. A checkpoint writes changed pages of descriptors to the places that the current slot does
// not name.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/config.hpp"
#include "base/limits.hpp"

namespace gpu4fs::format {

inline constexpr std::uint32_t chunk_header_magic = 0x48433447;  // "G4CH"
inline constexpr std::uint32_t bitmap_slot_magic = 0x42433447;   // "G4CB"
inline constexpr std::uint32_t chunk_tree_magic = 0x54433447;    // "G4CT"

// Logical space ends below this many granules, so a table by granule stays small.
inline constexpr std::uint64_t logical_granule_max = std::uint64_t{1} << 24;

// Levels of redundancy.
enum class RaidLevel : std::uint8_t { single = 1, raid0 = 2, raid1 = 3, raid5 = 4, raid6 = 5, raid7 = 6 };

// A level and, if it allows several, its number of columns: the value in superblocks and inodes. The first six are
// levels. From `physical` on: one column on the device whose index is the difference. Free and used pages are counted
// by profile (space).
enum class Profile : std::uint16_t {
  none = 0,  // of an inode: the pool's profile for data
  single = 1,
  raid0 = 2,
  raid1 = 3,
  raid5 = 4,
  raid6 = 5,
  raid7 = 6,
  raid1c3 = 7,
  raid1c4 = 8,
  physical = 9,
};
inline constexpr std::uint32_t pool_profile_max = 8;  // of metadata, and of data whose inode names none
inline constexpr std::uint32_t physical_device_max = 56;
inline constexpr std::uint32_t profile_max = pool_profile_max + physical_device_max;

GPU4FS_FN constexpr Profile profile_of(RaidLevel level, std::uint32_t column_count) {
  if (level == RaidLevel::raid1 && column_count == 3) return Profile::raid1c3;
  if (level == RaidLevel::raid1 && column_count == 4) return Profile::raid1c4;
  return static_cast<Profile>(level);
}
GPU4FS_FN constexpr Profile physical_profile(std::uint32_t device) {
  return static_cast<Profile>(static_cast<std::uint32_t>(Profile::physical) + device);
}
GPU4FS_FN constexpr bool is_physical(Profile profile) {
  return profile >= Profile::physical && static_cast<std::uint32_t>(profile) <= profile_max;
}
GPU4FS_FN constexpr std::uint32_t device_of(Profile profile) {
  return static_cast<std::uint32_t>(profile) - static_cast<std::uint32_t>(Profile::physical);
}

GPU4FS_FN constexpr const char* pool_profile_name(Profile profile) {
  switch (profile) {
    case Profile::single:
      return "single";
    case Profile::raid0:
      return "raid0";
    case Profile::raid1:
      return "raid1";
    case Profile::raid5:
      return "raid5";
    case Profile::raid6:
      return "raid6";
    case Profile::raid7:
      return "raid7";
    case Profile::raid1c3:
      return "raid1c3";
    case Profile::raid1c4:
      return "raid1c4";
    default:
      return "none";
  }
}

// The name in mkfs: "raid1c3", "physical:12".
struct ProfileName {
  char text[16];
};
GPU4FS_FN constexpr ProfileName profile_name(Profile profile) {
  const bool on_device = is_physical(profile);
  const char* begin = on_device ? "physical:" : pool_profile_name(profile);
  ProfileName name{};
  unsigned length = 0;
  for (; begin[length] != 0; ++length) name.text[length] = begin[length];
  if (!on_device) return name;
  const std::uint32_t device = device_of(profile);
  if (device >= 10) name.text[length++] = static_cast<char>('0' + device / 10);
  name.text[length] = static_cast<char>('0' + device % 10);
  return name;
}

// The permitted content of a chunk, and whether it lies on a given device.
enum ChunkFlags : std::uint32_t {
  chunk_flag_data = 1u << 0,
  chunk_flag_metadata = 1u << 1,
  chunk_flag_physical = 1u << 2,
  chunk_flag_any_content = chunk_flag_data | chunk_flag_metadata,
  chunk_flag_known = chunk_flag_any_content | chunk_flag_physical,
};

// First page of a header area; never changes after the chunk was created.
struct ChunkHeader {
  std::uint32_t magic;
  std::uint16_t version;  // 1
  std::uint16_t column_index;
  std::uint64_t checksum;  // XXH3-64 of the page with this field zero, seed = base_address
  std::uint8_t pool_uuid[16];
  std::uint64_t base_address;  // logical
  std::uint64_t size_bytes;    // logical
  std::uint64_t epoch_created;
  std::uint8_t reserved[4040];
};
static_assert(sizeof(ChunkHeader) == page_size);

// The page before a bitmap.
struct BitmapSlotHeader {
  std::uint32_t magic;
  std::uint16_t version;          // 2
  std::uint16_t slot;             // 0: A, 1: B
  std::uint64_t checksum;         // XXH3-64 of this page with the field zero, seed = base_address ^ slot
  std::uint64_t bitmap_checksum;  // XXH3-64 of the bitmap's bytes (whole pages), seed = base_address
  std::uint64_t base_address;     // of the chunk; of a device's chunk map: device index
  std::uint64_t epoch;
  std::uint64_t bit_count;  // bits with a meaning; those beyond are zero
  std::uint64_t set_count;  // of them set
  std::uint64_t
      descriptor_table_checksum;  // XXH3-64 of the table's bytes (whole pages), seed: descriptor_table_seed(); 0 in a
                                  // chunk map, which has no table
  std::uint8_t reserved[4032];
};
static_assert(sizeof(BitmapSlotHeader) == page_size);

// Page flags.
inline constexpr std::uint32_t page_flag_in_parity = 1;  // the parities of the page's row include its bytes
// Its page of descriptors was damaged in all copies: the descriptor has the bytes that were found. A page that matches
// its checksum is right nevertheless; whether parities include it is unknown.
inline constexpr std::uint32_t page_flag_unverified = 2;
inline constexpr std::uint32_t page_flag_known = page_flag_in_parity | page_flag_unverified;

// One for each logical data page. Changes only while its page is free.
struct PageDescriptor {
  std::uint64_t checksum;     // XXH3-64 of the 4 KiB, seed = its logical address
  std::uint32_t birth_epoch;  // low 32 bits of the epoch in which it was written
  std::uint32_t flags;        // PageFlags
};
static_assert(sizeof(PageDescriptor) == 16);
inline constexpr unsigned descriptors_per_page = page_size / sizeof(PageDescriptor);
inline constexpr unsigned bits_per_page = page_size * 8;

// Word i of a descriptor table: the hash of page i of the descriptors with its lowest bit replaced by the page's place
// (0: A, 1: B). 0: the page was never written, all its descriptors are zero.
inline constexpr unsigned descriptor_entries_per_page = page_size / sizeof(std::uint64_t);
inline constexpr std::uint64_t descriptor_page_unwritten = 0;

GPU4FS_FN constexpr std::uint64_t descriptor_page_seed(std::uint64_t base_address, std::uint64_t index) {
  return base_address + index;
}
GPU4FS_FN constexpr std::uint64_t descriptor_table_seed(std::uint64_t base_address) {
  return ~base_address;
}
GPU4FS_FN constexpr std::uint64_t descriptor_entry(std::uint64_t hash, std::uint64_t place) {
  const std::uint64_t upper = hash & ~std::uint64_t{1};
  return (upper == 0 ? 2 : upper) | place;
}
GPU4FS_FN constexpr std::uint64_t descriptor_place(std::uint64_t entry) {
  return entry & 1;
}
GPU4FS_FN constexpr bool descriptor_entry_fits(std::uint64_t entry, std::uint64_t hash) {
  return entry == descriptor_entry(hash, descriptor_place(entry));
}

struct ChunkLayout {
  std::uint64_t bitmap_pages;      // of one bitmap
  std::uint64_t table_pages;       // of one descriptor table
  std::uint64_t descriptor_pages;  // of one place
  std::uint64_t bitmap_a_page;     // page of slot A's header in the header area; bitmap and table follow
  std::uint64_t bitmap_b_page;
  std::uint64_t descriptors_page;  // place A of page 0
  std::uint64_t header_pages;      // whole area

  // A page of descriptors in one of its places.
  GPU4FS_FN constexpr std::uint64_t descriptor_page(std::uint64_t index, std::uint64_t place) const {
    return descriptors_page + place * descriptor_pages + index;
  }
};

// Layout of the header area of a chunk with `page_count` logical data pages.
GPU4FS_FN constexpr ChunkLayout chunk_layout(std::uint64_t page_count) {
  ChunkLayout layout{};
  layout.bitmap_pages = (page_count + bits_per_page - 1) / bits_per_page;
  layout.descriptor_pages = (page_count + descriptors_per_page - 1) / descriptors_per_page;
  layout.table_pages = (layout.descriptor_pages + descriptor_entries_per_page - 1) / descriptor_entries_per_page;
  const std::uint64_t slot_pages = 1 + layout.bitmap_pages + layout.table_pages;
  layout.bitmap_a_page = 1;
  layout.bitmap_b_page = layout.bitmap_a_page + slot_pages;
  layout.descriptors_page = layout.bitmap_b_page + slot_pages;
  layout.header_pages = (layout.descriptors_page + 2 * layout.descriptor_pages + 15) & ~std::uint64_t{15};
  return layout;
}

// Chunk tree: a B+ tree of one-page nodes keyed by base address, kept in the tree area of
// redundancy + 1 devices with the same node numbers on each. Node numbers count pages of the area.
struct ChunkTreeNode {
  std::uint32_t magic;
  std::uint16_t version;  // 1
  std::uint8_t level;     // 0: leaf
  std::uint8_t reserved0;
  std::uint64_t checksum;  // XXH3-64 of the page with this field zero, seed = node number
  std::uint64_t epoch;
  std::uint32_t entry_count;
  std::uint32_t used_bytes;  // of entries
  std::uint8_t entries[page_size - 32];
};
static_assert(sizeof(ChunkTreeNode) == page_size);

// Interior entry.
struct ChunkTreeBranch {
  std::uint64_t base_address;  // smallest key below the child
  std::uint32_t child;         // node number
  std::uint32_t reserved;
};
static_assert(sizeof(ChunkTreeBranch) == 16);

// Leaf entry: this head, then column_count ColumnAddress words.
struct ChunkDescriptor {
  std::uint64_t base_address;  // multiple of chunk_size
  std::uint64_t size_bytes;    // multiple of chunk_size
  RaidLevel level;
  std::uint8_t redundancy;            // columns that may be lost
  std::uint16_t column_count;         // 1..64
  std::uint32_t stripe_length_bytes;  // 0 for `single`
  std::uint32_t flags;                // ChunkFlags
  std::uint32_t physical_device;  // with chunk_flag_physical: index of the device that the column lies on, otherwise
                                  // zero
  std::uint64_t epoch_created;
};
static_assert(sizeof(ChunkDescriptor) == 40);

GPU4FS_FN constexpr Profile profile_of(const ChunkDescriptor& chunk) {
  return (chunk.flags & chunk_flag_physical) != 0 ? physical_profile(chunk.physical_device)
                                                  : profile_of(chunk.level, chunk.column_count);
}

// Start of a column on its device: device index in the upper 16 bits, page number in the lower 48.
struct ColumnAddress {
  std::uint64_t raw;
  GPU4FS_FN constexpr unsigned device_index() const { return static_cast<unsigned>(raw >> 48); }
  GPU4FS_FN constexpr std::uint64_t offset_bytes() const { return (raw & ((std::uint64_t{1} << 48) - 1)) * page_size; }
  GPU4FS_FN static constexpr ColumnAddress make(unsigned device_index, std::uint64_t offset_bytes) {
    return {(std::uint64_t{device_index} << 48) | (offset_bytes / page_size)};
  }
};
static_assert(sizeof(ColumnAddress) == 8);

}  // namespace gpu4fs::format
