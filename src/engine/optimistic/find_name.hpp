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
inline constexpr u32 slot_windows_max = 3;

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

// Slots [first, end), end - first <= slot_window, as they were read at once.
struct SlotWindow {
  u64 lowest;   // of the hashes
  u64 highest;  // of the hashes
  bool is_found;
  Vector16 found;  // the first slot with the hash
};

GPU4FS_FN inline SlotWindow read_window(const u8* slots, u32 first, u32 end, u64 hash) {
  SlotWindow window{~u64{0}, 0, false, {}};
  GPU4FS_UNROLL
  for (u32 i = 0; i < slot_window; ++i) {
    if (first + i >= end) continue;
    const Vector16 slot = load_racy_16(slots + 16 * (first + i));
    window.lowest = minimum(window.lowest, slot.low);
    window.highest = maximum(window.highest, slot.low);
    if (slot.low == hash && !window.is_found) {
      window.is_found = true;
      window.found = slot;
    }
  }
  return window;
}

// Hashes spread evenly over a leaf's range, so the position of a hash can be estimated to within a few slots. Nine
// times out of ten it is in the window around it, otherwise in the one before or behind. Windows overlap by a slot, so
// a hash that is missing between them is seen to be missing. `bit_count`: the number of hash bits that all names of the
// leaf have in common.
GPU4FS_FN inline NameSeen find_in_leaf(const u8* page, const format::DirectoryPageHeader& header, u32 bit_count,
                                       const fs::HashedName& name) {
  static_assert(sizeof(format::DirectorySlot) == 16 && offsetof(format::DirectorySlot, entry_offset) == 8);
  const auto* slots = reinterpret_cast<const u8*>(fs::detail::leaf_slots(page));
  const u32 count = header.entry_count;
  const u64 position = name.hash << bit_count;
  const u32 guess = static_cast<u32>((position >> 32) * count >> 32);
  u32 first = guess < slot_window / 2 ? 0 : guess - slot_window / 2;
  GPU4FS_NO_UNROLL
  for (u32 windows = 0; windows < slot_windows_max; ++windows) {
    const u32 end = minimum(first + slot_window, count);
    const SlotWindow window = read_window(slots, first, end, name.hash);
    if (window.is_found) return entry_of_slot(page, header.heap_begin, name, window.found);
    const bool is_behind = GPU4FS_MUTANT(leaf_edge_ignored, end != count && window.highest < name.hash, false);
    const bool is_before = first != 0 && window.lowest > name.hash;
    if (!is_behind && !is_before) return {Status::not_found, 0, 0};
    const u32 before = first < slot_window - 1 ? 0 : first - (slot_window - 1);
    first = is_behind ? end - 1 : before;
  }
  return {Status::busy, 0, 0};
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
