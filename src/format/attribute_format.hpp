// Extended attributes of an inode (docs/internals/format.md, section 10): a tree of pages with at most two levels of
// indirect blocks.
//
// Entries are in pages 0 to attribute_entry_pages - 1. A large value has pages of its own: those from page slot *
// attribute_slot_pages on, where `slot` is the value_slot of its entry.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/config.hpp"

namespace gpu4fs::format {

inline constexpr std::uint32_t attribute_page_magic = 0x41583447;  // "G4XA"
inline constexpr std::uint16_t attribute_page_version = 2;
inline constexpr unsigned attribute_height_max = 2;
inline constexpr unsigned attribute_tree_pages = 512 * 512;
inline constexpr unsigned attribute_entry_pages = 64;
inline constexpr unsigned attribute_slot_pages = 16;
inline constexpr unsigned attribute_slot_first = attribute_entry_pages / attribute_slot_pages;
inline constexpr unsigned attribute_slot_end = attribute_tree_pages / attribute_slot_pages;

// As XATTR_SIZE_MAX and XATTR_LIST_MAX of Linux. The latter includes a name that is not in the tree: that of the
// profile.
inline constexpr unsigned attribute_value_max = 65536;
inline constexpr unsigned attribute_names_max = 65536 - 24;  // of all names, each with a terminator
inline constexpr unsigned attribute_inline_max = 1024;       // larger values have pages of their own

// A page of entries. They are packed from byte 16 on: AttributeEntry, name, and the value unless it is elsewhere,
// padded to 8 bytes. Names are complete ("user.x") and unique in the tree, in no particular order.
struct AttributePageHeader {
  std::uint32_t magic;
  std::uint16_t version;      // 2
  std::uint16_t entry_count;  // at least 1
  std::uint16_t used_bytes;   // header and entries
  std::uint16_t reserved[3];
};
static_assert(sizeof(AttributePageHeader) == 16);
struct AttributeEntry {
  std::uint32_t value_length;  // up to 65,536
  std::uint32_t value_hash;    // low half of XXH3-64 of the value, seed 0; of a large one: of its pages, see format.md
  std::uint8_t name_length;    // 1..255
  std::uint8_t reserved;
  std::uint16_t value_slot;  // 0: the value follows the name
};
static_assert(sizeof(AttributeEntry) == 12);

}  // namespace gpu4fs::format
