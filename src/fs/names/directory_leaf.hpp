// One page of a directory: leaves and index nodes (format/directory_format.hpp).
//
// A page comes from the medium and is not trusted: a reader compares the header with the place in the tree where it
// found the page, and checks every slot before it follows the slot's offset. A writer calls leaf_check() in prepare, so
// the changes themselves cannot fail.
//
// Readers hold the directory's lock shared, and writers hold it exclusively inside the gate, so all ranks may read page
// bytes directly. Functions that change a page begin and end with g.sync().
#pragma once

#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/config.hpp"
#include "base/copy.hpp"
#include "base/group.hpp"
#include "base/limits.hpp"
#include "base/status.hpp"
#include "base/types.hpp"
#include "base/xxh3_serial.hpp"
#include "format/directory_format.hpp"

namespace gpu4fs::fs {

inline constexpr u16 directory_page_version = 1;
inline constexpr u32 directory_hash_bits = 64;

// A name with its position in the directory. `bytes` lies in engine memory and does not change.
struct HashedName {
  const u8* bytes;
  u64 hash;
  u32 length;  // 1..255
  u32 reserved;
};

// The bits of a hash that are the same for everything in a page, in place.
GPU4FS_FN constexpr u64 hash_prefix(u64 hash, u32 bit_count) {
  return bit_count == 0 ? 0 : hash & ~low_bits(directory_hash_bits - bit_count);
}
// Bit `position` counted from the top.
GPU4FS_FN constexpr bool hash_bit(u64 hash, u32 position) {
  return ((hash >> (directory_hash_bits - 1 - position)) & 1) != 0;
}
// The slot of a node of `level` that leads to `hash`.
GPU4FS_FN constexpr u32 node_slot(u64 hash, u32 level) {
  const u32 shift = directory_hash_bits - format::directory_node_bits * (level + 1);
  return static_cast<u32>(hash >> shift) & (format::directory_node_slots - 1);
}

namespace detail {

GPU4FS_FN inline const format::DirectoryPageHeader& page_header(const u8* page) {
  return *reinterpret_cast<const format::DirectoryPageHeader*>(page);
}
GPU4FS_FN inline format::DirectoryPageHeader& page_header(u8* page) {
  return *reinterpret_cast<format::DirectoryPageHeader*>(page);
}
GPU4FS_FN inline const format::DirectorySlot* leaf_slots(const u8* page) {
  return reinterpret_cast<const format::DirectorySlot*>(page + format::directory_leaf_slots_offset);
}
GPU4FS_FN inline format::DirectorySlot* leaf_slots(u8* page) {
  return reinterpret_cast<format::DirectorySlot*>(page + format::directory_leaf_slots_offset);
}
GPU4FS_FN inline const u32* node_children(const u8* page) {
  return reinterpret_cast<const u32*>(page + format::directory_node_children_offset);
}
GPU4FS_FN inline u32* node_children(u8* page) {
  return reinterpret_cast<u32*>(page + format::directory_node_children_offset);
}
GPU4FS_FN inline u64& entry_inode(u8* page, u32 offset) {
  return reinterpret_cast<format::DirectoryEntry*>(page + offset)->inode;
}
GPU4FS_FN inline u64 entry_inode(const u8* page, u32 offset) {
  return reinterpret_cast<const format::DirectoryEntry*>(page + offset)->inode;
}
GPU4FS_FN inline const u8* entry_name(const u8* page, u32 offset) {
  return page + offset + sizeof(format::DirectoryEntry);
}

GPU4FS_FN constexpr u32 leaf_slots_end(u32 entry_count) {
  return format::directory_leaf_slots_offset + entry_count * static_cast<u32>(sizeof(format::DirectorySlot));
}

// Whether the slot's entry lies inside the heap.
GPU4FS_FN inline bool slot_is_in_heap(const format::DirectoryPageHeader& header, const format::DirectorySlot& slot) {
  const u32 offset = slot.entry_offset;
  return slot.name_length != 0 && slot.reserved == 0 && offset % 8 == 0 && offset >= header.heap_begin &&
         offset + format::directory_entry_size(slot.name_length) <= page_size;
}

// Also tests the type, which a check compares with that of the inode.
GPU4FS_FN inline bool slot_is_sound(const format::DirectoryPageHeader& header, const format::DirectorySlot& slot) {
  return slot.type < 16 && slot_is_in_heap(header, slot);
}

// <0, 0, >0: the order of names with equal hashes.
GPU4FS_FN inline i32 compare_names(const u8* a, u32 a_length, const u8* b, u32 b_length) {
  const u32 common = minimum(a_length, b_length);
  for (u32 i = 0; i < common; ++i) {
    if (a[i] != b[i]) return i32{a[i]} - i32{b[i]};
  }
  return static_cast<i32>(a_length) - static_cast<i32>(b_length);
}

}  // namespace detail

// Leader or all ranks: whether the header of a leaf is valid that was found below a node of `level` (0 for a root leaf)
// on the way to `hash`.
GPU4FS_FN inline bool leaf_header_is_sound(const u8* page, bool is_root, u32 level, u64 hash) {
  const format::DirectoryPageHeader& header = detail::page_header(page);
  if (header.magic != format::directory_leaf_magic || header.version != directory_page_version) return false;
  if (header.level != level || header.depth > (is_root ? 0 : format::directory_node_bits)) return false;
  if (header.reserved0 != 0 || header.reserved1 != 0) return false;
  if (header.prefix != hash_prefix(hash, format::directory_node_bits * level + header.depth)) return false;
  if (header.heap_begin > page_size || header.heap_begin % 8 != 0) return false;
  return detail::leaf_slots_end(header.entry_count) <= header.heap_begin &&
         header.heap_garbage <= page_size - header.heap_begin;
}

GPU4FS_FN inline bool node_header_is_sound(const u8* page, u32 level, u64 hash) {
  const format::DirectoryPageHeader& header = detail::page_header(page);
  return header.magic == format::directory_node_magic && header.version == directory_page_version &&
         header.level == level && header.depth == 0 && header.entry_count == 0 && header.heap_begin == 0 &&
         header.heap_garbage == 0 && header.reserved0 == 0 && header.reserved1 == 0 &&
         header.prefix == hash_prefix(hash, format::directory_node_bits * level);
}

// The first slot whose hash is not below `hash`. A Lane uses binary search; a wider group tests all slots at once.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE u32 leaf_lower_bound(Group g, const u8* page, u64 hash) {
  const u32 count = detail::page_header(page).entry_count;
  const format::DirectorySlot* slots = detail::leaf_slots(page);
  if constexpr (Group::size() == 1) {
    u32 low = 0;
    for (u32 high = count; low < high;) {
      const u32 middle = (low + high) / 2;
      if (slots[middle].hash < hash) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  } else {
    u32 below = 0;
    for (u32 base = 0; base < count; base += Group::size()) {
      const u32 i = base + g.rank();
      below += popcount(g.ballot(i < count && slots[i].hash < hash));
    }
    return below;
  }
}

struct LeafPosition {
  Status status;  // ok: the name is at `slot`; not_found: it belongs before `slot`; corrupt_structure
  u32 slot;
};

// Searches for a name in a leaf with a valid header.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE LeafPosition leaf_find(Group g, const u8* page, const HashedName& name) {
  const u32 first = leaf_lower_bound(g, page, name.hash);
  return on_leader(g, [&] {
    const format::DirectoryPageHeader& header = detail::page_header(page);
    const format::DirectorySlot* slots = detail::leaf_slots(page);
    u32 i = first;
    for (; i < header.entry_count && slots[i].hash == name.hash; ++i) {
      if (!detail::slot_is_sound(header, slots[i])) return LeafPosition{Status::corrupt_structure, i};
      const i32 order = detail::compare_names(detail::entry_name(page, slots[i].entry_offset), slots[i].name_length,
                                              name.bytes, name.length);
      if (order == 0) return LeafPosition{Status::ok, i};
      if (order > 0) break;
    }
    return LeafPosition{Status::not_found, i};
  });
}

// Checks everything that a change of a leaf relies on: every slot is inside the heap, slots are in hash order inside
// the leaf's range, and the heap's bytes are accounted for. The header is valid.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE bool leaf_check(Group g, const u8* page) {
  const format::DirectoryPageHeader& header = detail::page_header(page);
  const format::DirectorySlot* slots = detail::leaf_slots(page);
  const u32 count = header.entry_count;
  const u32 bit_count = format::directory_node_bits * header.level + header.depth;
  bool sound = true;
  u32 live_bytes = 0;
  for (u32 i = g.rank(); i < count; i += Group::size()) {
    const format::DirectorySlot& slot = slots[i];
    if (!detail::slot_is_sound(header, slot) || hash_prefix(slot.hash, bit_count) != header.prefix ||
        (i > 0 && slots[i - 1].hash > slot.hash)) {
      sound = false;
      continue;
    }
    live_bytes += format::directory_entry_size(slot.name_length);
  }
  live_bytes = g.reduce(live_bytes, [](u32 a, u32 b) { return a + b; });
  return g.all(sound) && live_bytes + header.heap_garbage == page_size - header.heap_begin;
}

// The number of bytes that another name takes.
GPU4FS_FN constexpr u32 leaf_cost(u32 name_length) {
  return format::directory_entry_size(name_length) + static_cast<u32>(sizeof(format::DirectorySlot));
}
GPU4FS_FN inline u32 leaf_room(const u8* page) {
  const format::DirectoryPageHeader& header = detail::page_header(page);
  return header.heap_begin - detail::leaf_slots_end(header.entry_count);
}
GPU4FS_FN inline u32 leaf_room_compacted(const u8* page) {
  return leaf_room(page) + detail::page_header(page).heap_garbage;
}

// The place of a leaf: names with these leading bits of their hash.
struct LeafPlace {
  u32 level;  // of its node
  u32 depth;  // number of bits after those of the node
  u64 prefix;
};

// Slots of a checked leaf.
struct LeafSlots {
  const u8* page;
  u32 first;
  u32 count;
};

// The target of a name.
struct NameTarget {
  u64 inode;
  u32 type;  // S_IFMT >> 12
};

// Turns an empty page into a leaf without names.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void leaf_create(Group g, u8* page, LeafPlace place) {
  on_leader(g, [&] {
    format::DirectoryPageHeader header{};
    header.magic = format::directory_leaf_magic;
    header.version = directory_page_version;
    header.level = static_cast<u8>(place.level);
    header.depth = static_cast<u8>(place.depth);
    header.heap_begin = static_cast<u16>(page_size);
    header.prefix = place.prefix;
    detail::page_header(page) = header;
  });
}

// Appends `slots`, of another leaf, to those of `page`, whose heap has room for them and whose names come before
// theirs. Every rank copies whole entries.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void leaf_append(Group g, u8* page, LeafSlots slots) {
  g.sync();
  GPU4FS_CHECK_LE(slots.first + slots.count, u32{detail::page_header(slots.page).entry_count});
  const u32 count_before = detail::page_header(page).entry_count;
  const format::DirectorySlot* from = detail::leaf_slots(slots.page) + slots.first;
  format::DirectorySlot* to = detail::leaf_slots(page) + count_before;
  u32 heap_begin = detail::page_header(page).heap_begin;
  g.sync();
  for (u32 base = 0; base < slots.count; base += Group::size()) {
    const u32 i = base + g.rank();
    format::DirectorySlot slot{};
    if (i < slots.count) slot = from[i];
    const u32 size = i < slots.count ? format::directory_entry_size(slot.name_length) : 0;
    const u32 before = g.exclusive_scan(size);
    if (i < slots.count) {
      const u32 offset = heap_begin - before - size;
      GPU4FS_CHECK_LE(u32{slot.entry_offset} + size, u32{page_size});
      GPU4FS_CHECK_GE(offset, detail::leaf_slots_end(count_before + slots.count));
      const u64* old_words = reinterpret_cast<const u64*>(slots.page + slot.entry_offset);
      u64* new_words = reinterpret_cast<u64*>(page + offset);
      for (u32 word = 0; word < size / 8; ++word) new_words[word] = old_words[word];
      slot.entry_offset = static_cast<u16>(offset);
      to[i] = slot;
    }
    heap_begin -= g.reduce(size, [](u32 a, u32 b) { return a + b; });
  }
  on_leader(g, [&] {
    detail::page_header(page).entry_count = static_cast<u16>(count_before + slots.count);
    detail::page_header(page).heap_begin = static_cast<u16>(heap_begin);
  });
}

// Turns `page` into a leaf with `slots` of another one; its heap is packed.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void leaf_rebuild(Group g, u8* page, LeafSlots slots, LeafPlace place) {
  g.sync();
  zero_page(g, page);
  leaf_create(g, page, place);
  leaf_append(g, page, slots);
}

// Packs the heap. `scratch` is a page of engine memory.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void leaf_compact(Group g, u8* page, u8* scratch) {
  const format::DirectoryPageHeader header = detail::page_header(page);
  g.sync();
  copy_bytes(g, scratch, page, page_size);
  leaf_rebuild(g, page, {scratch, 0, header.entry_count}, {header.level, header.depth, header.prefix});
}

// Moves slots [first, count) by one place up or down. All ranks read before any writes, one group of size() slots after
// the other.
template <class Group>
GPU4FS_FN void leaf_open_slot(Group g, format::DirectorySlot* slots, u32 first, u32 count) {
  const u32 moved = count - first;
  for (u32 done = 0; done < moved; done += Group::size()) {
    const u32 distance = done + g.rank();
    format::DirectorySlot slot{};
    if (distance < moved) slot = slots[count - 1 - distance];
    g.sync();
    if (distance < moved) slots[count - distance] = slot;
    g.sync();
  }
}
template <class Group>
GPU4FS_FN void leaf_close_slot(Group g, format::DirectorySlot* slots, u32 first, u32 count) {
  for (u32 base = first + 1; base < count; base += Group::size()) {
    const u32 i = base + g.rank();
    format::DirectorySlot slot{};
    if (i < count) slot = slots[i];
    g.sync();
    if (i < count) slots[i - 1] = slot;
    g.sync();
  }
}

// Inserts a name before slot `position`. There is room.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void leaf_insert(Group g, u8* page, u32 position, const HashedName& name, NameTarget target) {
  const format::DirectoryPageHeader header = detail::page_header(page);
  GPU4FS_CHECK_LE(leaf_cost(name.length), leaf_room(page));
  GPU4FS_CHECK_LE(position, u32{header.entry_count});
  const u32 size = format::directory_entry_size(name.length);
  const u32 offset = header.heap_begin - size;
  format::DirectorySlot* slots = detail::leaf_slots(page);
  g.sync();
  leaf_open_slot(g, slots, position, header.entry_count);
  // The padding after the name is zero; the heap below heap_begin may hold old bytes.
  u8* bytes = page + offset + sizeof(format::DirectoryEntry);
  for (u32 i = g.rank(); i < size - sizeof(format::DirectoryEntry); i += Group::size()) {
    bytes[i] = i < name.length ? name.bytes[i] : 0;
  }
  on_leader(g, [&] {
    detail::entry_inode(page, offset) = target.inode;
    slots[position] = {name.hash, static_cast<u16>(offset), static_cast<u8>(name.length), static_cast<u8>(target.type),
                       0};
    detail::page_header(page).heap_begin = static_cast<u16>(offset);
    detail::page_header(page).entry_count = static_cast<u16>(header.entry_count + 1);
  });
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void leaf_remove(Group g, u8* page, u32 position) {
  const format::DirectoryPageHeader header = detail::page_header(page);
  GPU4FS_CHECK_LT(position, u32{header.entry_count});
  format::DirectorySlot* slots = detail::leaf_slots(page);
  const u32 size = format::directory_entry_size(slots[position].name_length);
  g.sync();
  leaf_close_slot(g, slots, position, header.entry_count);
  on_leader(g, [&] {
    format::DirectoryPageHeader& changed = detail::page_header(page);
    changed.entry_count = static_cast<u16>(header.entry_count - 1);
    changed.heap_garbage = static_cast<u16>(header.heap_garbage + size);
    slots[changed.entry_count] = format::DirectorySlot{};
    if (changed.entry_count == 0) {
      changed.heap_begin = static_cast<u16>(page_size);
      changed.heap_garbage = 0;
    }
  });
}

// Turns an empty page into a node all of whose slots name `child`.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void node_create(Group g, u8* page, u32 level, u64 prefix, u32 child) {
  g.sync();
  zero_page(g, page);
  g.sync();
  u32* children = detail::node_children(page);
  for (u32 i = g.rank(); i < format::directory_node_slots; i += Group::size()) children[i] = child;
  on_leader(g, [&] {
    format::DirectoryPageHeader& header = detail::page_header(page);
    header.magic = format::directory_node_magic;
    header.version = directory_page_version;
    header.level = static_cast<u8>(level);
    header.prefix = prefix;
  });
}

// The slots of a leaf of `depth` whose range begins with `prefix`, in its node of `level`.
struct NodeSpan {
  u32 first;
  u32 count;
};
GPU4FS_FN constexpr NodeSpan node_span(u64 prefix, u32 level, u32 depth) {
  const u32 count = format::directory_node_slots >> depth;
  return {static_cast<u32>(align_down(node_slot(prefix, level), count)), count};
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE void node_fill(Group g, u8* page, NodeSpan span, u32 child) {
  GPU4FS_CHECK_LE(span.first + span.count, format::directory_node_slots);
  g.sync();
  u32* children = detail::node_children(page);
  for (u32 i = g.rank(); i < span.count; i += Group::size()) children[span.first + i] = child;
  g.sync();
}

template <class Group>
GPU4FS_FN GPU4FS_NOINLINE bool node_span_is(Group g, const u8* page, NodeSpan span, u32 child) {
  const u32* children = detail::node_children(page);
  bool same = true;
  for (u32 i = g.rank(); i < span.count; i += Group::size()) same = same && children[span.first + i] == child;
  return g.all(same);
}

// Checks a single page of a directory of `page_count` pages (for fsck, and for the reader of a damaged pool): header,
// slots, names, hashes with the pool's seed; or a node's children. corrupt_structure or ok.
template <class Group>
GPU4FS_FN GPU4FS_NOINLINE Status directory_check_page(Group g, const u8* page, u64 page_count, bool is_root,
                                                      u64 hash_seed) {
  const format::DirectoryPageHeader& header = detail::page_header(page);
  if (header.magic == format::directory_node_magic) {
    if (header.level >= format::directory_level_max || (is_root && header.level != 0)) return Status::corrupt_structure;
    if (!node_header_is_sound(page, header.level, header.prefix)) return Status::corrupt_structure;
    bool sound = true;
    for (u32 i = g.rank(); i < format::directory_node_slots; i += Group::size()) {
      const u32 child = detail::node_children(page)[i];
      sound = sound && child != 0 && child < page_count;
    }
    return g.all(sound) ? Status::ok : Status::corrupt_structure;
  }
  if (header.level >= format::directory_level_max || (is_root && header.level != 0)) return Status::corrupt_structure;
  if (!leaf_header_is_sound(page, is_root, header.level, header.prefix)) return Status::corrupt_structure;
  if (!leaf_check(g, page)) return Status::corrupt_structure;
  bool sound = true;
  const format::DirectorySlot* slots = detail::leaf_slots(page);
  for (u32 i = g.rank(); i < header.entry_count; i += Group::size()) {
    const u8* name = detail::entry_name(page, slots[i].entry_offset);
    for (u32 k = 0; k < slots[i].name_length; ++k) sound = sound && name[k] != 0 && name[k] != '/';
    sound = sound && xxh3_64(name, slots[i].name_length, hash_seed) == slots[i].hash;
    sound = sound && detail::entry_inode(page, slots[i].entry_offset) != 0;
    if (i == 0 || slots[i - 1].hash != slots[i].hash) continue;
    sound = sound && detail::compare_names(detail::entry_name(page, slots[i - 1].entry_offset),
                                           slots[i - 1].name_length, name, slots[i].name_length) < 0;
  }
  return g.all(sound) ? Status::ok : Status::corrupt_structure;
}

}  // namespace gpu4fs::fs
