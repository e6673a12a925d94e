// Looks up a name in a directory without its lock.
//
// Plain functions on a rank. Every value of a page is read once. Invalid content is left to the ordinary way.
#pragma once

#include "engine/optimistic/inode_view.hpp"
#include "fs/names/directory.hpp"

namespace gpu4fs::engine {

// The result of a look-up. It is valid if nothing changed meanwhile.
struct NameSeen {
  Status status;  // ok; not_found; busy: the ordinary way has to look
  u32 type;       // S_IFMT >> 12
  u64 inode;
};

namespace detail {

inline constexpr u32 slot_window = 16;

// The entry of a name's slot. `value`: the slot as it was read.
GPU4FS_FN inline NameSeen entry_of_slot(const u8* page, u32 heap_begin, const fs::HashedName& name,
                                        const Vector16& value) {
  const NameSeen unknown{Status::busy, 0, 0};
  const u32 offset = static_cast<u32>(value.high) & 0xffff;
  const u32 length = static_cast<u32>(value.high >> 16) & 0xff;
  const u32 type = static_cast<u32>(value.high >> 24) & 0xff;
  const bool is_sound = type < 16 && value.high >> 32 == 0 && offset % 8 == 0 && offset >= heap_begin &&
                        offset + format::directory_entry_size(length) <= page_size;
  if (!is_sound || length != name.length) return unknown;
  // Both loads are issued before the first one is used: the inode's number and the beginning of the name.
  const u64* words = reinterpret_cast<const u64*>(page + offset);
  const u64 inode = load_racy_8(&words[0]);
  u64 word = load_racy_8(&words[1]);
  for (u32 i = 0; i < length;) {
    const u64 next = i + 8 < length ? load_racy_8(&words[2 + i / 8]) : 0;
    for (u32 k = 0; k < 8 && i < length; ++k, ++i) {
      // Another name has the same hash. The ordinary way distinguishes them.
      if (static_cast<u8>(word >> (8 * k)) != name.bytes[i]) return unknown;
    }
    word = next;
  }
  return {Status::ok, type, inode};
}

// Hashes spread evenly over a leaf's range, so the position of a hash can be estimated to within a few slots. A window
// of slots around it is read at once. `bit_count`: the number of hash bits that all names of the leaf have in common.
GPU4FS_FN inline NameSeen find_in_leaf(const u8* page, const format::DirectoryPageHeader& header, u32 bit_count,
                                       const fs::HashedName& name) {
  static_assert(sizeof(format::DirectorySlot) == 16 && offsetof(format::DirectorySlot, entry_offset) == 8);
  const auto* slots = reinterpret_cast<const u8*>(fs::detail::leaf_slots(page));
  const u32 count = header.entry_count;
  const u64 position = name.hash << bit_count;
  const u32 guess = static_cast<u32>((position >> 32) * count >> 32);
  const u32 first = guess < slot_window / 2 ? 0 : guess - slot_window / 2;
  const u32 end = minimum(first + slot_window, count);
  u64 lowest = ~u64{0};
  u64 highest = 0;
  bool is_found = false;
  Vector16 found{};
  GPU4FS_UNROLL
  for (u32 i = 0; i < slot_window; ++i) {
    if (first + i >= end) continue;
    const Vector16 slot = load_racy_16(slots + 16 * (first + i));
    lowest = minimum(lowest, slot.low);
    highest = maximum(highest, slot.low);
    if (slot.low == name.hash && !is_found) {
      is_found = true;
      found = slot;
    }
  }
  if (is_found) return entry_of_slot(page, header.heap_begin, name, found);
  const bool is_inside = (first == 0 || lowest < name.hash) && (end == count || highest > name.hash);
  return {is_inside ? Status::not_found : Status::busy, 0, 0};
}

}  // namespace detail

// Finds the name in the directory of `page_count` pages.
GPU4FS_FN inline NameSeen find_name(const ReaderContext& reader, const InodeView& directory, u64 page_count,
                                    const fs::HashedName& name) {
  const fs::PageRoot& pages = reader.views->root.pages;
  const NameSeen unknown{Status::busy, 0, 0};
  u64 index = 0;
  for (u32 level = 0; level <= format::directory_level_max; ++level) {
    const u32 frame = find_frame(reader, fs::PageKey::make(directory.number, 0, index), directory.version);
    if (frame == fs::no_frame) return unknown;
    const u8* page = pages.data + u64{frame} * page_size;
    format::DirectoryPageHeader header{};
    copy_racy<0, sizeof(header)>(header, reinterpret_cast<const format::DirectoryPageHeader*>(page));
    const u8* const copy = reinterpret_cast<const u8*>(&header);
    if (header.magic != format::directory_node_magic) {
      const u32 node_level = level == 0 ? 0 : level - 1;
      const u32 bit_count = format::directory_node_bits * node_level + header.depth;
      if (!fs::leaf_header_is_sound(copy, level == 0, node_level, name.hash) || bit_count >= 64) return unknown;
      return detail::find_in_leaf(page, header, bit_count, name);
    }
    if (level == format::directory_level_max || !fs::node_header_is_sound(copy, level, name.hash)) return unknown;
    const u32 slot = fs::node_slot(name.hash, level);
    const u32* children = fs::detail::node_children(page);
    const u64 pair = load_racy_8(reinterpret_cast<const u64*>(children + (slot & ~1u)));
    index = static_cast<u32>(pair >> (32 * (slot & 1)));
    if (index == 0 || index >= page_count) return unknown;
  }
  return unknown;
}

}  // namespace gpu4fs::engine
